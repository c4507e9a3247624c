# SPDX-License-Identifier: Apache-2.0
"""Values rounded to a 16-bit type and back: by dlsim's codec on a CPU, by torch elsewhere."""

from __future__ import annotations

import torch

from .._core import Format
from ..arrays._convert import quantize

FORMATS = {"float16": "fp16", "bfloat16": "bf16", "cbfloat16": "cb16"}

_CB16 = Format("cb16")
_CB16_DROPPED = 23 - _CB16.mantissa_bits  # of the mantissa of float32


def _cb16(values: torch.Tensor) -> torch.Tensor:
    bits = values.view(torch.int32)
    # To nearest even: a carry out of the mantissa goes into the exponent. NaN may leave its range.
    odd = (bits >> _CB16_DROPPED) & 1
    half = (1 << (_CB16_DROPPED - 1)) - 1
    normal = ((bits + half + odd) & -(1 << _CB16_DROPPED)).view(torch.float32)
    normal = torch.where(normal.abs() <= _CB16.max_finite, normal, torch.sign(values) * torch.inf)
    # Both products are exact but for the rounding of torch.round, which is to even and keeps -0.
    steps = torch.mul(values, 1 / _CB16.min_positive)
    subnormal = steps.round() * _CB16.min_positive
    rounded = torch.where(values.abs() < _CB16.min_normal, subnormal, normal)
    return torch.where(values.isnan(), values, rounded)


def rounded_by_torch(values: torch.Tensor, half_dtype: str) -> torch.Tensor:
    """Returns what the codec returns, but for the payload of NaN, in operations of any device.

    A dlsim that was built without CUDA emulates with it on a GPU, too. float32 in and out.
    """
    if half_dtype == "cbfloat16":
        return _cb16(values)
    result: torch.Tensor = values.to(getattr(torch, half_dtype)).to(torch.float32)
    return result


def round_values_(values: torch.Tensor, half_dtype: str) -> None:
    """Rounds real `values`, of any shape, layout in memory and device, to `half_dtype` in place.

    To nearest even; subnormals are kept, overflow gives infinity and NaN stays NaN. Other types
    than float32 are converted to float32 first. "float32" changes nothing.
    """
    if half_dtype == "float32":
        return
    if values.device.type != "cpu":
        values.copy_(rounded_by_torch(values.to(torch.float32), half_dtype))
    elif values.dtype == torch.float32 and values.is_contiguous():
        quantize(values, FORMATS[half_dtype], out=values)
    else:
        values.copy_(quantize(values, FORMATS[half_dtype]))
