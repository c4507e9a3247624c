# SPDX-License-Identifier: Apache-2.0
"""The 16-bit type of the model, as cerebras.pytorch.amp keeps it, and autocast to it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from .._compiled import Shared, Uncompiled
from .._errors import UsageError
from .._fast_paths import FUSED_MODULES, ClosedFastPaths
from .._rounding import Rounding, map_tensors, straight_through
from ..emulation import DEFAULT_MODULES, works_in_place

HalfDtype = Literal["float16", "bfloat16", "cbfloat16"]

# cbfloat16 has no torch type: float16 stands in for it, as in the original.
_TORCH_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "cbfloat16": torch.float16,
}

# By dlsim's names; "float32" is not rounded to.
FORMATS = {"float16": "fp16", "bfloat16": "bf16", "cbfloat16": "cb16"}


@dataclass
class _Setting:
    half_dtype: str = "float16"
    enabled: bool | None = None  # None: not set


_setting = _Setting()


def set_half_dtype(value: HalfDtype | torch.dtype) -> torch.dtype:
    """Sets the 16-bit type, switches mixed precision on, and returns the torch type to use.

    `value` is "float16", "bfloat16", "cbfloat16", torch.float16 or torch.bfloat16. The torch type
    of cbfloat16 is float16. Scalers made earlier keep the type that they were made with. Raises
    ValueError for anything else, with the original's message.
    """
    names = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
    name = names.get(value) if isinstance(value, torch.dtype) else value
    if not isinstance(name, str) or name not in _TORCH_DTYPES:
        raise ValueError(
            f"Invalid half dtype: {value}. Accepted values are: "
            f'"float16", "bfloat16", "cbfloat16", {torch.float16}, {torch.bfloat16}.'
        )
    _setting.half_dtype = name
    _setting.enabled = True
    return _TORCH_DTYPES[name]


def get_half_dtype() -> torch.dtype:
    """Returns the torch type that set_half_dtype returned; float16 at first."""
    return _TORCH_DTYPES[_setting.half_dtype]


def get_half_dtype_str() -> str:
    """Returns "float16" (at first), "bfloat16" or "cbfloat16"."""
    return _setting.half_dtype


def enable_mixed_precision(enable: bool = True) -> bool:
    """Switches mixed precision on or off; scalers made while it is off round nothing."""
    if not isinstance(enable, bool):
        raise ValueError(f"Expected a boolean value, got: {type(enable)}")
    _setting.enabled = enable
    return enable


def mixed_precision() -> bool:
    """Returns whether set_half_dtype or enable_mixed_precision switched mixed precision on."""
    return _setting.enabled is True


def rounding_dtype(asked: str | None, place: str = "GradScaler.half_dtype") -> str:
    """Returns what a new scaler or a block of autocast rounds to.

    That is `asked`, or what was set, or "float32" (not at all) once mixed precision was switched
    off. Raises UsageError for an unknown name.
    """
    if asked is None:
        return "float32" if _setting.enabled is False else _setting.half_dtype
    if asked not in (*_TORCH_DTYPES, "float32"):
        raise UsageError(
            f"{place}: unknown type, expected float16, bfloat16, cbfloat16 or float32, got "
            f"{asked!r}"
        )
    return asked


def get_floating_point_dtype(default: torch.dtype = torch.float32) -> torch.dtype:
    """Returns the 16-bit type if mixed precision is on, otherwise `default`."""
    return get_half_dtype() if mixed_precision() else default


def get_floating_point_dtype_str(default: str = "float32") -> str:
    """Returns the name of the 16-bit type if mixed precision is on, otherwise `default`."""
    return get_half_dtype_str() if mixed_precision() else default


def is_cbfloat16_tensor(tensor: torch.Tensor) -> bool:
    """Returns whether `tensor` has the type that stands in for cbfloat16 while that is set."""
    return _setting.half_dtype == "cbfloat16" and tensor.dtype == get_half_dtype()


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


def _add_hooks() -> Callable[[], None]:
    """Adds torch's hooks of all modules."""
    undo = contextlib.ExitStack()
    undo.callback(register_module_forward_pre_hook(_before).remove)
    undo.callback(register_module_forward_hook(_after).remove)
    return undo.close


_hooks = Shared(_add_hooks)  # while a block that rounds runs on any thread
