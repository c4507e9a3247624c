# SPDX-License-Identifier: Apache-2.0
"""Clipping of gradients by norm or by value, with the checks of Cerebras' code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_

from ._gradients import parameters as parameters_of
from ._gradients import scale_

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
        for parameter in parameters_of(optimizer):
            if parameter.grad is not None and factor < 1:
                scale_(parameter.grad.detach(), float(factor))
