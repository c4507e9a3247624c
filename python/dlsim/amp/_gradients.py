# SPDX-License-Identifier: Apache-2.0
"""What a scaler does with the gradients of an optimizer: round, multiply, sum the squares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from ._rounding import rounded

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


def coalesced_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Returns .grad; the duplicates of a sparse one are summed first, as in the dense one."""
    grad: torch.Tensor = parameter.grad
    if grad.layout == torch.sparse_coo and not grad.is_coalesced():
        grad = grad.coalesce()
        parameter.grad = grad
    return grad


def rounded_gradient(grad: torch.Tensor, half_dtype: str) -> torch.Tensor:
    """Returns a copy of a gradient of any layout, rounded to `half_dtype` and back."""
    grad = grad.coalesce() if grad.layout == torch.sparse_coo else grad
    copy: torch.Tensor = grad.detach().clone()
    values = _stored(copy)
    values.copy_(rounded(values, half_dtype))
    return copy


def round_(grad: torch.Tensor, half_dtype: str) -> None:
    """Rounds a gradient to `half_dtype` and back, in place."""
    values = _stored(grad)
    values.copy_(rounded(values, half_dtype))


def scale_(grad: torch.Tensor, factor: float) -> None:
    """Multiplies a gradient by a float32 value, in place and in the gradient's own type."""
    _stored(grad).mul_(factor)


def square_sum(grad: torch.Tensor) -> torch.Tensor:
    """Returns the float64 sum of the squares of a gradient, a scalar on its device."""
    parts = _stored(grad).reshape(-1).split(_CHUNK)
    result: torch.Tensor = torch.stack([part.double().square().sum() for part in parts]).sum()
    return result


def total(sums: Iterable[torch.Tensor]) -> float:
    """Returns the sum of scalars, with one transfer from each device that has some."""
    devices: dict[torch.device, list[torch.Tensor]] = {}
    for scalar in sums:
        devices.setdefault(scalar.device, []).append(scalar)
    return sum(float(torch.stack(scalars).sum()) for scalars in devices.values())
