# SPDX-License-Identifier: Apache-2.0
"""Every SIMD target gives the same bits and is left as it was found."""

from __future__ import annotations

import numpy as np
import pytest

import dlsim
from dlsim import simd


def test_targets_give_the_same_bits() -> None:
    random = np.random.default_rng(11)
    values = random.integers(0, 1 << 32, 100_003, dtype=np.uint32).view(np.float32)
    expected = {mode: dlsim.encode(values, "cb16", rounding=mode) for mode in ("rne", "sr")}
    before = simd.current()
    assert before in simd.targets()
    for target in simd.targets():
        with simd.using(target):
            assert simd.current() == target
            for mode, codes in expected.items():
                assert np.array_equal(dlsim.encode(values, "cb16", rounding=mode), codes)
    assert simd.current() == before


def test_a_target_is_left_after_an_error_and_unknown_ones_are_refused() -> None:
    before = simd.current()
    with pytest.raises(ZeroDivisionError), simd.using(simd.targets()[-1]):
        raise ZeroDivisionError
    assert simd.current() == before
    with pytest.raises(dlsim.UsageError, match="MMX"), simd.using("MMX"):
        pass
    assert simd.current() == before
