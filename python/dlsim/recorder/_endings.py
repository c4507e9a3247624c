# SPDX-License-Identifier: Apache-2.0
"""What happens to open recorders when their process ends, or in one that is forked from it."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol


class Closable(Protocol):
    """A recorder, as far as endings need it."""

    def close(self) -> None:
        """Completes the output."""

    def _leave(self) -> None:
        """Ends recording in a forked process."""


class Abandonable(Protocol):
    """The output of a recorder, which outlives it."""

    def abandon(self) -> None:
        """Completes the output. Never raises."""

    def leave(self) -> None:
        """Forgets the output in a forked process."""


# Recorders that a program has forgotten to close, which its end closes.
OPEN: weakref.WeakSet[Closable] = weakref.WeakSet()

# Outputs of recorders that nobody refers to any more. The garbage collector may find one at any
# moment, in any thread and under any lock, so nothing is done there but to write it down.
_ABANDONED: list[tuple[Abandonable, Callable[[], None]]] = []


def when_collected(
    recorder: Closable, output: Abandonable, end: Callable[[], None]
) -> weakref.finalize[Any, Any]:
    """Returns what keeps the output of a recorder that is collected; detach it in `close`.

    `end` is called before the output is completed.
    """
    found = weakref.finalize(recorder, _ABANDONED.append, (output, end))
    found.atexit = False
    return found


def complete_abandoned() -> None:
    """Completes the outputs of recorders that were collected without being closed."""
    while _ABANDONED:
        output, end = _ABANDONED.pop()
        end()
        output.abandon()


@atexit.register
def _close_all() -> None:
    for recorder in list(OPEN):
        recorder.close()
    complete_abandoned()


def _leave_all() -> None:
    for recorder in list(OPEN):
        recorder._leave()
    while _ABANDONED:
        _ABANDONED.pop()[0].leave()


os.register_at_fork(after_in_child=_leave_all)
