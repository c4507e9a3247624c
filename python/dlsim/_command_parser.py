# SPDX-License-Identifier: Apache-2.0
"""The argument parser of the commands that are written in Python."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from ._errors import UsageError

TYPE_CHECKING = False  # as in __init__.py
if TYPE_CHECKING:
    from .results import Result


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """The headings of the commands in C++; the examples of the epilog keep their lines."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, "Usage: " if prefix is None else prefix)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


class CommandParser(argparse.ArgumentParser):
    """Wrong usage raises UsageError with one line; options are not abbreviated, as in C++."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            allow_abbrev=False, formatter_class=_HelpFormatter, add_help=False, **options
        )
        self._positionals.title, self._optionals.title = "Arguments", "Options"
        self.add_argument("-h", "--help", action="help", help="Print this help message and exit")

    def print_help(self, file: Any = None) -> None:
        """Writes the help; raises OSError where it cannot be written, which argparse hides."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        """Raises it."""
        raise UsageError(f"{message} (see {self.prog} --help)")


def print_result(result: Result, json_path: str | None) -> None:
    """Writes a result: its JSON if a path is given, "-" for standard output, and its report."""
    if json_path == "-":
        import json

        print(json.dumps(result.data, separators=(",", ":"), ensure_ascii=False))
        return
    if json_path is not None:
        result.save(json_path)
    sys.stdout.write(result.report)
