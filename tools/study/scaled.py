# SPDX-License-Identifier: Apache-2.0
"""What the command says of formats with scales of their own, and how training in them ends.

Linear layers convert their inputs, weights and the gradients of their outputs, as Transformer
Engine's do, and compute in float32; all else is float32. The float32 run of one seed is recorded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import models
import reported_models
import row_files
import torch
from scaled_tables import FLOAT32, Row
from torch import Tensor, nn

import dlsim
from dlsim.arrays import delayed_scales, quantize_scaled

KEPT = Path(__file__).resolve().parent / "results" / "scaled.csv"
FORMATS = ("fp8-current", "fp8-delayed", "mxfp8", "mxfp4", "nvfp4")
SEEDS = range(5)
MODELS = (
    "sigmoid_adam",
    "transformer_pre",
    "regression",
    "residual",
    "units",
    "t5_200",
    "inputs_300",
    "units_separate",
)
RECIPES = models.RECIPES | reported_models.RECIPES


class Delayed:
    """The scales of one tensor, which follow from its largest magnitudes so far."""

    def __init__(self, format: str, backward: bool) -> None:
        self._format, self._backward, self._largest = format, backward, list[float]()

    def next(self, values: Tensor) -> float:
        """Returns the scale to use for the values of the coming step."""
        self._largest.append(float(values.abs().max()))
        return delayed_scales(self._largest, self._format, backward=self._backward)[-1]


class Converter:
    """Converts the three matrices of a linear layer, for both axes over which products sum."""

    def __init__(self, format: str) -> None:
        self._format = format
        names = ("inputs", "weight", "gradient")
        self._delayed = (
            {name: Delayed(format, name == "gradient") for name in names}
            if format.startswith("fp8-delayed")
            else {}
        )

    def both(self, name: str, values: Tensor) -> tuple[Tensor, Tensor]:
        """Returns a matrix converted with blocks along its rows, and along its columns."""
        scale = self._delayed[name].next(values) if self._delayed else None
        backward = name == "gradient"
        rows, columns = (
            quantize_scaled(values, self._format, backward=backward, axis=axis, scale=scale)
            for axis in (-1, 0)
        )
        return rows, columns


class ConvertedLinear(torch.autograd.Function):
    """A linear layer without bias whose products are of converted matrices."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, converter: Converter) -> Tensor:
        """Returns inputs times the transposed weight."""
        rows, ctx.inputs = converter.both("inputs", inputs)
        weight_rows, ctx.weight = converter.both("weight", weight)
        ctx.converter = converter
        return rows @ weight_rows.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """Returns the gradients of inputs and weight."""
        rows, columns = ctx.converter.both("gradient", gradient)
        return rows @ ctx.weight, columns.T @ ctx.inputs, None


@contextmanager
def converted(network: nn.Module, format: str) -> Iterator[None]:
    """Has the linear layers of a network convert."""
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    for layer in layers:
        layer.forward = _forward(layer, Converter(format))  # type: ignore[method-assign]
    yield
    for layer in layers:
        del layer.forward


def _forward(layer: nn.Linear, converter: Converter) -> Any:
    def forward(inputs: Tensor) -> Tensor:
        flat = inputs.reshape(-1, inputs.shape[-1])
        outputs = ConvertedLinear.apply(flat, layer.weight, converter)
        if layer.bias is not None:
            outputs = outputs + layer.bias
        return outputs.reshape(*inputs.shape[:-1], -1)

    return forward


def train(name: str, seed: int, format: str, recording: Path | None = None) -> float:
    """Returns the final error, in float32; `recording`: where to record the training."""
    training = models.training_of(RECIPES[name], seed)
    training.network.train()
    recorder = None
    if recording:
        recorder = dlsim.Recorder(training.network, recording, every=1, ops=False, forward_every=1)
    if format == FLOAT32:
        _steps(training, recorder)
    else:
        with converted(training.network, format):
            _steps(training, recorder)
    if recorder:
        recorder.close()
    return training.error()


def _steps(training: models.Training, recorder: dlsim.Recorder | None) -> None:
    for inputs, targets in training.batches():
        training.optimizer.zero_grad()
        loss = training.recipe.loss(training.network(inputs), targets)
        loss.backward()
        if training.recipe.clip_norm:
            nn.utils.clip_grad_norm_(training.network.parameters(), training.recipe.clip_norm)
        if recorder:
            recorder.step(loss=loss, scale=1)
        training.optimizer.step()


def rows_of(name: str, seeds: Iterable[int], formats: Iterable[str]) -> list[Row]:
    """Trains with float32, whose first seed is recorded, and with the formats."""
    seeds, formats = list(seeds), list(formats)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        float32 = [train(name, seeds[0], FLOAT32, path)]
        found = dlsim.replay(path, formats=formats, quiet=True).data["verdict"]["formats"]
    said = {one["format"]: one for one in found}
    float32 += [train(name, seed, FLOAT32) for seed in seeds[1:]]
    rows = [Row(name, FLOAT32, _text(float32))]
    for format in formats:
        steps = said[format]["scaled"]["steps"]
        harm = [_mean([step[side]["mean_harm"] for step in steps if step[side]]) for side in SIDES]
        errors = [train(name, seed, format) for seed in seeds]
        rows.append(Row(name, format, _text(errors), said[format]["verdict"], *harm))
    return rows


SIDES = ("forward", "backward")


def _mean(values: list[float]) -> str:
    return f"{sum(values) / len(values):.3g}" if values else ""


def _text(errors: list[float]) -> str:
    return " ".join(f"{error:.6g}" for error in errors)


def study() -> None:
    """Trains all and writes the results."""
    rows: list[Row] = []
    for name in MODELS:
        rows += rows_of(name, SEEDS, FORMATS)
        row_files.write(KEPT, Row, rows)
