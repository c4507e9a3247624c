# SPDX-License-Identifier: Apache-2.0
"""`dlsim report`: every kind of result gives a page whose values are those of the result."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import math
import os
import random
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_samples import HOSTILE, LOGS, TRACES, Page, numbers, replay, verdict, write

import dlsim
from dlsim._text import percent_text, scale_text
from dlsim.report import figures
from dlsim.report._command import main
from dlsim.report._results import Run, contents_of, shown_result, text
from dlsim.report.page import MAX_ROWS, outcome
from dlsim.traces._writer import TraceWriter

TRACE = TRACES / "lm-trouble-cut"


@cache
def result(kind: str) -> dict[str, Any]:
    """A result of a bundled trace or log; not to be changed."""
    formats = ["fp16", "bf16"]
    if kind == "replay":
        return dlsim.replay(TRACE, formats=formats, policies=["torch", "static"], heat_map=True)
    if kind == "tune":
        return dlsim.tune(TRACE, formats=formats)
    if kind == "sweep":
        vary = {"init_scale": "2^0..2^40"}
        return dlsim.sweep(TRACE, formats="fp16", policies="torch", vary=vary)
    if kind == "explain":
        return dlsim.explain(LOGS / "megatron-steady.log")
    return dlsim.replay(TRACES / "t5-stream", formats=["mxfp8", "nvfp4"])


def diff(folder: Path) -> dict[str, Any]:
    """A bundled trace, but for its last tensor, and its bf16 twin."""
    with TraceWriter(folder / "bf16") as writer:
        for step in dlsim.open_trace(TRACE):
            kept = list(step.tensors.items())[:-1]
            writer.write(step.number, {name: dlsim.quantize(v, "bf16") for name, v in kept})
    return dlsim.diff(TRACE, folder / "bf16")


def runs_of(document: dict[str, Any]) -> list[Run]:
    return contents_of([shown_result("sample.json", document)], read_trace=False).runs


@pytest.mark.parametrize(
    ("kind", "sections", "drawn"),
    [
        ("replay", ["verdict", "policies", "losses", "exponents"], 5),
        ("tune", ["verdict", "recommendation", "exponents"], 1),
        ("sweep", ["verdict", "exponents", "sweep"], 2),
        ("explain", ["log"], 1),
        ("scaled", ["verdict", "scaled", "exponents"], 0),
    ],
)
def test_every_kind_of_result_gives_a_page(
    kind: str, sections: list[str], drawn: int, tmp_path: Path
) -> None:
    before = copy.deepcopy(result(kind))
    page = Page(write(tmp_path, result(kind), title="Run A"))
    assert result(kind) == before
    assert [found["id"] for tag, found in page.tags if tag == "section"] == [*sections, "about"]
    charts = [found for _, found in page.tags if "data-figure" in found]
    assert len(charts) == drawn
    assert all(found["role"] == "img" and len(str(found["aria-label"])) > 20 for found in charts)
    for line in result(kind).get("verdict", {}).get("lines", ()):
        said = line.split("\n")[0].replace("2^", "2")  # exponents are raised
        assert said in page.texts["verdict"]


def test_results_of_all_kinds_share_a_page(tmp_path: Path) -> None:
    kinds = [result(kind) for kind in ("replay", "tune", "sweep", "explain", "scaled")]
    page = Page(write(tmp_path, *kinds, diff(tmp_path)))
    expected = ["verdict", "log", "scaled", "recommendation", "policies", "losses", "exponents"]
    found = [found["id"] for tag, found in page.tags if tag == "section"]
    assert found == [*expected, "sweep", "differences", "about"]
    links = [found["href"] for tag, found in page.tags if tag == "a"]
    assert links == [f"#{key}" for key in found]


def test_tables_have_the_values_of_the_summary(tmp_path: Path) -> None:
    page = Page(write(tmp_path, result("replay")))
    _, *rows = page.rows["policies"]
    for row, run in zip(rows, result("replay")["runs"], strict=True):
        summary = run["summary"]
        scales = [summary[f"{end}_scale"] for end in ("min", "max", "final")]
        shares = [summary[key] for key in ("underflow_fraction", "worst_harm")]
        assert row[0] == f"{run['format']} \u00b7 {run['policy']}"
        assert row[2:5] == [
            str(summary[k]) for k in ("skipped_steps", "steps", "first_applied_step")
        ]
        assert row[5:8] == [scale_text(scale).replace("2^", "2") for scale in scales]
        assert row[8:] == [*map(percent_text, shares), f"{summary['overflow']:,}"]
    rows = [row for row in page.rows["losses"] if row[0] != "tensor"]
    for run in result("replay")["runs"]:
        tensors = {tensor["name"]: tensor for tensor in run["tensors"]}
        shown, rows = rows[: len(tensors)], rows[len(tensors) :]
        assert {row[0] for row in shown} == tensors.keys()
        for name, role, harm, _, _, subnormal, *_ in shown:
            known = tensors[name]["mean_harm"]
            assert (role, harm) == (tensors[name]["role"], percent_text(known) if known else harm)
            assert subnormal == f"{tensors[name]['subnormal']:,}"


def test_scales_windows_and_skips_are_those_of_the_result(tmp_path: Path) -> None:
    page = Page(write(tmp_path, result("replay")))
    (drawn,) = page.figures["verdict"]
    runs = result("replay")["runs"]
    axes = {"fp16": "y", "bf16": "y2"}
    for run in runs:
        traces = [t for t in drawn["data"] if t["yaxis"] == axes[run["format"]]]
        named = {trace["name"]: trace for trace in traces}
        scales = {step["step"]: math.log2(step["scale"]) for step in run["steps"]}
        path = named[run["policy"]]
        at = dict(zip(path["x"], path["y"], strict=True))
        last = None
        for step, scale in scales.items():  # constant between the corners
            last = at.get(step, last)
            assert last == pytest.approx(scale, abs=1e-4)
        for what, skipped in (("skipped", True), ("applied, not finite", False)):
            odd = [s for s in run["steps"] if not s["finite"] and s["skipped"] is skipped]
            marks = named.get(f"{run['policy']}: {what}", {"x": [], "text": []})
            assert marks["x"] == [step["step"] for step in odd]
            for step, said in zip(odd, marks["text"], strict=True):
                helps = f"{'a' if step['lower_scale_helps'] else 'no'} lower scale helps"
                assert f"cause: {step['cause']}" in said and helps in said
    for found in result("replay")["verdict"]["formats"]:
        traces = [t for t in drawn["data"] if t["yaxis"] == axes[found["format"]]]
        (band,) = [trace for trace in traces if trace["name"] == "safe loss scales"]
        assert band["fill"] == "toself"
        pieces = {
            band["x"][i]: (band["y"][i], band["y"][i + 2]) for i in range(0, len(band["x"]), 6)
        }
        piece: Any = None
        for step, low, high in found["steps"]:
            piece = pieces.get(step, piece)
            if low is not None:
                assert piece == pytest.approx((math.log2(low), math.log2(high)), abs=1e-3)
            else:
                marks = [t for t in traces if t["name"] == "no scale is safe from here"]
                assert marks and min(marks[0]["x"]) <= step


def test_where_no_scale_helps_there_is_none(tmp_path: Path) -> None:
    for failing in ("no scale serves", "fails in forward"):
        document = replay(steps=4, formats=("fp16", "bf16"))
        document["verdict"] = verdict(document, [(3, 16)] * 4)
        document["verdict"]["formats"][0]["verdict"] = failing
        page = write(tmp_path, document)
        (drawn,) = Page(page).figures["verdict"]
        green = [t["yaxis"] for t in drawn["data"] if t.get("fill") or t["name"] == "scale to use"]
        assert green == ["y2", "y2"]
        cards = re.findall(r'<div class="card (\w+)">(.*?)</div>', page)
        assert [grade for grade, _ in cards] == ["bad", "fair"]
        assert "use 2" not in cards[0][1] and "use 2<sup>14</sup>" in cards[1][1]


def test_a_heat_map_shows_the_shares_of_the_result(tmp_path: Path) -> None:
    run = result("replay")["runs"][0]
    drawn = Page(write(tmp_path, result("replay"))).figures["losses"][0]
    assert drawn["layout"]["yaxis"]["ticktext"] == figures.in_order(
        tensor["name"] for tensor in run["heat_map"]["tensors"]
    )
    sums = {tensor["name"]: tensor for tensor in run["heat_map"]["tensors"]}
    parts = {"harm": ("error_sum_of_squares", "sum_of_squares")}
    parts |= {key: (key, "nonzero") for key in ("underflow", "overflow")}
    for trace, (part, whole) in zip(drawn["data"], parts.values(), strict=True):
        assert list(trace["x"]) == run["heat_map"]["bins"]["first_step"]
        for name, row in zip(
            drawn["layout"]["yaxis"]["ticktext"], numbers(trace["z"]), strict=True
        ):
            for cell, some, of in zip(row, sums[name][part], sums[name][whole], strict=True):
                if not float(of) > 0 or not math.isfinite(float(of)):
                    assert math.isnan(cell)
                elif float(some) <= float(of):
                    logarithm = math.log10(float(some) / float(of)) if float(some) else -99
                    assert cell == pytest.approx(max(logarithm, figures.FLOOR), abs=0.01)


def test_rows_of_a_large_model_show_the_worst_of_their_tensors(tmp_path: Path) -> None:
    names = [f"model.layers.{i // 4}.{'qkvo'[i % 4]}.weight.grad" for i in reversed(range(1200))]
    document = replay(names, 10_000, ("fp16",), bins=200)
    page = write(tmp_path, document)
    assert len(page) < 6_500_000
    drawn = Page(page).figures["losses"][0]
    rows = numbers(drawn["data"][0]["z"])
    assert rows.shape == (120, 200)
    sums = {
        t["name"]: t["error_sum_of_squares"] for t in document["runs"][0]["heat_map"]["tensors"]
    }
    order = figures.in_order(figures.layer_of(name) for name in names)
    assert len(order) == 1200 and drawn["data"][0]["text"][1][0] == f"{order[10]} and 9 more"
    for row, first in enumerate(range(0, 1200, 10)):
        worst = np.max(
            [sums[f"{layer}.weight.grad"] for layer in order[first : first + 10]], axis=0
        )
        expected = np.maximum(np.log10(worst), figures.FLOOR)
        assert rows[row] == pytest.approx(expected, abs=0.01)
    assert f"{1200 - MAX_ROWS} more are left out" in page
    skipped = document["runs"][0]["summary"]["skipped_steps"]
    marks = [t["name"] for t in Page(page).figures["verdict"][0]["data"]][1]
    assert skipped > 2000 and marks.endswith(f"of {skipped} shown)")


@pytest.mark.parametrize("name", ["cnn-digits", "lm-trouble-cut"])
def test_exponents_agree_with_the_counters(name: str) -> None:
    counted = dlsim.exponents(TRACES / name)
    settings = {"static.loss_scale": 1.0}
    static = dlsim.replay(TRACES / name, formats="fp16", policies="static", settings=settings)
    figure = figures.exponents(counted, "grad", runs_of(static), 3)
    assert figure is not None
    grads = [tensor for tensor in counted.tensors.values() if tensor.role == "grad"]
    total = sum(tensor.counts for tensor in grads)
    bars = next(trace for trace in figure.data if trace.type == "bar")
    assert dict(zip(bars.customdata, bars.y, strict=True)) == {
        power: total[i]
        for i, power in enumerate(counted.exponents)
        if min(bars.customdata) <= power <= max(bars.customdata)
    }
    assert bars.y.sum() == total.sum()
    (slider,) = figure.layout.sliders
    assert slider.steps[slider.active].label == "2<sup>3</sup>"
    for power in (-9, 0, 16, 30):
        settings = {"static.loss_scale": 2.0**power}
        run = dlsim.replay(TRACES / name, formats="fp16", policies="static", settings=settings)
        (step,) = [s for s in slider.steps if s.label == f"2<sup>{power}</sup>"]
        changed, lines, _ = step.args
        said = re.findall(r"(\w+) (~?)([\d.e+-]+)", changed["text"][-1][0].split("</b>")[1])
        for what, estimated, shown in said:
            key = {"zero": "underflow"}.get(what, what)
            tensors = [t for t in run["runs"][0]["tensors"] if t["role"] == "grad"]
            exact = sum(tensor[key] for tensor in tensors) / total.sum()
            assert float(shown) / 100 == pytest.approx(exact, rel=0.3, abs=2e-3)
            assert estimated or exact < 1e-3
        assert lines["shapes[1].x0"] == pytest.approx(math.log2(65520) - power)


def test_largest_values_come_with_the_end_of_the_format(tmp_path: Path) -> None:
    document = replay(formats=("fp16", "bf16"))
    outputs = [{"name": f"h.{i}.act", "role": "act", "absmax": 2.0**i} for i in (11, 2, 17)]
    for run in document["runs"]:
        run["tensors"] += outputs
    drawn = Page(write(tmp_path, document)).figures["verdict"][0]
    assert drawn["layout"]["yaxis"]["ticktext"] == ["h.2", "h.11", "h.17"]
    assert drawn["data"][0]["x"] == [2, 11, 17]
    assert "fp16: 14.0 binades left<br>bf16: 126.0" in drawn["data"][0]["text"][0]
    assert [shape["x0"] for shape in drawn["layout"]["shapes"]] == [math.log2(65504)]


def test_a_sweep_shows_its_runs_and_its_front(tmp_path: Path) -> None:
    document = result("sweep")
    page = Page(write(tmp_path, document))
    (drawn,) = page.figures["sweep"]
    points = drawn["data"][0]
    summaries = [run["summary"] for run in document["runs"]]
    assert points["x"] == [summary["skipped_steps"] for summary in summaries]
    assert points["y"] == pytest.approx([math.log10(s["mean_loss"]) for s in summaries])
    stars = [i for i, symbol in enumerate(points["marker"]["symbol"]) if symbol == "star"]
    assert stars == sorted(document["pareto"])
    _, *rows = page.rows["sweep"]
    for row, i in zip(rows, document["pareto"], strict=True):
        assert row[3:5] == [
            str(summaries[i]["skipped_steps"]),
            percent_text(summaries[i]["mean_loss"]),
        ]


def test_a_diff_shows_every_step_and_tensor(tmp_path: Path) -> None:
    document = diff(tmp_path)
    page = Page(write(tmp_path, document))
    (drawn,) = page.figures["differences"]
    assert drawn["data"][0]["x"] == [step["step"] for step in document["steps"]]
    for step, y in zip(document["steps"], drawn["data"][0]["y"], strict=True):
        if isinstance(step["difference"], float) and 0 < step["difference"] < math.inf:
            assert y == pytest.approx(math.log10(step["difference"]))
    _, *rows = page.rows["differences"]
    tensors = {tensor["name"]: tensor for tensor in document["tensors"]}
    assert {row[0] for row in rows} == tensors.keys()
    assert all(
        float(row[1]) == pytest.approx(tensors[row[0]]["max_relative_difference"], rel=1e-3)
        for row in rows
    )
    assert document["unmatched"]["tensors"][0]["name"] in page.texts["differences"]
    for line in document["lines"]:
        assert line.split("\n")[0] in page.texts["differences"]


def test_a_recommendation_can_be_copied(tmp_path: Path) -> None:
    document = result("tune")
    page = write(tmp_path, document)
    shown = [found for tag, found in Page(page).tags if tag == "pre"]
    assert len(shown) >= 6
    for block in document["formats"][0]["config"].values():
        assert text(block.splitlines()[0]) in page
    rows = [row[:2] for row in Page(page).rows["recommendation"]]
    for other in document["formats"][0]["comparisons"]:
        assert [other["label"].replace("2^", "2"), percent_text(other["mean_loss"])] in rows


def test_a_log_shows_its_scales(tmp_path: Path) -> None:
    document = result("explain")
    page = Page(write(tmp_path, document))
    line, marks = page.figures["log"][0]["data"]
    scales = [math.log2(part["scale"]) for part in document["brackets"]]
    assert line["x"][:-1] == [part["first_step"] for part in document["brackets"]]
    assert line["y"] == [*scales, scales[-1]]
    assert len(marks["x"]) == sum(part["skipped"] > 0 for part in document["brackets"])
    assert (
        "17: steady" in page.texts["log"] and document["diagnosis"]["evidence"] in page.texts["log"]
    )


def test_scaled_formats_show_what_both_passes_lose(tmp_path: Path) -> None:
    rows = Page(write(tmp_path, result("scaled"))).rows["scaled"]
    for entry in result("scaled")["verdict"]["formats"]:
        (row,) = [row for row in rows if row[0] == entry["format"]]
        steps = entry["scaled"]["steps"]
        for i, side in ((2, "forward"), (4, "backward")):
            harms = [
                step[side]["mean_harm"] for step in steps if step[side]["mean_harm"] is not None
            ]
            assert row[i] == percent_text(sum(harms) / len(harms))
            assert row[i + 1] == percent_text(max(harms))
        judged = [tensor for tensor in entry["scaled"]["tensors"] if tensor["judged"]]
        worst = max(judged, key=lambda tensor: tensor["mean_harm"] or 0)
        assert [worst["name"], percent_text(worst["mean_harm"])] in [[r[0], r[2]] for r in rows]


@pytest.mark.parametrize(
    ("trace", "policy", "scale", "expected"),
    [
        ("cnn-digits", "static", -24, ("bad", "scale too low at 45 steps")),
        ("cnn-digits", "static", -8, ("good", "the scale was safe")),
        ("cnn-digits", "static", 17, ("bad", "18 applied though not finite")),
        ("lm-trouble-cut", "torch", 16, ("bad", "2 skipped: scale too high")),
        ("lm-trouble-cut", "deepspeed", None, ("bad", "no step applied")),
    ],
)
def test_runs_are_graded(trace: str, policy: str, scale: int | None, expected: Any) -> None:
    name = {"static": "loss_scale", "torch": "init_scale"}.get(policy)
    settings = {} if scale is None else {f"{policy}.{name}": 2.0**scale}
    found = dlsim.replay(TRACES / trace, formats="fp16", policies=policy, settings=settings)
    assert outcome(runs_of(found)[0]) == expected


def test_names_are_shown_and_never_obeyed(tmp_path: Path) -> None:
    document = replay(HOSTILE, bins=4)
    document["verdict"] = verdict(document, [(3, 16)] * 20)
    document["verdict"]["lines"] = [*HOSTILE]
    document["trace"]["description"] = {"model": HOSTILE[0], HOSTILE[1]: HOSTILE[6]}
    run = document["runs"][0]
    run |= {"policy": HOSTILE[0], "notes": [*HOSTILE]}
    run["events"] = [{"step": 1, "type": "x", "message": HOSTILE[1]}]
    run["tensors"] += [{"name": f"{n}.act", "role": "act", "absmax": 2.0} for n in HOSTILE]
    tuned, swept, scaled, log = map(
        copy.deepcopy, map(result, ("tune", "sweep", "scaled", "explain"))
    )
    tuned["formats"][0] |= {"verdict": HOSTILE[0], "reason": HOSTILE[0], "notes": [HOSTILE[0]]}
    tuned["formats"][0] |= {"config": {"zoo": HOSTILE[0]}}
    tuned["formats"][0]["comparisons"][0]["label"] = HOSTILE[0]
    for i, each in enumerate(swept["runs"]):
        each |= {"policy": HOSTILE[0], "params": {HOSTILE[0]: HOSTILE[0] + str(i)}}
    for tensor, name in zip(
        scaled["verdict"]["formats"][0]["scaled"]["tensors"], HOSTILE, strict=False
    ):
        tensor |= {"name": name, "judged": True}
    log |= {"stack": HOSTILE[0], "notes": [HOSTILE[0]]}
    compared = diff(tmp_path)
    compared["tensors"][0]["name"] = compared["steps"][0]["tensor"] = HOSTILE[0]
    results = [document, tuned, swept, scaled, log, compared]
    html = write(tmp_path, *results, title=HOSTILE[0])
    page = Page(html)
    allowed = (
        "html head meta title style body header h1 nav a main noscript p section h2 h3 div pre "
        "figure figcaption b i sup details summary dl dt dd ul li table thead tbody tr th td span "
        "button label select option input code footer script"
    )
    assert {tag for tag, _ in page.tags} <= set(allowed.split())
    assert sum(tag == "script" for tag, _ in page.tags) == 2
    for _, found in page.tags:
        assert not any(key.startswith("on") for key in found)
        assert str(found.get("href", "#")).startswith("#") and "src" not in found
    plain = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert not re.search("[\u202e\u202c\u2028\u2029\x00]", plain)
    shown = {row[0] for row in page.rows["losses"]}
    assert {HOSTILE[0], HOSTILE[1], HOSTILE[6], "\\u202egnirts\\u202c.weight.grad"} <= shown

    def texts(value: Any) -> Any:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            for each in value.values() if isinstance(value, dict) else value:
                yield from texts(each)

    drawn = " ".join(t for of in page.figures.values() for one in of for t in texts(one))
    assert "onerror" in drawn
    assert not re.search(r"<(?!/?(b|br|sup|extra)>)", drawn)


def test_only_the_own_scripts_may_run_and_nothing_is_fetched(tmp_path: Path) -> None:
    page = write(tmp_path, replay())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert rules["script-src"] == " ".join(f"'sha256-{each}'" for each in hashes)
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["img-src"] == "data: blob:" and len(rules) == 6


def written(folder: Path, content: object, name: str = "result.json") -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not JSON"),
        (json.dumps(replay())[:-40], "not JSON, or cut off"),
        ('{"schema": "dlsim.replay/1", "runs": [NaN]}', "the number NaN"),
        ([], "expected an object with the key schema"),
        ({"schema": "dlsim.updates/1"}, "no report for it, expected one of dlsim.replay/1"),
        ({"schema": ["\u202e"]}, "\\u202e"),
        ({"schema": "dlsim.replay/1", "runs": []}, "runs: empty"),
        ({"schema": "dlsim.tune/1", "formats": {}}, "formats: missing, expected an array"),
        ({"schema": "dlsim.sweep/1", "runs": [1]}, "not of the form dlsim.sweep/1"),
        ({"schema": "dlsim.replay/1", "runs": [{"format": "fp16"}]}, "no key 'policy'"),
    ],
)
def test_bad_results_are_refused(content: object, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(dlsim.InputError) as caught:
        main([path, "-o", str(tmp_path / "report.html"), "--no-trace"])
    message = str(caught.value)
    assert message.startswith(path) and words in message and "\n" not in message
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("kind", ["replay", "sweep", "tune", "explain", "scaled"])
def test_damaged_results_are_refused_or_shown(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import plotly.offline

    monkeypatch.setattr(plotly.offline, "get_plotlyjs", lambda: "")
    original = replay(steps=6, bins=2) if kind == "replay" else copy.deepcopy(result(kind))
    if kind == "sweep":
        original |= {"runs": original["runs"][:3], "pareto": [0, 2]}

    def places(value: Any, path: tuple[Any, ...] = ()) -> Any:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value[:2]):
            yield (*path, key)
            yield from places(item, (*path, key)) if isinstance(item, dict | list) else ()

    chance = random.Random(7)
    found = list(places(original))
    for path in chance.sample(found, min(25, len(found))):
        document = copy.deepcopy(original)
        target: Any = document
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = chance.choice((None, -1, "text", [], {}, True, 1e308, "inf", [[1]]))
        try:
            assert "About these numbers" in write(tmp_path, document)
        except dlsim.InputError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "required"),
        (["gone.json", "-o", "x.html"], 3, "gone.json: cannot be read"),
        (["result.json", "-o", "x.html", "--trace", "t", "--no-trace"], 2, "--no-trace"),
        (["result.json", "-o", "x.html", "--trace", "gone"], 3, "gone: cannot be read"),
        (["result.json", "-o", "no/x.html"], 3, "no/x.html: cannot be written"),
        ([str(TRACE), "-o", "x.html", "--format", "fp61"], 2, "fp61"),
    ],
)
def test_a_failure_is_one_line_and_an_exit_code(
    arguments: list[str], code: int, words: str, tmp_path: Path
) -> None:
    written(tmp_path, replay())
    process = subprocess.run(
        [sys.executable, "-m", "dlsim", "report", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(dlsim.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == code, process.stderr
    assert process.stderr.startswith("dlsim report: ") and words in process.stderr
    assert process.stderr.count("\n") == 1 and process.stdout == ""
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_trace_or_profile_is_replayed_and_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    dlsim.profile(TRACE, tmp_path / "a.profile")
    pages = []
    scaled = ["--format", "mxfp8"]  # of traces alone
    for given, more, written_to in (
        ("a.profile", [], "a.html"),
        (str(TRACE), scaled, f"{TRACE.name}.html"),
    ):
        assert main([given, "--format", "fp16", "--policy", "torch", *more]) == 0
        assert capsys.readouterr().err.startswith(f"{written_to}: ")
        pages.append(Page(Path(written_to).read_text(encoding="utf-8")))
    for page in pages:
        assert {"recommendation", "losses"} <= page.rows.keys() and "losses" in page.figures
        assert (
            page.rows["policies"][1][0] == "fp16 \u00b7 torch"
            and len(page.figures["exponents"]) == 2
        )
    assert (
        pages[0].figures["exponents"][0]["data"][6] == pages[1].figures["exponents"][0]["data"][6]
    )
    assert "scaled" in pages[1].rows
    with pytest.raises(dlsim.UsageError, match=r"^a\.html: exists already, expected -o FILE$"):
        main(["a.profile"])


def test_a_trace_that_is_gone_or_another_gives_no_exponents(tmp_path: Path) -> None:
    document = copy.deepcopy(result("replay"))
    document["trace"]["paths"] = [str(TRACES / "cnn-digits")]
    assert "has other steps than the result" in write(tmp_path, document, read_trace=True)
    document["trace"]["paths"] = [str(tmp_path / "gone")]
    page = Page(write(tmp_path, document, read_trace=True))
    assert "No exponents: no trace was read" in page.texts["exponents"]
    del document["runs"][0]["heat_map"], document["runs"][1:]
    assert "No heat maps" in write(tmp_path, document)


def test_runs_that_look_alike_are_told_apart(tmp_path: Path) -> None:
    names = [written(tmp_path, replay(formats=("fp16",)), f"{name}.json") for name in "ab"]
    rows = Page(write(tmp_path, *names)).rows["policies"]
    assert [row[0] for row in rows[1:]] == ["fp16 \u00b7 torch (1: a)", "fp16 \u00b7 torch (2: b)"]


def test_what_is_given_is_taken_or_refused(tmp_path: Path) -> None:
    page, file = tmp_path / "page.html", Path(written(tmp_path, "{}"))
    dlsim.report(replay(), page, read_trace=False)
    assert "<html" in page.read_text(encoding="utf-8")[:200]
    for wrong in ([7], [None], 3.5):
        with pytest.raises(TypeError):
            dlsim.report(wrong, page)
    with pytest.raises(dlsim.InputError, match="no results"):
        dlsim.report([], page)
    with pytest.raises(dlsim.UsageError, match="would replace what is read"):
        dlsim.report(file, file)
    assert file.read_text() == "{}"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["h.0", "h.1", "h.11", "h.2"], ["h.0", "h.1", "h.2", "h.11"]),
        (["wte", "h.0", "h.10", "h.9", "ln_f"], ["wte", "h.0", "h.9", "h.10", "ln_f"]),
        (["layers", "layers.7", "", "12", "3"], ["layers", "layers.7", "", "3", "12"]),
    ],
)
def test_numbers_in_names_count_up(names: list[str], expected: list[str]) -> None:
    assert figures.in_order(names) == expected
