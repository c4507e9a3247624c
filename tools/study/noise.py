# SPDX-License-Identifier: Apache-2.0
"""Which gradients are rounding noise of float32, told from sums of squares alone."""

from __future__ import annotations

from torch import Tensor

NOISE = 2.0**-16  # of the norm of what is summed: below it a sum is rounding noise


def noise_names(squares: dict[str, float]) -> tuple[str, ...]:
    """Returns the parameters whose gradient is noise, by the sums of squares of a step.

    A bias sums the gradient of its module's output. Where this sum is zero in exact arithmetic, as
    before a normalization, what remains is about 2^-24 of what was summed; a sum of unrelated
    values has a norm like theirs.
    """
    outputs = outputs_of(squares)
    noise = []
    for name, square in squares.items():
        module = name.removesuffix(".grad").rpartition(".")[0]
        if name.endswith(".grad") and square < NOISE**2 * outputs.get(module, 0.0):
            noise.append(name)
    return tuple(noise)


def outputs_of(squares: dict[str, float]) -> dict[str, float]:
    """Returns the sum of squares of the gradient of each module's output, all calls together."""
    outputs: dict[str, float] = {}
    for name, square in squares.items():
        if name.endswith(".act_grad"):
            module = name.removesuffix(".act_grad").split(".call")[0]
            outputs[module] = outputs.get(module, 0.0) + square
    return outputs


def squares_of(gradient: Tensor) -> float:
    """Returns the sum of squares."""
    return float(gradient.double().square().sum())
