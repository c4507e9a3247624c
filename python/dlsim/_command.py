# SPDX-License-Identifier: Apache-2.0
"""The `dlsim` command of the Python package: the C++ command, and what only Python offers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from ._binary import command_path
from ._errors import Error, InputError, UsageError

# Commands written in Python: the module whose main(arguments) runs it, and a line for --help.
_PYTHON_COMMANDS = {
    "report": ("dlsim.report._command", "a self-contained HTML page of results"),
    "import": ("dlsim.importers._command", "dumps of other tools to traces or profiles"),
    "export": ("dlsim.export._command", "results to Parquet or CSV tables"),
}


def _run(name: str, arguments: Sequence[str]) -> int:
    main: Callable[[Sequence[str]], int] = import_module(_PYTHON_COMMANDS[name][0]).main
    try:
        return main(arguments)
    except (UsageError, InputError, Error) as error:
        print(f"dlsim {name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 3 if isinstance(error, InputError) else 70
    except KeyboardInterrupt:
        return 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `dlsim ARGUMENTS...` (default: those of the process) and returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments and arguments[0] in _PYTHON_COMMANDS:
        return _run(arguments[0], arguments[1:])
    path = command_path()
    os.execv(path, ["dlsim", *arguments])
