# SPDX-License-Identifier: Apache-2.0
"""Optimizers of cerebras.pytorch.optim: SGD, which is torch's, and Adam, which is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import SGD, Optimizer

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]


class AdamW(Optimizer):
    """AdamW of cerebras.pytorch 2.10, for dense gradients: its arguments, defaults and rule.

    `eps` is added before the correction of the bias, not after it as in torch; `correct_bias` False
    leaves the correction out. Weight decay is decoupled.
    """

    _decoupled = True

    def __init__(  # noqa: PLR0917 - the original's arguments
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
        amsgrad: bool = False,
    ) -> None:
        if lr < 0 or eps < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"AdamW: out of range: lr {lr}, betas {betas}, eps {eps}")
        settings = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "correct_bias": correct_bias,
            "amsgrad": amsgrad,
        }
        super().__init__(params, settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override, unused-ignore]
        """Takes one step; returns what `closure` gives."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)
        return loss

    def _move(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        decay, (beta1, beta2) = group["weight_decay"], group["betas"]
        gradient: Any = parameter.grad
        if decay and not self._decoupled:
            gradient = gradient.add(parameter, alpha=decay)
        state: dict[str, Any] = self.state[parameter]
        if not state:
            names = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))
            state.update({name: torch.zeros_like(parameter) for name in names}, step=0)
        state["step"] += 1
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.mul_(beta1).add_(gradient, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if group["amsgrad"]:
            square = torch.maximum(state["max_exp_avg_sq"], square, out=state["max_exp_avg_sq"])
        update = mean / square.sqrt().add_(group["eps"])
        if group["correct_bias"]:
            corrected = math.sqrt(1 - beta2 ** state["step"]) / (1 - beta1 ** state["step"])
            update *= corrected
        if self._decoupled:
            update.add_(parameter, alpha=decay)
        parameter.sub_(update, alpha=group["lr"])


class Adam(AdamW):
    """Adam of cerebras.pytorch 2.10: AdamW whose weight decay is part of the gradient."""

    _decoupled = False

    def __init__(  # noqa: PLR0917 - the original's arguments
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, True, amsgrad)
