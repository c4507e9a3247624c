# SPDX-License-Identifier: Apache-2.0
"""Which figure, at which threshold, tells that a training ends worse than in float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from kept import Row
from roc import Errors, area, best_threshold, errors_of

# Chosen before the first training: no threshold is chosen by these.
HELD_OUT = ("conv_norm", "lstm", "transformer_post")
ADAM = ("sigmoid_adam", "lstm", "transformer_pre", "transformer_post", "embedding", "units")
# What this study found: a setting is sound if this figure is not above the threshold.
CHOSEN, THRESHOLD = "act_channel", 0.06
# What the verdict takes at the lower end of a window: of whole tensors, and of their channels too.
WHOLE = {"act_mean": 0.013, "param_mean": 0.013}
WITH_CHANNELS = {**WHOLE, "act_channel": 0.06, "param_channel": 0.02}


@dataclass(frozen=True)
class Case:
    """A setting whose recorded gradients stay finite, and whether training under it was worse."""

    row: Row
    harmed: bool
    excess: float  # of the mean loss over float32's, in spreads


def spread(losses: list[float]) -> float:
    """Returns the standard deviation over seeds."""
    return float(np.std(losses, ddof=1))


def excess_of(row: Row, float32: Row) -> float:
    """Returns how much larger the mean loss is than float32's for the same seeds, in spreads."""
    difference = row.loss - float(np.mean(float32.losses[: len(row.losses)]))
    return difference / spread(float32.losses)


def cases(rows: list[Row], *, static: bool = True) -> list[Case]:
    """Returns the settings of static scales, or of policies, in which nothing overflows offline."""
    float32 = {row.model: row for row in rows if not row.format}
    result = []
    for row in rows:
        if row.is_static != static or row.figures.get("overflow", 1) > 0:
            continue
        excess = excess_of(row, float32[row.model])
        result.append(Case(row, not excess <= 1, excess))
    return result


def is_held_out(case: Case) -> bool:
    """Tells whether no threshold may be chosen by a case."""
    return case.row.model in HELD_OUT


def values_of(chosen: list[Case], figure: str) -> np.ndarray:
    """Returns a figure of each case; NaN, where no step is applied, is total harm."""
    return np.nan_to_num(np.array([case.row.figures[figure] for case in chosen]), nan=1.0)


def harmed_of(chosen: list[Case]) -> np.ndarray:
    """Returns which cases were worse than float32."""
    return np.array([case.harmed for case in chosen], dtype=bool)


def warned_by_any(chosen: list[Case], thresholds: dict[str, float]) -> np.ndarray:
    """Returns which cases have some figure above its threshold."""
    return np.any([values_of(chosen, figure) > most for figure, most in thresholds.items()], axis=0)


@dataclass(frozen=True)
class Judgment:
    """A figure, the threshold that the held-in models choose, and how it fares."""

    figure: str
    threshold: float
    area_in: float
    area_out: float
    errors_in: Errors
    errors_out: Errors


def judge(all_cases: list[Case], figure: str) -> Judgment:
    """Chooses the threshold by the held-in models and counts the errors on both parts."""
    inside = [case for case in all_cases if not is_held_out(case)]
    outside = [case for case in all_cases if is_held_out(case)]
    (x_in, y_in), (x_out, y_out) = (
        (values_of(part, figure), harmed_of(part)) for part in (inside, outside)
    )
    threshold = best_threshold(x_in, y_in)
    return Judgment(
        figure,
        threshold,
        area(x_in, y_in),
        area(x_out, y_out) if len(x_out) else math.nan,
        errors_of(x_in > threshold, y_in),
        errors_of(x_out > threshold, y_out),
    )


def warned_by(chosen: list[Case]) -> np.ndarray:
    """Returns which cases the chosen figure warns of."""
    return values_of(chosen, CHOSEN) > THRESHOLD
