# SPDX-License-Identifier: Apache-2.0
"""What a scaler remembers of each optimizer."""

from __future__ import annotations

from enum import Enum, auto
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer


class OptState(Enum):
    """What has happened to an optimizer's gradients since the last update()."""

    READY = auto()
    SCALED = auto()
    UNSCALED = auto()
    STEPPED = auto()

    def is_unscaled(self) -> bool:
        """Returns whether the gradients are those of the unscaled loss."""
        return self == OptState.UNSCALED


_last_finite: WeakKeyDictionary[Optimizer, torch.Tensor] = WeakKeyDictionary()


def isfinite(optimizer: Optimizer) -> torch.Tensor | bool:
    """Returns whether the latest dynamic step of `optimizer` was taken; True before the first."""
    return _last_finite.get(optimizer, True)


def remember_finite(optimizer: Optimizer, finite: torch.Tensor) -> None:
    """Sets what isfinite() returns."""
    _last_finite[optimizer] = finite


def checked(optimizer: Optimizer) -> Optimizer:
    """Returns `optimizer`; raises TypeError unless it has parameter groups and a step()."""
    if not hasattr(optimizer, "param_groups") or not callable(getattr(optimizer, "step", None)):
        raise TypeError(
            f"GradScaler: wrong type, expected an optimizer, got {type(optimizer).__name__}"
        )
    return optimizer
