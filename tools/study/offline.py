# SPDX-License-Identifier: Apache-2.0
"""Records the float32 run of a model and computes the figures of each setting from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import models
import numpy as np
from figures import FIGURES, Step, figures_of, figures_of_run, highest_scale, step_of
from grid import Setting
from torch import Tensor
from training import train_float32

EVERY = 6  # of the steps, this one's gradients are kept; magnitudes are kept of all
FIRST = 0.1  # the beginning of a run, from which a recommendation could be made


@dataclass
class Recording:
    """A float32 run: the final loss, some steps, and the largest magnitude in every step."""

    loss: float = math.inf
    steps: dict[int, Step] = field(default_factory=dict)
    parameter_absmax: list[float] = field(default_factory=list)
    activation_absmax: list[float] = field(default_factory=list)
    _known: dict[tuple[int, str, float], dict[str, float]] = field(default_factory=dict)

    def add(self, number: int, gradients: dict[str, Tensor]) -> None:
        """Takes the gradients of a step."""
        step = step_of(gradients)
        self.parameter_absmax.append(step.groups["param"].absmax())
        self.activation_absmax.append(step.groups["act"].absmax())
        if number % EVERY == 0:
            self.steps[number] = step

    def figures(self, number: int, format: str, scale: float) -> dict[str, float]:
        """Returns the figures of a kept step."""
        key = (number, format, scale)
        if key not in self._known:
            self._known[key] = figures_of(self.steps[number], format, scale)
        return self._known[key]

    def overflows(self, number: int, format: str, scale: float) -> bool:
        """Tells whether a gradient of a step is not finite at a scale."""
        largest = max(self.parameter_absmax[number], self.activation_absmax[number])
        return math.log2(scale) > highest_scale(largest, format)


def record(name: str, seed: int) -> Recording:
    """Trains a model in float32 and keeps what is needed."""
    recording = Recording()
    recording.loss = train_float32(models.make(name, seed), recording.add)
    return recording


def replayed_scales(recording: Recording, setting: Setting) -> list[float]:
    """Returns the scale of each step, 0 where it is skipped, when the recorded run is replayed."""
    scaler, scales = setting.scaler(), []
    for number in range(len(recording.parameter_absmax)):
        scale = scaler.scale
        skip = scaler.next(recording.overflows(number, setting.format, scale))["skip"]
        scales.append(0.0 if skip else scale)
    return scales


def summary_of(recording: Recording, setting: Setting) -> dict[str, float]:
    """Returns each figure's mean over the steps that are applied, its largest, and its beginning.

    `skipped` is the share of skipped steps, `overflow` that of overflowing steps, which a static
    scale applies.
    """
    scales = replayed_scales(recording, setting)
    overflows = [
        bool(scale) and recording.overflows(number, setting.format, scale)
        for number, scale in enumerate(scales)
    ]
    rows = [
        (number, recording.figures(number, setting.format, scales[number]))
        for number in recording.steps
        if scales[number]
    ]
    begins = [row for number, row in rows if number < FIRST * len(scales)]
    result = {
        "skipped": float(np.mean([scale == 0 for scale in scales])),
        "overflow": float(np.mean(overflows)),
        "begin_overflow": float(np.mean(overflows[: int(FIRST * len(scales))])),
    }
    for figure in FIGURES:
        values = [row[figure] for _, row in rows]
        result[figure] = float(np.mean(values)) if values else math.nan
        result[f"{figure}:max"] = max(values, default=math.nan)
        early = [row[figure] for row in begins]
        result[f"{figure}:begin"] = float(np.mean(early)) if early else math.nan
    applied = [(recording.steps[number], scales[number]) for number, _ in rows]
    result.update(figures_of_run(applied, setting.format))
    return result
