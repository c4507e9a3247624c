# SPDX-License-Identifier: Apache-2.0
"""The forward pass in verdicts: read from JSON, asked of traces, and drawn in the report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_samples import Page, replay, verdict, write

import dlsim
from dlsim.traces._writer import TraceWriter

FORWARD: dict[str, Any] = {
    "state": "overflows",
    "steps": 2,
    "absmax": 70000.0,
    "headroom": -0.0958,
    "first": {"step": 0, "tensor": "block.0.wo.act", "absmax": 66246.0},
    "overflowing": [
        {"tensor": "block.0.wo.act", "first_step": 0, "absmax": 70000.0},
        {"tensor": "scores.act", "first_step": 1, "absmax": 1e9, "constant": True},
    ],
    "vanishing": [{"tensor": "head.act", "steps": 2, "energy_lost": 0.9, "worst_step": 1}],
    "nonfinite": [{"tensor": "mask.act", "first_step": 0, "inf": 3, "nan": 0}],
    "kept_in_float32": ["norm.act"],
}
GRADIENTS = {
    "block.0.wo.weight.grad": np.float32([1, -0.25]),
    "block.0.wo.act_grad": np.float32([0.01, 0.002]),
}


def t5(folder: Path) -> Path:
    """A trace of a T5 block whose feed-forward output is too large for fp16."""
    with TraceWriter(folder / "trace") as writer:
        for step, largest in enumerate((66246, 70000)):
            outputs = {
                "block.0.wi.act": np.float32([812.5, -3]),
                "block.0.wo.act": np.float32([largest, 1, -65504]),
            }
            writer.write(step, {**outputs, **GRADIENTS}, {"autocast_float32": "block.0.wi.act"})
        writer.write(2, GRADIENTS, {})
    return folder / "trace"


def test_a_forward_verdict_is_read_from_json() -> None:
    document = replay(formats=("fp16",))
    document["verdict"] = verdict(document, [(3, 16)])
    document["verdict"]["formats"][0] |= {"verdict": "fails in forward", "forward": FORWARD}
    document["verdict"]["recipe"] = "half"
    found = dlsim.Result(document).verdict
    assert found.recipe == "half"
    fp16 = found["fp16"]
    assert not fp16.serves and fp16.verdict == "fails in forward"
    assert fp16.forward == FORWARD and fp16.forward.first.absmax == 66246.0
    assert fp16.forward.overflowing.tensor.tolist() == ["block.0.wo.act", "scores.act"]


@pytest.mark.parametrize("command", [dlsim.replay, dlsim.tune])
def test_a_format_fails_in_forward(tmp_path: Path, command: Any) -> None:
    found = command(t5(tmp_path), formats=["fp16", "bf16"]).verdict
    assert found.looked_at == ["grad", "act_grad", "act"]
    assert found.lines[0] == (
        "fp16  fails in forward: block.0.wo reaches 66246 at step 0, the largest fp16 value is "
        "65504. No loss scale helps.\n  Instead, use bf16."
    )
    assert found.lines[1] == "bf16  trains without loss scaling."
    assert found.lines[2].startswith(
        "Based on gradients of parameters and activations and on the forward pass of 2 of 3 steps."
    )
    fp16, bf16 = found["fp16"].forward, found["bf16"].forward
    assert fp16.state == "overflows" and fp16.steps == 2 and fp16.absmax == 70000
    assert fp16.headroom == pytest.approx(math.log2(65504 / 70000))
    assert fp16.first == {"step": 0, "tensor": "block.0.wo.act", "absmax": 66246.0}
    assert bf16.state == "fits" and bf16.first is None and bf16.headroom > 100
    assert found["fp16"].values.state == "not recorded"
    assert found.recipe == "autocast" and fp16.kept_in_float32 == ["block.0.wi.act"]


def test_the_recipe_is_a_keyword(tmp_path: Path) -> None:
    trace = t5(tmp_path)
    half = dlsim.replay(trace, formats="fp16", recipe="half").verdict
    assert half.recipe == "half"
    assert half["fp16"].forward.kept_in_float32 == []
    unknown: Any = "bf16"
    with pytest.raises(dlsim.UsageError, match="recipe"):
        dlsim.replay(trace, recipe=unknown)


def test_head_room_is_a_figure_to_expect(tmp_path: Path) -> None:
    expect = ["fp16/torch:forward_headroom>1", "bf16/torch:forward_headroom>1"]
    fails, holds = dlsim.replay(
        t5(tmp_path), formats=["fp16", "bf16"], policies="torch", expect=expect
    ).expectations
    assert not fails.holds and fails.found == pytest.approx(math.log2(65504 / 70000))
    assert holds.holds
    unrecorded = dlsim.replay(
        tmp_path / "trace", formats="fp16", policies="torch", expect="values_headroom>1"
    ).expectations[0]
    assert unrecorded.found is None and not unrecorded.holds


def test_the_first_figure_of_the_report_has_the_largest_outputs(tmp_path: Path) -> None:
    document = replay(formats=("fp16", "bf16"))
    document["verdict"] = verdict(document, [(3, 16)] * 20)
    document["verdict"]["formats"][0] |= {"verdict": "fails in forward", "forward": FORWARD}
    for run in document["runs"]:
        run["tensors"] += [
            {"name": "block.0.wo.act", "role": "act", "absmax": 70000.0},
            {"name": "norm.act", "role": "act", "absmax": 1e6},
        ]
    html = write(tmp_path, document)
    largest, scales = Page(html).figures["verdict"]
    assert largest["layout"]["yaxis"]["ticktext"] == ["block.0.wo"]  # norm stays in float32
    assert largest["data"][0]["x"] == [round(math.log2(70000), 4)]
    assert "fp16: -0.1 binades left" in largest["data"][0]["text"][0]
    assert '<span class="grade bad">fails in forward: no loss scale helps</span>' in html
    bands = [trace["yaxis"] for trace in scales["data"] if trace.get("fill")]
    assert bands == ["y2"]  # of bf16: no scale is safe in fp16


def test_no_layer_of_a_large_model_vanishes(tmp_path: Path) -> None:
    document = replay(formats=("fp16",))
    document["runs"][0]["tensors"] += [
        {"name": f"layer.{i}.act", "role": "act", "absmax": 2.0**i} for i in reversed(range(100))
    ]
    points = Page(write(tmp_path, document)).figures["verdict"][0]["data"][0]
    assert [said.split("<br>")[0] for said in points["text"]] == [f"layer.{i}" for i in range(100)]
    assert points["x"] == list(range(100))


def test_pages_without_forward_outputs_have_no_such_figure(tmp_path: Path) -> None:
    assert len(Page(write(tmp_path, replay())).figures["verdict"]) == 1
