# SPDX-License-Identifier: Apache-2.0
"""The rules of a replay that Python code applies to tensors of its own."""

from __future__ import annotations

import math

import pytest

import dlsim
from dlsim import _core


def test_streams_are_hashes_of_name_step_and_micro_step() -> None:
    assert _core.stream_of("", 0, 0) == 0x811C9DC5 * pow(0x01000193, 16, 1 << 32) % (1 << 32)
    assert _core.stream_of("w.grad", 3) == _core.stream_of("w.grad", 3, -1)
    assert len({_core.stream_of("w.grad", 3, micro) for micro in range(-1, 9)}) == 10


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan, 2.0**-149])
def test_scales_without_a_finite_reciprocal_are_refused(scale: float) -> None:
    with pytest.raises(dlsim.UsageError, match="grad_scale: bad loss scale") as error:
        _core.checked_grad_scale(scale)
    assert str(error.value).endswith(f"got {scale}")
    assert _core.checked_grad_scale(0.1) == pytest.approx(0.1, rel=2**-24)
