# SPDX-License-Identifier: Apache-2.0
"""A callback of Hugging Face's Trainer that records gradients before they are clipped."""

from __future__ import annotations

import os
from typing import Any

from ._facts import Loss, OfTraining

try:
    from transformers import TrainerCallback
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "dlsim.integrations: transformers is missing, expected `pip install transformers[torch]`",
        name="transformers",
    ) from None


class HuggingFaceRecorder(OfTraining, TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Records each optimizer step of a Trainer: `trainer.add_callback(HuggingFaceRecorder(...))`.

    `path` and `options` are those of dlsim.Recorder. It records the gradients summed over
    the micro-batches of a step, before Trainer unscales and clips them, with the scale of its
    GradScaler if it has one. Steps have Trainer's numbers (`global_step`, starting at 0 or at that
    of the checkpoint), loss and learning rate. `recorder` is the Recorder of the last training,
    closed at its end; it gets Trainer's scaler. An alert with the action "stop" ends the training
    after the step, in Trainer's own way.
    """

    def __init__(self, trainer: Any, path: str | os.PathLike[str] | None, **options: Any) -> None:
        super().__init__(path, **options)
        self._trainer = trainer
        self._recorded = -1  # the last step

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Opens the recorder; from now on gradients are recorded before they are clipped."""
        accelerator = self._trainer.accelerator
        self._begin(self._trainer.model_wrapped, self._scaler(), Loss())
        self._recorded = -1
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
        facts = {"step": state.global_step, "epoch": state.epoch}
        if self._step(self._scaler(), self._trainer.optimizer, Loss(), **facts):
            self._trainer.control.should_training_stop = True

    def _scaler(self) -> Any:
        return getattr(self._trainer.accelerator, "scaler", None)
