# SPDX-License-Identifier: Apache-2.0
"""What a newcomer tries first: numbers, scales and names as they come, and what is printed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dlsim

TRACE = Path(__file__).parents[1] / "data" / "traces" / "cnn-digits"


def test_scales_are_written_as_the_command_takes_them() -> None:
    values = np.float32([0.1, 1e-6])
    for text, scale in (("2^15", 2.0**15), ("1e3", 1e3), ("0x1.8p+3", 12.0)):
        assert (
            dlsim.quantize(values, "fp16", text).tolist()
            == dlsim.quantize(values, "fp16", scale).tolist()
        )
    assert [s.scale for s in dlsim.measure(values, "fp16", ["2^3", 16])] == [8.0, 16.0]
    with pytest.raises(dlsim.UsageError, match=r"^scale: "):
        dlsim.encode(values, "fp16", "2^")


def test_lists_of_integers_are_numbers() -> None:
    assert dlsim.quantize([1, 2, 70000], "fp16").tolist() == [1.0, 2.0, float("inf")]
    assert dlsim.quantize(3, "bf16") == 3.0
    assert dlsim.quantize([[1, 2], [3, 4]], "fp16").shape == (2, 2)
    assert dlsim.decode([0x3C00, 0x7C00], "fp16").tolist() == [1.0, float("inf")]
    with pytest.raises(TypeError, match="int64"):
        dlsim.quantize([2**53 + 1], "fp16")
    with pytest.raises(TypeError, match="int64"):
        dlsim.decode([-1], "fp16")


@pytest.mark.parametrize(
    ("name", "meant"), [("nearest", "rne"), ("stochastic", "sr"), ("Truncate", "rtz")]
)
def test_names_of_roundings_are_suggested(name: str, meant: str) -> None:
    for call in (
        lambda: dlsim.quantize([1.0], "fp16", rounding=name),
        lambda: dlsim.replay(TRACE, rounding=name),  # type: ignore[arg-type]
    ):
        with pytest.raises(dlsim.UsageError, match=rf"rounding: .*did you mean '{meant}'"):
            call()


def test_options_of_the_command_name_their_keyword() -> None:
    for option, keyword in (("set", "settings"), ("format", "formats"), ("no_mmap", "mmap")):
        with pytest.raises(TypeError, match=rf"'{option}', did you mean '{keyword}'\?"):
            dlsim.replay(TRACE, **{option: "x"})


def test_what_is_printed_tells_what_it_is() -> None:
    scaler = dlsim.LossScaler("torch")
    assert repr(scaler) == "<dlsim.LossScaler torch: scale 65536.0>"
    assert "initial scale: 2^16" in dlsim.scaler("torch", 10).report
    assert dlsim.scaler("torch", 10, quiet=True).report == ""
    found = repr(dlsim.replay(TRACE, formats="fp16", policies="torch"))
    assert found.endswith("<dlsim.Result dlsim.replay/1: 1 run>")
