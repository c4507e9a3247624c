# SPDX-License-Identifier: Apache-2.0
"""Numbers are written in Python as the command writes them."""

from __future__ import annotations

from dlsim._text import bytes_text


def test_bytes_have_binary_units() -> None:
    assert [bytes_text(count) for count in (300, 2048, 3 << 30)] == [
        "0.3 KiB",
        "2.0 KiB",
        "3.0 GiB",
    ]
