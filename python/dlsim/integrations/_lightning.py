# SPDX-License-Identifier: Apache-2.0
"""A callback of Lightning's Trainer that records gradients before they are unscaled and clipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._errors import UsageError
from ._facts import Loss, OfTraining

if TYPE_CHECKING:
    Callback = object
else:
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError:
        try:
            from pytorch_lightning import Callback
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "dlsim.integrations: lightning is missing, expected `pip install lightning`",
                name="lightning",
            ) from None


class LightningRecorder(OfTraining, Callback):
    """Records each optimizer step of a Trainer: `Trainer(callbacks=[LightningRecorder("run/")])`.

    `path` and `options` are those of dlsim.Recorder. It records the gradients summed over
    the batches of a step, before the precision plugin unscales and Trainer clips them, with the
    scale of the plugin's GradScaler if it has one. Steps have Trainer's numbers (`global_step`,
    starting at 0 or at that of the checkpoint), loss and learning rate. `recorder` is the Recorder
    of the last training, closed at its end; it gets the scaler. An alert with the action "stop"
    ends the training after the step, in Trainer's own way. Raises UsageError for manual
    optimization, where only the module knows its steps: there, call `Recorder.step` after
    `manual_backward`.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Opens the recorder."""
        if not pl_module.automatic_optimization:
            raise UsageError(
                "LightningRecorder: the module optimizes by itself, expected calls of "
                "dlsim.Recorder.step after manual_backward"
            )
        scaler = _scaler_of(trainer)
        self._begin(trainer.model, scaler, Loss(scaler))

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Adds the loss of a batch, which carries the scale."""
        self._loss.add(loss)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Records after a step's last batch: at the next event gradients are unscaled."""
        if self.recorder is None or trainer.fit_loop.epoch_loop._should_accumulate():
            return
        scaler = _scaler_of(trainer)
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        facts = {"step": trainer.global_step, "epoch": trainer.current_epoch}
        if self._step(scaler, optimizer, Loss(scaler), **facts):
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Closes the recorder."""
        if self.recorder is not None:
            self.recorder.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Closes the recorder of a training that fails."""
        self.on_train_end(trainer, pl_module)


def _scaler_of(trainer: Any) -> Any:
    return getattr(trainer.precision_plugin, "scaler", None)
