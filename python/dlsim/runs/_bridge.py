# SPDX-License-Identifier: Apache-2.0
"""The bridge to the C++ commands: calls of them in this process, and what they gave."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from .._core import RESULT_PATH, HeldStep, run_command
from .._errors import Error, InputError, PolicyRefusal, UsageError
from ..results import Result

Progress = Callable[[int, int, str], object]

# Exit codes of the command.
_CHECK_FAILED, _USAGE, _INPUT = 1, 2, 3

_on_progress: ContextVar[Progress | None] = ContextVar("on_progress", default=None)


@dataclass(frozen=True)
class Call:
    """A call of the command: its exit code, and all that it wrote.

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
        raise Error(self.message)

    def result(self) -> Result:
        """Returns the result; raises as `check`, and PolicyRefusal where a policy refused.

        An expectation that does not hold is a finding in the result, not an error.
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


def run(
    arguments: Sequence[str],
    paths: Sequence[str] = (),
    *,
    writes_json: bool = True,
    step: HeldStep | None = None,
) -> Call:
    """Runs `dlsim ARGUMENTS... -- PATHS...`; the first argument is the command's name.

    `step` is what STEP_PATH names.
    """
    output = [f"--json={RESULT_PATH}"] if writes_json else []
    ended = ["--", *paths] if paths else []
    taken = list(arguments)
    if any(text.startswith(("--config", "--grid")) for text in arguments):
        from ..config import resolved

        taken = resolved(arguments)
    command = [os.fsencode(text) for text in (*taken, *output, *ended)]
    with _progress_of_call() as on_progress:
        code, report, said, written = run_command(command, on_progress, step)
    data = None if written is None else json.loads(written)
    lines = [line.removeprefix("note: ") for one in said for line in one.splitlines() if line]
    ended_by_error = lines and code not in (0, _CHECK_FAILED)
    message = lines.pop() if ended_by_error else f"exit code {code}"
    return Call(("dlsim", *arguments, *paths), code, report, tuple(lines), message, data)


@contextmanager
def progress_to(callback: Progress) -> Iterator[None]:
    """Context in which commands report their progress to `callback`, not on the terminal.

    A few times a second the callback gets the work done, the total work (both in units of the
    command), and a line of text. An exception that it raises ends the command.
    """
    before = _on_progress.set(callback)
    try:
        yield
    finally:
        _on_progress.reset(before)


@contextmanager
def _progress_of_call() -> Iterator[Progress | None]:
    """Yields what gets the progress of a call: a callback, else a line of the terminal, if any."""
    callback, terminal = _on_progress.get(), _terminal()
    if callback is not None or terminal is None:
        yield callback
        return
    drawn = False

    def draw(done: int, total: int, text: str) -> None:
        nonlocal drawn
        drawn = True
        os.write(terminal, b"\r\x1b[K" + text.encode())

    try:
        yield draw
    finally:
        if drawn:
            os.write(terminal, b"\r\x1b[K")


def _terminal() -> int | None:
    """Returns the descriptor of standard error if that is a terminal which redraws lines."""
    try:
        drawable = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        return sys.stderr.fileno() if drawable else None
    except (AttributeError, OSError, ValueError):
        return None


def _raise_refusal(result: Result) -> None:
    for found in result.data.get("runs", [result.data]):
        for event in found.get("events", ()):
            if event.get("step") == -1:
                refusal = PolicyRefusal(event["type"], event["message"])
                refusal.result = result
                raise refusal
