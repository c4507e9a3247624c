# SPDX-License-Identifier: Apache-2.0
"""Import of Cerebras act_dumps*.npz equals what the commands read from the same files."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from import_cases import one_error_line, random_gradients, read_step, replayed, run_dlsim, same_bits

from dlsim.importers import import_act_dumps


def dumps(directory: Path) -> dict[str, np.ndarray]:
    directory.mkdir()
    arrays = {
        "fc1.fwd": random_gradients(1, 3, 4),
        "fc1.fwd.0": random_gradients(7, 3, 4),
        "mask.fwd": np.ones((3, 4), bool),
        "fc1.bwd.0": random_gradients(2, 3, 4, 5),
        "fc1.bwd.weight": random_gradients(3, 3, 7).astype(np.float16),
        "fc1.bwd.bias": random_gradients(4, 3).astype(np.float64),
        "out.call1.bwd": random_gradients(5, 3, 0),
        "loss.act_grad": random_gradients(6, 3, 2),
    }
    np.savez(directory / "act_dumps.npz", **arrays)
    np.savez_compressed(directory / "act_dumps_1.npz", **{k: v[:2] for k, v in arrays.items()})
    return arrays


def test_values_and_roles_are_those_that_the_commands_read(tmp_path: Path) -> None:
    arrays = dumps(tmp_path / "in")
    imported = import_act_dumps(tmp_path / "in", tmp_path / "out")
    assert (imported.steps, imported.last_step) == (5, 4)
    assert any("forward activations (.fwd) that are not" in note for note in imported.notes)
    for step, row in ((0, 0), (2, 2), (3, 0), (4, 1)):
        got = read_step(tmp_path / "out", f"step-{step:08d}")
        assert sorted(got) == sorted(name for name in arrays if name != "mask.fwd")
        for name, values in got.items():
            want = arrays[name][row]
            want = want.astype(np.float32) if want.dtype == np.float64 else want
            assert same_bits(values, want), (step, name)
    options = ("--format", "fp16", "--format", "cb16", "--policy", "torch", "--policy", "cerebras")
    runs = replayed(tmp_path / "out", *options)
    assert runs == replayed(tmp_path / "in", *options)
    roles = {tensor["name"]: tensor["role"] for tensor in runs[0]["tensors"]}
    assert roles.pop("fc1.fwd") == roles.pop("fc1.fwd.0") == "act"
    assert set(roles.values()) == {"grad", "act_grad"}


def test_a_profile_replays_like_that_of_the_dump(tmp_path: Path) -> None:
    dumps(tmp_path / "in")
    import_act_dumps(tmp_path / "in", tmp_path / "out.profile")
    assert run_dlsim("profile", tmp_path / "in", "-o", tmp_path / "own.profile").returncode == 0
    options = ("--format", "fp16", "--policy", "torch")
    assert replayed(tmp_path / "out.profile", *options) == replayed(
        tmp_path / "own.profile", *options
    )


def test_bfloat16_needs_the_option_and_keeps_its_values(tmp_path: Path) -> None:
    codes = np.arange(0, 65536, 7, dtype=np.uint16).reshape(1, -1)
    np.savez(tmp_path / "act_dumps.npz", **{"w.bwd.weight": codes.view("V2")})
    line = one_error_line(
        run_dlsim("import", "act-dumps", tmp_path / "act_dumps.npz", "-o", tmp_path / "o"), 3
    )
    assert "--npy-void bf16" in line
    import_act_dumps(tmp_path / "act_dumps.npz", tmp_path / "out", npy_void="bf16", step=9)
    got = read_step(tmp_path / "out", "step-00000009")["w.bwd.weight"]
    want = (codes[0].astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(got, want, equal_nan=True)
    is_number = ~np.isnan(want)
    assert same_bits(got[is_number], want[is_number])


def _member(name: str, header: bytes, data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
        archive.writestr(name, start + header + data)
    return file.getvalue()


def _bad_files() -> dict[str, bytes]:
    whole = io.BytesIO()
    np.savez(whole, **{"a.bwd.w": random_gradients(1, 4, 100)})
    good = whole.getvalue()
    flipped = bytearray(good)
    flipped[700] ^= 1
    objects = io.BytesIO()
    np.savez(objects, **{"a.bwd.w": np.array([{"x": 1}], dtype=object)})
    uneven = io.BytesIO()
    np.savez(uneven, **{"a.bwd.w": np.ones((2, 2), "f4"), "a.bwd.b": np.ones((3, 2), "f4")})
    forward = io.BytesIO()
    np.savez(forward, **{"a.fwd": np.ones((2, 2), bool)})
    integers = io.BytesIO()
    np.savez(integers, **{"a.bwd.w": np.ones((2, 2), "i4")})
    code = b"{'descr': __import__('os').mkdir('marker'), 'fortran_order': False, 'shape': (1,)}\n"
    many = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 0)}\n"
    huge = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 9999999999999)}\n"
    return {
        "empty": b"",
        "text": b"no archive",
        "cut": good[:-60],
        "flipped": bytes(flipped),
        "objects": objects.getvalue(),
        "uneven": uneven.getvalue(),
        "forward": forward.getvalue(),
        "integers": integers.getvalue(),
        "code": _member("a.bwd.w.npy", code, bytes(4)),
        "many": _member("a.bwd.w.npy", many, b""),
        "huge": _member("a.bwd.w.npy", huge, bytes(64)),
        "bomb": _member("a.bwd.w.npy", code, bytes(1 << 20)),
        "no array": _member("a.bwd.w.txt", b"", b""),
    }


def test_what_is_bad_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "act_dumps.npz"
    for name, blob in _bad_files().items():
        path.write_bytes(blob)
        for output in ("out", "out.profile"):
            with pytest.raises(ValueError, match=r"act_dumps\.npz") as raised:
                import_act_dumps(path, tmp_path / output)
            assert len(str(raised.value).splitlines()) == 1, name
            assert [p.name for p in tmp_path.iterdir()] == ["act_dumps.npz"], name
    assert not Path("marker").exists()


def test_names_that_are_no_dumps_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "grads.npz", **{"a.bwd.w": np.ones((1, 2), "f4")})
    with pytest.raises(ValueError, match="expected a name such as"):
        import_act_dumps(tmp_path / "grads.npz", tmp_path / "out")
