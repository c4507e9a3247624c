# SPDX-License-Identifier: Apache-2.0
"""The argument parser of the commands that are written in Python."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from ._errors import UsageError


class CommandParser(argparse.ArgumentParser):
    """Wrong usage raises UsageError with one line; options are not abbreviated, as in C++."""

    def __init__(self, **options: Any) -> None:
        if "epilog" in options:  # examples, line by line
            options["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, **options)

    def print_help(self, file: Any = None) -> None:
        """Writes the help; raises OSError where it cannot be written, which argparse hides."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        """Raises it."""
        raise UsageError(f"{message} (see {self.prog} --help)")
