# SPDX-License-Identifier: Apache-2.0
"""What the training itself had at each step: its loss, its loss scale, its gradient's norm."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._core import is_profile
from ..profiles import Profile, open_profile
from ..traces import TraceStep, open_trace
from ._json import digits, log2, packed

MAX_POINTS = 2000  # of longer runs this many steps are shown, evenly


@dataclass(frozen=True)
class Training:
    """Recorded by step, None where it was not: the loss, and the scale that gradients carry.

    `norms` are those of the parameter gradients without that scale, None where they are not finite.
    """

    steps: list[int]
    losses: list[float | None]
    scales: list[float | None]
    norms: list[float | None]


def training_of(paths: Sequence[str]) -> Training:
    """Reads what a trace or profile says of its steps. Raises as opening them does."""
    profile = is_profile(os.fsencode(paths[0]))
    opened: Any = open_profile(paths) if profile else open_trace(paths)
    found = Training([], [], [], [])
    for i in _evenly(len(opened)):
        step = opened[i]
        found.steps.append(step.number)
        found.losses.append(_value(step.metadata, "loss"))
        found.scales.append(_value(step.metadata, "grad_scale"))
        found.norms.append(_norm_in_profile(opened, i) if profile else _norm(step))
    return found


def _norm(step: TraceStep) -> float | None:
    """The norm of the effective gradient, one tensor at a time in memory."""
    squares = 0.0
    for name in step.names:
        if step.role(name) == "grad":
            squares += float(np.square(step.tensors[name], dtype=np.float64).sum())
    return _root(squares)


def _norm_in_profile(profile: Profile, i: int) -> float | None:
    """The same from sums of squares; those of several micro-steps do not tell that of their sum."""
    parts, _ = profile.totals(i)
    if len(parts) != 1 or parts[0].nan or parts[0].inf:
        return None
    return _root(float(parts[0].squares.sum()))


def _root(squares: float) -> float | None:
    return math.sqrt(squares) if math.isfinite(squares) and squares > 0 else None


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
    if not scaled and not any(v is not None for v in (*training.losses, *training.norms)):
        return None
    return packed(
        {
            "step": training.steps,
            "loss": [digits(loss, 6) for loss in training.losses],
            "scale": [log2(scale) for scale in training.scales] if scaled else [],
            "norm": [digits(norm, 6) for norm in training.norms],
        }
    )
