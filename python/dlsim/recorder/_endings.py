# SPDX-License-Identifier: Apache-2.0
"""What becomes of open recorders when their process ends, or in one that is forked from it."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol


class Closable(Protocol):
    """A recorder, as far as endings need it."""

    def close(self) -> None:
        """Completes the output."""

    def _leave(self) -> None:
        """Ends recording in a forked process."""


# Recorders that a program has forgotten to close, which its end closes.
OPEN: weakref.WeakSet[Closable] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for recorder in list(OPEN):
        recorder.close()


def _leave_all() -> None:
    for recorder in list(OPEN):
        recorder._leave()


os.register_at_fork(after_in_child=_leave_all)
