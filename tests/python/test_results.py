# SPDX-License-Identifier: Apache-2.0
"""Results as tables: every value of the JSON in a column of one type."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dlsim
from dlsim import results

TRACES = Path(__file__).parents[1] / "data" / "traces"
TRACE = TRACES / "reg-diabetes-cut"


@pytest.fixture(scope="module")
def replay() -> dlsim.Result:
    return dlsim.replay(
        TRACE,
        formats=["fp16", "cb16"],
        policies=["torch", "cerebras"],
        optimizers={"first": "*.weight.grad", "second": "*.bias.grad"},
        max_gradient_norm=1,
    )


def tables_of_all(tmp_path: Path) -> dict[str, dict[str, results.Table]]:
    profile = tmp_path / "run.profile"
    found = [
        dlsim.profile(TRACE, profile, scaled_formats="mxfp8", scales=3),
        dlsim.replay(profile, formats="fp16", policies="torch"),
        dlsim.replay(TRACE, formats="fp16", policies="all", on_fatal="continue"),
        dlsim.sweep(TRACE, formats="fp16", vary={"policy": ["torch", "static"]}),
        dlsim.tune(TRACE, formats="fp16"),
        dlsim.diff(TRACE, TRACE),
        dlsim.scaler("torch", 9, overflow_at=[1, 2], resume_at=4),
        dlsim.info(TRACE),
        dlsim.info(profile),
        dlsim.accumulate(TRACE, world_size=8),
        dlsim.formats(),
    ]
    return {f"{i} {r.schema}": results.tables(r.data) for i, r in enumerate(found)}


def test_tables_of_every_command_have_columns_of_one_length_and_type(tmp_path: Path) -> None:
    for schema, tables in tables_of_all(tmp_path).items():
        assert next(iter(tables.values())), schema
        for name, table in tables.items():
            assert len({len(column) for column in table.values()}) <= 1, (schema, name)
            for column, values in table.items():
                types = {type(value) for value in values if value is not None}
                assert len(types) <= 1, (schema, name, column, types)
                assert types <= {bool, int, float, str}, (schema, name, column, types)


def test_numbers_that_are_not_finite_are_floats(replay: dlsim.Result) -> None:
    assert any("inf" == step["converted_grad_norm"] for step in replay.data["runs"][0]["steps"])
    norms = results.tables(replay.data)["steps"]["converted_grad_norm"]
    assert any(math.isinf(norm) for norm in norms)
    assert any(math.isnan(norm) for norm in norms)


def test_a_tensor_named_nan_stays_a_name(replay: dlsim.Result) -> None:
    data = json.loads(json.dumps(replay.data))
    for run in data["runs"]:
        for tensor in run["tensors"]:
            tensor["name"] = "nan"
    assert set(results.tables(data)["tensors"]["name"]) == {"nan"}


def test_a_frame_has_the_columns_and_types_of_the_table(replay: dlsim.Result) -> None:
    frame = replay.to_frame("steps")
    assert list(frame.columns) == list(results.tables(replay.data)["steps"])
    assert frame["scale"].dtype == "float64"
    assert frame["elements"].dtype == "int64"
    assert len(replay.to_frame()) == 4
    assert replay.table_names == ("runs", "steps", "tensors", "layers", "events", "optimizers")
    with pytest.raises(dlsim.UsageError, match=r"^table: expected one of runs, .* got 'stepz'$"):
        replay.to_frame("stepz")


def test_a_frame_without_pandas_names_the_install(replay: dlsim.Result, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dlsim-numerics\[frames\]'$"):
        replay.to_frame()


def test_saved_results_read_back_the_same(replay: dlsim.Result, tmp_path: Path) -> None:
    replay.save(tmp_path / "out.json")
    assert results.read_result(tmp_path / "out.json").data == replay.data
    with pytest.raises(dlsim.InputError, match=r"x.json: cannot be written: No such file"):
        replay.save(tmp_path / "missing" / "x.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 1}', "[" * 100_000, "\xff"])
def test_files_that_are_no_results_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(dlsim.InputError, match=r"bad.json: (not JSON|expected a result)"):
        results.read_result(path)
    with pytest.raises(dlsim.InputError, match=r"cannot be read: No such file"):
        results.read_result(tmp_path / "none.json")


def test_unknown_schemas_are_refused() -> None:
    with pytest.raises(dlsim.UsageError, match=r"^schema: expected one of dlsim.replay/1, .*'x'$"):
        results.tables({"schema": "x"})


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"runs": 3},
        {"runs": [{"format": 3}]},
        {"runs": [[]]},
        {"runs": [{"summary": [], "params": {}}]},
        {"runs": None},
    ],
)
def test_data_of_another_form_is_an_input_error(data: dict[str, object]) -> None:
    with pytest.raises(dlsim.InputError, match=r"^result: not of the form dlsim.replay/1: "):
        results.tables({"schema": "dlsim.replay/1", **data})


@pytest.mark.parametrize("path", ["", ".", "/", ".."])
def test_a_directory_is_no_file_to_write(
    replay: dlsim.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(dlsim.InputError, match=r"cannot be written: "):
        replay.save(path)
    assert list(tmp_path.iterdir()) == []


def test_representations_are_short_and_escaped(replay: dlsim.Result) -> None:
    assert repr(replay).splitlines()[-1] == "<dlsim.Result dlsim.replay/1: 4 runs>"
    strange = results.Result((), {"schema": "dlsim.info/1"}, (), "<script>")
    assert "<script>" not in strange._repr_html_()
    assert "&lt;script&gt;" in strange._repr_html_()


def test_running_commands_needs_no_pandas() -> None:
    code = "import dlsim, sys; dlsim.formats(); print({'pandas', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"
