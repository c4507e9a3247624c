# SPDX-License-Identifier: Apache-2.0
"""Where a model turns autocast off, `torch.autocast(..., enabled=False)`, seen without autocast."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import WeakSet, finalize


class Regions:
    """Sees the contexts of `torch.autocast` that are entered and left while it is entered itself.

    `counts` says whether one that is entered now is a part of the model; around the model it is how
    the training that is recorded goes without autocast, whatever the one in 16 bits would do. What
    turns autocast off only where it is on, learns that it is.
    """

    def __init__(self, counts: Callable[[], bool]) -> None:
        self.off = False  # whether autocast would be off where the thread of the model is
        self.casts = False  # whether all that is given there would be cast to float32 before
        self._counts = counts
        # Contexts, with what `off` and `casts` were before.
        self._entered: list[tuple[Any, tuple[bool, bool]]] = []
        self._refused: WeakSet[Any] = WeakSet()  # made with enabled=False
        self._casting: WeakSet[Any] = WeakSet()  # made by `custom_fwd` with cast_inputs
        self._thread = 0
        finalize(self, _unpatch_unused).atexit = False

    def enter(self) -> None:
        """Begins to see, if it does not."""
        if self not in _SEEING:
            self.off, self.casts, self._thread = False, False, threading.get_ident()
            self._entered.clear()
            _SEEING.add(self)
            if not _PATCHES:
                _PATCHES.append(_patch())

    def leave(self) -> None:
        """Ends seeing."""
        _SEEING.discard(self)
        _unpatch_unused()

    def made(self, context: Any, enabled: bool, casting: bool) -> None:
        """Notes how a context was made."""
        if not enabled:
            self._refused.add(context)
        if casting:
            self._casting.add(context)

    def into(self, context: Any) -> None:
        """Notes that a context is entered."""
        if threading.get_ident() != self._thread:
            return
        self._entered.append((context, (self.off, self.casts)))
        if self._counts():
            self.off = context in self._refused or not (context._enabled or _unavailable(context))
            self.casts = context in self._casting

    def out(self, context: Any) -> None:
        """Notes that a context is left."""
        if threading.get_ident() == self._thread and self._entered:
            inner, before = self._entered[-1]
            if inner is context:
                self.off, self.casts = before
                self._entered.pop()


def nesting() -> int:
    """Returns how many contexts of autocast are entered around the caller."""
    import torch

    entered = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return int(entered) - 1


def _unavailable(context: Any) -> bool:
    """Returns whether PyTorch turns a context off by itself, as there is no device."""
    import torch

    return bool(context.device == "cuda") and not torch.cuda.is_available()


def _casts(caller: FrameType | None) -> bool:
    """Returns whether a function is that of `custom_fwd` with cast_inputs=torch.float32."""
    import torch

    if caller is None or caller.f_code.co_name != "decorate_fwd":
        return False
    return caller.f_locals.get("cast_inputs") is torch.float32


def _turns_off(caller: FrameType) -> bool:
    """Returns whether a function asks whether autocast is on in order to turn it off.

    `maybe_autocast` is that of Hugging Face's transformers.
    """
    if caller.f_code.co_name == "maybe_autocast":
        return caller.f_locals.get("enabled") is False
    return _casts(caller)


# One patch serves those that see, of several recorders.
_SEEING: WeakSet[Regions] = WeakSet()
_PATCHES: list[Callable[[], None]] = []  # what ends it, if there is one


def _unpatch_unused() -> None:
    while _PATCHES and not _SEEING:
        _PATCHES.pop()()


def _patch() -> Callable[[], None]:
    """Has contexts call those that see; returns what ends that."""
    import torch

    module: Any = torch  # whose types lack the class in PyTorch 1.13
    autocast = module.autocast
    before = {name: autocast.__dict__[name] for name in ("__init__", "__enter__", "__exit__")}
    enabled_before = module.is_autocast_enabled

    def init(self: Any, *args: Any, **options: Any) -> None:
        before["__init__"](self, *args, **options)
        enabled = options.get("enabled", args[2] if len(args) > 2 else True)
        caller = sys._getframe(1)  # or, before PyTorch 2.4, that of a subclass for CUDA
        casting = _casts(caller) or _casts(caller.f_back)
        for regions in list(_SEEING):
            regions.made(self, enabled, casting)

    def enter(self: Any) -> Any:
        result = before["__enter__"](self)
        for regions in list(_SEEING):
            regions.into(self)
        return result

    def leave(self: Any, *error: Any) -> Any:
        for regions in list(_SEEING):
            regions.out(self)
        return before["__exit__"](self, *error)

    def is_enabled(*args: Any) -> bool:
        return _turns_off(sys._getframe(1)) or bool(enabled_before(*args))

    patches = {"__init__": init, "__enter__": enter, "__exit__": leave}
    for name, patch in patches.items():
        setattr(autocast, name, patch)
    module.is_autocast_enabled = is_enabled

    def end() -> None:
        for name, patch in patches.items():
            if autocast.__dict__[name] is patch:  # else somebody has patched it meanwhile
                setattr(autocast, name, before[name])
        if module.is_autocast_enabled is is_enabled:
            module.is_autocast_enabled = enabled_before

    return end
