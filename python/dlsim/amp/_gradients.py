# SPDX-License-Identifier: Apache-2.0
"""What a scaler does with the gradients of an optimizer: round, multiply, sum the squares."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .._rounding import rounded_in_place
from ..arrays._convert import measure
from ._half_dtype import FORMATS

# Elements that are squared at a time: the float64 copy stays small.
_CHUNK = 1 << 22


def parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yields all parameters of `optimizer`, group by group."""
    for group in optimizer.param_groups:
        yield from group["params"]


def _stored(grad: torch.Tensor) -> torch.Tensor:
    # The values that a gradient holds, as a real tensor that shares their memory.
    if grad.layout == torch.sparse_coo:
        grad = grad._values()
    elif grad.layout != torch.strided:
        grad = grad.values()
    return torch.view_as_real(grad) if grad.is_complex() else grad


def plain_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Returns .grad, which is replaced first if its memory does not hold its values.

    That is so for a sparse one with duplicates, and where conjugation or a sign is put off.
    """
    grad: Any = parameter.grad
    plain: torch.Tensor = grad.resolve_conj().resolve_neg()
    if plain.layout == torch.sparse_coo and not plain.is_coalesced():
        plain = plain.coalesce()
    if plain is not grad:
        parameter.grad = plain
    return plain


def rounded_gradient(grad: torch.Tensor, half_dtype: str) -> torch.Tensor:
    """Returns a copy of a gradient of any layout, rounded to `half_dtype` and back."""
    grad = grad.coalesce() if grad.layout == torch.sparse_coo else grad
    copy: torch.Tensor = grad.detach().clone()
    round_(copy, half_dtype)
    return copy


def round_(grad: torch.Tensor, half_dtype: str) -> None:
    """Rounds a gradient to `half_dtype` and back, in place."""
    if half_dtype != "float32":
        rounded_in_place(_stored(grad.detach()), FORMATS[half_dtype])


def scale_(grad: torch.Tensor, factor: float) -> None:
    """Multiplies a gradient by a float32 value, in place and in the gradient's own type."""
    _stored(grad).mul_(factor)


def square_sum(grad: torch.Tensor) -> torch.Tensor | float:
    """Returns the float64 sum of the squares of a gradient, a scalar that stays on its device.

    It is inf or NaN if the gradient is not finite.
    """
    values = _stored(grad.detach())
    if values.device.type == "cpu" and values.dtype == torch.float32:
        stats = measure(values, "bf16")  # the sum does not depend on the format
        return stats.sum_of_squares if not stats.nonfinite else math.nan
    flat: Any = values.reshape(-1)
    parts = flat.split(_CHUNK)
    result: torch.Tensor = torch.stack([part.double().square().sum() for part in parts]).sum()
    return result


def total(sums: Iterable[torch.Tensor | float]) -> float:
    """Returns the sum of scalars, with one transfer from each device that has some."""
    result = 0.0
    devices: dict[torch.device, list[torch.Tensor]] = {}
    for scalar in sums:
        if isinstance(scalar, float):
            result += scalar
        else:
            devices.setdefault(scalar.device, []).append(scalar)
    return result + sum(float(torch.stack(scalars).sum()) for scalars in devices.values())
