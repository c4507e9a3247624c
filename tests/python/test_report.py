# SPDX-License-Identifier: Apache-2.0
"""What a report says, without a browser."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from pathlib import Path

import pytest
from report_samples import (
    HOSTILE,
    TRACES,
    command,
    data_of,
    replay,
    run_of,
    sweep,
    tune,
    unpacked,
    write,
)

import dlsim
from dlsim.report._json import number, visible
from dlsim.report.headline import verdict
from dlsim.report.policies import fates, outcome
from dlsim.report.scale_path import MAX_MARKERS, MAX_POINTS


def test_a_page_shows_all_sections_of_real_results(tmp_path: Path) -> None:
    trace = TRACES / "lm-trouble-cut"
    result = command("replay", trace, "--policy", "torch", "--heat-map")
    page = write(tmp_path, result, sweep(), tune(), title="A run")
    keys = re.findall(r'<section id="(\w+)"', page)
    expected = ["verdict", "recommendation", "policies", "scale", "losses", "exponents", "tensors"]
    assert keys == [*expected, "sweep", "about"]
    assert "<title>A run</title>" in page
    assert "a replay, not a training" in page
    data = data_of(page)
    assert [run["label"] for run in data["runs"]] == [
        f"{f} \u00b7 torch" for f in ("fp16", "bf16", "cb16")
    ]
    assert {f["name"] for f in data["formats"]} == {"fp16", "bf16", "cb16"}
    tables = unpacked(data["tensors"])
    for run, table in zip(result["runs"], tables, strict=True):
        assert [data["names"][i] for i in table["name"]] == [t["name"] for t in run["tensors"]]
        assert table["underflow"] == [t["underflow"] for t in run["tensors"]]
    assert "trainer:" in page and "torch.amp.GradScaler" in page  # tune's blocks


def test_the_verdict_states_the_numbers_of_the_summary() -> None:
    document = command("replay", TRACES / "lm-trouble-cut", "--policy", "torch", "--format", "fp16")
    text = verdict(run_of(document))
    assert "6 of 13 steps were skipped" in text
    assert "4 of them not finite at any lower loss scale" in text
    assert "the first applied step is 0" in text
    assert outcome(run_of(document)) == ("bad", "2 skipped: scale too high")
    assert fates(run_of(document)) == [7, 2, 4, 0]


@pytest.mark.parametrize(
    ("policy", "settings", "expected"),
    [
        ("static", ("loss_scale=1",), ("bad", "6 applied though not finite")),
        ("deepspeed", (), ("bad", "no step applied")),
        ("fairseq", ("init_scale=1e-4",), ("bad", "stopped at step 168")),
    ],
)
def test_outcomes(policy: str, settings: tuple[str, ...], expected: tuple[str, str]) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    options = ("--policy", policy, "--format", "fp16", *words)
    document = command("replay", TRACES / "lm-trouble-cut", *options)
    assert outcome(run_of(document)) == expected


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (-24, ("bad", "scale too low at 45 steps")),
        (-9, ("good", "the scale was safe")),
        (16, ("good", "the scale was safe")),
        (17, ("bad", "18 applied though not finite")),
    ],
)
def test_runs_are_graded_by_windows(scale: int, expected: tuple[str, str]) -> None:
    options = ("--policy", "static", "--format", "fp16", "--set", f"loss_scale=2^{scale}")
    document = command("replay", TRACES / "cnn-digits", *options)
    assert outcome(run_of(document)) == expected
    del document["verdict"]
    without = ("fair", "not judged: the file has no verdict")
    assert outcome(run_of(document)) == (expected if "finite" in expected[1] else without)


@pytest.mark.parametrize(
    ("cause", "expected"), [("input", "Inf/NaN recorded"), ("norm", "no scale helps")]
)
def test_skips_that_no_scale_prevents_have_a_reason(cause: str, expected: str) -> None:
    document = replay(steps=3)
    run = document["runs"][0]
    run["steps"][1] |= {
        "finite": False,
        "skipped": True,
        "cause": cause,
        "lower_scale_helps": False,
    }
    for step in (0, 2):
        run["steps"][step] |= {"finite": True, "skipped": False}
    run["summary"] |= {"skipped_steps": 1, "first_applied_step": 0}
    assert outcome(run_of(document)) == ("fair", f"1 skipped: {expected}")


def test_a_run_without_loss_is_good() -> None:
    options = ("--policy", "static", "--format", "bf16")
    document = command("replay", TRACES / "cnn-digits", *options)
    assert outcome(run_of(document)) == ("good", "the scale was safe")
    assert verdict(run_of(document)) == (
        "All 45 steps were applied. The loss scale stayed at 2\u2070. No gradient became zero."
    )


def test_hostile_names_are_text(tmp_path: Path) -> None:
    document = replay(HOSTILE, bins=4)
    document["trace"]["description"] = {"model": HOSTILE[0], "description": HOSTILE[1]}
    document["runs"][0]["notes"] = [*HOSTILE]
    document["runs"][0]["policy"] = HOSTILE[0]
    document["runs"][0]["events"] = [
        {"step": 1, "type": HOSTILE[0], "message": HOSTILE[1], "fatal": False}
    ]
    page = write(tmp_path, document, title=HOSTILE[0])
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)  # without the scripts
    assert "<img" not in own and "<b>" not in own and "onerror=alert(1)>" not in own
    assert own.count("<script") == 1 and own.count("</script>") == 1  # the data
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in own
    for character in "\u202e\u202c\u2028\u2029\x00":
        assert character not in page.replace(plotly(), "")
    data = data_of(page)
    assert [data["names"][i] for i in unpacked(data["tensors"])[0]["name"]] == [
        visible(name) for name in HOSTILE
    ]
    assert visible(HOSTILE[2]) == "\\u202egnirts\\u202c.weight.grad"


def test_hover_texts_with_names_escape_them() -> None:
    """Plotly reads tags in hover texts; a format's name comes from a file."""
    assets = Path(dlsim.report.__file__).parent / "assets"
    inserted = [
        value
        for script in assets.glob("*.js")
        for template in re.findall(r"hovertemplate: `([^`]*)`", script.read_text("utf-8"))
        for value in re.findall(r"\$\{([^}]*)\}", template)
    ]
    assert inserted
    unescaped = [v for v in inserted if "." in v and not v.startswith("Report.plain(")]
    assert unescaped == []


def plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def test_hostile_text_of_tune_and_sweep_is_text(tmp_path: Path) -> None:
    recommended, swept = tune(), sweep()
    bad = HOSTILE[0]
    item = recommended["formats"][0]
    item |= {"verdict": bad, "reason": bad, "notes": [bad], "config": {"zoo": bad}}
    item["comparisons"][0]["label"] = bad
    item["tensors"][0]["name"] = bad
    for run in swept["runs"]:
        run["policy"] = bad
        run["params"] = {bad: bad + str(run["summary"]["final_scale"])}
    page = write(tmp_path, recommended, swept)
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "<img" not in own
    assert own.count("&lt;/script&gt;&lt;img") >= 6


def test_only_the_own_scripts_may_run_and_nothing_is_fetched(tmp_path: Path) -> None:
    page = write(tmp_path, replay())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert rules["script-src"] == " ".join(f"'sha256-{h}'" for h in hashes)
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data: blob:"
    assert set(rules) == {
        "default-src", "script-src", "style-src", "img-src", "base-uri", "form-action",
    }  # fmt: skip
    own = page.replace(plotly(), "")
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)""", own)
    assert "@import" not in own and "url(" not in own
    assert page.count(plotly()) == 1


def test_a_large_result_makes_a_small_page(tmp_path: Path) -> None:
    names = [f"model.layers.{i // 10}.part{i % 10}.weight.grad" for i in range(1000)]
    document = replay(names, 10_000, ("fp16", "bf16", "cb16"), bins=200)
    page = write(tmp_path, document)
    assert len(page.encode()) < 10_000_000
    data = data_of(page)
    for run, original in zip(data["runs"], document["runs"], strict=True):
        path = unpacked(run["path"])
        assert len(path["step"]) <= MAX_POINTS + 1 and len(path["marks"]) <= MAX_MARKERS
        skipped = sum(mark[2] for mark in path["marks"] if mark[7])
        assert skipped == original["summary"]["skipped_steps"] > 2000
        heat = unpacked(run["heat_map"])
        assert len(heat["tensors"]) == 1000
        assert heat["first"][0] == 0 and heat["last"][-1] == 9999 and sum(heat["steps"]) == 10_000


def test_numbers_that_json_lacks(tmp_path: Path) -> None:
    document = replay(formats=("fp16",))
    run = document["runs"][0]
    run["steps"][3]["scale"] = "inf"
    run["steps"][4]["scale"] = "nan"
    run["steps"][5]["scale"] = 0
    run["summary"] |= {"final_scale": "inf", "worst_step_energy_lost": "nan"}
    run["tensors"][0]["absmax"] = "inf"
    data = data_of(write(tmp_path, document))
    assert unpacked(data["runs"][0]["path"])["log2"].count(None) == 3
    assert unpacked(data["tensors"])[0]["absmax"][0] == "inf"
    assert data["runs"][0]["scales"]["final"] is None
    assert number("inf") == math.inf and number("1") is None and number(True) is None


def test_runs_that_look_alike_are_told_apart(tmp_path: Path) -> None:
    for name in ("first", "second"):
        import json

        (tmp_path / f"{name}.json").write_text(json.dumps(replay(formats=("fp16",))))
    dlsim.report.write_report(
        [tmp_path / "first.json", tmp_path / "second.json"], tmp_path / "report.html"
    )
    data = data_of((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert [run["label"] for run in data["runs"]] == [
        "fp16 \u00b7 torch (first)",
        "fp16 \u00b7 torch (second)",
    ]


def test_a_page_of_a_sweep_alone_or_of_tune_alone(tmp_path: Path) -> None:
    for document, key in ((sweep(), "sweep"), (tune(), "recommendation")):
        page = write(tmp_path, document, read_trace=False)
        keys = re.findall(r'<section id="(\w+)"', page)
        assert keys == (
            ["verdict", "recommendation", "exponents", "about"]
            if key == "recommendation"
            else ["verdict", "exponents", "sweep", "about"]
        )


def test_a_recommendation_says_where_to_start_as_the_command_does(tmp_path: Path) -> None:
    document = tune("cnn-digits")
    assert document["formats"][0]["verdict"] == "no scale needed"
    page = write(tmp_path, document, read_trace=False)
    assert "start a loss scaler at 2\u00b9\u2074</span>" in page
    assert "<dt><code>init_scale</code></dt><dd>16384 = 2\u00b9\u2074</dd>" in page


def test_a_sweep_keeps_its_front(tmp_path: Path) -> None:
    document = sweep()
    document["runs"] = document["runs"] * 40  # more than are drawn
    data = data_of(write(tmp_path, document, read_trace=False))
    points = unpacked(data["sweeps"][0])["points"]
    assert [p[0] for p in points if p[8]] == sorted(document["pareto"])
    assert len(points) <= 4000 + len(document["pareto"]) < len(document["runs"])
    original = {
        (run["summary"]["skipped_steps"], run["format"], run["policy"]) for run in document["runs"]
    }
    assert {(p[1], p[5], p[6]) for p in points} == original


def test_the_python_module_is_light() -> None:
    import subprocess
    import sys

    heavy = "any(m.startswith(('plotly', 'dlsim.report')) for m in sys.modules)"
    code = f"import sys, dlsim; sys.exit({heavy})"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_objects_with_data_and_nothing_else_are_taken(tmp_path: Path) -> None:
    from types import SimpleNamespace

    page = tmp_path / "report.html"
    for given in (SimpleNamespace(data=replay()), [SimpleNamespace(data=replay()), tune()]):
        dlsim.report.write_report(given, page, read_trace=False)
        assert len(data_of(page.read_text(encoding="utf-8"))["runs"]) == 2
    for wrong in ([7], [None], 3.5):
        with pytest.raises(TypeError):
            dlsim.report.write_report(wrong, page)
    with pytest.raises(dlsim.InputError, match="no results"):
        dlsim.report.write_report([], page)


def test_a_profile_marks_what_it_does_not_know(tmp_path: Path) -> None:
    document = replay(formats=("fp16",))
    run = document["runs"][0]
    run["summary"]["exact"] = run["tensors"][1]["exact"] = False
    page = write(tmp_path, document)
    assert "~12.5\u202f%" in page and "~12.5\u202f% of the nonzero gradients became zero" in page
    assert unpacked(data_of(page)["tensors"])[0]["open"] == [1]
