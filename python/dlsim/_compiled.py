# SPDX-License-Identifier: Apache-2.0
"""Compiled code, which calls no hook that was added after it was made, kept from running."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ._errors import UsageError


class Shared:
    """Something that is on while anybody uses it, on any thread; `start` returns its end."""

    def __init__(self, start: Callable[[], Callable[[], None] | None]) -> None:
        self._lock = threading.Lock()
        self._start, self._users = start, 0
        self._end: Callable[[], None] | None = None

    def acquire(self) -> None:
        """Counts a user, and starts with the first, or as soon as that is possible."""
        with self._lock:
            self._end = self._end or self._start()
            self._users += 1

    def release(self) -> None:
        """Ends with the last user."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._end is not None:
                end, self._end = self._end, None
                end()


def _force_eager() -> Callable[[], None] | None:
    """Has compiled code run as it was written, if there may be some."""
    set_stance = _set_stance()
    if set_stance is None or "torch._dynamo" not in sys.modules:
        return None
    undo = ExitStack()
    undo.push(set_stance("force_eager"))  # which acts from now on
    return undo.close


_eager = Shared(_force_eager)


def _set_stance() -> Any:
    """Returns torch.compiler.set_stance; None before PyTorch 2.6."""
    import torch

    return getattr(getattr(torch, "compiler", None), "set_stance", None)


def check_hooks_run(models: Any) -> None:
    """Raises UsageError if parts of the models are compiled and nothing can keep them from it."""
    if _set_stance() is None and any(
        type(part).__name__ == "OptimizedModule"
        or getattr(part, "_compiled_call_impl", None) is not None
        for one in models
        for part in one.modules()
    ):
        raise UsageError(
            "model: is compiled, where hooks added later do nothing, expected it before "
            "torch.compile, or PyTorch 2.6 or later, which can run it without"
        )


class Uncompiled:
    """One user's wish that compiled code runs as it was written, so that hooks are called."""

    def __init__(self) -> None:
        self._holds = False

    def hold(self, wanted: bool) -> None:
        """Makes it run so from now on, or no longer on account of this user."""
        if wanted == self._holds:
            return
        (_eager.acquire if wanted else _eager.release)()
        self._holds = wanted
