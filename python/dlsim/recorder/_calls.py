# SPDX-License-Identifier: Apache-2.0
"""Calls of a recorder: one at a time, and measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .._errors import Error
from ._modes import in_recorder
from ._report import Report


class Calls:
    """Lets one thread at a time be in a call."""

    def __init__(self, report: Report, *, raises: bool) -> None:
        self._report, self._raises = report, raises
        self._inside: dict[str, int] = {}  # the thread that is in a call

    @contextmanager
    def one(self, name: str) -> Iterator[bool]:
        """Measures a call; counts an error, and yields False, if another thread is in one."""
        began, own = time.perf_counter(), threading.get_ident()
        # One bytecode looks and enters, so that no other thread comes in between.
        if self._inside.setdefault("thread", own) != own:
            with self._report.counting(name, raises=self._raises):
                raise Error("another thread is in a call of this recorder, expected one at a time")
            yield False
            return
        try:
            with in_recorder():
                yield True
        finally:
            self._report.seconds += time.perf_counter() - began
            self._inside.clear()
