# SPDX-License-Identifier: Apache-2.0
"""The `dlsim` command of the Python package: the C++ command, and what only Python offers.

Little is imported before it is known which command it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from ._errors import Error, InputError, UsageError

# Commands written in Python: the module whose main(arguments) runs it. `dlsim --help` is the C++
# command's and lists them, too: sim/app/commands.cc.
_PYTHON_COMMANDS = {
    "accumulate": "dlsim._accumulate",
    "updates": "dlsim._updates",
    "bench": "dlsim._bench",
    "explain": "dlsim.logs._command",
    "report": "dlsim.report._command",
    "import": "dlsim.importers._command",
}

# How OpenMP's threads wait, as in sim/app/command_main.cc, unless the user says.
_WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}

# Exit codes, as in docs/commands.md; 128 + the signal's number is the shell's.
_USAGE, _INPUT, _INTERNAL, _INTERRUPTED = 2, 3, 70, 130

# What ends a process unless it is handled; Python handles SIGINT by itself.
_ENDING = ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGXCPU")


class _Ended(BaseException):
    """A signal ends the command: like KeyboardInterrupt, so that no file is left on the way."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _handle_signals() -> None:
    import signal

    def end(number: int, _: object) -> None:
        for each in handled:  # a second one would end what removes the files
            signal.signal(each, signal.SIG_IGN)
        raise _Ended(number)

    # Python ignores SIGPIPE; nohup has SIGHUP ignored, which stays.
    numbers = [signal.Signals[name] for name in _ENDING]
    handled = [
        number
        for number in numbers
        if number == signal.SIGPIPE or signal.getsignal(number) == signal.SIG_DFL
    ]
    for number in handled:
        signal.signal(number, end)


def _run(name: str, arguments: Sequence[str]) -> int:
    """Runs a command written in Python; a signal ends it as it ends one written in C++."""
    import signal

    try:
        _handle_signals()
        return _run_handled(name, arguments)
    except _Ended as ended:
        number = ended.number
    # Only now have all frames gone, and what they had to close with them.
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    return 128 + number


def _run_handled(name: str, arguments: Sequence[str]) -> int:
    """Runs a command written in Python; an error of the user or the input is one line."""
    try:
        main: Callable[[Sequence[str]], int] = import_module(_PYTHON_COMMANDS[name]).main
        try:
            code = main(arguments)
        except SystemExit as ended:  # --help
            code = int(ended.code or 0)
        if sys.stdout is not None:  # it was closed before
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (Error, ModuleNotFoundError) as error:
        return _report(name, error)
    except OSError as error:
        place = error.filename
        if place is None:
            place = "standard output: cannot be written"
            # What cannot be written now cannot be written at the end of the process either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"dlsim {name}: {place}: {error.strerror or error}", file=sys.stderr)
        return _INPUT
    except Exception as error:
        return _report(name, error)


def _report(name: str, error: Exception) -> int:
    """Says why a command failed, in one line but for a mistake of dlsim; returns the exit code."""
    if isinstance(error, (Error, ModuleNotFoundError)):  # a missing package, with its install
        print(f"dlsim {name}: {error}", file=sys.stderr)
        if isinstance(error, (UsageError, ModuleNotFoundError)):
            return _USAGE
        return _INPUT if isinstance(error, InputError) else _INTERNAL
    import traceback

    traceback.print_exception(error)
    print(f"dlsim {name}: internal error: {error}", file=sys.stderr)
    return _INTERNAL


def _run_engine(arguments: Sequence[str]) -> int:
    """Runs a command written in C++, which handles signals and writes to descriptors by itself."""
    # OpenMP reads the environment while the module is loaded. Without this its threads spin for
    # milliseconds, and the C++ program would restart itself.
    if not {*_WAITING, "KMP_BLOCKTIME"} & os.environ.keys():
        os.environ.update(_WAITING)
    # Training configurations are read here: the engine takes what they mean.
    if any(word.startswith(("--config", "--grid")) for word in arguments):
        try:
            from .config import resolved

            arguments = resolved(arguments)
        except KeyboardInterrupt:
            return _INTERRUPTED
        except Exception as error:
            return _report(arguments[0], error)
    from ._core import command_main

    return command_main([os.fsencode(word) for word in arguments])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `dlsim ARGUMENTS...` (default: those of the process) and returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if len(arguments) > 1 and arguments[0] == "help" and arguments[1] in _PYTHON_COMMANDS:
        arguments = [*arguments[1:], "--help"]
    if arguments and arguments[0] in _PYTHON_COMMANDS:
        return _run(arguments[0], arguments[1:])
    return _run_engine(arguments)
