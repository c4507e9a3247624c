# SPDX-License-Identifier: Apache-2.0
"""autocast as in cerebras.pytorch.amp: a block in which modules compute as if in 16 bits."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from .._compiled import Uncompiled
from .._fast_paths import FUSED_MODULES, ClosedFastPaths
from .._rounding import Rounding, map_tensors, straight_through
from ..emulation import DEFAULT_MODULES, works_in_place
from ._half_dtype import FORMATS, get_half_dtype_str, rounding_dtype

Module = torch.nn.Module

_NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}


class autocast(contextlib.ContextDecorator):  # noqa: N801 - the original's name
    """Rounds inputs and outputs of modules to the 16-bit type, in a `with` block or a function.

    Within the block, on this thread, the inputs and outputs of the modules in
    dlsim.emulation.DEFAULT_MODULES are rounded in forward, and later the gradients that flow back
    through them in backward, wherever that runs: as dlsim.autocast_emulation does it, without
    statistics and without the gradients of parameters, which GradScaler rounds. Tensors keep their
    type.

    `dtype` is "float16", "bfloat16", "cbfloat16", "float32" (not at all), a torch type, or None for
    that of set_half_dtype when the block begins, "float32" once mixed precision was switched off.
    torch.float16 means cbfloat16 while that is set. With `enabled` False nothing is rounded, also
    within another block. `cache_enabled` is accepted and has no effect: there are no casts to
    cache. Raises TypeError or UsageError for another type.
    """

    def __init__(
        self,
        dtype: torch.dtype | str | None = None,
        *,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        """Checks the type; nothing is rounded yet."""
        self._dtype = _checked(dtype)
        self._enabled = bool(enabled)

    def __enter__(self) -> autocast:
        """Begins a block; the same object may begin several, nested or on several threads."""
        _thread.blocks.append(_Block(self._rounding()))
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the block, also after an error; that around it goes on."""
        _thread.blocks.pop().end()

    def _rounding(self) -> Rounding | None:
        if not self._enabled:
            return None
        name = self._dtype
        if isinstance(name, torch.dtype):
            stands_in = name == torch.float16 and get_half_dtype_str() == "cbfloat16"
            name = "cbfloat16" if stands_in else _NAMES[name]
        format = FORMATS.get(rounding_dtype(name))
        return None if format is None else Rounding(format)


def _checked(dtype: torch.dtype | str | None) -> torch.dtype | str | None:
    place = "autocast.dtype"
    if isinstance(dtype, torch.dtype):
        rounding_dtype(_NAMES.get(dtype, str(dtype)), place)
    elif dtype is None or isinstance(dtype, str):
        rounding_dtype(dtype, place)
    else:
        raise TypeError(
            f"{place}: bad type, expected a torch.dtype, its name or None, got "
            f"{type(dtype).__name__}"
        )
    return dtype


class _Block:
    """A block that runs, and what it rounds to."""

    def __init__(self, rounding: Rounding | None) -> None:
        self._rounding = rounding
        self._closed: list[tuple[Module, ClosedFastPaths]] = []
        self._uncompiled = Uncompiled()
        if rounding is not None:
            self._uncompiled.hold(True)
            _hooks.acquire()

    def end(self) -> None:
        """Leaves everything as it was before the block."""
        if self._rounding is not None:
            _hooks.release()
        self._uncompiled.hold(False)
        while self._closed:
            self._closed.pop()[1].reopen()

    def before(self, module: Module, inputs: tuple[Any, ...]) -> Any:
        """Returns the inputs of a module that begins, or None for the same."""
        if self._rounding is not None and isinstance(module, FUSED_MODULES):
            self._closed.append((module, ClosedFastPaths(module)))
        return None if works_in_place(module) else self._rounded(module, inputs)

    def after(self, module: Module, output: Any) -> Any:
        """Returns the output of a module that has ended, or None for the same."""
        while any(owner is module for owner, _ in self._closed):  # those within it, if it raised
            self._closed.pop()[1].reopen()
        return self._rounded(module, output)

    def _rounded(self, module: Module, values: Any) -> Any:
        if self._rounding is None or not isinstance(module, DEFAULT_MODULES):
            return None
        rule = self._rounding
        return map_tensors(values, lambda tensor: straight_through(tensor, rule, rule))


class _Thread(threading.local):
    """The blocks of one thread, the innermost last."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []


_thread = _Thread()


def _before(module: Module, inputs: tuple[Any, ...]) -> Any:
    return _thread.blocks[-1].before(module, inputs) if _thread.blocks else None


def _after(module: Module, _: Any, output: Any) -> Any:
    return _thread.blocks[-1].after(module, output) if _thread.blocks else None


class _Hooks:
    """torch's hooks of all modules, which exist while a block that rounds runs on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._handles: list[Any] = []

    def acquire(self) -> None:
        """Counts a block, and starts with the first."""
        with self._lock:
            if self._users == 0:
                self._handles = [
                    register_module_forward_pre_hook(_before),
                    register_module_forward_hook(_after),
                ]
            self._users += 1

    def release(self) -> None:
        """Ends with the last block."""
        with self._lock:
            self._users -= 1
            while self._users == 0 and self._handles:
                self._handles.pop().remove()


_hooks = _Hooks()
