# SPDX-License-Identifier: Apache-2.0
"""What a scaler does with losses and gradients: scale, round, sum the squares, clip."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_

from .._rounding import rounded_in_place
from ..arrays._convert import measure
from ._autocast import FORMATS

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


class QuantizeFirst:
    """Hooks on parameters that round what a backward pass adds to .grad while `active`."""

    def __init__(self, half_dtype: str) -> None:
        self.active = False
        self._half_dtype = half_dtype
        self._hooked: dict[int, weakref.ref[torch.Tensor]] = {}
        self._rounded: set[int] = set()

    def add(self, parameter: Any) -> None:
        """Puts a hook on `parameter` unless it has one or needs no gradient."""
        known = self._hooked.get(id(parameter))
        if parameter.requires_grad and (known is None or known() is not parameter):
            self._hooked[id(parameter)] = weakref.ref(parameter)
            parameter.register_hook(self._hook_of(id(parameter)))

    def _hook_of(self, key: int) -> Callable[[torch.Tensor], torch.Tensor | None]:
        def hook(grad: torch.Tensor) -> torch.Tensor | None:
            # With create_graph a rounded copy would cut the graph of a gradient penalty.
            if not self.active or grad.requires_grad:
                return None
            self._rounded.add(key)
            return rounded_gradient(grad, self._half_dtype)

        return hook

    def has_rounded(self, parameter: torch.Tensor) -> bool:
        """Returns whether the gradient of `parameter` consists of rounded parts."""
        return id(parameter) in self._rounded

    def finish(self) -> None:
        """Stops rounding until `active` is set again, and forgets what was rounded."""
        self.active = False
        self._rounded.clear()


def scaled(outputs: Any, scale: float) -> Any:
    """Returns a loss in float32 times `scale`; of lists, tuples and iterables, that of each item.

    Raises ValueError, with torch's message, for anything else.
    """
    if isinstance(outputs, torch.Tensor):
        return outputs.float() if scale == 1.0 else outputs.float() * scale
    if isinstance(outputs, (list, tuple)):
        return type(outputs)([scaled(output, scale) for output in outputs])
    if isinstance(outputs, Iterable) and not isinstance(outputs, (str, bytes)):
        return (scaled(output, scale) for output in outputs)
    raise ValueError("outputs must be a Tensor or an iterable of Tensors")


CLIPPING_IS_DEPRECATED = (
    "Using global gradient clipping built into GradScaler is deprecated. Use "
    "torch.nn.utils.clip_grad_norm_"
)


def check_limits(
    max_gradient_norm: float | None, max_gradient_value: float | None, *, zero_allowed: bool
) -> None:
    """Raises ValueError, with the original's message, for a limit that is no limit and for both."""
    for name, limit in (
        ("max_gradient_norm", max_gradient_norm),
        ("max_gradient_value", max_gradient_value),
    ):
        # Written so that NaN is refused, which the original accepts.
        if limit is not None and not (limit >= 0.0 if zero_allowed else limit > 0.0):
            kind = "non-negative" if zero_allowed else "positive"
            raise ValueError(f"{name} has to be a {kind} float. Got {limit}")
    if max_gradient_norm is not None and max_gradient_value is not None:
        raise ValueError(
            f"Gradients can be clipped by norm(={max_gradient_norm}) or by "
            f"value(={max_gradient_value}), but not both. "
            f"Do not set both `max_gradient_norm` and `max_gradient_value`."
        )


def clip_(
    parameters: Sequence[torch.Tensor],
    max_gradient_norm: float | None,
    max_gradient_value: float | None,
) -> None:
    """Clips the gradients of `parameters` in place with torch's functions, or not at all."""
    if max_gradient_norm is not None:
        clip_grad_norm_(parameters, max_gradient_norm)
    elif max_gradient_value is not None:
        clip_grad_value_(parameters, max_gradient_value)


def clip_all_(
    optimizers: Iterable[torch.optim.Optimizer], norm: torch.Tensor, max_gradient_norm: float
) -> None:
    """Multiplies all gradients so that their norm, `norm`, is at most `max_gradient_norm`."""
    factor = max_gradient_norm / (norm + 1e-6)
    for optimizer in optimizers:
        for parameter in parameters(optimizer):
            if parameter.grad is not None and factor < 1:
                scale_(parameter.grad.detach(), float(factor))
