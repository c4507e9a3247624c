# SPDX-License-Identifier: Apache-2.0
"""Trains with the scale that the beginning of a float32 run recommends."""

from __future__ import annotations

import math

from figures import highest_scale
from offline import FIRST, Recording

import dlsim

HEAD_ROOM = 2  # binades between the largest gradient of the beginning and overflow


def recommended(
    recording: Recording, format: str, thresholds: dict[str, float]
) -> tuple[int, bool]:
    """Returns log2 of the highest scale with head-room, and whether it lies in the window.

    That is, whether each figure stays below its threshold there, in the mean of the first steps.
    """
    count = math.ceil(FIRST * len(recording.parameter_absmax))
    largest = max(*recording.parameter_absmax[:count], *recording.activation_absmax[:count])
    exponent = int(highest_scale(largest, format)) - HEAD_ROOM
    exponent = min(exponent, 120)  # its reciprocal is a float32
    rows = [
        recording.figures(number, format, 2.0**exponent)
        for number in recording.steps
        if number < count
    ]
    means = {figure: sum(row[figure] for row in rows) / len(rows) for figure in thresholds}
    return exponent, all(means[figure] <= limit for figure, limit in thresholds.items())


def scaler_of(exponent: int, format: str) -> dlsim.LossScaler:
    """Returns a policy that begins there, halves the scale when a step overflows, never grows."""
    parameters = {"init_scale": 2.0**exponent, "growth_interval": 2**30}
    return dlsim.LossScaler("torch", parameters, format)
