# SPDX-License-Identifier: Apache-2.0
"""What recorders for trainers share: the loss, the learning rate, and when a recorder begins."""

from __future__ import annotations

import logging
import math
import os
from typing import Any

from ..recorder import AlertStop, Recorder
from ..recorder._output import check_free

_LOG = logging.getLogger("dlsim.recorder")


class Loss:
    """The loss of a step: the sum of what backward was called with, one for each batch.

    Nothing waits for a device before `item`, which only a recorded step calls.
    """

    def __init__(self, scaler: Any = None) -> None:
        self._scaler = scaler  # whose scale the losses carry
        self._parts: list[tuple[Any, float]] = []

    def add(self, loss: Any, share: float = 1.0) -> None:
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


class OfTraining:
    """A callback whose recorder begins with the training, and whose trainer makes the steps."""

    def __init__(self, path: str | os.PathLike[str] | None, **options: Any) -> None:
        check_free(path, options)  # not only when the training begins
        self.recorder: Recorder | None = None
        self._path, self._options = path, options
        self._texts: dict[str, str] = {}
        self._loss = Loss()

    def describe(self, **texts: str) -> None:
        """Has these texts stored in the output, as Recorder.describe does; before a training."""
        self._texts.update(texts)

    def _begin(self, model: Any, scaler: Any, loss: Loss) -> None:
        self.recorder = Recorder(model, self._path, **{"scaler": scaler, **self._options})
        self.recorder.describe(**self._texts)
        self._loss = loss

    def _step(self, scaler: Any, optimizer: Any, next_loss: Loss, **facts: Any) -> bool:
        """Records a step; returns whether an alert ends the training."""
        loss, self._loss = self._loss, next_loss
        try:
            if self.recorder is not None:
                scale = 1.0 if scaler is None else None
                self.recorder.step(scale=scale, loss=loss, lr=learning_rate_of(optimizer), **facts)
        except AlertStop as alert:
            _LOG.warning("dlsim recorder: stops: %s", alert)
            return True
        return False
