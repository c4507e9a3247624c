# SPDX-License-Identifier: Apache-2.0
"""The Model Zoo's MixedPrecision: its parameters, its rules, and its hooks as plain methods.

Source: Cerebras/modelzoo, trainer/callbacks/precision.py.
"""

from __future__ import annotations

import logging
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from numbers import Number
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from .._errors import Error, UsageError
from ._autocast import autocast, enable_mixed_precision, get_half_dtype, set_half_dtype
from ._grad_scaler import GradScaler, check_limits, clip_, parameters

_torch: Any = torch  # its types differ from version to version
_logger = logging.getLogger(__name__)
_TYPES = ["float16", "bfloat16", "cbfloat16"]


class ApplianceNanError(Error, RuntimeError):
    """The scale is at its minimum and gradients still overflow."""


@dataclass(eq=False)
class MixedPrecision:
    """What the Model Zoo's trainer does around a step, for a loop that calls it.

    `backend` is "CSX" (emulated here: gradients are rounded to `fp16_type`, in the autocast context
    activations, too), "GPU" or "CPU" (torch's autocast and its GradScaler, as the Model Zoo makes
    them there). bfloat16 on CSX has
    no scaler: `scaler` is None, gradients are rounded, nothing is scaled, tested or skipped.
    `precision_opt_level` is kept and has no effect. Raises ValueError with the original's messages.
    """

    enabled: bool = True
    fp16_type: Any = "bfloat16"
    precision_opt_level: Literal[0, 1, 2] | None = None
    loss_scaling_factor: float | Literal["dynamic"] | None = 1.0
    initial_loss_scale: float | None = None
    steps_per_increase: int = 2000
    min_loss_scale: float | None = None
    max_loss_scale: float | None = None
    max_gradient_norm: float | None = None
    max_gradient_value: float | None = None
    log_loss_scale: bool | None = None
    _: KW_ONLY
    backend: Literal["CSX", "GPU", "CPU"] = "CSX"
    scaler: Any = field(init=False)

    def __post_init__(self) -> None:
        """Checks the parameters, sets the half dtype and makes the scaler."""
        if not (
            self.loss_scaling_factor is None
            or self.loss_scaling_factor == "dynamic"
            or isinstance(self.loss_scaling_factor, Number)
        ):
            raise ValueError(
                f"'loss_scaling_factor' must be a float, None, or 'dynamic'."
                f"Got {self.loss_scaling_factor} instead."
            )
        if self.backend not in ("CSX", "GPU", "CPU"):
            raise UsageError(
                "MixedPrecision.backend: unknown text, expected CSX, GPU or CPU, got "
                f"{self.backend!r}"
            )
        check_limits(self.max_gradient_norm, self.max_gradient_value, zero_allowed=False)
        if self.loss_scaling_factor is None:
            self.loss_scaling_factor = 1.0
        if self.log_loss_scale is None:
            self.log_loss_scale = self.loss_scaling_factor == "dynamic"
        self._set_half_dtype()
        self.scaler = self._make_scaler()
        # Without a scaler the gradients of the emulated system still have 16 bits.
        rounds = self.scaler is None and self.backend == "CSX"
        self._rounder = GradScaler(1.0, half_dtype="bfloat16") if rounds else None

    def _set_half_dtype(self) -> None:
        if not self.enabled and self.backend == "CSX":
            warnings.warn(
                "Mixed precision must be enabled for CSX. Setting enabled = True", stacklevel=4
            )
            self.enabled = True
        enable_mixed_precision(bool(self.enabled))
        if not self.enabled:
            return
        if self.fp16_type not in _TYPES:
            raise ValueError(
                f'Invalid value for "fp16_type". Expected one of {_TYPES}. Got: {self.fp16_type}.'
            )
        if self.fp16_type == "cbfloat16" and self.backend != "CSX":
            # An object that is not equal to "bfloat16": a scaler is made all the same.
            self.fp16_type = torch.bfloat16
            warnings.warn(
                "cbfloat16 is only supported on CSX. Setting half dtype to bfloat16.", stacklevel=4
            )
        elif self.fp16_type == "cbfloat16" and self.loss_scaling_factor != "dynamic":
            raise ValueError(
                "In order to use cbfloat16, dynamic loss scaling must be enabled. Otherwise, "
                "gradients might underflow/overflow in the middle of training and cause NaNs. "
                "Please set `loss_scaling_factor` to `dynamic` to use cbfloat16."
            )
        elif self.backend == "CPU" and self.fp16_type != "bfloat16":
            self.fp16_type = torch.bfloat16
            warnings.warn(
                "Mixed precision on CPU is only supported with bfloat16. "
                "Setting half dtype to bfloat16.",
                stacklevel=4,
            )
        set_half_dtype(self.fp16_type)

    def _make_scaler(self) -> Any:
        if isinstance(self.fp16_type, str) and self.fp16_type == "bfloat16":
            if self.loss_scaling_factor != 1.0:
                _logger.info(
                    "No need to use loss scaling when half dtype is bfloat16. "
                    "Disabling gradient scaling."
                )
            return None
        if self.backend == "CSX":
            return GradScaler(
                loss_scale=self.loss_scaling_factor,
                init_scale=self.initial_loss_scale,
                steps_per_increase=self.steps_per_increase,
                min_loss_scale=self.min_loss_scale,
                max_loss_scale=self.max_loss_scale,
            )
        if self.loss_scaling_factor == "dynamic":
            init_scale = 65536.0 if self.initial_loss_scale is None else self.initial_loss_scale
            return _torch_scaler(init_scale, self.steps_per_increase)
        # Not constant in truth: an overflow halves it, and it never grows back.
        return _torch_scaler(self.loss_scaling_factor, 2**63 - 1)

    def autocast_context_manager(self) -> AbstractContextManager[Any]:
        """Returns the context of the forward pass: torch's autocast, on CSX dlsim's."""
        if self.backend == "CSX":
            return autocast(self.fp16_type)
        if not self.enabled:
            return nullcontext()
        device_type = "cuda" if self.backend == "GPU" else "cpu"
        context: AbstractContextManager[Any] = _torch.autocast(device_type, dtype=get_half_dtype())
        return context

    def backward(self, loss: torch.Tensor) -> None:
        """Runs the backward pass of the scaled loss."""
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def on_before_optimizer_step(self, trainer: Any, model: Any, optimizer: Optimizer) -> None:
        """Rounds and unscales the gradients of `optimizer`; the first two arguments are unused."""
        scaler = self.scaler or self._rounder
        if scaler:
            scaler.unscale_(optimizer)

    def clip_gradients(self, optimizer: Optimizer) -> None:
        """Clips the gradients by max_gradient_norm or max_gradient_value, if one is set."""
        clip_(list(parameters(optimizer)), self.max_gradient_norm, self.max_gradient_value)

    def optimizer_step(self, optimizer: Optimizer) -> None:
        """Steps `optimizer`, unless its gradients are not finite, and updates the scale."""
        scaler = self.scaler or self._rounder
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()

    def on_train_batch_end(
        self,
        trainer: Any = None,
        model: Any = None,
        outputs: Any = None,
        batch: Any = None,
        batch_idx: Any = None,
    ) -> None:
        """Logs the scale with trainer.log_metrics, if asked; raises ApplianceNanError.

        It raises, on CSX with a dynamic scale, when min_loss_scale has just kept the scale up.
        """
        if not self.scaler:
            return
        if self.log_loss_scale and trainer is not None:
            trainer.log_metrics(loss_scale=self.scaler.get_scale())
        if self.backend == "CSX" and self.loss_scaling_factor == "dynamic":
            self.check_non_recoverable_nan(
                self.scaler.get_scale(), self.scaler.get_non_clamped_scale()
            )

    def check_non_recoverable_nan(self, loss_scale: Any, non_clamped_loss_scale: Any) -> None:
        """Raises ApplianceNanError if the scale before clamping is the smaller one."""
        if non_clamped_loss_scale < loss_scale:
            raise ApplianceNanError(
                "Minimum loss scale threshold was reached but gradient norms are still "
                "encountering NaN or inf values. Dynamic loss scaling does not seem to be "
                "recovering NaN's in gradients and training is not progressing. Please "
                "check the model's hyperparameters and input data."
            )

    def on_save_checkpoint(self, trainer: Any, state_dict: dict[str, Any]) -> None:
        """Puts the scaler's state into `state_dict` as "grad_scaler"."""
        if self.scaler:
            state_dict["grad_scaler"] = self.scaler.state_dict()

    def on_load_checkpoint(self, trainer: Any, state_dict: dict[str, Any]) -> None:
        """Continues from "grad_scaler" of `state_dict`; without it the scaler stays as it is."""
        if self.scaler and "grad_scaler" in state_dict:
            self.scaler.load_state_dict(state_dict["grad_scaler"])


def _torch_scaler(init_scale: Any, growth_interval: int) -> Any:
    # torch 2.3 moved the class. Without CUDA it warns and passes everything through.
    if hasattr(_torch.amp, "GradScaler"):
        return _torch.amp.GradScaler("cuda", init_scale=init_scale, growth_interval=growth_interval)
    return _torch.cuda.amp.GradScaler(init_scale=init_scale, growth_interval=growth_interval)
