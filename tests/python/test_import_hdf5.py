# SPDX-License-Identifier: Apache-2.0
"""Import of HDF5 files: the three places of steps, same bits, nothing followed out of the file."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from import_cases import (
    one_error_line,
    random_gradients,
    read_step,
    replayed,
    run_dlsim,
    same_bits,
    write_step,
)

from dlsim.importers import import_hdf5

KINDS = {"w.grad": "<f4", "b.grad": "<f2", "d.grad": "<f8", "h.act_grad": "<f4"}


def step_values(step: int) -> dict[str, np.ndarray]:
    return {n: random_gradients(step, 6, 5).astype(kind) for n, kind in KINDS.items()}


def check(tmp_path: Path, output: Path, steps: list[int]) -> None:
    for step in steps:
        got = read_step(output, f"step-{step:08d}")
        want = {f"net.{name}": values for name, values in step_values(step).items()}
        assert sorted(got) == sorted(want)
        assert all(same_bits(got[name], want[name]) for name in want)
        write_step(tmp_path / "native", step, want)
    options = ("--format", "fp16", "--policy", "torch")
    assert replayed(output, *options) == replayed(tmp_path / "native", *options)


def test_steps_as_groups(tmp_path: Path) -> None:
    steps = [3, 20, 100]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for step in reversed(steps):
            group = file.create_group(f"run/step_{step}")
            group.attrs["loss"] = 0.25
            for i, (name, values) in enumerate(step_values(step).items()):
                options = {"compression": "gzip", "chunks": (2, 5)} if i % 2 else {}
                big_endian = values.astype(values.dtype.newbyteorder(">"))
                group.create_dataset(f"net/{name}", data=big_endian, **options)
    import_hdf5(tmp_path / "a.h5", tmp_path / "out", group="/run")
    check(tmp_path, tmp_path / "out", steps)
    info = run_dlsim("info", tmp_path / "out", "--json")
    assert '"loss":"0.25"' in info.stdout.replace('": "', '":"')


@pytest.mark.parametrize("chunks", [None, (2, 3, 5)])
def test_steps_along_the_first_axis(tmp_path: Path, chunks: tuple[int, ...] | None) -> None:
    steps = [4, 5, 6, 7]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in KINDS:
            data = np.stack([step_values(step)[name] for step in steps])
            file.create_dataset(f"net/{name}", data=data, chunks=chunks)
        file["net/count"] = np.arange(4)
    import_hdf5(tmp_path / "a.h5", tmp_path / "out", step_from="axis", step=4)
    check(tmp_path, tmp_path / "out", steps)


def test_steps_as_files(tmp_path: Path) -> None:
    steps = [2, 10]
    for step in steps:
        with h5py.File(tmp_path / f"grads-{step}.hdf5", "w") as file:
            for name, values in step_values(step).items():
                file[f"net/{name}"] = values
    import_hdf5(tmp_path / "grads-*.hdf5", tmp_path / "out", step_from="file")
    check(tmp_path, tmp_path / "out", steps)


def test_two_groups_of_one_step_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["step1/w"] = np.ones(2, "f4")
        file["step_01/w"] = np.ones(2, "f4")
    with pytest.raises(ValueError, match="is step 1, as is"):
        import_hdf5(tmp_path / "a.h5", tmp_path / "out")


def test_links_out_of_the_file_are_not_followed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["w"] = np.ones(2, "f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["step1/mine"] = np.ones(2, "f4")
        file["step1/link"] = h5py.ExternalLink("secret.h5", "/w")
        file["step1/soft"] = h5py.SoftLink("/step1/mine")
    imported = import_hdf5(tmp_path / "a.h5", tmp_path / "out")
    assert list(read_step(tmp_path / "out", "step-00000001")) == ["mine"]
    assert sum("a link" in note for note in imported.notes) == 2
    (tmp_path / "raw").write_bytes(bytes(8))
    with h5py.File(tmp_path / "b.h5", "w") as file:
        raw = [(str(tmp_path / "raw"), 0, 8)]
        file.create_dataset("step1/w", (2,), "f4", external=raw)
    with pytest.raises(ValueError, match="in other files"):
        import_hdf5(tmp_path / "b.h5", tmp_path / "o")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        layout = h5py.VirtualLayout((2,), "f4")
        layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "w", (2,))
        file.create_virtual_dataset("step1/w", layout)
    with pytest.raises(ValueError, match="in other files"):
        import_hdf5(tmp_path / "c.h5", tmp_path / "o")


def test_what_is_bad_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"

    def refused(*options: object) -> str:
        before = sorted(p.name for p in tmp_path.iterdir())
        line = one_error_line(
            run_dlsim("import", "hdf5", path, "-o", tmp_path / "out", *options), 3
        )
        assert sorted(p.name for p in tmp_path.iterdir()) == before
        return line

    for blob in (b"", b"no hdf5", b"\x89HDF\r\n\x1a\n" + bytes(100)):
        path.write_bytes(blob)
        assert "cannot be read" in refused()
    with h5py.File(path, "w") as file:
        file["step1/w"] = np.ones(100, "f4")
    whole = path.read_bytes()
    path.write_bytes(whole[:-200])
    assert "cannot be read" in refused()
    with h5py.File(path, "w") as file:
        file["step1/n"] = np.arange(3)
        file["step1/c"] = np.ones(3, "c8")
    assert "no tensor" in refused()
    assert "no group" in refused("--group", "/missing")
    assert "first axes" in refused_axis(path, refused)
    with h5py.File(path, "w") as file:
        file.create_dataset("step1/w", (1 << 40,), "f4", chunks=(1024,))
    assert "far larger" in refused()
    with h5py.File(path, "w") as file:
        file["w"] = np.ones(3, "f4")
    assert "--step-from" in refused()
    with h5py.File(path, "w") as file:
        file["step1/a.b"] = np.ones(3, "f4")
        file["step1/a/b"] = np.ones(3, "f4")
    assert "two datasets are named 'a.b'" in refused()
    with h5py.File(path, "w") as file:
        group = file.create_group("step1")
        group["again"] = group
        group["w"] = np.ones(1, "f4")
    assert "nested deeper" in refused()


def refused_axis(path: Path, refused: object) -> str:
    with h5py.File(path, "w") as file:
        file["a"] = np.ones((2, 3), "f4")
        file["b"] = np.ones((4, 3), "f4")
    assert callable(refused)
    return str(refused("--step-from", "axis"))


def test_missing_h5py_names_the_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dlsim-numerics\[import\]'"):
        import_hdf5(tmp_path / "a.h5", tmp_path / "out")
