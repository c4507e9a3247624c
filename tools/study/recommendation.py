# SPDX-License-Identifier: Apache-2.0
"""Trains with the scale that the beginning of a float32 run recommends."""

from __future__ import annotations

import math

from figures import highest_scale
from offline import FIRST, Recording

import dlsim

HEAD_ROOM = 2  # binades between the largest gradient of the beginning and overflow


def recommended(recording: Recording, format: str, figure: str) -> tuple[int, float]:
    """Returns log2 of the highest scale with head-room, and the mean of a figure there.

    Both look at the first steps alone.
    """
    count = math.ceil(FIRST * len(recording.parameter_absmax))
    largest = max(*recording.parameter_absmax[:count], *recording.activation_absmax[:count])
    exponent = int(highest_scale(largest, format)) - HEAD_ROOM
    exponent = min(exponent, 120)  # its reciprocal is a float32
    values = [
        recording.figures(number, format, 2.0**exponent)[figure]
        for number in recording.steps
        if number < count
    ]
    return exponent, sum(values) / len(values)


def scaler_of(exponent: int, format: str) -> dlsim.LossScaler:
    """Returns a policy that begins there, halves the scale when a step overflows, never grows."""
    parameters = {"init_scale": 2.0**exponent, "growth_interval": 2**30}
    return dlsim.LossScaler("torch", parameters, format)
