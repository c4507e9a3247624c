# SPDX-License-Identifier: Apache-2.0
"""The loop of Model Zoo R1: `scaler(loss).backward()`, then `optimizer.step()`.

The code of that release is not public. Names and use are those of its documentation (1.6.1,
"PyTorch Dynamic Loss Scaling") and of Model Zoo R1; the rules are those of cerebras_pytorch 2.10.
"""

from __future__ import annotations

from types import MethodType, SimpleNamespace
from typing import Any, ClassVar

from torch.optim import Optimizer

from .._errors import UsageError
from . import _grad_scaler
from ._autocast import get_half_dtype_str
from ._grad_scaler import checked

__all__ = ["GradScaler", "amp", "optimizer"]


class GradScaler(_grad_scaler.GradScaler):
    """Scales a loss when called; it takes what the documentation prints, also 2e-14 as minimum."""

    _policy_name = "cerebras"
    _latest: ClassVar[GradScaler | None] = None  # the one that was called last

    def __init__(  # noqa: PLR0917 - the original's arguments
        self,
        loss_scale: str | float | None = None,
        initial_loss_scale: float | None = None,
        steps_per_increase: int | None = None,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = None,
        max_gradient_norm: float | None = None,
        mixed_precision: bool = True,
    ) -> None:
        largest = 2.0**31 if get_half_dtype_str() == "cbfloat16" else 2.0**15
        super().__init__(
            loss_scale,
            initial_loss_scale or largest,
            steps_per_increase,
            min_loss_scale or 2.0**-14,
            max_loss_scale or largest,
            half_dtype=None if mixed_precision else "float32",
        )
        self._max_gradient_norm = self._norm_or_none(max_gradient_norm)  # not deprecated

    def _start(self) -> None:
        super()._start()
        self._stepped: Optimizer | None = None  # since the latest loss

    def __call__(self, loss: Any) -> Any:
        """Returns the scaled loss; the next step() of an optimizer from optimizer() unscales."""
        GradScaler._latest, self._stepped = self, None
        return self.scale(loss)


def optimizer(torch_optimizer: Optimizer) -> Optimizer:
    """Returns the optimizer itself; its step() now unscales, tests and updates the scale.

    Without a `scaler(loss)` since its last step it is as it was. Raises UsageError for the step of
    a second optimizer.
    """
    patched: Any = checked(torch_optimizer)
    plain_step = torch_optimizer.step

    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        scaler = GradScaler._latest
        if scaler is None or scaler._stepped is self:  # also within scaler.step
            return plain_step(*args, **kwargs)
        if scaler._stepped is not None:
            raise UsageError(
                "cbtorch: a second step() after one loss, expected scaler(loss).backward() before "
                "each; dlsim.amp.GradScaler takes several optimizers of one loss"
            )
        scaler._stepped = self
        try:
            return scaler.step(self, *args, **kwargs)
        finally:
            scaler.update()

    patched.step = MethodType(step, torch_optimizer)
    return torch_optimizer


amp = SimpleNamespace(GradScaler=GradScaler, optimizer=optimizer)
