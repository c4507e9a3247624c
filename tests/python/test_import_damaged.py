# SPDX-License-Identifier: Apache-2.0
"""Files with random damage are imported or refused with one line; nothing else happens."""

from __future__ import annotations

import os
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from import_cases import random_gradients

import dlsim
from dlsim.importers import import_act_dumps, import_hdf5, import_pt


def _pt(folder: Path) -> Path:
    tree = {"w": torch.from_numpy(random_gradients(1, 20)), "g": [torch.ones(2).half()], "n": 1}
    torch.save(tree, folder / "step1.pt")
    return folder / "step1.pt"


def _act_dumps(folder: Path) -> Path:
    arrays = {"a.bwd.w": random_gradients(2, 3, 40), "b.bwd": random_gradients(3, 3, 2)}
    np.savez_compressed(folder / "act_dumps.npz", **arrays)
    return folder / "act_dumps.npz"


def _hdf5(folder: Path) -> Path:
    with h5py.File(folder / "a.h5", "w") as file:
        for step in range(2):
            values = random_gradients(step, 30, 4)
            file.create_dataset(f"step{step}/a/w", data=values, chunks=(10, 4), compression="gzip")
            file[f"step{step}/b"] = random_gradients(9, 3)
    return folder / "a.h5"


FORMATS: dict[str, tuple[Callable[[Path], Path], Callable[..., Any]]] = {
    "pt": (_pt, import_pt),
    "act-dumps": (_act_dumps, import_act_dumps),
    "hdf5": (_hdf5, import_hdf5),
}


def damaged(whole: bytes, chance: random.Random) -> bytes:
    """Returns a copy that is cut, or has wrong, missing or repeated bytes."""
    data = bytearray(whole)
    if chance.random() < 0.2:
        return bytes(data[: chance.randrange(len(data))])
    for _ in range(chance.choice([1, 1, 2, 5, 20])):
        place = chance.randrange(len(data))
        kind = chance.random()
        if kind < 0.8:
            data[place] = chance.choice([0, 255, chance.randrange(256)])
        elif kind < 0.9:
            del data[place : place + chance.randrange(1, 6)]
        else:
            data[place:place] = data[chance.randrange(len(data)) :][: chance.randrange(1, 30)]
    return bytes(data)


def imports(run: Callable[..., Any], path: Path, output: Path) -> bool:
    """Whether the file is imported; if not, there is one line and nothing is left."""
    try:
        run(path, output, force=True)
    except dlsim.InputError as error:
        assert len(str(error).splitlines()) == 1
        assert not list(output.parent.glob(".*"))
        return False
    return True


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files(tmp_path: Path, name: str) -> None:
    make, run = FORMATS[name]
    path = make(tmp_path)
    whole = path.read_bytes()
    (tmp_path / "o").mkdir()
    assert imports(run, path, tmp_path / "o" / "out")
    chance = random.Random(7)
    refused = 0
    for _ in range(30):
        path.write_bytes(damaged(whole, chance))
        refused += not imports(run, path, tmp_path / "o" / "out")
    assert refused > 5


def test_damaged_pickles_in_whole_archives(tmp_path: Path) -> None:
    path = _pt(tmp_path)
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    (tmp_path / "o").mkdir()
    chance = random.Random(11)
    refused = 0
    for _ in range(150):
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                is_pickle = name.endswith("data.pkl")
                archive.writestr(name, damaged(data, chance) if is_pickle else data)
        refused += not imports(import_pt, path, tmp_path / "o" / "out")
    assert refused > 50


@pytest.mark.parametrize("kind", FORMATS)
def test_a_pipe_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    make, run = FORMATS[kind]
    path = make(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(dlsim.InputError, match=r"not a regular file|no such file|no files"):
        run(path, tmp_path / "out")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_headers_of_arrays_that_are_no_dicts_are_refused(tmp_path: Path, method: int) -> None:
    texts = ["(" * 9000, "__import__('os')", "{'descr': '<f4'", "", "9" * 5000, "'"]
    for i, text in enumerate(texts):
        header = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()
        (tmp_path / str(i)).mkdir()
        path = tmp_path / str(i) / "act_dumps.npz"
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("a.bwd.npy", header)
        with pytest.raises(dlsim.InputError, match=r"act_dumps.npz: ") as error:
            import_act_dumps(path, tmp_path / "out")
        assert "\n" not in str(error.value)
        damaged_path = path.with_name("act_dumps_1.npz")
        data = bytearray(path.read_bytes())
        data[45:50] = b"\xff" * 5
        damaged_path.write_bytes(data)
        with pytest.raises(dlsim.InputError):
            import_act_dumps(damaged_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
