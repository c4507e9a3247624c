# SPDX-License-Identifier: Apache-2.0
"""Profiles written from arrays: parts, continuing, and what is refused."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from bundled_traces import files_of
from running import DLSIM

import dlsim
from dlsim import _core
from dlsim._core import ProfileWriter

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


def write(writer: ProfileWriter, step: int, parts: list) -> None:
    for part in parts:
        writer.add(step, part)
    writer.finish()


def test_micro_steps_are_parts(tmp_path: Path) -> None:
    parts = [
        (0, 2.0, {"loss": "1"}, [("a.grad", "grad", VALUES), ("b.grad", "grad", VALUES * 3)]),
        (1, 4.0, {}, [("b.grad", "grad", VALUES), ("c.grad", "grad", VALUES[:2])]),
    ]
    path = tmp_path / "a.profile"
    write(ProfileWriter(str(path)), 0, parts)
    (step,) = steps_of(path)
    assert step["elements"] == 4 + 8 + 2
    (opened,) = dlsim.open_profile(path)
    assert opened.names == ("a.grad", "b.grad", "c.grad")
    assert opened.micro_steps == (0, 1) and opened.metadata == {"loss": "1"}
    assert opened.table("a.grad") == dlsim.tabulate(VALUES, grad_scale=2)
    assert opened.table("b.grad", 1) == dlsim.tabulate(VALUES, grad_scale=4)
    assert opened.table("a.grad", 1).elements == opened.table("c.grad", 0).elements == 0
    assert step["grad_norm"] is None  # tables do not tell that of the sum over micro-steps


def test_tensors_of_a_step_may_come_in_several_calls(tmp_path: Path) -> None:
    tensors = [(name, "grad", VALUES * 3) for name in ("a.grad", "b.grad", "c.grad")]
    tensors.insert(1, ("a.act", "act", VALUES))
    at_once, apart = tmp_path / "a.profile", tmp_path / "b.profile"
    write(ProfileWriter(str(at_once)), 0, [(-1, 2.0, {"loss": "1"}, tensors)])
    writer = ProfileWriter(str(apart))
    writer.add(0, (-1, 2.0, {"loss": "1"}, tensors[:2]))
    with pytest.raises(dlsim.InputError, match=r"'a.grad': given twice"):
        writer.add(0, (-1, 2.0, {}, tensors))
    writer.add(0, (-1, 2.0, {}, tensors[2:]))
    writer.finish()
    assert files_of(at_once) == files_of(apart)


def test_what_is_tabulated_already_takes_its_place(tmp_path: Path) -> None:
    values = np.linspace(-1, 1, 1000, dtype=np.float32).reshape(2, 500)
    mantissa = np.float32(1.25)
    paths = [tmp_path / name for name in ("a.profile", "b.profile")]
    for path in paths:
        writer = ProfileWriter(str(path), scales=["2.5"])
        assert writer.mantissas == [mantissa]
        found = [
            _core.tabulate_array(one, "float32") for one in (values / 2, values / 2 * mantissa)
        ]
        found[0].set_channels([(np.float32(0.5).view(np.uint32).item() >> 21, 2)])
        forward = [_core.tabulate_array(values, "float32")]
        counted = ("float32", values.shape, found), ("float32", values.shape, forward)
        given = counted if path == paths[0] else (values, values)
        tensors = [
            ("a.grad", "grad", VALUES),
            ("b.grad", "grad", given[0]),
            ("b.act", "act", given[1]),
            ("c.grad", "grad", VALUES),
        ]
        write(writer, 0, [(-1, 2.0, {}, tensors)])
    assert files_of(paths[0]) == files_of(paths[1])


def test_continues_and_replaces(tmp_path: Path) -> None:
    path, whole = tmp_path / "p.profile", tmp_path / "q.profile"
    for step, factor in ((0, 1), (1, 1), (1, 2), (5, 1)):
        writer = ProfileWriter(str(path), existing="continue")
        write(writer, step, one(values=VALUES * np.float32(factor)))
    writer = ProfileWriter(str(whole))
    for step, factor in ((0, 1), (1, 2), (5, 1)):
        write(writer, step, one(values=VALUES * np.float32(factor)))
    assert files_of(path) == files_of(whole)
    with pytest.raises(dlsim.InputError, match="made with another 'mantissas'"):
        ProfileWriter(str(path), existing="continue", scales=["3"])
    write(ProfileWriter(str(path), scales=["3"]), 7, one())
    assert [step["step"] for step in steps_of(path)] == [7]


def test_it_holds_what_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "p.profile"
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    writer = ProfileWriter(str(path), scaled_formats=["mxfp8"], scales=["2e15", "2^4"])
    write(writer, 0, one(values=values))
    done = subprocess.run(
        [
            *(*DLSIM, "replay", path, "--format", "mxfp8", "--format", "fp16"),
            *("--policy", "static", "--set", "loss_scale=2e15"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("parts", "text"),
    [
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
    writer = ProfileWriter(str(tmp_path / "p.profile"))
    with pytest.raises(dlsim.UsageError, match=text):
        write(writer, 0, parts)
    writer.drop()
    write(writer, 0, one())
    assert len(steps_of(tmp_path / "p.profile")) == 1


def test_bad_use_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "p.profile")
    with pytest.raises(dlsim.UsageError, match="existing: unknown rule"):
        ProfileWriter(path, existing="append")
    with pytest.raises(dlsim.UsageError, match="scaled_formats: "):
        ProfileWriter(path, scaled_formats=["fp16"])
    with pytest.raises(dlsim.UsageError, match="scales: "):
        ProfileWriter(path, scales=["-1"])
    writer = ProfileWriter(path)
    with pytest.raises(dlsim.UsageError, match="step: out of range"):
        writer.add(-1, one()[0])
    writer.add(4, one()[0])
    with pytest.raises(dlsim.UsageError, match="another one is not finished"):
        writer.add(5, one()[0])
    writer.drop()
    with pytest.raises(dlsim.UsageError, match="no step to finish"):
        writer.finish()
    tables = [_core.tabulate_array(VALUES, "float32")] * 2
    with pytest.raises(dlsim.UsageError, match=r"'w.grad': other tables than the profile needs"):
        writer.add(0, (-1, 1.0, {}, [("w.grad", "grad", ("float32", (4,), tables))]))


def test_a_step_without_tensors_is_a_step(tmp_path: Path) -> None:
    writer = ProfileWriter(str(tmp_path / "p.profile"))
    write(writer, 0, [(-1, 1.0, {}, [])])
    write(writer, 1, one())
    assert [step["elements"] for step in steps_of(tmp_path / "p.profile")] == [0, 4]
