# SPDX-License-Identifier: Apache-2.0
"""A recorder that Accelerate's Accelerator calls, for loops that are written for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .._errors import Error
from ..recorder import Recorder
from ._facts import Loss, learning_rate_of


class AccelerateRecorder(Recorder):
    """Records each optimizer step: `with AccelerateRecorder(accelerator, model, "run/"):`.

    The loop stays as it is. `model` is what `accelerator.prepare` returned, as all its optimizers
    must be by then; `path` and `options` are those of dlsim.Recorder. `first_step` is the number of
    the first step, such as that of a checkpoint. Recorded is what
    `accelerator.backward` leaves in the gradients where the optimizer will step
    (`accelerator.sync_gradients`): the sum of the step's batches under `accelerator.accumulate`,
    before anything unscales or clips it, with the scale of the Accelerator's GradScaler if it has
    one, the loss and the learning rate of the first optimizer. A loop that sums up several calls of
    `backward` by itself is counted as an error.
    """

    def __init__(
        self,
        accelerator: Any,
        model: Any,
        path: str | os.PathLike[str] | None,
        *,
        first_step: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(model, path, **{"scaler": accelerator.scaler, **options})
        self._accelerator = accelerator
        self._loss = Loss()
        self._first: int | None = first_step
        self._stepped = True  # since the last backward of a step
        self._wrapped: list[tuple[Any, str]] = []  # what has a method of ours, and its name
        self._wrap(accelerator, "backward", self._after_backward)
        for optimizer in accelerator._optimizers:
            self._wrap(optimizer, "step", lambda *_, **__: self._after_optimizer())

    def close(self) -> None:
        """Completes the trace or profile, and leaves the Accelerator as it was."""
        while self._wrapped:
            owner, name = self._wrapped.pop()
            vars(owner).pop(name, None)
        super().close()

    def _wrap(self, owner: Any, name: str, then: Callable[..., None]) -> None:
        method = getattr(type(owner), name)

        def wrapper(*args: Any, **options: Any) -> Any:
            result = method(owner, *args, **options)
            then(*args, **options)
            return result

        setattr(owner, name, wrapper)
        self._wrapped.append((owner, name))

    def _after_backward(self, loss: Any, *_: Any, **__: Any) -> None:
        # As `backward` has divided it.
        self._loss.add(loss, 1 / self._accelerator.gradient_accumulation_steps)
        if not self._accelerator.sync_gradients:
            return
        if not self._stepped:
            self._count(
                Error(
                    "backward was called twice for one optimizer.step, expected "
                    "`with accelerator.accumulate(model):`, or one sum of the losses"
                )
            )
            return
        self._stepped = False
        optimizers = self._accelerator._optimizers
        loss, self._loss = self._loss, Loss()
        step, self._first = self._first, None
        self.step(
            step=step,
            scale=1.0 if self._accelerator.scaler is None else None,
            loss=loss,
            lr=learning_rate_of(optimizers[0]) if optimizers else None,
        )

    def _after_optimizer(self) -> None:
        self._stepped = self._stepped or self._accelerator.sync_gradients
