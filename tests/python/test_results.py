# SPDX-License-Identifier: Apache-2.0
"""Results as objects and columns: what the JSON has, value by value."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import dlsim
from dlsim import results
from dlsim.results import Record, Table

TRACES = Path(__file__).parents[1] / "data" / "traces"
TRACE = TRACES / "reg-diabetes-cut"
LOG = TRACES.parent / "logs" / "megatron-steady.log"


@pytest.fixture(scope="module")
def replay() -> dlsim.Result:
    return dlsim.replay(
        TRACE,
        formats=["fp16", "cb16"],
        policies=["torch", "cerebras"],
        optimizers={"first": "*.weight.grad", "second": "*.bias.grad"},
        max_gradient_norm=1,
    )


T5 = TRACES / "t5-stream"
PAIR: dict[str, Any] = {"formats": ["fp16", "mxfp8"], "policies": "all", "on_fatal": "continue"}
VARY = {"policy": ["torch", "static"], "rounding": ["rne", "rtz"]}

# A command, the same in Python, and the tables that it has.
COMMANDS: list[tuple[str, Callable[[], dlsim.Result], str]] = [
    (
        f"replay {T5} --format fp16 --format mxfp8 --policy all --on-fatal continue --heat-map "
        "--expect skipped_steps<=3 --json -",
        lambda: dlsim.replay(T5, heat_map=True, expect="skipped_steps<=3", **PAIR),
        "expectations runs steps tensors layers windows",
    ),
    (
        f"sweep {TRACE} --format fp16 --vary policy=torch,static --vary rounding=rne,rtz --json -",
        lambda: dlsim.sweep(TRACE, formats="fp16", vary=VARY),
        "verdicts_of_other_roundings runs windows",
    ),
    (
        f"tune {TRACE} --format fp16 --json -",
        lambda: dlsim.tune(TRACE, formats="fp16"),
        "formats other_policies comparisons tensors windows",
    ),
    (f"diff {TRACE} {TRACE} --json -", lambda: dlsim.diff(TRACE, TRACE), "steps tensors"),
    (
        "scaler --policy torch --steps 9 --overflow-at 1,2 --resume-at 4 --json -",
        lambda: dlsim.scaler("torch", 9, overflow_at=[1, 2], resume_at=4),
        "resume scales",
    ),
    (f"info {TRACE} --json", lambda: dlsim.info(TRACE), "steps tensors"),
    ("formats --json", dlsim.formats, "formats scaled"),
    (
        f"explain {LOG} --expect skipped_steps<=20 --json -",
        lambda: dlsim.explain(LOG, expect="skipped_steps<=20"),
        "policies evidence brackets expectations",
    ),
    (
        f"accumulate {TRACE} --world-size 8 --json -",
        lambda: dlsim.accumulate(TRACE, world_size=8),
        "runs",
    ),
]


@pytest.mark.parametrize(("command", "call", "tables"), COMMANDS, ids=[c[0][:6] for c in COMMANDS])
def test_python_has_what_the_command_writes(
    command: str, call: Callable[[], dlsim.Result], tables: str, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "dlsim", *command.split()]
    written = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    found = call()
    assert json.dumps(found.to_dict()) == json.dumps(json.loads(written))
    (tmp_path / "a.json").write_text(written, encoding="utf-8")
    again = results.read_result(tmp_path / "a.json")
    assert again == found and _types(again) == _types(found)
    assert sorted(found.tables) == sorted(tables.split())
    for table in found.tables:
        assert len(getattr(found, table)) > 0 and getattr(found, table).columns


@pytest.mark.parametrize("name", ["info", "formats"])
def test_a_result_of_a_list_prints_the_list(name: str) -> None:
    arguments = [TRACE] if name == "info" else []
    words = [sys.executable, "-m", "dlsim", name, *map(str, arguments)]
    written = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = getattr(dlsim, name)(*arguments)
    assert found.report == written and str(found).startswith(written)


def _types(value: Any) -> Any:
    if isinstance(value, dict | list):
        items = [item for _, item in value.items()] if isinstance(value, dict) else value
        return type(value), [_types(item) for item in items]
    return type(value)


def test_a_path_that_is_not_utf_8_is_the_text_of_the_json(tmp_path: Path) -> None:
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xe0\x80.\xf0\x9f\xa6")
    os.symlink(TRACE, strange)
    found = dlsim.replay(strange, formats="fp16", policies="torch", quiet=True)
    assert found.trace.paths[0].endswith("/\ufffd\ufffd\ufffd.\ufffd")


def test_keys_are_attributes(replay: dlsim.Result) -> None:
    run = replay.runs[0]
    assert run.summary.skipped_steps == run["summary"]["skipped_steps"] == 6
    assert {"summary", "steps", "to_dict"} <= set(dir(run))
    assert replay.verdict["fp16"].values.state == "not recorded"
    assert list(run.params.values()) == list(dict(run.params).values())
    with pytest.raises(AttributeError, match=r"^no key 'summray' \(did you mean 'summary'\?\)"):
        _ = run.summray
    with pytest.raises(KeyError, match=r"no key 'stepz' \(did you mean 'steps'\?\), expected one"):
        _ = replay["stepz"]
    assert len(repr(run)) < 500 and repr(run).startswith("Record(format=fp16, policy=torch")


def test_a_table_has_the_rows_of_all_owners(replay: dlsim.Result) -> None:
    rows = [(i, s["step"]) for i, run in enumerate(replay.runs) for s in run["steps"]]
    assert list(zip(replay.steps.run, replay.steps.step, strict=True)) == rows
    assert list(replay.steps[:1].columns)[:4] == ["run", "format", "policy", "step"]
    assert replay.steps[-1].grad_norm == replay.runs[-1].steps[-1].grad_norm
    first = replay.optimizers[:3]
    assert first.columns[:5] == ["run", "format", "policy", "step", "optimizer"]
    assert first.optimizer.tolist() == [0, 1, 0]
    assert replay.windows.columns == ["format", "step", "low", "high"]
    assert set(replay.windows.format) == {"fp16", "cb16"}
    found = replay.verdict["cb16"]
    assert [[w.step, w.low, w.high] for w in found.windows] == found["steps"]


def test_columns_are_arrays_of_their_type(replay: dlsim.Result) -> None:
    steps = replay.steps
    assert [steps[name].dtype for name in ("scale", "elements", "finite", "format")] == [
        np.float64, np.int64, np.bool_, object,
    ]  # fmt: skip
    assert np.isinf(steps.converted_grad_norm).any() and np.isnan(steps.converted_grad_norm).any()
    assert steps["activations.elements"].dtype == steps.activations.elements.dtype == np.int64
    assert replay.runs.summary.skipped_steps.tolist() == [6, 25, 5, 25]
    odd = results._made([{"a": 1, "b": 2**53 + 1, "c": [1, 2]}, {"a": None, "b": 0.5}, None])
    assert odd.a[0] == 1 and np.isnan(odd.a[1:]).all()
    assert odd.b.tolist() == [2**53 + 1, 0.5, None]  # no float is as large
    assert odd.c.tolist() == [[1, 2], None, None]
    with pytest.raises(AttributeError, match=r"^no column 'scal' \(did you mean 'scale'\?\)"):
        _ = steps.scal
    assert Table()["anything"].tolist() == [] and Table() == []


def test_a_frame_has_the_columns_of_the_table(replay: dlsim.Result) -> None:
    frame = replay.steps.to_pandas()
    assert list(frame.columns) == replay.steps.columns
    assert frame["scale"].dtype == "float64" and frame["elements"].dtype == "int64"
    assert frame["grad_norm"].equals(pandas.Series(replay.steps.grad_norm, name="grad_norm"))
    assert len(replay.runs.to_pandas()) == 4


def test_a_frame_without_pandas_names_the_install(replay: dlsim.Result, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dlsim-numerics\[frames\]'$"):
        replay.runs.to_pandas()


def test_a_table_shows_its_first_rows(replay: dlsim.Result) -> None:
    lines = repr(replay.steps).splitlines()
    assert lines[0].split()[:5] == ["run", "format", "policy", "step", "scale"]
    assert len(lines) == 13 and max(map(len, lines)) <= 110
    assert lines[-1] == f"{len(replay.steps)} rows"
    strange = Table([Record(name="<b>")])
    assert "<td>&lt;b&gt;</td>" in strange._repr_html_()
    assert repr(Table()) == "[]"


def test_a_tensor_named_nan_stays_a_name(replay: dlsim.Result) -> None:
    data = replay.to_dict()
    for run in data["runs"]:
        for tensor in run["tensors"]:
            tensor["name"] = "nan"
    assert set(dlsim.Result(data).tensors.name) == {"nan"}


def test_results_are_saved_copied_and_sent(replay: dlsim.Result, tmp_path: Path) -> None:
    replay.save(tmp_path / "out.json")
    assert results.read_result(tmp_path / "out.json") == replay
    for twin in (copy.deepcopy(replay), pickle.loads(pickle.dumps(replay))):
        assert type(twin) is dlsim.Result and twin.report == replay.report
        assert twin == replay and twin.verdict["fp16"].serves
    with pytest.raises(dlsim.InputError, match=r"x.json: cannot be written: No such file"):
        replay.save(tmp_path / "missing" / "x.json")


_DEEP = '{"schema": "dlsim.replay/1", "a": ' + '{"a": ' * 900 + "0" + "}" * 901


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"schema": 1}', "[" * 100_000, _DEEP, "\xff"]
)
def test_files_that_are_no_results_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(dlsim.InputError, match=r"bad.json: (not |expected a result)"):
        results.read_result(path)
    with pytest.raises(dlsim.InputError, match=r"cannot be read: No such file"):
        results.read_result(tmp_path / "none.json")


@pytest.mark.parametrize("path", ["", ".", "/", ".."])
def test_a_directory_is_no_file_to_write(
    replay: dlsim.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(dlsim.InputError, match=r"cannot be written: "):
        replay.save(path)
    assert list(tmp_path.iterdir()) == []


def test_a_table_without_rows_has_empty_columns(replay: dlsim.Result) -> None:
    nothing = dlsim.replay(TRACE, formats="fp16", policies="static").verdict.tensors_at_risk
    assert type(nothing) is Table
    assert nothing.name.tolist() == nothing["name"].tolist() == []
    assert nothing._repr_html_() == "<p>no rows</p>"
    assert "notes" in dlsim.replay(TRACE, formats="fp16", policies="static").runs.columns
    assert np.isnan(replay.runs.summary.stopped_at_step).all()  # missing in all rows


def test_rows_tell_interrupted_runs_apart() -> None:
    steps = dlsim.replay(TRACE, formats="fp16", policies="torch", resume_at=5).steps
    assert set(steps["resume.kept"]) == {None, "scale", "nothing"}
    assert len(steps) == 3 * len(steps[np.equal(steps["resume.kept"], None)])


def test_rows_are_chosen_by_masks(replay: dlsim.Result) -> None:
    steps = replay.steps
    chosen = steps[steps.scale > 1e10]
    assert type(chosen) is Table
    assert 0 < len(chosen) == int((steps.scale > 1e10).sum()) < len(steps)
    assert steps[np.array([2, 0])].step.tolist() == [steps[2].step, steps[0].step]
    with pytest.raises(IndexError, match="2 truth values, expected"):
        steps[np.array([True, False])]


def test_a_verdict_holds_its_formats(replay: dlsim.Result) -> None:
    verdict = replay.verdict
    assert [found.format for found in verdict] == ["fp16", "cb16"]
    assert len(verdict) == 2
    assert "fp16" in verdict
    assert "half" in verdict  # an alias
    assert verdict["half"] is verdict["fp16"]
    assert verdict["cb16"] in verdict
    assert "bf16" not in verdict


def test_saving_replaces_no_link_and_nothing_special(replay: dlsim.Result, tmp_path: Path) -> None:
    target, link, fifo = tmp_path / "target", tmp_path / "link", tmp_path / "fifo"
    target.write_text("before")
    target.chmod(0o600)
    link.symlink_to(target)
    replay.save(link)
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600
    assert dlsim.read_result(target).schema == "dlsim.replay/1"
    os.mkfifo(fifo)
    with subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE) as reader:
        replay.save(fifo)
        assert reader.stdout is not None
        assert reader.stdout.read() == target.read_bytes()
    assert fifo.is_fifo()


def test_representations_are_short_and_escaped(replay: dlsim.Result) -> None:
    assert repr(replay).splitlines()[-1] == "<dlsim.Result dlsim.replay/1: 4 runs>"
    strange = dlsim.Result({"schema": "dlsim.info/1"}, report="<script>")
    assert "<script>" not in strange._repr_html_()
    assert "&lt;script&gt;" in strange._repr_html_()


def test_running_commands_needs_no_pandas() -> None:
    code = "import dlsim, sys; dlsim.formats(); print({'pandas', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"
