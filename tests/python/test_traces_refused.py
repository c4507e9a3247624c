# SPDX-License-Identifier: Apache-2.0
"""Bad files and arguments are one line that names them, and never more."""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from bundled_traces import TRACES, profile
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import dlsim


def test_wrong_arguments_are_one_clear_line(tmp_path: Path) -> None:
    trace = TRACES / "cnn-digits"
    with pytest.raises(dlsim.UsageError, match="ranks: unknown reduction, expected 'mean' or"):
        dlsim.open_trace(trace, ranks="max")  # type: ignore[arg-type]
    with pytest.raises(dlsim.UsageError, match="npy_void2: unknown type"):
        dlsim.open_trace(trace, npy_void2="f16")  # type: ignore[arg-type]
    for opened in (dlsim.open_trace, dlsim.open_profile, dlsim.exponents):
        for wrong in (None, 3):
            with pytest.raises(TypeError, match=r"^path: expected a path or several, got "):
                opened(wrong)  # type: ignore[operator]
        with pytest.raises(TypeError):
            opened([trace, None])  # type: ignore[operator]
    with pytest.raises(dlsim.UsageError, match="nothing to open"):
        dlsim.open_trace([])
    with pytest.raises(dlsim.UsageError, match="zero byte"):
        dlsim.open_trace("a\0b")
    with pytest.raises(TypeError, match=r"^step: expected a whole number, got '3'$"):
        dlsim.open_trace(trace).step("3")  # type: ignore[arg-type]
    with pytest.raises(KeyError) as missing:
        dlsim.open_trace(trace).step(99)
    assert str(missing.value) == "no step 99, expected one of 0 to 44"
    with pytest.raises(TypeError):
        dlsim.open_trace(5)  # type: ignore[arg-type]
    with pytest.raises(dlsim.InputError, match="no tensor matches the pattern 'x'"):
        dlsim.exponents(trace, tensors="x")
    made = profile(TRACES / "reg-diabetes-cut", tmp_path / "a.profile")
    with pytest.raises(dlsim.UsageError, match="a profile among others"):
        dlsim.exponents([made, trace])
    with pytest.raises(dlsim.InputError, match=r"a\.profile: is a profile, .* dlsim\.open_profile"):
        dlsim.open_trace(made)
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


@pytest.mark.parametrize("number", ["9223372036854775807", "1" * 19, "-1", "1e3", ""])
def test_numbers_in_metadata_have_18_digits_at_most(tmp_path: Path, number: str) -> None:
    save_file({"w": np.ones(1)}, tmp_path / "step-00000000.safetensors", {"step": number})
    with pytest.raises(dlsim.InputError, match="expected at most 18 decimal digits, got "):
        dlsim.open_trace(tmp_path)[0]


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
    path = profile(TRACES / "reg-diabetes-cut", tmp_path / "a.profile")
    file = sorted(path.glob("step-*"))[0]
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(dlsim.InputError, match=r"a\.profile"):
        dlsim.open_profile(path)[0]
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0x10
    file.write_bytes(bytes(damaged))
    with pytest.raises(dlsim.InputError, match=r"a\.profile"):
        dlsim.exponents(path)


def test_a_missing_trace_is_an_input_error(tmp_path: Path) -> None:
    for opener in (dlsim.open_trace, dlsim.open_profile, dlsim.exponents):
        with pytest.raises(dlsim.InputError, match="absent"):
            opener(tmp_path / "absent")


def test_shapes_beyond_numpy_are_input_errors(tmp_path: Path) -> None:
    empty = {"dtype": "F32", "shape": [0, 1 << 48, 1 << 13], "data_offsets": [0, 0]}
    (tmp_path / "step-00000000.safetensors").write_bytes(header({"w": empty}))
    step = dlsim.open_trace(tmp_path)[0]
    with pytest.raises(dlsim.InputError, match="NumPy cannot hold"):
        step.gradients()


BYTES = {"F32": 4, "F64": 8, "F16": 2, "BF16": 2}


@settings(derandomize=True, deadline=None, max_examples=150)
@given(data=st.data())
def test_mutated_files_are_refused_or_read(data: st.DataObject) -> None:
    whole = (TRACES / "reg-diabetes-cut" / "step-00000000.safetensors").read_bytes()
    mutated = bytearray(whole[: data.draw(st.integers(0, len(whole)), label="length")] or whole)
    header_end = min(len(mutated), 1200)  # where a change means something
    for _ in range(data.draw(st.integers(1, 4), label="changes")):
        mutated[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step-00000000.safetensors"
        path.write_bytes(mutated)
        try:
            step = dlsim.open_trace(folder)[0]
            read = sum(step.tensors[n].size * BYTES[step.dtype(n)] for n in step.names)
        except dlsim.InputError as error:
            assert "step-00000000.safetensors" in str(error) and "\n" not in str(error)
        else:  # every byte behind the header belongs to one tensor
            assert read == len(mutated) - 8 - int.from_bytes(mutated[:8], "little")
        assert path.read_bytes() == mutated
