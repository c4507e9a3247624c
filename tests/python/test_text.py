# SPDX-License-Identifier: Apache-2.0
"""Numbers are written in Python as the command writes them."""

from __future__ import annotations

import math

import pytest

from dlsim._text import bytes_text, percent_text, scale_text


@pytest.mark.parametrize(
    ("scale", "text"),
    [(2.0**15, "2^15"), (2e15, "2^50.83"), (0.5, "2^-1"), (1, "1"), (0, "0"), (math.inf, "inf")],
)
def test_scales_are_powers_of_two(scale: float, text: str) -> None:
    assert scale_text(scale) == text


def test_shares_tell_none_from_few() -> None:
    assert [percent_text(share) for share in (0, 1e-6, 0.0222, 1)] == [
        *("0", "1.0e-04 %", "2.22 %", "100 %"),
    ]


def test_bytes_have_binary_units() -> None:
    assert [bytes_text(count) for count in (300, 2048, 3 << 30)] == [
        "0.3 KiB",
        "2.0 KiB",
        "3.0 GiB",
    ]
