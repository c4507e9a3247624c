# SPDX-License-Identifier: Apache-2.0
"""The bridge to the C++ command: calls of it as a child, and what they gave."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .._binary import command_path
from .._errors import Error, InputError, PolicyRefusal, UsageError
from ..results import Result

_PREFIX = re.compile(r"^dlsim(?: [a-z]+)*: (?:note: )?")

# Longer arguments go through a file: Linux limits one to 128 KiB.
_LONG_ARGUMENT = 100_000
_LONG_LISTS = ("--overflow-at", "--absmax", "--histogram")

# Exit codes of the command.
_CHECK_FAILED, _USAGE, _INPUT = 1, 2, 3


@dataclass(frozen=True)
class Call:
    """A call of the command: its exit code (negative: the signal), and all that it wrote.

    `message` is the error, without the command's name; `data` is the JSON, None without one.
    """

    command: tuple[str, ...]
    code: int
    report: str
    notes: tuple[str, ...]
    message: str
    data: dict[str, Any] | None

    def check(self) -> None:
        """Raises the exception of an exit code that is not 0; the message is the command's."""
        if self.code == 0:
            return
        if self.code == _USAGE:
            raise UsageError(self.message)
        if self.code == _INPUT:
            raise InputError(self.message)
        if self.code < 0:
            name = self.command[1]
            raise Error(f"{name}: the command was ended by signal {-self.code}")
        raise Error(self.message)

    def result(self) -> Result:
        """Returns the result; raises as `check`, and PolicyRefusal where a policy refused.

        An expectation that does not hold is a finding: it stands in the result.
        """
        found = None
        if self.data is not None:
            found = Result(self.command, self.data, self.notes, self.report)
            if self.code == _CHECK_FAILED:
                return found
            if self.code == _USAGE:
                _raise_refusal(found)
        self.check()
        if found is None:
            raise Error(f"{self.command[1]}: the command wrote no result")
        return found


def run(arguments: Sequence[str], paths: Sequence[str] = (), *, writes_json: bool = True) -> Call:
    """Runs `dlsim ARGUMENTS... -- PATHS...`; the first argument is the command's name."""
    with TemporaryDirectory(prefix="dlsim-") as name:
        folder = Path(name)
        written = folder / "result.json"
        given = [_shortened(argument, folder) for argument in arguments]
        if writes_json:
            given.append(f"--json={written}")
        ended = ["--", *paths] if paths else []
        try:
            code, errors = run_child([str(command_path()), *given, *ended], folder)
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            raise UsageError(f"{arguments[0]}: arguments too long for the system") from None
        report = (folder / "report").read_text("utf-8", "replace")
        data = json.loads(written.read_text("utf-8")) if written.exists() else None
    lines = [_PREFIX.sub("", line) for line in errors.splitlines() if line]
    ended_by_error = lines and code not in (0, _CHECK_FAILED)
    message = lines.pop() if ended_by_error else f"exit code {code}"
    return Call(("dlsim", *arguments, *paths), code, report, tuple(lines), message, data)


def run_child(command: Sequence[str], folder: Path) -> tuple[int, str]:
    """Runs a command with its output in `folder`/report; returns exit code and standard error.

    Its progress is drawn on a terminal. An exception meanwhile, such as KeyboardInterrupt, ends the
    child before it goes on.
    """
    reader, writer = os.pipe()
    try:
        with (folder / "report").open("wb") as report, (folder / "errors").open("wb") as errors:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=report,
                stderr=errors,
                pass_fds=(writer,),
                env={**os.environ, "DLSIM_PROGRESS_FD": str(writer)},
            )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    try:
        _draw(reader, _terminal())
        code = child.wait()
    except BaseException:
        _end(child)
        raise
    finally:
        os.close(reader)
    return code, (folder / "errors").read_text("utf-8", "replace")


def _draw(reader: int, terminal: int | None) -> None:
    """Draws lines "DONE TOTAL TEXT" over each other until their writer has gone."""
    with open(reader, "rb", closefd=False) as lines:
        for line in lines:
            if terminal is not None:
                os.write(terminal, b"\r\x1b[K" + line.removesuffix(b"\n").split(b" ", 2)[-1])


def _terminal() -> int | None:
    """Returns the descriptor of standard error if that is a terminal which redraws lines."""
    try:
        drawable = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        return sys.stderr.fileno() if drawable else None
    except (AttributeError, OSError, ValueError):
        return None


def _end(child: subprocess.Popen[bytes]) -> None:
    """Asks a child to end, so that it removes its temporary files, and insists after 5 s."""
    child.terminate()
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _shortened(argument: str, folder: Path) -> str:
    """Moves a long list of steps to a file; other long arguments stay and are refused by Linux."""
    flag, _, text = argument.partition("=")
    if len(argument) < _LONG_ARGUMENT or flag not in _LONG_LISTS:
        return argument
    path = folder / flag.lstrip("-")
    path.write_text(text, encoding="ascii")
    return f"{flag}=@{path}"


def _raise_refusal(result: Result) -> None:
    for found in result.data.get("runs", [result.data]):
        for event in found.get("events", ()):
            if event.get("step") == -1:
                refusal = PolicyRefusal(event["type"], event["message"])
                refusal.result = result
                raise refusal
