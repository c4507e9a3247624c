# SPDX-License-Identifier: Apache-2.0
"""The 16-bit type of the model, as cerebras.pytorch.amp keeps it: one setting for the process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from .._errors import UsageError

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
