# SPDX-License-Identifier: Apache-2.0
"""Offline figures: what a format at a scale would make of the gradients of a recorded step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

import dlsim

DEAD = 0.5  # the harm from which a tensor counts as dead
NOISE = 2.0**-16  # of the norm of what is summed: below it a sum is rounding noise of float32
FIGURES = (
    "param_energy",
    "param_mean",
    "param_worst",
    "param_dead",
    "param_underflow",
    "act_energy",
    "act_mean",
    "act_worst",
    "act_dead",
    "act_underflow",
    "all_mean",
    "all_dead",
    "larger_mean",
)


@dataclass(frozen=True)
class Group:
    """Tensors of a step, one behind the other: parameters or activations, without noise."""

    values: np.ndarray
    starts: np.ndarray

    @cached_property
    def energies(self) -> np.ndarray:
        """The sum of squares of each tensor."""
        return np.add.reduceat(np.square(self.values, dtype=np.float64), self.starts)

    @cached_property
    def nonzeros(self) -> int:
        """The number of elements that can underflow."""
        return int(np.count_nonzero(self.values))

    def absmax(self) -> float:
        """Returns the largest magnitude."""
        return float(np.abs(self.values).max(initial=0))


def group_of(tensors: list[np.ndarray]) -> Group:
    """Returns the tensors that have any gradient as one array."""
    kept = [values for values in tensors if values.any()]
    starts = np.cumsum([0, *(values.size for values in kept)])[:-1]
    return Group(np.concatenate([values.ravel() for values in kept]), starts)


@dataclass(frozen=True)
class Step:
    """The gradients of a recorded step, and which of them were left out as noise."""

    parameters: Group
    activations: Group
    noise: tuple[str, ...]


def step_of(gradients: dict[str, Tensor]) -> Step:
    """Returns a step of what a float32 run has seen."""
    noise = noise_names({name: _squares(gradient) for name, gradient in gradients.items()})
    arrays = {name: g.numpy().copy() for name, g in gradients.items() if name not in noise}
    activations = [values for name, values in arrays.items() if name.endswith(".act_grad")]
    parameters = [values for name, values in arrays.items() if not name.endswith(".act_grad")]
    return Step(group_of(parameters), group_of(activations), noise)


def noise_names(squares: dict[str, float]) -> tuple[str, ...]:
    """Returns the parameters whose gradient is rounding noise, by the sums of squares of a step.

    A bias sums the gradient of its module's output. Where this sum is zero in exact arithmetic, as
    before a normalisation, what remains is about 2^-24 of what was summed; a sum of unrelated
    values has a norm like theirs.
    """
    outputs: dict[str, float] = {}
    for name, square in squares.items():
        if name.endswith(".act_grad"):
            module = name.removesuffix(".act_grad").split(".call")[0]
            outputs[module] = outputs.get(module, 0.0) + square
    noise = []
    for name, square in squares.items():
        module = name.removesuffix(".grad").rpartition(".")[0]
        if name.endswith(".grad") and square < NOISE**2 * outputs.get(module, 0.0):
            noise.append(name)
    return tuple(noise)


def _squares(gradient: Tensor) -> float:
    return float(gradient.double().square().sum())


def floor_of(format: str) -> float:
    """Returns the relative squared error of rounding alone, which is no harm."""
    return 2.0 ** (-2 * (dlsim.Format(format).mantissa_bits + 1)) / 3


def figures_of(step: Step, format: str, scale: float) -> dict[str, float]:
    """Returns the figures of FIGURES of a step; elements that overflow are left out."""
    result: dict[str, float] = {}
    harms = {}
    for kind, group in (("param", step.parameters), ("act", step.activations)):
        harm, lost, underflow = _harm(group, format, scale)
        harms[kind] = harm
        result[f"{kind}_energy"] = lost
        result[f"{kind}_mean"] = float(harm.mean())
        result[f"{kind}_worst"] = float(harm.max())
        result[f"{kind}_dead"] = float((harm > DEAD).mean())
        result[f"{kind}_underflow"] = underflow
    together = np.concatenate(list(harms.values()))
    result["all_mean"] = float(together.mean())
    result["all_dead"] = float((together > DEAD).mean())
    result["larger_mean"] = max(result["param_mean"], result["act_mean"])
    return result


def _harm(group: Group, format: str, scale: float) -> tuple[np.ndarray, float, float]:
    """Returns the harm of each tensor, that of all as one, and the share that underflows."""
    rounded = dlsim.quantize(group.values, format, scale)
    finite = np.isfinite(rounded)
    error = np.where(finite, rounded, group.values) - group.values.astype(np.float64)
    errors = np.add.reduceat(np.square(error), group.starts)
    floor = floor_of(format)
    harm = np.clip(errors / group.energies - floor, 0, 1)
    lost = max(float(errors.sum() / group.energies.sum()) - floor, 0.0)
    zeros = group.values.size - np.count_nonzero(rounded)
    underflow = (zeros - (group.values.size - group.nonzeros)) / max(group.nonzeros, 1)
    return harm, lost, float(underflow)


def highest_scale(absmax: float, format: str) -> float:
    """Returns the log2 of the largest power of two at which a magnitude stays finite."""
    if absmax == 0:
        return math.inf
    return math.floor(math.log2(dlsim.Format(format).max_finite / absmax))
