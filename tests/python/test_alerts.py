# SPDX-License-Identifier: Apache-2.0
"""Alerts about figures mean what they mean to the command."""

import math

import pytest

import dlsim
from dlsim._core import Alert

FIGURES = {"scale": 8.0, "mean_harm": math.nan, "activations.zeros": 0, "window_low": None}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("scale<8", False),
        ("scale<=8", True),
        ("scale > 7.5", True),
        ("scale>=2^4", False),
        (" scale == 0x1p3 ", True),
        ("scale!=8e0", False),
        ("scale>-2^1", True),
        ("activations.zeros==0", True),
        ("mean_harm<1", False),
        ("mean_harm>=1", False),
        ("mean_harm!=1", True),
        ("window_low<1", False),
        ("window_low!=1", False),
        ("window_low==none", True),
        ("window_low!=none", False),
        ("scale!=none", True),
    ],
)
def test_an_expression_holds_of_figures(text: str, holds: bool) -> None:
    alert = Alert(text, "here")
    assert alert.holds(FIGURES[alert.figure]) is holds


@pytest.mark.parametrize(
    "text",
    "scale scale= <3 scale<none scale<=inf scale>nan scale<1_0 scale<2^1_0 scale<2^ scale<3^2 "
    "scale<2^5000 scale=>3 scale<".split(),
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(
        dlsim.UsageError, match=r"^here: (not an? \w+|number out of range), expected"
    ):
        Alert(text, "here")


def test_a_figure_must_be_known() -> None:
    with pytest.raises(
        dlsim.UsageError,
        match=r"here: unknown figure \(did you mean 'scale'\?\), .* scale, .*, got 'scales'",
    ):
        Alert("scales<1", "here").require(list(FIGURES))


def test_there_are_no_runs_to_choose_from() -> None:
    with pytest.raises(dlsim.UsageError, match=r"^here: there are no runs .* 'fp16/torch:scale<1'"):
        Alert("fp16/torch:scale<1", "here")
