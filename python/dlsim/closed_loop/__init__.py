# SPDX-License-Identifier: Apache-2.0
"""Really trains under a format and a loss-scaling policy, and compares that with a replay."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._core import Format, LossScaler
from .._errors import Error, UsageError
from ..arrays._tensor_stats import TensorStats
from ..emulation import AutocastEmulation, autocast_emulation, rounding_of
from ..emulation._rounding import Tensor, add_stats, torch
from ..traces._writer import TraceWriter
from ._comparison import Settings, compare, comparison_table, mean_loss, predict, setting_text
from ._run import Run, result_of
from ._step import EmulatedStep, without_scale

__all__ = [
    "EmulatedTraining",
    "Run",
    "TrainingStopped",
    "compare",
    "comparison_table",
    "mean_loss",
    "predict",
    "result_of",
    "train_under",
]

# Makes a new model: the model, its optimizer, and the loss of the model on a batch.
MakeTraining = Callable[[], tuple[torch.nn.Module, Any, Callable[[Any, Any], Tensor]]]

# What the state machine alone does not know of a step.
_LOOKS_AT_GRADIENTS = {
    "adaloss": "has a factor for each gradient",
    "fairscale": "has a loss scale for each layer",
    "popart": "uses a histogram of the gradients",
}


class TrainingStopped(Error):
    """The policy raised what ends training in the original software."""


class EmulatedTraining:
    """Trains a model as `format` and `policy` would, and records the path of the loss scale.

    `step(loss)` takes the place of backward, unscaling and optimizer.step(): it scales the loss,
    runs backward, rounds every parameter gradient to the format, judges whether they are finite as
    the policy's stack does, unscales, steps the optimizer or skips, and advances the policy.
    Meanwhile dlsim.autocast_emulation rounds activations and their gradients; `emulation` are its
    keywords (None: it does not run), and `run` counts the gradients of outputs as `.act_grad`.

    `format=None` is plain float32 training; `rounding` to `seed` are those of dlsim.quantize.
    `settings` are parameters of the policy as for `dlsim replay --set`. `micro_steps` calls of
    step() make one step of the optimizer; each loss is already divided by their number. `record`
    names a directory: the gradients, before they are rounded, are written to it as a trace.
    `before_step()` is called with the unscaled gradients in .grad, unless the step is skipped.
    With `on_fatal="stop"` an error of the policy raises TrainingStopped, with "continue" not.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        *,
        format: str | Format | None = "cb16",
        policy: str = "cerebras-2.10",
        settings: Settings | None = None,
        micro_steps: int = 1,
        emulation: Mapping[str, Any] | None = {},
        rounding: str = "rne",
        overflow: str = "inf",
        subnormals: str = "keep",
        seed: int = 0,
        record: str | os.PathLike[str] | None = None,
        before_step: Callable[[], None] | None = None,
        on_fatal: str = "stop",
    ) -> None:
        """Starts at step 0 with a new policy."""
        options = _checked_options(rounding, overflow, subnormals, seed, on_fatal)
        how = {key: options[key] for key in ("rounding", "overflow", "subnormals", "seed")}
        if micro_steps < 1:
            raise UsageError(f"micro_steps: bad number, expected 1 or more, got {micro_steps}")
        self._rounding = None if format is None else rounding_of(format, **how)
        name = "" if self._rounding is None else self._rounding.format.name
        self._scaler = _scaler(policy, settings or {}, name)
        self._optimizer = optimizer
        self._micro_steps = micro_steps
        self._before_step = before_step
        self._stops = on_fatal == "stop"
        self._parameters = dict(model.named_parameters())
        self._current: EmulatedStep | None = None
        self._statistics: dict[str, dict[str, TensorStats]] = {}
        self.run = Run.begun(self._scaler, name or "float32", options)
        self._writer = None
        if record is not None:
            self._writer = TraceWriter(record, {"model": type(model).__name__})
        self.emulation: AutocastEmulation | None = None
        if format is not None and emulation is not None:
            keywords = {"parameter_gradients": False, **how, **emulation}
            self.emulation = autocast_emulation(model, format, **keywords)

    @property
    def scale(self) -> float:
        """The loss scale of the coming step, rounded to float32 as it meets the loss."""
        return float(torch.tensor(self._scaler.scale, dtype=torch.float32))

    def __enter__(self) -> EmulatedTraining:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Completes the recorded trace and removes all hooks from the model; `run` stays."""
        if self.emulation is not None:
            self.emulation.remove()
        if self._writer is not None:
            self._writer.close()

    def statistics(self) -> dict[str, dict[str, TensorStats]]:
        """Returns what emulation.statistics() would over all steps, without the loss scales."""
        return {module: dict(kinds) for module, kinds in self._statistics.items()}

    def step(self, loss: Tensor) -> dict[str, Any] | None:
        """Trains on a loss; returns the step as it is in `run.steps`, or None before its last part.

        Raises TrainingStopped on and after an error of the policy, if `on_fatal` is "stop".
        """
        self._raise_if_stopped()
        if self._current is None:
            self._current = EmulatedStep(len(self.run.steps), self.scale, self._rounding)
        self._backward(loss, self._current)
        if self._current.micro_steps < self._micro_steps:
            return None
        step, self._current = self._current, None
        self._finish(step)
        self._raise_if_stopped()
        return self.run.steps[-1]

    def _backward(self, loss: Tensor, step: EmulatedStep) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None
        scaled: Any = loss * step.scale
        scaled.backward()
        gradients = {
            f"{name}.grad": parameter.grad
            for name, parameter in sorted(self._parameters.items())  # as in the recorded file
            if parameter.grad is not None
        }
        micro = step.micro_steps if self._micro_steps > 1 else None
        if self._writer is not None:
            metadata = {"loss": repr(float(loss)), "grad_scale": repr(step.scale)}
            self._writer.write(step.number, gradients, metadata, micro=micro)
        step.add(float(loss), gradients, -1 if micro is None else micro)

    def _finish(self, step: EmulatedStep) -> None:
        unscaled = step.unscaled()
        verdict = step.judge(self._scaler.finite_test, unscaled)
        decision = self._scaler.next(not verdict["finite"], _absmax(unscaled))
        if not decision["skip"]:
            self._apply(unscaled)
        record = {
            "step": step.number,
            "loss": step.loss,
            "scale": step.scale,
            "next_scale": self.scale,
            "skipped": decision["skip"],
            **verdict,
        }
        self.run.add(record, step.stats, self._take_activations(step.scale))
        event = decision["event"]
        if event is not None:
            details = event.pop("details")
            self.run.events.append({**event, **details, "step": step.number})
            if event["fatal"] and self._stops:
                self.run.stopped_at_step = step.number

    def _take_activations(self, scale: float) -> dict[str, TensorStats]:
        """Moves what the emulation counted in this step to the totals; returns output gradients."""
        if self.emulation is None:
            return {}
        activations = {}
        for module, kinds in self.emulation.statistics().items():
            totals = self._statistics.setdefault(module, {})
            for kind, stats in kinds.items():
                plain = without_scale(stats, scale) if kind.endswith(".grad") else stats
                totals[kind] = add_stats(totals.get(kind), plain)
                if kind == "output.grad":
                    activations[f"{module or 'model'}.act_grad"] = plain
        self.emulation.reset_statistics()
        return activations

    def _apply(self, unscaled: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.grad = unscaled.get(f"{name}.grad")
        if self._before_step is not None:
            self._before_step()
        self._optimizer.step()

    def _raise_if_stopped(self) -> None:
        if self.run.stopped_at_step is not None:
            event = self.run.events[-1]
            raise TrainingStopped(
                f"step {event['step']}: {self.run.policy} raises {event['type']}: "
                f"{event['message']}"
            )


def train_under(
    make: MakeTraining,
    batches: Iterable[Any],
    *,
    format: str | Format | None = "cb16",
    policy: str = "cerebras-2.10",
    settings: Settings | None = None,
    **options: Any,
) -> Run:
    """Makes a model, trains it on all batches as EmulatedTraining does, and returns the record.

    `make()` returns the model, its optimizer and `loss_of(model, batch)`; seed it so that each call
    begins alike. A policy that ends training ends the record. `options` are EmulatedTraining's.
    """
    model, optimizer, loss_of = make()
    with EmulatedTraining(
        model, optimizer, format=format, policy=policy, settings=settings, **options
    ) as training:
        try:
            for batch in batches:
                training.step(loss_of(model, batch))
        except TrainingStopped:
            pass
    return training.run


def _checked_options(
    rounding: str, overflow: str, subnormals: str, seed: int, on_fatal: str
) -> dict[str, Any]:
    """Returns what is `options` in a result; rounding_of checks the first four."""
    if on_fatal not in ("stop", "continue"):
        raise UsageError(f"on_fatal: bad rule, expected stop or continue, got {on_fatal!r}")
    return {
        "rounding": rounding,
        "overflow": overflow,
        "subnormals": subnormals,
        "seed": seed,
        "check": "grad",
        "accumulate": "quantize-first",
        "on_fatal": on_fatal,
        "tensors": "*",
    }


def _scaler(policy: str, settings: Settings, format: str) -> LossScaler:
    if not isinstance(policy, str):
        raise TypeError(f"policy: bad type, expected str, got {type(policy).__name__}")
    scaler = LossScaler(
        policy, {key: setting_text(value) for key, value in settings.items()}, format
    )
    reason = _LOOKS_AT_GRADIENTS.get(scaler.policy)
    if reason:
        raise UsageError(
            f"policy: {scaler.policy} {reason}, expected one that needs the outcome of a step only"
        )
    return scaler


def _absmax(gradients: Mapping[str, Tensor]) -> float:
    """Returns the largest magnitude, infinity if one is not finite."""
    largest = [float(g.abs().max()) for g in gradients.values() if g.numel()]
    return max(largest, default=0.0) if all(map(math.isfinite, largest)) else math.inf
