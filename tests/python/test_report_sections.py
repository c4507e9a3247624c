# SPDX-License-Identifier: Apache-2.0
"""What the sections of a report make of the numbers of a result."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from report_samples import (
    HOSTILE,
    TRACES,
    command,
    data_of,
    replay,
    run_of,
    tune,
    unpacked,
    verdict,
    write,
)

import dlsim
from dlsim.report._json import log2
from dlsim.report._names import NameTable, layer_of
from dlsim.report._text import raise_powers
from dlsim.report.exponents import format_range
from dlsim.report.scale_path import scale_path
from dlsim.report.scale_windows import MAX_POINTS
from dlsim.traces._writer import TraceWriter

FIGURE = 'data-chart="windows" data-key="'


def test_a_thinned_path_keeps_its_extremes_and_every_odd_step() -> None:
    document = replay(steps=9000, formats=("fp16",))
    steps = document["runs"][0]["steps"]
    for i, step in enumerate(steps):
        step["scale"] = 2.0 ** (i % 7)
    steps[4321]["scale"], steps[4322]["scale"] = 2.0**60, 2.0**-60
    path = scale_path(run_of(document), NameTable())
    assert max(path["log2"]) == 60 and min(path["log2"]) == -60
    assert path["step"] == sorted(path["step"])
    assert path["step"][0] == 0 and path["step"][-1] == 8999
    for cause in ("overflow", "input", "norm"):
        expected = sum(step.get("cause") == cause for step in steps)
        assert sum(mark[2] for mark in path["marks"] if mark[5] == cause) == expected


def test_a_short_path_is_exact() -> None:
    document = replay(formats=("fp16",))
    path = scale_path(run_of(document), NameTable())
    steps = document["runs"][0]["steps"]
    scale_at = dict(zip(path["step"], path["log2"], strict=True))
    current = None
    for step in steps:
        current = scale_at.get(step["step"], current)
        assert current == log2(step["scale"])
    assert [mark[0] for mark in path["marks"]] == [s["step"] for s in steps if s["skipped"]]


def test_heat_maps_have_the_shares_of_the_result(tmp_path: Path) -> None:
    options = ("--policy", "static", "--format", "fp16", "--heat-map=5")
    document = command("replay", TRACES / "cnn-digits", *options)
    data = data_of(write(tmp_path, document, read_trace=False))
    heat = unpacked(data["runs"][0]["heat_map"])
    lost = 0
    assert heat["harm"]
    originals = {t["name"]: t for t in document["runs"][0]["heat_map"]["tensors"]}
    assert len(heat["tensors"]) == len(originals)
    for row in heat["tensors"]:
        original = originals[data["names"][row[0]]]
        for shares, part, whole in (
            (row[2], "underflow", "nonzero"),
            (row[3], "error_sum_of_squares", "sum_of_squares"),
        ):
            for code, a, b in zip(shares, original[part], original[whole], strict=True):
                assert (code is None) == (b == 0)
                if code == 1:
                    assert a == 0
                elif code is not None:
                    lost += 1
                    assert math.isclose(2 ** (code / 64), a / b, rel_tol=0.006)
    assert lost > 0


def test_layers_add_up_their_tensors(tmp_path: Path) -> None:
    document = replay(formats=("fp16",), bins=2)
    rows = document["runs"][0]["heat_map"]["tensors"]
    for row, underflow in zip(rows, ([1, 0], [3, 0], [5, 10**6]), strict=True):
        row["underflow"] = underflow
    rows[1]["nonzero"] = [3, 0]
    rows[1]["sum_of_squares"] = rows[1]["underflow_sum_of_squares"] = ["nan", "inf"]
    data = data_of(write(tmp_path, document))
    heat = unpacked(data["runs"][0]["heat_map"])
    assert [data["names"][row[0]] for row in heat["layers"]] == ["blocks.0.attn", "head"]
    assert heat["layers"][0][2][0] == round(64 * math.log2(4 / 1_000_003))
    assert heat["layers"][0][2][1] == 1  # nothing of 10^6
    assert heat["layers"][1][2][1] == 0  # all: the logarithm of 1
    assert heat["tensors"][1][2] == [0, None] and heat["tensors"][1][3] == [None, None]


def test_the_harm_of_a_layer_is_that_of_its_worst_tensor(tmp_path: Path) -> None:
    names = ("a.weight.grad", "a.bias.grad", "a.scale.grad", "b.bias.grad")
    document = replay(names, formats=("fp16",), bins=3)
    run = document["runs"][0]
    errors = ([2.0**-20, 0.0, 0.0], [2.0**-4, 2.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, "nan"])
    for row, error in zip(run["heat_map"]["tensors"], errors, strict=True):
        row["error_sum_of_squares"] = error
    for i in (2, 3):
        run["tensors"][i]["noise"] = True  # of float32, not counted
    heat = unpacked(data_of(write(tmp_path, document))["runs"][0]["heat_map"])
    assert heat["harm"]
    harms = [row[3] for row in heat["tensors"]]
    assert harms == [[-64 * 20, 1, 1], [-64 * 4, 0, 1], [0, 0, 0], [0, 1, None]]
    assert [row[3] for row in heat["layers"]] == [[-64 * 4, 0, 1], [None, None, None]]


def test_heat_maps_of_older_results_have_the_energy_lost(tmp_path: Path) -> None:
    document = replay(formats=("fp16",), bins=1)
    rows = document["runs"][0]["heat_map"]["tensors"]
    rows[0]["error_sum_of_squares"] = [0.5]  # not in all: not used
    for row in rows:
        row["underflow_sum_of_squares"] = [2.0**-8]
    heat = unpacked(data_of(write(tmp_path, document))["runs"][0]["heat_map"])
    assert not heat["harm"] and [row[3] for row in heat["tensors"]] == [[-64 * 8]] * 3


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("blocks.0.attn.qkv.weight.grad", "blocks.0.attn.qkv"),
        ("blocks.0.attn.act_grad", "blocks.0.attn"),
        ("blocks.0.attn/matmul.call1.act", "blocks.0.attn"),
        ("logit_scale.grad", "logit_scale"),
        ("w", "w"),
        ("grad", "grad"),
        ("", ""),
    ],
)
def test_layers(name: str, layer: str) -> None:
    assert layer_of(name) == layer


def test_ranges_are_where_the_formats_change() -> None:
    assert format_range("fp16", {}) == {
        "name": "fp16", "zero": -25, "normal": -14,
        "over": pytest.approx(16, abs=1e-3), "max": pytest.approx(16, abs=1e-3),
        "subnormal": math.log2(2**-14 - 2**-25), "infinite": math.log2(65520), "known": True,
    }  # fmt: skip
    assert format_range("fp16", {"rounding": "rtz"})["zero"] == -24
    assert format_range("fp16", {"subnormals": "flush"})["zero"] == pytest.approx(-14, abs=1e-3)
    assert format_range("cb16", {})["zero"] == -40
    for name in dlsim.format_names():
        found = format_range(name, {})
        assert found["zero"] < found["normal"] < found["max"] <= found["over"] + 1e-9


def test_a_page_begins_with_the_verdict_and_the_windows(tmp_path: Path) -> None:
    document = replay(steps=6, policies=("torch", "static"))
    windows = [(3, 16), (3, 16), (4, 15), (None, None), (None, None), (-126, 126)]
    document["verdict"] = verdict(document, windows)
    page = write(tmp_path, document)
    said = [raise_powers(line) for line in document["verdict"]["lines"]]
    assert "2\u00b9\u2074" in said[0]
    lines = [page.index(line) for line in said]
    figures = [page.index(f'{FIGURE}0-{i}"') for i in range(2)]
    others = [page.index('class="recording"'), page.index('data-chart="fates"')]
    assert [*lines, *figures, *others] == sorted([*lines, *figures, *others])
    assert page.count(said[0]) == 1
    data = data_of(page)
    for i, name in enumerate(("fp16", "cb16")):
        shown = data["windows"][0][str(i)]
        assert (shown["format"], shown["scale"]) == (name, 14)
        assert [data["runs"][run]["format"] for run in shown["runs"]] == [name, name]
        assert unpacked(shown["bands"]) == {
            "step": [0, 2, 3, 5],
            "low": [3, 4, None, -126],
            "high": [16, 15, None, 126],
            "end": 6,
        }


def test_the_windows_have_the_loss_norm_and_scale_of_the_training(tmp_path: Path) -> None:
    tensors = {"w.grad": np.float32([4, 2]), "a.act_grad": np.float32([2**9])}
    with TraceWriter(tmp_path / "trace") as writer:
        for step, loss in enumerate(("0.5", "nan", "0.25")):
            writer.write(step, tensors, {"loss": loss, "grad_scale": str(2.0 ** (step + 1))})
    result = dlsim.replay(tmp_path / "trace", formats=["fp16", "cb16"], policies="static")
    data = data_of(write(tmp_path, result.data))
    assert unpacked(data["training"]) == {
        "step": [0, 1, 2],
        "loss": [0.5, None, 0.25],
        "scale": [1, 2, 3],
        "norm": [float(f"{5**0.5 * 2**-step:.6g}") for step in range(3)],
    }


def test_the_norm_is_that_of_the_recorded_gradients(tmp_path: Path) -> None:
    rows = ([3, 4], [3e30, 4e30], [math.nan, 1], [2**-140, 0])  # fp16 holds the first
    with TraceWriter(tmp_path / "trace") as writer:
        for step, row in enumerate(rows):
            writer.write(step, {"w.grad": np.float32(row)})
    dlsim.profile(tmp_path / "trace", tmp_path / "a.dlprof")
    expected = [5, 5e30, None, float(f"{2**-140:.6g}")]
    for name in ("trace", "a.dlprof"):
        result = dlsim.replay(tmp_path / name, formats="fp16", policies="torch")
        norms = unpacked(data_of(write(tmp_path, result.data))["training"])["norm"]
        assert norms == [None if n is None else pytest.approx(n, rel=1e-5) for n in expected]


def test_the_norm_of_micro_steps_is_that_of_their_sum(tmp_path: Path) -> None:
    trace = TRACES / "lm-kjv-accum-cut"
    dlsim.profile(trace, tmp_path / "a.dlprof")
    found = {}
    for path in (trace, tmp_path / "a.dlprof"):
        result = dlsim.replay(path, formats="bf16", policies="static")
        training = data_of(write(tmp_path, result.data))["training"]
        found[path] = unpacked(training)["norm"] if training else [None, None]
    steps = list(dlsim.open_trace(trace))
    squares = [sum(float(np.sum(v * v)) for v in step.gradients().values()) for step in steps]
    assert found[trace] == pytest.approx([square**0.5 for square in squares], rel=1e-5)
    assert found[tmp_path / "a.dlprof"] == [None, None]  # histograms do not tell that of a sum


def test_a_training_that_tells_nothing_has_no_figure(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "trace") as writer:
        writer.write(0, {"w.act_grad": np.float32([4, 2])})
    result = dlsim.replay(tmp_path / "trace", formats="fp16", policies="static")
    assert data_of(write(tmp_path, result.data))["training"] is None


def test_very_many_windows_keep_the_narrowest_of_their_neighbors(tmp_path: Path) -> None:
    document = replay(steps=9000, formats=("fp16",))
    windows: list[tuple[float | None, float | None]] = [(i % 7, 16 + i % 5) for i in range(9000)]
    windows[4321], windows[5000] = (9, 11), (None, None)
    document["verdict"] = verdict(document, windows)
    bands = unpacked(data_of(write(tmp_path, document))["windows"][0]["0"]["bands"])
    assert len(bands["step"]) <= MAX_POINTS + 1 and bands["step"] == sorted(set(bands["step"]))
    assert bands["step"][-1] == 8999 and bands["end"] == 9000
    at = dict(zip(bands["step"], zip(bands["low"], bands["high"], strict=True), strict=True))
    assert at[4321] == (9, 11) and at[5000] == (None, None)


def test_a_verdict_without_windows_has_no_figure(tmp_path: Path) -> None:
    document = replay(steps=4)
    document["verdict"] = verdict(document, [(3, 16)] * 4)
    del document["verdict"]["formats"][0]["steps"]
    page = write(tmp_path, document)
    assert list(data_of(page)["windows"][0]) == ["1"] and page.count(FIGURE) == 1
    del document["verdict"]["formats"][1]["steps"]
    page = write(tmp_path, document)
    assert data_of(page)["windows"] == [{}] and FIGURE not in page
    assert raise_powers(document["verdict"]["lines"][0]) in page
    del document["verdict"]
    page = write(tmp_path, document)
    assert data_of(page)["windows"] == [] and 'class="said"' not in page


def test_formats_are_as_asked_with_code_to_paste(tmp_path: Path) -> None:
    arguments = ["--format", "cb16", "--format", "fp16", "--format", "bf16", "--policy", "torch"]
    document = command("tune", str(TRACES / "cnn-digits"), *arguments)
    assert document["verdict"]["best"] == "fp16"
    page = write(tmp_path, document, read_trace=False)
    places = [page.index(f"<h3>{name} ") for name in ("cb16", "fp16", "bf16")]
    folded = page.index("<details><summary>Other formats: fp16, bf16</summary>")
    assert sorted([*places, folded]) == [places[0], folded, *places[1:]]
    assert page.count("the growth interval of 2000 was never reached") == 1
    arguments_of = "init_scale=16384.0, growth_interval=2000"
    assert f"scaler = torch.amp.GradScaler(device, {arguments_of})\n" in page
    assert f"kwargs_handlers=[GradScalerKwargs({arguments_of})],\n" in page
    assert "dtype=torch.bfloat16" in page and "Lightning" in page


def test_verdicts_of_one_recording_stand_once_and_others_have_a_name(tmp_path: Path) -> None:
    document, recommended = replay(steps=4, formats=("fp16",)), tune()
    said = verdict(document, [(3, 16)] * 4)
    document["verdict"] = recommended["verdict"] = said
    page = write(tmp_path, document, recommended, read_trace=False)
    assert page.count('class="said"') == 1 and len(data_of(page)["windows"]) == 1
    recommended["verdict"] = {**said, "lines": [*HOSTILE[:3]]}
    page = write(tmp_path, document, recommended, read_trace=False)
    assert page.count('class="said"') == 2 and page.count("<h3>result</h3>") == 2
    assert HOSTILE[0] not in page and "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in page
    recommended["verdict"] = {"lines": 3}
    with pytest.raises(dlsim.InputError, match=r"^result: verdict: not of the form dlsim.tune/1"):
        write(tmp_path, document, recommended)
