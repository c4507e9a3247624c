# SPDX-License-Identifier: Apache-2.0
"""Runs the C++ command as a child: its progress on a terminal, its messages caught."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

# How the command draws progress: on a terminal over the same line, else as lines of its own.
_DRAWN = re.compile(rb"\r\x1b\[K(?:[^\r\n]* s left)?")
_LINE = re.compile(r" *\d+ %  .* s left$")
_PREFIX = re.compile(r"^dlsim(?: [a-z]+)*: (?:note: )?")


class Outcome(NamedTuple):
    """How a command ended: exit code (negative: the signal), its report, notes and error."""

    code: int
    report: str
    notes: tuple[str, ...]
    message: str


def run_command(command: Sequence[str], output: Path) -> Outcome:
    """Runs a command whose standard output goes to the file `output`.

    An exception meanwhile, such as KeyboardInterrupt, ends the child before it goes on.
    """
    terminal = _terminal()
    reader, writer = os.pipe() if terminal is None else os.openpty()
    try:
        with output.open("wb") as file:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=writer)
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    try:
        errors = _read(reader, terminal)
        code = child.wait()
    except BaseException:
        _end(child)
        raise
    finally:
        os.close(reader)
    lines = [line for line in errors.splitlines() if line and not _LINE.search(line)]
    lines = [_PREFIX.sub("", line) for line in lines]
    message = lines.pop() if code != 0 and lines else f"exit code {code}"
    return Outcome(code, output.read_text("utf-8", "replace"), tuple(lines), message)


def _terminal() -> int | None:
    """Returns the descriptor of standard error if that is a terminal."""
    try:
        return sys.stderr.fileno() if sys.stderr.isatty() else None
    except (AttributeError, OSError, ValueError):
        return None


def _read(reader: int, terminal: int | None) -> str:
    """Returns all that arrives but progress, which is shown on the terminal."""
    caught = b""
    shown = 0
    while True:
        try:
            chunk = os.read(reader, 65536)
        except OSError:  # EIO: the last writer of a pseudo-terminal has gone
            break
        if not chunk:
            break
        caught += chunk
        if terminal is not None:  # what is drawn may arrive in pieces
            drawn = b"".join(_DRAWN.findall(caught))
            shown += os.write(terminal, drawn[shown:])
    return _DRAWN.sub(b"", caught).replace(b"\r\n", b"\n").decode("utf-8", "replace")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Asks a child to end, so that it removes its temporary files, and insists after 5 s."""
    child.terminate()
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
