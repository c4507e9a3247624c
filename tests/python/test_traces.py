# SPDX-License-Identifier: Apache-2.0
"""Traces in Python hold what independent readers find in the same files."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from bundled_traces import BUNDLED, TRACES, same_bits, steps_of
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import dlsim


@pytest.mark.parametrize("directory", BUNDLED, ids=lambda path: path.name)
def test_values_are_those_of_the_safetensors_library(directory: Path) -> None:
    expected = steps_of(directory)
    trace = dlsim.open_trace(directory)
    assert list(trace.steps) == list(expected)
    for step, (number, files) in zip(trace, expected.items(), strict=True):
        assert step.number == number
        assert [recording.place for recording in step.recordings] == [str(f) for f in files]
        for recording, file in zip(step.recordings, files, strict=True):
            tensors = load_file(file)
            assert set(recording.tensors) == set(tensors)
            assert all(same_bits(recording.tensors[name], tensors[name]) for name in tensors)
            with safe_open(file, "numpy") as opened:
                assert recording.metadata == opened.metadata()


@pytest.mark.parametrize("directory", BUNDLED, ids=lambda path: path.name)
def test_the_gradient_is_the_float32_sum_of_micro_steps(directory: Path) -> None:
    for step in dlsim.open_trace(directory):
        parts = [load_file(path) for path in steps_of(directory)[step.number]]
        gradients, activations = step.gradients(), step.activation_gradients()
        forward = {**step.activations(), **step.parameter_values()}
        assert set(gradients) == {
            name for name in parts[0] if not name.endswith((".act_grad", ".act", ".value"))
        }
        assert set(forward) == {name for name in parts[0] if name.endswith((".act", ".value"))}
        assert set(gradients) | set(activations) | set(forward) == set(step.names) == set(parts[0])
        for name, values in forward.items():
            assert same_bits(values, parts[0][name])
        for name, gradient in gradients.items():
            total = parts[0][name]
            for part in parts[1:]:
                total = total + part[name]
            assert same_bits(gradient, total)
            assert step.shape(name) == gradient.shape
        for name, values in activations.items():
            assert same_bits(values, np.concatenate([part[name] for part in parts]))
            assert step.shape(name) == values.shape


def ranks_trace(folder: Path, scales: list[float]) -> list[dict[str, np.ndarray]]:
    folder.mkdir()
    random = np.random.default_rng(7)
    recorded = []
    for rank, scale in enumerate(scales):
        tensors = {
            "w.grad": random.standard_normal((3, 5)).astype(np.float32),
            "m.act_grad": random.standard_normal((2 + rank, 4)).astype(np.float32),
        }
        metadata = {"rank": str(rank), "ranks": str(len(scales)), "grad_scale": str(scale)}
        save_file(tensors, folder / f"step-00000004.rank-{rank:05d}.safetensors", metadata)
        recorded.append(tensors)
    return recorded


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ranks_are_reduced_as_documented(tmp_path: Path, reduction: str) -> None:
    scales = [1.0, 1024.0, 3.0]
    recorded = ranks_trace(tmp_path / "run", scales)
    step = dlsim.open_trace(tmp_path / "run", ranks=reduction).step(4)
    unscaled = [
        {name: v * (np.float32(1) / np.float32(scale)) for name, v in tensors.items()}
        for tensors, scale in zip(recorded, scales, strict=True)
    ]
    total = (unscaled[0]["w.grad"] + unscaled[1]["w.grad"]) + unscaled[2]["w.grad"]
    if reduction == "mean":
        total = total / np.float32(3)
    assert same_bits(step.gradients()["w.grad"], total)
    joined = np.concatenate([tensors["m.act_grad"] for tensors in unscaled])
    assert same_bits(step.activation_gradients()["m.act_grad"], joined)
    assert step.shape("m.act_grad") == (9, 4) and step.role("m.act_grad") == "act_grad"


def test_recorded_types_become_float32_without_their_scale(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    half = random.standard_normal((4, 3)).astype(np.float16)
    double = random.standard_normal(7) * 1e-42
    save_file(
        {"h": half, "d": double, "scalar": np.array(2.5, np.float32)},
        tmp_path / "step-00000001.safetensors",
        {"grad_scale": "512"},
    )
    step = dlsim.open_trace(tmp_path)[0]
    inverse = np.float32(1 / 512)
    assert step.recordings[0].grad_scale == 512
    assert step.recordings[0].micro is None
    assert same_bits(step.tensors["h"], half.astype(np.float32) * inverse)
    assert same_bits(step.tensors["d"], double.astype(np.float32) * inverse)
    assert same_bits(step.tensors["scalar"], np.asarray(np.float32(2.5) * inverse))
    assert (step.dtype("h"), step.dtype("d"), step.dtype("scalar")) == ("F16", "F64", "F32")


def test_npz_and_npy_are_steps(tmp_path: Path) -> None:
    import ml_dtypes

    values = np.random.default_rng(5).standard_normal((40, 50)).astype(np.float32)
    np.savez_compressed(tmp_path / "a.npz", w=values, v=np.asfortranarray(values))
    np.save(tmp_path / "b.npy", values.astype(ml_dtypes.bfloat16))
    step = dlsim.open_trace(tmp_path / "a.npz")[0]
    assert same_bits(step.tensors["w"], values)
    assert step.shape("v") == (40, 50)
    with pytest.raises(dlsim.InputError, match="V2"):
        dlsim.open_trace(tmp_path / "b.npy")[0]
    both = dlsim.open_trace([tmp_path / "a.npz", tmp_path / "b.npy"], npy_void2="bf16")
    assert both.steps == (0, 1)
    rounded = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert same_bits(both.step(1).tensors["b"], rounded)


def test_arrays_outlive_the_trace_and_are_copies(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(TRACES / "reg-diabetes-cut", folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    step = dlsim.open_trace(folder, tensors="layers.0.*")[0]
    array = step.gradients()["layers.0.weight.grad"]
    kept = array.copy()
    array += 1
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert same_bits(step.tensors["layers.0.weight.grad"], kept)
    assert set(step.names) == {
        "layers.0.weight.grad",
        "layers.0.bias.grad",
        "layers.0.act_grad",
    }
    shutil.rmtree(folder)
    del step
    assert same_bits(array, kept + np.float32(1))


def test_threads_may_share_a_step(tmp_path: Path) -> None:
    values = {f"t{i}": np.full(30_000, i, np.float32) for i in range(8)}
    np.savez_compressed(tmp_path / "a.npz", **values)
    step = dlsim.open_trace(tmp_path / "a.npz")[0]
    wrong: list[str] = []

    def read(name: str) -> None:
        if not all(same_bits(step.tensors[name], values[name]) for _ in range(5)):
            wrong.append(name)

    threads = [threading.Thread(target=read, args=[name]) for name in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_steps_by_number_and_index() -> None:
    trace = dlsim.open_trace(TRACES / "lm-trouble-cut")
    assert trace.step(240).number == 240 and trace[-1].number == trace.steps[-1]
    assert trace.files(0) == [str(TRACES / "lm-trouble-cut" / "step-00000000.safetensors")]
    for missing in (1, -1, 378):
        with pytest.raises(KeyError):
            trace.step(missing)
    for outside in (len(trace), -len(trace) - 1):
        with pytest.raises(IndexError, match="no step at index"):
            trace[outside]
    with pytest.raises(TypeError):
        trace[1.5]  # type: ignore[index]
    with pytest.raises(KeyError):
        trace[0].tensors["absent"]


def test_names_of_files_may_hold_any_bytes(tmp_path: Path) -> None:
    path = bytes(tmp_path) + b"/\xff\xfe.npy"
    with open(path, "wb") as file:
        np.save(file, np.ones(3, np.float32))
    step = dlsim.open_trace(path)[0]
    assert step.names == ("\udcff\udcfe",)
    assert step.tensors["\udcff\udcfe"].tolist() == [1, 1, 1]
    assert list(dlsim.exponents(path).tensors) == ["\udcff\udcfe"]


def micro_steps(folder: Path, activations: list[tuple[int, ...]]) -> list[np.ndarray]:
    folder.mkdir()
    values = []
    for micro, shape in enumerate(activations):
        values.append(np.full(shape, micro, np.float32))
        tensors = {"w.grad": np.array([-0.0, 1.0], np.float32), "m.act_grad": values[-1]}
        save_file(tensors, folder / f"step-00000000.micro-{micro:02d}.safetensors")
    return values


def test_activation_gradients_of_micro_steps_are_joined(tmp_path: Path) -> None:
    values = micro_steps(tmp_path / "rows", [(2, 3), (1, 3), (4, 3)])
    step = dlsim.open_trace(tmp_path / "rows")[0]
    assert step.shape("m.act_grad") == (7, 3)
    assert same_bits(step.tensors["m.act_grad"], np.concatenate(values))
    micro_steps(tmp_path / "other", [(2, 3), (3, 2)])
    step = dlsim.open_trace(tmp_path / "other")[0]
    assert same_bits(step.tensors["m.act_grad"], np.repeat(np.float32([0, 1]), 6))
    # The sum begins with +0, as that of the replay does.
    assert same_bits(step.gradients()["w.grad"], np.array([0.0, 2.0], np.float32))
    assert [recording.micro for recording in step.recordings] == [0, 1]


def test_the_forward_pass_is_as_recorded(tmp_path: Path) -> None:
    names = ("w.grad", "m.act", "w.value")
    for micro in (0, 1):
        tensors = {name: np.full((micro + 1, 2), 8, np.float32) for name in names[1:]}
        tensors["w.grad"] = np.full((1, 2), 8, np.float32)
        save_file(
            tensors,
            tmp_path / f"step-0.micro-{micro}.safetensors",
            {"grad_scale": "4", "autocast_float32": "m.act"},
        )
    step = dlsim.open_trace(tmp_path)[0]
    assert sorted(step.names) == sorted(names)
    assert step.metadata["autocast_float32"] == "m.act"
    assert {name: step.role(name) for name in names} == dict(
        zip(names, ("grad", "act", "value"), strict=True)
    )
    assert same_bits(step.gradients()["w.grad"], np.full((1, 2), 4, np.float32))
    assert same_bits(step.activations()["m.act"], np.full((3, 2), 8, np.float32))
    assert same_bits(step.parameter_values()["w.value"], np.full((1, 2), 8, np.float32))
    counted = dlsim.exponents(tmp_path).tensors
    assert {name: tensor.role for name, tensor in counted.items()} == {
        name: step.role(name) for name in names
    }
    assert counted["m.act"].counts[149 + 3] == 6


def test_cerebras_dumps_have_a_step_per_row(tmp_path: Path) -> None:
    weight = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    names = {"fc.bwd.weight": weight, "fc.bwd": 2 * weight, "fc.fwd": 3 * weight}
    np.savez(tmp_path / "act_dumps.npz", **names)
    np.savez(tmp_path / "act_dumps_1.npz", **{name: 10 * v for name, v in names.items()})
    trace = dlsim.open_trace(tmp_path)
    assert trace.steps == tuple(range(6))
    assert trace.notes == []
    for i in (5, 0, 4, 1, 3, 2):  # in any order, from one file after another
        expected = weight[i % 3] * (10 if i >= 3 else 1)
        assert same_bits(trace[i].gradients()["fc.bwd.weight"], expected)
        assert same_bits(trace[i].activation_gradients()["fc.bwd"], 2 * expected)
        assert same_bits(trace[i].activations()["fc.fwd"], 3 * expected)


def test_shards_are_one_step(tmp_path: Path) -> None:
    values = {name: np.full(5, i, np.float32) for i, name in enumerate(["a", "b", "c"])}
    save_file({"a": values["a"], "c": values["c"]}, tmp_path / "x-1.safetensors")
    save_file({"b": values["b"]}, tmp_path / "x-2.safetensors")
    weight_map = {name: f"x-{1 + (name == 'b')}.safetensors" for name in values}
    index = tmp_path / "x.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    trace = dlsim.open_trace(index)
    gradients = trace[0].gradients()
    assert {name: same_bits(gradients[name], v) for name, v in values.items()} == dict.fromkeys(
        values, True
    )
    assert len(trace.files(0)) == 3


def test_steps_close_their_files() -> None:
    trace = dlsim.open_trace(TRACES / "cnn-digits")
    opened = len(os.listdir("/proc/self/fd"))
    held = [trace[i] for i in range(3)]
    assert len(os.listdir("/proc/self/fd")) >= opened + 3  # the check can see them
    del held
    for step in trace:
        step.gradients()
    del step
    assert len(os.listdir("/proc/self/fd")) == opened


def test_subnormals_survive_where_the_caller_flushes_them(tmp_path: Path) -> None:
    import torch

    tiny = np.array([1, 5, 1 << 22], np.uint32).view(np.float32)
    for micro in range(2):
        save_file({"w": tiny}, tmp_path / f"step-00000000.micro-{micro:02d}.safetensors")
    step = dlsim.open_trace(tmp_path)[0]
    flushes = torch.set_flush_denormal(True)
    try:
        sums = step.gradients()["w"]
    finally:
        torch.set_flush_denormal(False)
    assert flushes and sums.view(np.uint32).tolist() == [2, 10, 1 << 23]
