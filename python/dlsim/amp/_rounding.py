# SPDX-License-Identifier: Apache-2.0
"""Values rounded to a 16-bit type and back, on any device, equal to dlsim's codec."""

from __future__ import annotations

import torch

# CB16 (docs/numerics.md): 14 bits fewer than float32, values from 2^-30 are normal, 2^-39 apart
# below, and what rounds to 2^32 or more is infinite.
_CB16_DROPPED = 14
_CB16_MIN_NORMAL = 2.0**-30
_CB16_PER_SPACING = 2.0**39
_CB16_LIMIT = 2.0**32


def _cb16(values: torch.Tensor) -> torch.Tensor:
    bits = values.view(torch.int32)
    # To nearest even: a carry out of the mantissa goes into the exponent. NaN may leave its range.
    odd = (bits >> _CB16_DROPPED) & 1
    half = (1 << (_CB16_DROPPED - 1)) - 1
    normal = ((bits + half + odd) & -(1 << _CB16_DROPPED)).view(torch.float32)
    normal = torch.where(normal.abs() < _CB16_LIMIT, normal, torch.sign(values) * torch.inf)
    # Both products are exact but for the rounding of torch.round, which is to even and keeps -0.
    steps = torch.mul(values, _CB16_PER_SPACING)
    subnormal = steps.round() / _CB16_PER_SPACING
    rounded = torch.where(values.abs() < _CB16_MIN_NORMAL, subnormal, normal)
    return torch.where(values.isnan(), values, rounded)


def rounded(values: torch.Tensor, half_dtype: str) -> torch.Tensor:
    """Returns `values` (real, of any shape and device) rounded to `half_dtype` and back.

    To nearest even; subnormals are kept, overflow gives infinity and NaN stays NaN (its payload
    may not). Other types than float32 are converted to float32 first. "float32" changes nothing.
    """
    if half_dtype == "float32":
        return values
    result: torch.Tensor = values.to(torch.float32)
    if half_dtype == "cbfloat16":
        result = _cb16(result).to(values.dtype)
    else:
        result = result.to(getattr(torch, half_dtype)).to(values.dtype)
    return result
