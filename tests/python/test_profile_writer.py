# SPDX-License-Identifier: Apache-2.0
"""Profiles written from arrays: parts, continuing, joining, and what is refused."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from running import DLSIM

import dlsim
from dlsim._core import ProfileWriter, join_shards

VALUES = np.array([1.0, -(2.0**-20), 0.0, 3e-9], np.float32)


def one(name: str = "w.grad", values: np.ndarray = VALUES, role: str = "grad") -> list:
    return [(-1, 1.0, {}, [(name, role, values)])]


def steps_of(path: Path) -> list[dict]:
    done = subprocess.run(
        [*DLSIM, "replay", path, "--json", "-", "--quiet", "--format", "fp16"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["runs"][0]["steps"]


def test_parts_added_one_by_one_are_the_same_bytes(tmp_path: Path) -> None:
    parts = [
        (0, 2.0, {"loss": "1"}, [("a.grad", "grad", VALUES), ("b.grad", "grad", VALUES * 3)]),
        (1, 4.0, {}, [("b.grad", "grad", VALUES), ("c.grad", "grad", VALUES[:2])]),
    ]
    together, apart = (ProfileWriter(str(tmp_path / name)) for name in ("a.dlprof", "b.dlprof"))
    together.append(0, parts)
    for part in parts:
        apart.add(0, part)
    apart.finish()
    together.commit()
    apart.commit()
    assert (tmp_path / "a.dlprof").read_bytes() == (tmp_path / "b.dlprof").read_bytes()
    (step,) = steps_of(tmp_path / "a.dlprof")
    assert step["elements"] == 4 + 8 + 2


def test_tensors_of_a_step_may_come_in_several_calls(tmp_path: Path) -> None:
    tensors = [(name, "grad", VALUES * 3) for name in ("a.grad", "b.grad", "c.grad")]
    at_once, apart = (ProfileWriter(str(tmp_path / name)) for name in ("a.dlprof", "b.dlprof"))
    at_once.append(0, [(-1, 2.0, {"loss": "1"}, tensors)])
    apart.add(0, (-1, 2.0, {"loss": "1"}, tensors[:1]))
    with pytest.raises(dlsim.InputError, match=r"'a.grad': given twice"):
        apart.add(0, (-1, 2.0, {}, tensors))
    apart.add(0, (-1, 2.0, {}, tensors[1:]))
    apart.finish()
    for writer in (at_once, apart):
        writer.commit()
    assert (tmp_path / "a.dlprof").read_bytes() == (tmp_path / "b.dlprof").read_bytes()


def test_continues_behind_an_unfinished_and_a_complete_profile(tmp_path: Path) -> None:
    path = tmp_path / "p.dlprof"
    writer = ProfileWriter(str(path))
    writer.append(0, one())
    writer.append(1, one())
    del writer
    assert path.with_suffix(".dlprof.partial").exists() and not path.exists()
    writer = ProfileWriter(str(path), existing="continue")
    assert writer.steps == [0, 1]
    writer.forget(1)
    writer.append(1, one(values=VALUES * 2))
    writer.commit()
    del writer
    writer = ProfileWriter(str(path), existing="continue")
    assert writer.steps == [0, 1]
    writer.append(5, one())
    writer.commit()
    whole = ProfileWriter(str(tmp_path / "q.dlprof"))
    for step, factor in ((0, 1), (1, 2), (5, 1)):
        whole.append(step, one(values=VALUES * np.float32(factor)))
    whole.commit()
    assert path.read_bytes() == (tmp_path / "q.dlprof").read_bytes()


def test_replace_begins_anew_although_a_partial_file_is_there(tmp_path: Path) -> None:
    path = tmp_path / "p.dlprof"
    writer = ProfileWriter(str(path))
    writer.append(7, one())
    del writer
    writer = ProfileWriter(str(path))
    assert writer.steps == []
    writer.append(0, one())
    writer.commit()
    assert [step["step"] for step in steps_of(path)] == [0]


def test_the_ladder_is_that_of_the_command(tmp_path: Path) -> None:
    writer = ProfileWriter(
        str(tmp_path / "p.dlprof"),
        formats=["fp16"],
        roundings=["rne"],
        subnormals="keep",
        scales="2^0..2^4,3",
    )
    writer.append(0, one())
    writer.commit()
    done = subprocess.run(
        [*DLSIM, "info", tmp_path / "p.dlprof"], capture_output=True, text=True, check=True
    )
    assert "ladder: fp16; rne; subnormals keep; scales" in done.stdout


def test_joined_profiles_hold_all_tensors(tmp_path: Path) -> None:
    halves = ("a.shard-0-of-2.grad", "a.shard-1-of-2.grad")
    for rank, names in enumerate(((halves[0],), (halves[1], "b.grad"))):
        writer = ProfileWriter(str(tmp_path / f"run.shard-0000{rank}-of-00002.dlprof"))
        for step in range(3):
            values = VALUES * np.float32(step + 1)
            tensors = [(name, "grad", values) for name in names]
            writer.append(step, [(-1, 1.0, {}, tensors)])
        writer.commit()
    join_shards(str(tmp_path / "run.dlprof"), str(tmp_path / "joined.dlprof"))
    whole = ProfileWriter(str(tmp_path / "whole.dlprof"))
    for step in range(3):
        values = VALUES * np.float32(step + 1)
        both = np.concatenate([values, values])
        whole.append(step, [(-1, 1.0, {}, [("a.grad", "grad", both), ("b.grad", "grad", values)])])
    whole.commit()
    assert steps_of(tmp_path / "joined.dlprof") == steps_of(tmp_path / "whole.dlprof")


def test_profiles_with_the_same_tensor_are_not_joined(tmp_path: Path) -> None:
    for rank in range(2):
        writer = ProfileWriter(str(tmp_path / f"run.shard-0000{rank}-of-00002.dlprof"))
        writer.append(0, one())
        writer.commit()
    with pytest.raises(dlsim.InputError, match="is in a shard before, expected once"):
        join_shards(str(tmp_path / "run.dlprof"), str(tmp_path / "joined.dlprof"))
    assert not list(tmp_path.glob("joined*"))


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([], "step without recordings"),
        ([(-1, float("nan"), {}, [])], "grad_scale: bad loss scale"),
        ([(-1, 0.0, {}, [])], "grad_scale: bad loss scale"),
        ([(-1, -1.0, {}, [])], "grad_scale: bad loss scale"),
        ([(-1, 1e39, {}, [])], "grad_scale: bad loss scale"),
        ([(-1, 1e-39, {}, [])], "grad_scale: bad loss scale"),
        (one(values=np.ones(2, np.int32)), "'w.grad': bad element type"),
        (one(values=np.ones(2, np.uint16)), "bad element type"),
        (one(role="weight"), "unknown role, expected grad, act_grad, act or value"),
        (one(name=""), "bad name"),
        ([(1, 1.0, {}, [])], "micro-steps must ascend from 0"),
        ([(0, 1.0, {}, []), (2, 1.0, {}, [])], "micro-steps must ascend from 0, expected 1, got 2"),
        ([(-1, 1.0, {}, []), (1, 1.0, {}, [])], "micro-steps must ascend"),
        ([(-1, 1.0, {}, [("w", "grad", VALUES), ("w", "grad", VALUES)])], "'w': given twice"),
    ],
)
def test_bad_steps_are_refused_and_the_next_is_written(tmp_path: Path, parts, text) -> None:
    writer = ProfileWriter(str(tmp_path / "p.dlprof"))
    with pytest.raises(dlsim.UsageError, match=text):
        writer.append(0, parts)
    writer.append(0, one())
    writer.commit()
    assert len(steps_of(tmp_path / "p.dlprof")) == 1


def test_bad_use_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "p.dlprof")
    with pytest.raises(dlsim.UsageError, match="existing: unknown rule"):
        ProfileWriter(path, existing="append")
    with pytest.raises(dlsim.UsageError, match="subnormals: unknown rule"):
        ProfileWriter(path, subnormals="no")
    with pytest.raises(dlsim.UsageError, match="stochastic"):
        ProfileWriter(path, roundings=["sr"])
    with pytest.raises(dlsim.UsageError, match="scales"):
        ProfileWriter(path, scales="-1")
    writer = ProfileWriter(path)
    with pytest.raises(dlsim.UsageError, match="step: out of range"):
        writer.append(-1, one())
    writer.append(3, one())
    with pytest.raises(dlsim.InputError, match="steps must ascend"):
        writer.append(3, one())
    writer.add(4, one()[0])
    with pytest.raises(dlsim.UsageError, match="another one is not finished"):
        writer.add(5, one()[0])
    writer.drop()
    with pytest.raises(dlsim.UsageError, match="no step to finish"):
        writer.finish()
    writer.commit()
    with pytest.raises(dlsim.UsageError, match="complete already"):
        writer.append(9, one())
    with pytest.raises(dlsim.UsageError, match="complete already"):
        writer.commit()


def test_a_step_without_tensors_is_a_step(tmp_path: Path) -> None:
    writer = ProfileWriter(str(tmp_path / "p.dlprof"))
    writer.append(0, [(-1, 1.0, {}, [])])
    writer.append(1, one())
    writer.commit()
    assert [step["elements"] for step in steps_of(tmp_path / "p.dlprof")] == [0, 4]
