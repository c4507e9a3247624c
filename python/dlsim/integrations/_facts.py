# SPDX-License-Identifier: Apache-2.0
"""What a trainer knows of a step besides its gradients: the loss and the learning rate."""

from __future__ import annotations

import math
from typing import Any


class Loss:
    """The loss of a step: the sum of what backward was called with, one for each batch.

    Nothing waits for a device before `item`, which only a recorded step calls.
    """

    def __init__(self, scaler: Any = None) -> None:
        self._scaler = scaler  # whose scale the losses carry
        self._parts: list[tuple[Any, float]] = []

    def add(self, loss: Any, share: float = 1.0) -> None:
        """Adds `share` of the loss of a batch."""
        self._parts.append((loss.detach() if hasattr(loss, "detach") else loss, share))

    def item(self) -> float | None:
        """Returns the sum; None if it is not known: no scalars, or the scale made it infinite."""
        if any(getattr(loss, "numel", int)() != 1 for loss, _ in self._parts):
            return None
        total = sum(float(loss) * share for loss, share in self._parts)
        if self._scaler is None:
            return total if self._parts else None
        return None if math.isinf(total) else total / float(self._scaler.get_scale())


def learning_rate_of(optimizer: Any) -> float | None:
    """Returns the rate that an optimizer is going to use, that of its first group."""
    groups = getattr(optimizer, "param_groups", None)
    rate = groups[0].get("lr") if groups else None
    return None if rate is None else float(rate)
