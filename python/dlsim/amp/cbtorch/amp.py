# SPDX-License-Identifier: Apache-2.0
"""GradScaler as cerebras.framework.torch.amp had it, and optimizers that know it.

The code of that release is not public. Names and use are those of its documentation (1.6.1,
"PyTorch Dynamic Loss Scaling") and of Model Zoo R1; the rules are those of cerebras_pytorch 2.10.
"""

from __future__ import annotations

import types
import weakref
from typing import Any

from torch.optim import Optimizer

from .. import _grad_scaler
from .._gradients import parameters
from .._half_dtype import get_half_dtype_str
from .._optimizer_state import OptState, checked

__all__ = ["GradScaler", "optimizer"]

_registered: weakref.WeakSet[Optimizer] = weakref.WeakSet()


class GradScaler(_grad_scaler.GradScaler):
    """Scales a loss when called; optimizers from optimizer() then unscale, test and update it.

    Unlike the scaler of 2.10 it takes the numbers that the documentation prints, also a
    `min_loss_scale` of 2e-14. `mixed_precision` False leaves gradients in float32.
    """

    _policy_name = "cerebras"

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
        """Checks the arguments; the scale is then that of the first step."""
        largest = 2.0**31 if get_half_dtype_str() == "cbfloat16" else 2.0**15
        super().__init__(
            loss_scale,
            initial_loss_scale or largest,
            steps_per_increase,
            min_loss_scale or 2.0**-14,
            max_loss_scale or largest,
            half_dtype=None if mixed_precision else "float32",
        )
        # Not deprecated in this release.
        self._max_gradient_norm = self._norm_or_none(max_gradient_norm)

    def _start(self) -> None:
        super()._start()
        self._marks: weakref.WeakKeyDictionary[Optimizer, _Marks] = weakref.WeakKeyDictionary()

    def __call__(self, loss: Any) -> Any:
        """Returns the scaled loss; optimizers that get gradients from it unscale in step()."""
        # One loss after another, each with an optimizer of its own.
        if any(state == OptState.STEPPED for state in self._states.values()):
            self.update()
        scaled = self.scale(loss)
        for one in _registered:
            self._marks.setdefault(one, _marks(one))
            _scaler_of[one] = self
        return scaled

    def update(self, new_scale: object = None) -> None:
        """Moves the scale; step() of the last optimizer has done so already."""
        super().update(new_scale)
        self._marks.clear()

    def _sharing(self) -> list[Optimizer]:
        # The optimizers that have new gradients and have not stepped yet.
        return [
            one
            for one, marks in self._marks.items()
            if _marks(one) != marks and self._states.get(one) != OptState.STEPPED
        ]

    def step_registered(self, one: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Does what step() of an optimizer from optimizer() has to do."""
        for sharing in self._sharing():
            self.unscale_(sharing)
        result = self.step(one, *args, **kwargs)
        if not self._sharing():
            self.update()
        return result


# Of each parameter, which gradient it has and how often that was written.
_Marks = list[tuple[int, int]]


def _marks(one: Optimizer) -> _Marks:
    grads = (parameter.grad for parameter in parameters(one))
    return [(0, 0) if grad is None else (id(grad), grad._version) for grad in grads]


_scaler_of: weakref.WeakKeyDictionary[Optimizer, GradScaler] = weakref.WeakKeyDictionary()


def optimizer(torch_optimizer: Optimizer) -> Optimizer:
    """Returns the optimizer itself; its step() now unscales, tests and updates the scale.

    That is what it does after `scaler(loss)`; any other step() is as before. Optimizers that have
    gradients from the same loss are tested together, and the scale is updated once all of them
    have stepped, or with the next loss.
    """
    if checked(torch_optimizer) in _registered:
        return torch_optimizer
    plain_step = torch_optimizer.step

    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        scaler = _scaler_of.pop(self, None)
        if scaler is None:
            return plain_step(*args, **kwargs)
        return scaler.step_registered(self, *args, **kwargs)

    patched: Any = torch_optimizer
    patched.step = types.MethodType(step, torch_optimizer)
    _registered.add(torch_optimizer)
    return torch_optimizer
