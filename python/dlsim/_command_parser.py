# SPDX-License-Identifier: Apache-2.0
"""The argument parser of the commands that are written in Python."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from ._errors import UsageError

TYPE_CHECKING = False  # as in __init__.py
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        raise UsageError(f"{message} (see {self.prog} --help)")


def run_for_result(
    parser: CommandParser, arguments: Sequence[str], function: Callable[..., Result]
) -> int:
    """Calls a function with the options that are given, and writes its result.

    Adds --json FILE, which writes the result as JSON, "-" to standard output instead of the report.
    Returns the exit code.
    """
    words = "Write the full result as JSON; - is standard output"
    parser.add_argument("--json", metavar="FILE", help=words)
    options = {k: v for k, v in vars(parser.parse_args(arguments)).items() if v is not None}
    path = options.pop("json", None)
    result = function(**options)
    if path == "-":
        import json

        print(json.dumps(result.to_dict(), separators=(",", ":"), ensure_ascii=False))
        return 0
    if path is not None:
        result.save(path)
    sys.stdout.write(result.report)
    return 0
