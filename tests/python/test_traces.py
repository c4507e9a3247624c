# SPDX-License-Identifier: Apache-2.0
"""Traces in Python hold what independent readers find in the same files."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import zipfile
from pathlib import Path

import dlsim
import numpy as np
import pytest
from dlsim._binary import command_path
from dlsim._exponents import LOWEST_EXPONENT
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

TRACES = Path(__file__).parents[1] / "data" / "traces"
BUNDLED = sorted(path for path in TRACES.iterdir() if path.is_dir())


def steps_of(directory: Path) -> dict[int, list[Path]]:
    """The files of each step, in the order of micro-steps, by their names alone."""
    files: dict[int, list[Path]] = {}
    for path in sorted(directory.glob("step-*.safetensors")):
        files.setdefault(int(path.name[5:13]), []).append(path)
    return files


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype == np.float32 and a.shape == b.shape and a.tobytes() == b.tobytes()


def counts_by_frexp(values: np.ndarray) -> np.ndarray:
    finite = values[np.isfinite(values) & (values != 0)].astype(np.float64)
    exponent = np.frexp(np.abs(finite))[1] - 1
    return np.bincount(exponent - LOWEST_EXPONENT, minlength=277)


def all_kinds_of_values() -> np.ndarray:
    """All powers of two with their neighbours, both signs, zeros, NaN and infinities."""
    bits = np.concatenate([np.left_shift(1, np.arange(23)), np.arange(1, 256) << 23])
    magnitudes = np.unique(np.concatenate([bits - 1, bits, bits + 1]))
    both = np.concatenate([magnitudes, magnitudes | 1 << 31])
    return both.astype(np.uint32).view(np.float32)


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
        assert set(gradients) == {name for name in parts[0] if not name.endswith(".act_grad")}
        assert set(gradients) | set(activations) == set(step.names) == set(parts[0])
        for name, gradient in gradients.items():
            total = parts[0][name]
            for part in parts[1:]:
                total = total + part[name]
            assert same_bits(gradient, total)
            assert step.shape(name) == gradient.shape
        for name, values in activations.items():
            assert same_bits(values, np.concatenate([part[name] for part in parts]))
            assert step.shape(name) == values.shape


@pytest.mark.parametrize("directory", BUNDLED, ids=lambda path: path.name)
def test_exponents_are_those_of_frexp(directory: Path) -> None:
    counted = dlsim.exponents(directory, per_step=True)
    total = dlsim.exponents(directory)
    assert list(counted.steps) == list(steps_of(directory))
    names = set()
    for row, files in enumerate(steps_of(directory).values()):
        parts = [load_file(file) for file in files]
        for name in parts[0]:
            values = np.concatenate([part[name].reshape(-1) for part in parts])
            tensor = counted.tensors[name]
            assert (tensor.counts[row] == counts_by_frexp(values)).all()
            assert tensor.zeros[row] == (values == 0).sum()
            assert tensor.nan[row] == np.isnan(values).sum()
            assert tensor.inf[row] == np.isinf(values).sum()
            assert tensor.elements[row] == values.size
            names.add(name)
    assert set(counted.tensors) == set(total.tensors) == names
    for name in names:
        assert (counted.tensors[name].counts.sum(axis=0) == total.tensors[name].counts).all()
        assert counted.tensors[name].elements.sum() == total.tensors[name].elements


def test_exponents_of_all_kinds_of_values(tmp_path: Path) -> None:
    values = all_kinds_of_values()
    save_file({"w.grad": values}, tmp_path / "step-00000000.safetensors")
    tensor = dlsim.exponents(tmp_path).tensors["w.grad"]
    assert (tensor.counts == counts_by_frexp(values)).all()
    assert tensor.counts.min() > 0  # every exponent of float32 was there
    assert (tensor.zeros, tensor.inf) == (2, 2)
    assert tensor.nan == np.isnan(values).sum() > 0


def profile(trace: Path, output: Path, *options: str) -> Path:
    command = [command_path(), "profile", trace, "-o", output, "--quiet", *options]
    subprocess.run(command, check=True)
    return output


@pytest.mark.parametrize("directory", BUNDLED, ids=lambda path: path.name)
def test_exponents_of_a_profile_are_those_of_its_trace(directory: Path, tmp_path: Path) -> None:
    path = profile(directory, tmp_path / "a.dlprof")
    pattern = "*weight*"
    for per_step, tensors in [(False, "*"), (True, pattern)]:
        a = dlsim.exponents(directory, per_step=per_step, tensors=tensors)
        b = dlsim.exponents(path, per_step=per_step, tensors=tensors)
        assert a.steps == b.steps and list(a.tensors) == list(b.tensors) and b.exact
        for name, tensor in a.tensors.items():
            other = b.tensors[name]
            assert tensor.role == other.role
            for field in ("counts", "zeros", "nan", "inf", "elements"):
                assert (getattr(tensor, field) == getattr(other, field)).all()


def test_a_profile_without_subnormal_edges_says_that_they_are_not_exact(tmp_path: Path) -> None:
    values = all_kinds_of_values()
    options = ["--format", "fp16", "--rounding", "rne", "--scales", "1"]
    for name, kept in [("all", values), ("normal", values[np.abs(values) >= 2.0**-126])]:
        folder = tmp_path / name
        folder.mkdir()
        save_file({"w": kept}, folder / "step-00000000.safetensors")
        counted = dlsim.exponents(profile(folder, tmp_path / f"{name}.dlprof", *options))
        expected = counts_by_frexp(kept)
        counts = counted.tensors["w"].counts
        assert (counts[23:] == expected[23:]).all()
        assert counts[:23].sum() == expected[:23].sum()
        assert counted.exact == (name == "normal")


@pytest.mark.parametrize("directory", BUNDLED, ids=lambda path: path.name)
def test_histograms_of_a_profile_are_those_of_numpy(directory: Path, tmp_path: Path) -> None:
    opened = dlsim.open_profile(profile(directory, tmp_path / "a.dlprof"))
    trace = dlsim.open_trace(directory)
    edges = opened.edges
    assert opened.steps == trace.steps and opened.description == trace.description
    assert edges[0] == np.float32(2.0**-149) and np.isinf(edges[-1])
    for i, (of_profile, step) in enumerate(zip(opened, trace, strict=True)):
        assert of_profile.micro_steps == tuple(r.micro for r in step.recordings)
        for part, recording in enumerate(step.recordings):
            total = np.zeros(len(edges) - 1, np.int64)
            for name, info in of_profile.tensors.items():
                values = recording.tensors[name]
                assert info == recording.tensors.infos[name]
                histogram = of_profile.histogram(name, part)
                finite = values[np.isfinite(values)]
                expected = [np.histogram(s[s > 0], edges)[0] for s in (finite, -finite)]
                assert (histogram.positive == expected[0]).all()
                assert (histogram.negative == expected[1]).all()
                assert histogram.elements == values.size
                assert histogram.zeros == (values == 0).sum()
                assert histogram.nan + histogram.inf == values.size - finite.size
                assert histogram.absmax == np.abs(finite).max(initial=0)
                wide = finite.astype(np.float64)
                assert np.isclose(histogram.squares.sum(), (wide**2).sum(), rtol=1e-12)
                assert np.isclose(histogram.sum, wide.sum(), rtol=1e-9, atol=1e-12 * len(wide))
                total += histogram.counts if info.role == "grad" else 0
            assert (opened.totals(i)[0][part].counts == total).all()


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


def test_wrong_arguments_are_one_clear_line(tmp_path: Path) -> None:
    trace = TRACES / "cnn-digits"
    with pytest.raises(dlsim.UsageError, match="ranks: unknown reduction, expected 'mean' or"):
        dlsim.open_trace(trace, ranks="max")  # type: ignore[arg-type]
    with pytest.raises(dlsim.UsageError, match="npy_void2: unknown type"):
        dlsim.open_trace(trace, npy_void2="f16")  # type: ignore[arg-type]
    with pytest.raises(dlsim.UsageError, match="nothing to open"):
        dlsim.open_trace([])
    with pytest.raises(dlsim.UsageError, match="zero byte"):
        dlsim.open_trace("a\0b")
    with pytest.raises(TypeError):
        dlsim.open_trace(5)  # type: ignore[arg-type]
    with pytest.raises(dlsim.InputError, match="no tensor matches the pattern 'x'"):
        dlsim.exponents(trace, tensors="x")
    made = profile(TRACES / "reg-diabetes-cut", tmp_path / "a.dlprof")
    with pytest.raises(dlsim.UsageError, match="profiles and traces together"):
        dlsim.exponents([made, trace])
    with pytest.raises(dlsim.InputError, match="cnn-digits"):
        dlsim.open_profile(trace)


def header(tensors: object) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


def hostile_files() -> dict[str, bytes]:
    one = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    return {
        "empty": b"",
        "header-beyond-file": (1 << 60).to_bytes(8, "little") + b"{}",
        "no-json": (4).to_bytes(8, "little") + b"{]]]",
        "deep": (40).to_bytes(8, "little") + b"{" * 40,
        "cut": header({"w": one}) + bytes(4),
        "overlap": header({"w": one, "v": one}) + bytes(8),
        "huge": header({"w": {**one, "shape": [1 << 40, 1 << 40]}}) + bytes(8),
        "negative": header({"w": {**one, "shape": [-2]}}) + bytes(8),
        "type": header({"w": {**one, "dtype": "I32"}}) + bytes(8),
        "scale": header({"__metadata__": {"grad_scale": "nan"}, "w": one}) + bytes(8),
    }


@pytest.mark.parametrize("name", hostile_files())
def test_hostile_files_are_input_errors(tmp_path: Path, name: str) -> None:
    path = tmp_path / "step-00000000.safetensors"
    path.write_bytes(hostile_files()[name])
    trace = dlsim.open_trace(tmp_path)
    for read in (lambda: trace[0], lambda: dlsim.exponents(tmp_path)):
        with pytest.raises(dlsim.InputError) as error:
            read()
        assert "step-00000000.safetensors" in str(error.value)
        assert "\n" not in str(error.value)


def test_a_file_cut_after_it_was_opened_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "step-00000000.safetensors"
    save_file({"w": np.ones(1 << 16, np.float32)}, path)
    step = dlsim.open_trace(tmp_path)[0]
    with path.open("r+b") as file:
        file.truncate(1 << 12)
    with pytest.raises(dlsim.InputError, match=r"step-00000000\.safetensors"):
        step.gradients()


def test_damaged_npz_and_profiles_are_input_errors(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("w.npy", b"\x93NUMPY\x01\x00\x08\x00{'descr'")
    with pytest.raises(dlsim.InputError, match=r"a\.npz"):
        dlsim.open_trace(tmp_path / "a.npz")[0].gradients()
    path = profile(TRACES / "reg-diabetes-cut", tmp_path / "a.dlprof")
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(dlsim.InputError, match=r"a\.dlprof"):
        dlsim.open_profile(path)
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0x10
    path.write_bytes(bytes(damaged))
    with pytest.raises(dlsim.InputError, match=r"a\.dlprof"):
        dlsim.exponents(path)


def test_a_missing_trace_is_an_input_error(tmp_path: Path) -> None:
    for opener in (dlsim.open_trace, dlsim.open_profile, dlsim.exponents):
        with pytest.raises(dlsim.InputError, match="absent"):
            opener(tmp_path / "absent")


def test_names_of_files_may_hold_any_bytes(tmp_path: Path) -> None:
    path = bytes(tmp_path) + b"/\xff\xfe.npy"
    with open(path, "wb") as file:
        np.save(file, np.ones(3, np.float32))
    step = dlsim.open_trace(path)[0]
    assert step.names == ("\udcff\udcfe",)
    assert step.tensors["\udcff\udcfe"].tolist() == [1, 1, 1]
    assert list(dlsim.exponents(path).tensors) == ["\udcff\udcfe"]


def test_shapes_beyond_numpy_are_input_errors(tmp_path: Path) -> None:
    empty = {"dtype": "F32", "shape": [0, 1 << 48, 1 << 13], "data_offsets": [0, 0]}
    (tmp_path / "step-00000000.safetensors").write_bytes(header({"w": empty}))
    step = dlsim.open_trace(tmp_path)[0]
    with pytest.raises(dlsim.InputError, match="NumPy cannot hold"):
        step.gradients()
