# SPDX-License-Identifier: Apache-2.0
"""Traces written from arrays are what the dlsim command reads."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from running import DLSIM

import dlsim
from dlsim.traces._writer import TraceWriter

STATIC = ("--format", "fp16", "--policy", "static", "--set", "loss_scale=1")


def replay(path: Path, *options: str) -> dict:
    done = subprocess.run(
        [*DLSIM, "replay", path, "--json", "-", "--quiet", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def info(path: Path) -> str:
    done = subprocess.run([*DLSIM, "info", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_type_of_numpy_and_torch_is_read_back(tmp_path: Path) -> None:
    values = [0.0, 1.5, -(2.0**-14), 2.0**15]
    tensors = {
        "a.grad": np.array(values, np.float32),
        "b.grad": np.array(values, np.float64),
        "c.grad": np.array(values, np.float16),
        "d.grad": np.array(values, ml_dtypes.bfloat16),
        "e.grad": torch.tensor(values, dtype=torch.float32),
        "f.grad": torch.tensor(values, dtype=torch.float64),
        "g.grad": torch.tensor(values, dtype=torch.float16),
        "h.grad": torch.tensor(values, dtype=torch.bfloat16),
        "i.act_grad": np.array(values, ">f4"),
    }
    with TraceWriter(tmp_path / "t", {"model": "none"}) as writer:
        writer.write(7, tensors, {"loss": "0.5"})
    result = replay(tmp_path / "t", *STATIC)
    rows = result["runs"][0]["tensors"]
    assert sorted(row["name"] for row in rows) == sorted(tensors)
    assert {row["absmax"] for row in rows} == {2.0**15}
    assert {row["zeros"] for row in rows} == {1}


def test_strided_and_scalar_and_empty_arrays_are_written_in_order(tmp_path: Path) -> None:
    base = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensors = {
        "t": base.T,
        "v": torch.from_numpy(base)[:, 1],
        "s": np.float32(3).reshape(()),
        "e": np.zeros((0, 2), np.float32),
    }
    writer = TraceWriter(tmp_path)
    path = writer.write(0, tensors)
    from safetensors.numpy import load_file

    back = load_file(path)
    assert np.array_equal(back["t"], base.T)
    assert np.array_equal(back["v"], base[:, 1])
    assert back["s"].shape == () and back["s"] == 3
    assert back["e"].shape == (0, 2)


def test_micro_steps_and_ranks_are_one_step(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, {"model": "m"}) as writer:
        for micro in range(2):
            for rank in range(2):
                writer.write(
                    3,
                    {"w.grad": np.full(4, 1.0 + rank, np.float32)},
                    {"micro_steps": "2", "ranks": "2"},
                    micro=micro,
                    rank=rank,
                )
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[0] == "step-00000003.rank-00000.micro-00.safetensors"
    assert "mean of 2 data-parallel ranks" in info(tmp_path)
    result = replay(tmp_path, *STATIC)
    (step,) = result["runs"][0]["steps"]
    # Two micro-steps of mean 1.5 in each of four elements.
    assert step["grad_norm"] == pytest.approx(6.0)


def test_interrupted_trace_is_readable_before_close(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path, {"model": "unfinished"})
    writer.write(0, {"w.grad": np.ones(2, np.float32)})
    assert "unfinished" in info(tmp_path)


def test_close_lists_files_and_later_steps_can_be_added(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, {"model": "m", "roles": {"w": "act_grad"}}) as writer:
        writer.write(0, {"w": np.ones(2, np.float32)})
    listed = json.loads((tmp_path / "trace.json").read_text())
    assert listed["files"] == ["step-00000000.safetensors"] and listed["steps"] == [0]
    with pytest.raises(dlsim.InputError, match="holds a trace already"):
        TraceWriter(tmp_path)
    with TraceWriter(tmp_path, {"model": "m"}, exist_ok=True) as writer:
        writer.write(1, {"w": np.ones(2, np.float32)})
        writer.write(2, {"w": np.ones(2, np.float32)})
        writer.forget(2)
    assert json.loads((tmp_path / "trace.json").read_text())["steps"] == [0, 1]
    info(tmp_path)


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        path = TraceWriter(tmp_path / "a").write(0, {"w": np.ones(1, np.float32)})
        other = TraceWriter(tmp_path / "b", describes=False).write(0, {"w": np.ones(1, np.float32)})
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert stat.S_IMODE(other.stat().st_mode) == 0o640
    assert len(list((tmp_path / "b").iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((-1, {}), dlsim.UsageError, "step: out of range"),
        ((1.5, {}), TypeError, "step: expected a whole number, got float"),
        ((True, {}), TypeError, "step"),
        ((0, {"w": np.ones(2, np.int32)}), TypeError, "tensor 'w': bad element type"),
        ((0, {"w": torch.ones(2, dtype=torch.int64)}), TypeError, "got int64"),
        ((0, {"w": np.ones(2, np.complex64)}), TypeError, "got complex64"),
        ((0, {"": np.ones(2, np.float32)}), dlsim.UsageError, "bad name"),
        ((0, {"\ud800": np.ones(2, np.float32)}), dlsim.UsageError, "not valid Unicode"),
        ((0, {"__metadata__": np.ones(2, np.float32)}), dlsim.UsageError, "bad name"),
        ((0, {3: np.ones(2, np.float32)}), TypeError, "tensor name"),
        ((0, {}, {"loss": 1.0}), TypeError, "metadata 'loss'"),
        ((0, {}, {"step": "1"}), dlsim.UsageError, "metadata 'step': differs"),
        ((0, {}, {"grad_scale": "nan"}), dlsim.UsageError, "got 'nan'"),
        ((0, {}, {"grad_scale": "0"}), dlsim.UsageError, "bad loss scale"),
        ((0, {}, {"grad_scale": "1e-39"}), dlsim.UsageError, "bad loss scale"),
        ((0, {}, {"grad_scale": "1e39"}), dlsim.UsageError, "bad loss scale"),
        ((0, {}, {"grad_scale": "two"}), dlsim.UsageError, "bad loss scale"),
        ((0, {}, {"accumulate": "mean"}), dlsim.UsageError, "expected 'sum'"),
    ],
)
def test_bad_arguments_write_nothing(tmp_path: Path, arguments, error, text) -> None:
    writer = TraceWriter(tmp_path)
    with pytest.raises(error, match=text) as caught:
        writer.write(*arguments)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_smallest_scale_with_a_finite_reciprocal_is_what_a_reader_takes(tmp_path: Path) -> None:
    good = np.nextafter(np.float32(2.0**-128), np.float32(1))
    assert np.isfinite(np.float32(1) / good)
    writer = TraceWriter(tmp_path)
    writer.write(0, {"w.grad": np.ones(1, np.float32)}, {"grad_scale": repr(float(good))})
    writer.close()
    info(tmp_path)
    replay(tmp_path, *STATIC)
    with pytest.raises(dlsim.UsageError):
        writer.write(1, {}, {"grad_scale": repr(2.0**-128)})


def test_description_must_be_json_without_the_names_of_the_layout(tmp_path: Path) -> None:
    with pytest.raises(dlsim.UsageError, match="description: no JSON"):
        TraceWriter(tmp_path, {"x": object()})
    with pytest.raises(dlsim.UsageError, match="'steps' is not free"):
        TraceWriter(tmp_path, {"steps": []})
    (tmp_path / "file").write_text("")
    with pytest.raises(dlsim.InputError, match="cannot be created"):
        TraceWriter(tmp_path / "file" / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    script = (
        "import resource, signal, sys, numpy as np, dlsim\n"
        "from dlsim.traces._writer import TraceWriter\n"
        "writer = TraceWriter(sys.argv[1])\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    writer.write(0, {'w': np.ones(100000, np.float32)})\n"
        "except dlsim.InputError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True
    )
    assert "step-00000000.safetensors: cannot be written" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
