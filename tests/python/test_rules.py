# SPDX-License-Identifier: Apache-2.0
"""The rules of a replay that Python code applies to gradients of its own."""

from __future__ import annotations

import math
from typing import Any

import pytest

import dlsim
from dlsim import _core


def facts(name: str, **fields: Any) -> _core.GradientFacts:
    made = _core.GradientFacts()
    made.name = name
    for field, value in fields.items():
        setattr(made, field, value)
    return made


INF, HUGE = math.inf, 2.0**128


@pytest.mark.parametrize(
    ("test", "fields", "expected"),
    [
        ("elementwise", {}, (True, "", "", True)),
        ("elementwise", {"has_nonfinite_input": True}, (False, "input", "b", False)),
        ("elementwise", {"overflows": True, "absmax": 2.0}, (False, "overflow", "b", True)),
        ("elementwise", {"is_scaled_finite": False}, (False, "accumulation", "b", True)),
        ("unscaled-elementwise", {"sum_of_squares": INF}, (False, "unscaling", "b", False)),
        ("global-norm", {"sum_of_squares": HUGE}, (False, "norm", "b", False)),
        ("scaled-norm", {"scaled_sum_of_squares": HUGE}, (False, "norm", "b", True)),
        ("sum", {"scaled_sum": -HUGE, "sum_of_squares": 0.5}, (False, "sum", "b", True)),
    ],
)
def test_a_step_is_judged_as_in_a_replay(
    test: str, fields: dict[str, Any], expected: tuple[bool, str, str, bool]
) -> None:
    gradients = [facts("a"), facts("b", **{"sum_of_squares": 1.0, **fields})]
    assert _core.judge_step(test, gradients) == expected


def test_an_unknown_finite_test_is_refused() -> None:
    with pytest.raises(dlsim.UsageError, match=r"^finite_test: unknown test, .* got 'x'$"):
        _core.judge_step("x", [])


def test_streams_are_hashes_of_name_step_and_micro_step() -> None:
    assert _core.stream_of("", 0, 0) == 0x811C9DC5 * pow(0x01000193, 16, 1 << 32) % (1 << 32)
    assert _core.stream_of("w.grad", 3) == _core.stream_of("w.grad", 3, -1)
    assert len({_core.stream_of("w.grad", 3, micro) for micro in range(-1, 9)}) == 10


@pytest.mark.parametrize("scale", [0.0, -1.0, INF, math.nan, 2.0**-149])
def test_scales_without_a_finite_reciprocal_are_refused(scale: float) -> None:
    with pytest.raises(dlsim.UsageError, match="grad_scale: bad loss scale") as error:
        _core.checked_grad_scale(scale)
    assert str(error.value).endswith(f"got {scale}")
    assert _core.checked_grad_scale(0.1) == pytest.approx(0.1, rel=2**-24)
