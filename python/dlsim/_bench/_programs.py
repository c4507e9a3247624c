# SPDX-License-Identifier: Apache-2.0
"""The programs that are measured: where they are, and runs of them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from .._errors import Error, InputError, UsageError
from ._results import printable, quoted

_USAGE, _INPUT = 2, 3  # exit codes of dlsim's programs

# Where tools/bench says that the programs of a source tree are; None: those of the package.
folder: Path | None = None


def dlsim_command() -> list[str]:
    """Returns the words that start dlsim: the program, or Python, whose start counts, too."""
    return [sys.executable, "-m", "dlsim"] if folder is None else [str(folder / "dlsim")]


def bench_program() -> str:
    """Returns the path of dlsim_bench: $DLSIM_BENCH, in the folder of programs, or in $PATH."""
    named = os.environ.get("DLSIM_BENCH")
    if named is not None:
        if os.access(named, os.X_OK):
            return named
        raise InputError(
            f"$DLSIM_BENCH: no such program, expected the path of dlsim_bench, got {quoted(named)}"
        )
    built = "dlsim_bench" if folder is None else str(folder / "dlsim_bench")
    found = shutil.which(built) or shutil.which("dlsim_bench")
    if found:
        return found
    raise InputError(
        f"{printable(built)}: not built; configure with -DDLSIM_BUILD_BENCHMARKS=ON (needs "
        "libbenchmark-dev) and build, or set DLSIM_BENCH"
    )


def run_program(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    inherited_file: int | None = None,
) -> str:
    """Runs a program and returns its standard output; it is killed if an exception comes first."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            pass_fds=() if inherited_file is None else (inherited_file,),
            check=False,
        )
    except OSError as error:
        raise InputError(f"{printable(command[0])}: cannot be run ({error.strerror})") from error
    require_success(command[0], done.returncode, done.stderr)
    return done.stdout


def require_success(program: str, code: int, errors: str) -> None:
    """Raises Error with the last line that a program wrote; errors of the user stay such."""
    if code == 0:
        return
    place = printable(Path(program).name)
    if code < 0:
        raise Error(f"{place}: ended by a signal ({signal.strsignal(-code)})")
    lines = [line for line in errors.splitlines() if line.strip()]
    why = f": {printable(lines[-1])}" if lines else ""
    kind = {_USAGE: UsageError, _INPUT: InputError}.get(code, Error)
    raise kind(f"{place}: failed with exit code {code}{why}")
