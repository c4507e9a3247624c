# SPDX-License-Identifier: Apache-2.0
"""What the training itself had at each step: its loss, its loss scale, its gradient's norm."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._core import is_profile
from ..profiles import open_profile
from ..traces import open_trace
from ._inputs import Run
from ._json import digits, log2, number, packed

MAX_POINTS = 2000  # of more steps so many are shown, evenly


@dataclass(frozen=True)
class Training:
    """Recorded by step, None where it was not: the loss, and the scale that gradients carry."""

    steps: list[int]
    losses: list[float | None]
    scales: list[float | None]


def training_of(paths: Sequence[str]) -> Training:
    """Reads what a trace or profile says of its steps. Raises as opening them does."""
    profile = is_profile(os.fsencode(paths[0]))
    opened: Any = open_profile(paths) if profile else open_trace(paths)
    chosen = _evenly(len(opened))
    found = [(step.number, step.metadata) for step in (opened[i] for i in chosen)]
    return Training(
        [step for step, _ in found],
        [_value(metadata, "loss") for _, metadata in found],
        [_value(metadata, "grad_scale") for _, metadata in found],
    )


def _evenly(count: int) -> Sequence[int]:
    if count <= MAX_POINTS:
        return range(count)
    return [i * (count - 1) // (MAX_POINTS - 1) for i in range(MAX_POINTS)]


def _value(metadata: Mapping[str, str], key: str) -> float | None:
    try:
        value = float(metadata[key])
    except (KeyError, ValueError):
        return None
    return value if math.isfinite(value) else None


def training_data(training: Training | None) -> str | None:
    """Returns what scale_windows.js draws of the training; None if it says nothing."""
    if training is None:
        return None
    scaled = any(scale not in (None, 1.0) for scale in training.scales)
    if not scaled and all(loss is None for loss in training.losses):
        return None
    return packed(
        {
            "step": training.steps,
            "loss": [digits(loss, 6) for loss in training.losses],
            "scale": [log2(scale) for scale in training.scales] if scaled else [],
        }
    )


def norms_data(run: Run) -> str | None:
    """Returns the norms of the gradient over the steps of a run; None where it has none."""
    steps = run.data["steps"]
    kept = [steps[i] for i in _evenly(len(steps))]
    norms = [_finite(number(step.get("grad_norm"))) for step in kept]
    if not any(norms):
        return None
    return packed({"step": [step["step"] for step in kept], "norm": norms})


def _finite(value: float | None) -> float | None:
    known = value is not None and math.isfinite(value) and value > 0
    return float(f"{value:.6g}") if known else None
