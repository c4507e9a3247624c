# SPDX-License-Identifier: Apache-2.0
"""`dlsim report`: what it reads, what it refuses, and what it fetches from traces."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from report_samples import TRACES, command, data_of, diff, replay, sweep, tune, unpacked

import dlsim
from dlsim.report._command import main

GOOD = replay(bins=3)


def written(folder: Path, content: object, name: str = "result.json") -> str:
    path = folder / name
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, encoding="utf-8")
    return str(path)


def without(key: str, *place: str | int) -> dict[str, Any]:
    document = copy.deepcopy(GOOD)
    found: Any = document
    for part in place:
        found = found[part]
    del found[key]
    return document


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON, or cut off"),
        (json.dumps(GOOD)[:-40], "not JSON, or cut off"),
        ('{"schema": "dlsim.replay/1", "runs": [NaN]}', "the number NaN"),
        ("[" * 100_000, "not JSON"),
        ([], "expected an object with the key schema"),
        ({"runs": []}, "expected an object with the key schema"),
        ({"schema": "dlsim.scaler/1"}, "no report for it, expected one of dlsim.replay/1"),
        ({"schema": ["\u202e"]}, "\\u202e"),
        ({"schema": "dlsim.replay/1"}, "runs: missing, expected an array"),
        ({"schema": "dlsim.replay/1", "runs": []}, "runs: empty"),
        ({"schema": "dlsim.tune/1", "formats": {}}, "formats: missing, expected an array"),
        ({"schema": "dlsim.sweep/1", "runs": [1]}, "runs[0]: expected an object"),
        (without("summary", "runs", 1), "runs[1].summary: missing or wrong, expected an object"),
        (without("steps", "runs", 0), "runs[0].steps: missing or wrong, expected an array"),
        (without("step", "runs", 0, "steps", 2), "runs[0].steps[2].step"),
        (without("name", "runs", 0, "tensors", 1), "runs[0].tensors[1].name"),
        (without("bins", "runs", 0, "heat_map"), "heat_map of fp16"),
        (without("nonzero", "runs", 0, "heat_map", "tensors", 0), "heat_map of fp16"),
    ],
)
def test_bad_results_are_refused(content: object, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(dlsim.InputError) as caught:
        main([path, "-o", str(tmp_path / "report.html"), "--no-trace"])
    message = str(caught.value)
    assert message.startswith(path) and words in message and "\n" not in message
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_not_utf8_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes(b'{"schema": "\xe9"}')
    for name, words in (("latin.json", "not UTF-8"), ("gone.json", "No such file")):
        with pytest.raises(dlsim.InputError, match=words):
            main([str(tmp_path / name), "-o", str(tmp_path / "report.html")])


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    with pytest.raises(dlsim.InputError, match="cannot be written"):
        main([path, "-o", str(tmp_path / "no" / "report.html")])
    page = tmp_path / "report.html"
    page.write_text("old")
    with pytest.raises(dlsim.InputError):
        main([written(tmp_path, "{", "bad.json"), "-o", str(page)])
    assert page.read_text() == "old"
    (tmp_path / "folder").mkdir()
    with pytest.raises(dlsim.InputError, match="cannot be written"):
        main([path, "-o", str(tmp_path / "folder")])
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "required"),
        (["gone.json"], 3, "gone.json: cannot be read"),
        (["result.json", "-o", "x.html", "--no-such"], 2, "--no-such"),
        (["result.json", "-o", "x.html", "--trace", "t", "--no-trace"], 2, "--no-trace"),
        (["gone.json", "-o", "x.html"], 3, "gone.json: cannot be read"),
        (["result.json", "-o", "x.html", "--trace", "gone"], 3, "gone: cannot be read"),
        (["result.json", "-o", "no/x.html"], 3, "no/x.html: cannot be written"),
        (["empty", "-o", "x.html"], 3, "empty"),
    ],
)
def test_a_failure_is_one_line_and_an_exit_code(
    arguments: list[str], code: int, words: str, tmp_path: Path
) -> None:
    written(tmp_path, GOOD)
    (tmp_path / "empty").mkdir()
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
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "result.json"]


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for word in ("--trace", "--title", "-o", "Examples:", "dlsim report"):
        assert word in text


def test_without_a_name_the_page_has_that_of_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    result = written(tmp_path / "runs", GOOD, "a.b.json")
    (tmp_path / "v1.2").symlink_to(TRACES / "cnn-digits")
    monkeypatch.chdir(tmp_path)
    for given, page in ((result, "a.b.html"), ("v1.2/", "v1.2.html")):
        assert main([given, "--no-trace", "--format", "bf16"]) == 0
        assert capsys.readouterr().err.startswith(f"{page}: ")
        assert "<html" in (tmp_path / page).read_text(encoding="utf-8")[:200]
    (tmp_path / "a.b.html").write_text("mine")
    with pytest.raises(dlsim.UsageError, match=r"^a\.b\.html: exists already, expected -o FILE$"):
        main([result])
    assert (tmp_path / "a.b.html").read_text() == "mine"


def test_a_trace_is_replayed_and_tuned(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    trace = str(TRACES / "lm-trouble-cut")
    options = ["--format", "fp16", "--policy", "torch", "--policy", "static", "--quiet"]
    assert main([trace, "-o", str(page), *options]) == 0
    data = data_of(page.read_text(encoding="utf-8"))
    assert [run["label"] for run in data["runs"]] == ["fp16 \u00b7 torch", "fp16 \u00b7 static"]
    assert all(run["heat_map"] for run in data["runs"])
    assert [item["format"] for item in data["tunes"][0]] == ["fp16"]
    assert unpacked(data["exponents"])["exact"] is True


def test_a_profile_is_replayed_and_tuned(tmp_path: Path) -> None:
    from running import DLSIM

    profile = tmp_path / "a.dlprof"
    words = ["profile", TRACES / "lm-trouble-cut", "-o", profile, "--quiet"]
    subprocess.run([*DLSIM, *words], check=True)
    page = tmp_path / "report.html"
    main([str(profile), "-o", str(page), "--format", "cb16", "--policy", "torch", "--quiet"])
    data = data_of(page.read_text(encoding="utf-8"))
    assert data["runs"][0]["heat_map"] and data["exponents"] and data["tunes"]


def test_wrong_names_for_a_trace_are_wrong_usage(tmp_path: Path) -> None:
    trace = str(TRACES / "lm-trouble-cut")
    for option in ("--format", "--policy"):
        with pytest.raises(dlsim.UsageError, match="nonsense"):
            main([trace, "-o", str(tmp_path / "x.html"), option, "nonsense"])


@pytest.mark.parametrize(
    "options",
    [
        ("--policy", "torch", "--policy", "cerebras-2.10", "--set", "init_scale=2^10"),
        ("--policy", "deepspeed", "--max-gradient-norm", "1", "--rounding", "rtz"),
        ("--policy", "torch", "--resume-at", "170", "--subnormals", "flush"),
        ("--policy", "fairseq", "--set", "init_scale=1e-4"),
        ("--policy", "static", "--set", "loss_scale=0.1", "--tensors", "*attn*"),
    ],
)
def test_heat_maps_that_a_result_lacks_come_from_its_trace(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    formats = ("--format", "fp16", "--format", "cb16")
    arguments = ("replay", TRACES / "lm-trouble-cut", *formats, *options)
    pages = []
    for more in ((), ("--heat-map",)):
        page = tmp_path / "report.html"
        dlsim.report.write_report(command(*arguments, *more), page)
        pages.append(data_of(page.read_text(encoding="utf-8")))
    maps = [[run["heat_map"] for run in data["runs"]] for data in pages]
    assert None not in maps[0]
    assert maps[0] == maps[1]


def test_another_trace_gives_no_heat_map(tmp_path: Path) -> None:
    document = command("replay", TRACES / "lm-trouble-cut", "--policy", "torch")
    page = tmp_path / "report.html"
    dlsim.report.write_report(document, page, trace=TRACES / "cnn-digits")
    text = page.read_text(encoding="utf-8")
    assert not any(run["heat_map"] for run in data_of(text)["runs"])
    assert "no longer gives the result of fp16" in text


def test_a_trace_that_has_changed_gives_no_exponents(tmp_path: Path) -> None:
    document = command("replay", TRACES / "lm-trouble-cut", "--policy", "torch")
    document["trace"]["paths"] = [str(TRACES / "cnn-digits")]
    page = tmp_path / "report.html"
    dlsim.report.write_report(document, page)
    text = page.read_text(encoding="utf-8")
    assert "has other steps than the result" in text
    assert data_of(text)["exponents"] is None


def test_reading_a_trace_is_announced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = command("replay", TRACES / "lm-trouble-cut", "--format", "fp16")
    path, page = written(tmp_path, result), str(tmp_path / "report.html")
    for more, announced in (([], True), (["--no-trace"], False)):
        assert main([path, "-o", page, *more]) == 0
        assert ("lm-trouble-cut for heat maps" in capsys.readouterr().err) == announced


def test_a_trace_that_is_gone_leaves_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    dlsim.report.write_report(replay(), page)
    text = page.read_text(encoding="utf-8")
    assert "No heat maps" in text and "No exponents" in text
    assert "--heat-map --json FILE" in text


def test_the_results_given_are_not_changed(tmp_path: Path) -> None:
    documents = [
        command("replay", TRACES / "lm-trouble-cut", "--policy", "torch"), sweep(), tune(),
    ]  # fmt: skip
    before = copy.deepcopy(documents)
    dlsim.report.write_report(documents, tmp_path / "report.html")
    assert documents == before


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value[:2])
    for key, item in items:
        child = (*path, key)
        found += places(item, child) if isinstance(item, dict | list) else [child]
    return found


@pytest.mark.parametrize("kind", ["replay", "sweep", "tune", "diff"])
def test_damaged_results_are_refused_or_shown(kind: str, tmp_path: Path) -> None:
    made = {
        "replay": lambda: replay(steps=6, bins=2),
        "sweep": sweep,
        "tune": tune,
        "diff": lambda: diff(tmp_path),
    }
    original = made[kind]()
    if kind == "sweep":
        original["runs"] = original["runs"][:3]
        original["pareto"] = [0, 2]
    chance = random.Random(7)
    chosen = chance.sample(found := places(original), min(50, len(found)))
    for path in chosen:
        document = copy.deepcopy(original)
        target: Any = document
        for key in path[:-1]:
            target = target[key]
        bad = chance.choice((None, -1, "text", [], {}, True, 1e308, "inf", [[1]], "missing"))
        if bad == "missing":
            del target[path[-1]]
        else:
            target[path[-1]] = bad
        page = tmp_path / "report.html"
        try:
            dlsim.report.write_report(document, page, read_trace=False)
        except dlsim.InputError as error:
            assert "\n" not in str(error)
        else:
            assert data_of(page.read_text(encoding="utf-8"))["formats"]


def test_a_page_does_not_replace_what_it_shows(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    result.write_text("{}", encoding="utf-8")
    (tmp_path / "link.html").hardlink_to(result)
    for output in (result, tmp_path / "link.html"):
        with pytest.raises(dlsim.UsageError, match="would replace what is read"):
            dlsim.report.write_report(result, output)
    assert result.read_text(encoding="utf-8") == "{}"
