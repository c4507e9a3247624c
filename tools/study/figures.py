# SPDX-License-Identifier: Apache-2.0
"""Offline figures: what a format at a scale would make of the gradients of a recorded step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from channels import DEAD, channels, elements, mean_harm
from noise import noise_names, squares_of
from torch import Tensor

import dlsim

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
    "param_channel",
    "param_channel_dead",
    "act_channel",
    "act_channel_dead",
    "all_mean",
    "all_dead",
    "larger_mean",
)


@dataclass(frozen=True)
class Group:
    """The parameters or the activations of a step, one behind the other.

    `shapes` are the same in every step. `counted` tells the tensors that have a gradient which is
    not noise.
    """

    values: np.ndarray
    shapes: tuple[tuple[int, ...], ...]
    counted: np.ndarray

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each tensor begins."""
        return np.cumsum([0, *(math.prod(shape) for shape in self.shapes)])[:-1]

    @cached_property
    def mask(self) -> np.ndarray:
        """Tells for each element whether it is counted."""
        return np.repeat(self.counted, [math.prod(shape) for shape in self.shapes])

    @cached_property
    def squares(self) -> np.ndarray:
        """The square of each element that is counted, else 0."""
        return np.where(self.mask, np.square(self.values, dtype=np.float64), 0)

    def absmax(self) -> float:
        """Returns the largest magnitude."""
        return float(np.abs(self.values).max(initial=0))

    def rounded(self, format: str, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rounded values without the scale, and the squares of the errors.

        Elements that overflow or are not counted have no error.
        """
        rounded = dlsim.quantize(self.values, format, scale)
        good = np.isfinite(rounded) & self.mask
        errors = np.where(good, rounded, self.values).astype(np.float64) - self.values
        return rounded, np.square(errors)


@dataclass(frozen=True)
class Step:
    """The gradients of a recorded step, and which of them are noise."""

    groups: dict[str, Group]  # "param" and "act"
    noise: tuple[str, ...]


def step_of(gradients: dict[str, Tensor]) -> Step:
    """Returns a step of what a float32 run has seen."""
    noise = noise_names({name: squares_of(gradient) for name, gradient in gradients.items()})
    names = {
        "act": sorted(name for name in gradients if name.endswith(".act_grad")),
        "param": sorted(name for name in gradients if not name.endswith(".act_grad")),
    }
    groups = {}
    for kind, chosen in names.items():
        arrays = [gradients[name].numpy() for name in chosen]
        counted = [
            name not in noise and bool(values.any())
            for name, values in zip(chosen, arrays, strict=True)
        ]
        values = np.concatenate([array.ravel() for array in arrays])
        groups[kind] = Group(values, tuple(a.shape for a in arrays), np.array(counted))
    return Step(groups, noise)


def floor_of(format: str) -> float:
    """Returns the relative squared error of rounding alone, which is no harm."""
    return 2.0 ** (-2 * (dlsim.Format(format).mantissa_bits + 1)) / 3


def figures_of(step: Step, format: str, scale: float) -> dict[str, float]:
    """Returns the figures of FIGURES of a step; elements that overflow are left out."""
    result: dict[str, float] = {}
    harms = {}
    for kind, group in step.groups.items():
        rounded, errors = group.rounded(format, scale)
        harms[kind], lost = _harm(group, errors, format)
        nonzero = (group.values != 0) & group.mask
        underflow = np.count_nonzero(nonzero & (rounded == 0)) / np.count_nonzero(nonzero)
        parts = channels(group.shapes, kind)
        channel, dead = mean_harm(parts, errors, group.squares, floor_of(format))
        result[f"{kind}_energy"] = lost
        result[f"{kind}_mean"] = float(harms[kind].mean())
        result[f"{kind}_worst"] = float(harms[kind].max())
        result[f"{kind}_dead"] = float((harms[kind] > DEAD).mean())
        result[f"{kind}_underflow"] = underflow
        result[f"{kind}_channel"] = channel
        result[f"{kind}_channel_dead"] = dead
    together = np.concatenate(list(harms.values()))
    result["all_mean"] = float(together.mean())
    result["all_dead"] = float((together > DEAD).mean())
    result["larger_mean"] = max(result["param_mean"], result["act_mean"])
    return result


def figures_of_run(steps: list[tuple[Step, float]], format: str) -> dict[str, float]:
    """Returns the harm of single parameters, errors and energy of all steps summed before.

    Each step has its scale. Adam divides a gradient by its own size over the steps.
    """
    if not steps:
        return {"param_element_run": math.nan}
    groups = [(step.groups["param"], scale) for step, scale in steps]
    errors = sum(group.rounded(format, scale)[1] for group, scale in groups)
    squares = sum(group.squares for group, _ in groups)
    parts = elements(groups[0][0].shapes)
    return {"param_element_run": mean_harm(parts, errors, squares, floor_of(format))[0]}


def _harm(group: Group, squares: np.ndarray, format: str) -> tuple[np.ndarray, float]:
    """Returns the harm of each tensor, and that of all as one."""
    errors = np.add.reduceat(squares, group.starts)[group.counted]
    energies = np.add.reduceat(group.squares, group.starts)[group.counted]
    floor = floor_of(format)
    harm = np.clip(errors / energies - floor, 0, 1)
    return harm, max(float(errors.sum() / energies.sum()) - floor, 0.0)


def highest_scale(absmax: float, format: str) -> float:
    """Returns the log2 of the largest power of two at which a magnitude stays finite."""
    if absmax == 0:
        return math.inf
    return math.floor(math.log2(dlsim.Format(format).max_finite / absmax))
