# SPDX-License-Identifier: Apache-2.0
"""A callback of Hugging Face's Trainer that records gradients before they are clipped."""

from __future__ import annotations

import logging
import os
from typing import Any

from ..recorder import AlertStop, Recorder
from ..recorder._output import check_free
from ._facts import Loss, learning_rate_of

try:
    from transformers import TrainerCallback
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "dlsim.integrations: transformers is missing, expected `pip install transformers[torch]`",
        name="transformers",
    ) from None


_LOG = logging.getLogger("dlsim.recorder")


class HuggingFaceRecorder(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Records each optimizer step of a Trainer: `trainer.add_callback(HuggingFaceRecorder(...))`.

    `path` and `options` are those of dlsim.Recorder. It records the gradients summed over
    the micro-batches of a step, before Trainer unscales and clips them, with the scale of its
    GradScaler if it has one. Steps have Trainer's numbers (`global_step`, starting at 0 or at that
    of the checkpoint), loss and learning rate. `recorder` is the Recorder of the last training,
    closed at its end; it gets Trainer's scaler. An alert with the action "stop" ends the training
    after the step, in Trainer's own way.
    """

    def __init__(self, trainer: Any, path: str | os.PathLike[str] | None, **options: Any) -> None:
        check_free(path, options)  # not only when the training begins
        self.recorder: Recorder | None = None
        self._loss = Loss()
        self._trainer = trainer
        self._path = path
        self._options = options
        self._texts: dict[str, str] = {}
        self._recorded = -1  # the last step

    def describe(self, **texts: str) -> None:
        """Has these texts stored in the output, as Recorder.describe does; before a training."""
        self._texts.update(texts)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Opens the recorder; from now on gradients are recorded before they are clipped."""
        accelerator = self._trainer.accelerator
        options = {"scaler": self._scaler(), **self._options}
        self.recorder = Recorder(self._trainer.model_wrapped, self._path, **options)
        self.recorder.describe(**self._texts)
        self._recorded, self._loss = -1, Loss()
        clip, backward = type(accelerator).clip_grad_norm_, type(accelerator).backward

        def adding(loss: Any, **options: Any) -> Any:
            self._loss.add(loss, 1 / accelerator.gradient_accumulation_steps)
            return backward(accelerator, loss, **options)

        def recording(*args: Any, **options: Any) -> Any:
            self._record(state)
            return clip(accelerator, *args, **options)

        # None of Trainer's events lies between backward and this.
        accelerator.clip_grad_norm_ = recording
        accelerator.backward = adding

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Records where nothing has clipped."""
        self._record(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Closes the recorder and leaves Trainer as it was."""
        for name in ("clip_grad_norm_", "backward"):
            vars(self._trainer.accelerator).pop(name, None)
        if self.recorder is not None:
            self.recorder.close()

    def _record(self, state: Any) -> None:
        if self.recorder is None or self._recorded == state.global_step:
            return
        self._recorded = state.global_step
        scale = 1.0 if self._scaler() is None else None
        loss, self._loss = self._loss, Loss()
        lr = learning_rate_of(self._trainer.optimizer)
        try:
            self.recorder.step(
                scale=scale, step=state.global_step, loss=loss, lr=lr, epoch=state.epoch
            )
        except AlertStop as alert:
            _LOG.warning("dlsim recorder: stops: %s", alert)
            self._trainer.control.should_training_stop = True

    def _scaler(self) -> Any:
        return getattr(self._trainer.accelerator, "scaler", None)
