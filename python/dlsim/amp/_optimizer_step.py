# SPDX-License-Identifier: Apache-2.0
"""One call for backward, unscaling, clipping, stepping and updating the scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from . import _gradients as gradients
from ._clipping import check_limits, clip_
from ._grad_scaler import GradScaler


def _optimizers(optimizer: Any) -> list[Optimizer]:
    optimizers: list[Any] = [optimizer]
    if isinstance(optimizer, (list, tuple)):
        optimizers = list(optimizer)
    for i, one in enumerate(optimizers):
        if not isinstance(one, Optimizer):
            raise TypeError(
                f"Expected optimizer {i} to be a `torch.optim.Optimizer`. Got: `{type(one)}`"
            )
    return optimizers


def optimizer_step(
    loss: torch.Tensor,
    optimizer: Optimizer | Sequence[Optimizer],
    grad_scaler: GradScaler,
    max_gradient_norm: float | None = None,
    max_gradient_value: float | None = None,
    *,
    max_gradient_val: float | None = None,
) -> None:
    """Runs backward() and a step of one or several optimizers; then their gradients are zeroed.

    The order is scale, backward, unscale_, clip by norm or by value, step, update, zero_grad; the
    norm is that of all parameters of all optimizers. Everything is checked before the backward
    pass. `max_gradient_val` is what Cerebras' documentation calls `max_gradient_value`. Errors
    are the original's: ValueError for the loss and the limits, TypeError for the others.
    """
    if not isinstance(loss, torch.Tensor):
        raise ValueError(
            f"Expected the wrapped function to return a single loss tensor. Got: {type(loss)}"
        )
    optimizers = _optimizers(optimizer)
    if not isinstance(grad_scaler, GradScaler):
        raise TypeError(
            f"Expected grad_scaler to be a `dlsim.amp.GradScaler`. Got: `{type(grad_scaler)}`"
        )
    limit_value = max_gradient_value if max_gradient_val is None else max_gradient_val
    check_limits(max_gradient_norm, limit_value, zero_allowed=True)

    grad_scaler.scale(loss).backward()
    for one in optimizers:
        grad_scaler.unscale_(one)
    clip_(
        [parameter for one in optimizers for parameter in gradients.parameters(one)],
        max_gradient_norm,
        limit_value,
    )
    for one in optimizers:
        grad_scaler.step(one)
    grad_scaler.update()
    for one in optimizers:
        one.zero_grad()
