# SPDX-License-Identifier: Apache-2.0
"""Compiled code, which calls no hook that was added after it was made, kept from running."""

from __future__ import annotations

import sys
import threading
from typing import Any

from ._errors import UsageError


class _Stance:
    """torch's stance towards compiled code, "force_eager" while anything needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._stance: Any = None

    def acquire(self) -> None:
        """Counts a user; from the first on, what was compiled runs as it was written."""
        set_stance = _set_stance()
        with self._lock:
            if self._stance is None and set_stance is not None and "torch._dynamo" in sys.modules:
                self._stance = set_stance("force_eager")
            self._users += 1

    def release(self) -> None:
        """Takes up the stance before, after the last user."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._stance is not None:
                stance, self._stance = self._stance, None
                stance.__exit__(None, None, None)


_stance = _Stance()


def _set_stance() -> Any:
    """Returns torch.compiler.set_stance; None before PyTorch 2.6."""
    import torch

    return getattr(getattr(torch, "compiler", None), "set_stance", None)


def _is_compiled(module: Any) -> bool:
    return (
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
    )


def check_hooks_run(models: Any) -> None:
    """Raises UsageError if parts of the models are compiled and nothing can keep them from it."""
    if _set_stance() is None and any(
        _is_compiled(part) for one in models for part in one.modules()
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
        (_stance.acquire if wanted else _stance.release)()
        self._holds = wanted
