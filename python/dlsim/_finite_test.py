# SPDX-License-Identifier: Apache-2.0
"""How stacks decide that a step's gradients are finite: docs/numerics.md, section 5, on tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ._arrays import measure
from ._dtypes import FLOAT32_OVERFLOW
from ._errors import UsageError
from ._torch_rounding import Tensor, readable


def is_finite(test: str, scaled: Sequence[Tensor], unscaled: Sequence[Tensor]) -> bool:
    """Returns whether the gradients of a step pass `test`, one of the names of `--finite-test`.

    `scaled` are the quantised gradients that carry the loss scale, `unscaled` the same without.
    Sums are of float64: the order in which a stack adds is its own, and this is the result without
    its intermediate roundings. Those of infinities are infinite or NaN, which is below no limit.
    """
    if test == "elementwise":
        return all_finite(scaled)
    if test == "unscaled-elementwise":
        return all_finite(unscaled)
    if test == "global-norm":
        return sum_of_squares(unscaled) < FLOAT32_OVERFLOW
    if test == "scaled-norm":
        return sum_of_squares(scaled) < FLOAT32_OVERFLOW
    if test == "sum":
        return all(abs(tensor.double().sum().item()) < FLOAT32_OVERFLOW for tensor in scaled)
    raise UsageError(f"finite_test: unknown test, expected one of --finite-test, got {test!r}")


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Returns whether no element is infinite or NaN."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def sum_of_squares(tensors: Iterable[Tensor]) -> float:
    """Returns the float64 sum of the squares of all elements, in the order of docs/numerics.md."""
    total = 0.0
    for tensor in tensors:
        stats = measure(readable(tensor), "bf16")  # of any format: the sum is that of the elements
        total += math.nan if stats.nan else math.inf if stats.inf else stats.sum_of_squares
    return total
