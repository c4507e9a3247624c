# SPDX-License-Identifier: Apache-2.0
"""Keeps a trace directory for one recorder at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from .._errors import UsageError


class Lock:
    """A file that is locked until `release`, or until the process ends however it may.

    Raises UsageError if another recorder has it. A file system without locks is taken as it is.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = os.getpid()
        while True:
            # A process that is forked closes its copy, which leaves the lock where it is.
            self._file = path.open("ab")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._file.close()
                raise UsageError(
                    f"{path.parent}: another recorder is writing there, expected another "
                    "directory, or that recorder to be closed"
                ) from None
            except OSError:
                return
            if self._is_at_its_place():
                return
            self._file.close()  # its holder has just removed it

    def _is_at_its_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Removes the file and gives the lock back."""
        if self._file.closed or os.getpid() != self._process:
            return
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
            fcntl.flock(self._file, fcntl.LOCK_UN)  # processes that were forked may have it open
        self._file.close()
