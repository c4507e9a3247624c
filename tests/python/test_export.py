# SPDX-License-Identifier: Apache-2.0
"""Export of results: every row and column with its type, for any size, complete or not at all."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from import_cases import one_error_line, run_dlsim, write_step

import dlsim
from dlsim.export import arrow_table, export, to_frame, to_frames

TRACES = Path(__file__).resolve().parents[1] / "data" / "traces"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Results of every command that has tables, as it wrote them."""
    folder = tmp_path_factory.mktemp("results")
    trace = TRACES / "lm-kjv-accum-cut"
    cases: dict[str, tuple[object, ...]] = {
        "replay": (trace, "--format", "fp16", "--policy", "torch", "--policy", "deepspeed"),
        "sweep": (trace, "--format", "fp16", "--policy", "torch"),
        "tune": (TRACES / "lm-trouble-cut", "--format", "fp16"),
        "scaler": ("--policy", "torch", "--steps", "50", "--overflow-at", "1,2,9"),
        "summaries": (trace, "--tensorflow-histogram"),
    }
    paths = {}
    for command, arguments in cases.items():
        paths[command] = folder / f"{command}.json"
        more: tuple[object, ...] = ("--json", paths[command])
        if command in ("replay", "summaries"):
            paths[f"{command} rows"] = folder / f"{command}.csv"
            more += ("--csv", paths[f"{command} rows"])
        done = run_dlsim(command, *arguments, *more)
        assert done.returncode == 0, done.stderr
    return paths


@pytest.mark.parametrize("command", ["replay", "sweep", "tune", "scaler", "summaries"])
def test_every_table_is_written_and_read_back(
    tmp_path: Path, results: dict[str, Path], command: str
) -> None:
    exported = export(results[command], tmp_path / "tables")
    result = dlsim.read_result(results[command])
    assert [path.stem for path in exported.rows] == list(result.table_names)
    for path, rows in exported.rows.items():
        table = pq.read_table(path)
        plain = result.to_frame(path.stem)
        assert (table.num_rows, table.column_names) == (rows, list(plain.columns))
        assert table.schema.metadata[b"dlsim.schema"].decode() == result.schema
        for name in table.column_names:
            want = [None if value is None or value is pd.NA else value for value in plain[name]]
            got = table[name].to_pylist()
            for a, b in zip(got, want, strict=True):
                missing = b is None or (isinstance(b, float) and np.isnan(b))
                assert a == b or (missing and (a is None or np.isnan(a))), name


def test_types_of_a_replay(results: dict[str, Path]) -> None:
    steps = arrow_table(results["replay"], "steps").schema
    assert steps.field("step").type == pa.int64()
    assert steps.field("scale").type == pa.float64()
    assert steps.field("skipped").type == pa.bool_()
    assert pa.types.is_dictionary(steps.field("format").type)
    frame = to_frame(results["replay"], "tensors")
    assert isinstance(frame["name"].iloc[0], str)
    assert isinstance(frame["role"].dtype, pd.CategoricalDtype)
    assert frame["elements"].dtype == np.int64
    runs = to_frames(results["replay"])["runs"]
    assert runs["stopped_at_step"].isna().all()


def test_missing_integers_stay_integers(tmp_path: Path) -> None:
    write_step(tmp_path / "trace", 0, {"w": np.float32([1e30]), "v": np.float32([1e-30])})
    result = dlsim.replay(tmp_path / "trace", formats="fp16", policies="torch")
    column = to_frame(result, "tensors").set_index("name")["first_overflow_step"]
    assert column.dtype == pd.Int64Dtype()
    assert column["w"] == 0 and column["v"] is pd.NA


def test_numbers_that_are_not_finite_are_floats(tmp_path: Path) -> None:
    write_step(tmp_path / "trace", 0, {"w": np.float32([np.inf, 1])})
    result = dlsim.replay(tmp_path / "trace", formats="fp16", policies="static")
    norms = arrow_table(result, "steps")["grad_norm"]
    assert norms.type == pa.float64() and norms.to_pylist() == [float("inf")]


@pytest.mark.parametrize("command", ["replay", "summaries"])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_rows_of_a_csv(tmp_path: Path, results: dict[str, Path], command: str, suffix: str) -> None:
    source = results[f"{command} rows"]
    output = tmp_path / f"rows.{suffix}"
    export(source, output)
    with source.open(newline="") as file:
        want = list(csv.DictReader(file))
    if suffix == "csv":
        with output.open(newline="") as file:
            got: list[dict[str, Any]] = list(csv.DictReader(file))
    else:
        table = pq.read_table(output)
        assert table.schema.field("micro").type == pa.int64()
        assert pa.types.is_dictionary(table.schema.field("tensor").type)
        got = table.to_pylist()
    assert len(got) == len(want) > 50
    for row, source_row in zip(got, want, strict=True):
        for name, text in source_row.items():
            value = row[name]
            if text == "":
                assert value in (None, "")
            elif name in ("tensor", "role", "format", "policy"):
                assert value == text
            elif name == "skipped":
                assert value in (text == "1", "true" if text == "1" else "false")
            else:
                assert float(value) == float(text), name


def test_odd_names_and_values_survive_a_csv(tmp_path: Path) -> None:
    names = ["a,b", 'quote"s', "line\nend", "nan", "", "NULL", "<b>", "\u00e9"]
    path = tmp_path / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["format", "policy", "step", "micro", "scale", "tensor", "sumsq"])
        for i, name in enumerate(names):
            writer.writerow(["fp16", "torch", i, "", "inf", name, "nan"])
    export(path, tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert [name or "" for name in table["tensor"].to_pylist()] == names
    assert table["scale"].to_pylist() == [float("inf")] * len(names)
    assert all(np.isnan(value) for value in table["sumsq"].to_pylist())


def test_a_large_csv_takes_several_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = 200_000
    with path.open("w") as file:
        file.write("format,policy,step,micro,scale,skipped,tensor,role,elements\n")
        for i in range(rows):
            file.write(f"fp16,torch,{i // 100},,65536,0,layer{i % 100}.weight.grad,grad,{i}\n")
    assert export(path, tmp_path / "out").rows == {tmp_path / "out" / "rows.parquet": rows}
    file = pq.ParquetFile(tmp_path / "out" / "rows.parquet")
    assert file.num_row_groups > 1
    table = file.read(["elements", "tensor"])
    assert np.array_equal(table["elements"].to_numpy(), np.arange(rows))
    names = table["tensor"].to_pylist()
    assert names == [f"layer{i % 100}.weight.grad" for i in range(rows)]


def test_one_table_as_a_file(tmp_path: Path, results: dict[str, Path]) -> None:
    export(results["replay"], tmp_path / "runs.parquet")
    assert pq.read_table(tmp_path / "runs.parquet").num_rows == 2
    done = run_dlsim("export", results["replay"], "--table", "steps", "-o", tmp_path / "steps.csv")
    assert done.returncode == 0 and "4 rows" in done.stdout
    frame = pd.read_csv(tmp_path / "steps.csv")
    assert list(frame["step"]) == [1, 299, 1, 299]
    listed = run_dlsim("export", results["replay"], "--list").stdout.split()
    assert listed[:3] == ["runs", "steps", "tensors"]


def test_wrong_use_is_one_line(tmp_path: Path, results: dict[str, Path]) -> None:
    replay, rows = results["replay"], results["replay rows"]
    cases: list[tuple[tuple[object, ...], int, str]] = [
        ((replay,), 2, "expected -o"),
        ((replay, "-o", tmp_path / "a.xlsx"), 2, "a.xlsx"),
        ((replay, "-o", tmp_path / "a.csv", "--table", "rows"), 2, "runs, steps"),
        ((replay, "-o", tmp_path / "a.csv", "--table", "runs", "--table", "steps"), 2, "one table"),
        ((rows, "-o", tmp_path / "a.csv", "--table", "runs"), 2, "rows only"),
        ((tmp_path / "none.json", "-o", tmp_path / "a"), 3, "none.json"),
        ((tmp_path / "none.csv", "-o", tmp_path / "a"), 3, "none.csv"),
        ((replay, "-o", tmp_path / "no" / "a.csv"), 3, "cannot be written"),
    ]
    for arguments, code, text in cases:
        line = one_error_line(run_dlsim("export", *arguments), code)
        assert text in line, (text, line)
    assert list(tmp_path.iterdir()) == []


def test_bad_files_are_one_line_and_leave_nothing(tmp_path: Path) -> None:
    head = b"format,policy,step,micro,scale,tensor\n"
    blobs = {
        "a.json": [b"", b"{", b"[1]", b'{"schema": "other"}', b'{"schema": "dlsim.other/1"}'],
        "a.csv": [
            b"",
            b"a,b,c\n1,2,3\n",
            b"\xff\xfe,\n",
            head + b"fp16,torch,x,,1,w\n",
            head + b"fp16,torch,1,,1,w\nfp16,torch\n",
        ],
    }
    for name, contents in blobs.items():
        for content in contents:
            (tmp_path / name).write_bytes(content)
            for output in ("out", "out.parquet", "out.csv"):
                with pytest.raises(ValueError) as raised:
                    export(tmp_path / name, tmp_path / output)
                assert len(str(raised.value).splitlines()) == 1
                assert not list(tmp_path.glob("*out*")) and not list(tmp_path.glob(".*"))


def test_an_existing_output_stays_unless_forced(tmp_path: Path, results: dict[str, Path]) -> None:
    for name in ("a.parquet", "tables"):
        export(results["scaler"], tmp_path / name)
        with pytest.raises(ValueError, match="exists already"):
            export(results["replay"], tmp_path / name)
        export(results["replay"], tmp_path / name, force=True)
    assert (tmp_path / "tables" / "runs.parquet").exists()
    assert not (tmp_path / "tables" / "scales.parquet").exists()
    (tmp_path / "tables" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds more than tables"):
        export(results["replay"], tmp_path / "tables", force=True)


def test_missing_pyarrow_names_the_install(
    tmp_path: Path, results: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = json.loads(results["scaler"].read_text())
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dlsim-numerics\[frames\]'"):
        to_frame(data)
