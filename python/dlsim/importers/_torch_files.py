# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save: their tensors by name, without PyTorch and without running anything."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from .._errors import InputError
from ._gradients import Notes, check_name, one_line
from ._torch_pickle import (
    BAD_PICKLE,
    Foreign,
    OtherTensor,
    Refused,
    Storage,
    StoredTensor,
    read_pickle,
)

_DEEPEST = 32
_MOST_NODES = 4_000_000
_LARGEST_PICKLE = 1 << 28
# Tensors whose elements share memory may need so much more than some times the file in all.
_MOST_EXPANDED = 1 << 26
_MOST_REPEATED = 4
_BFLOAT16 = "bfloat16"
# Element types by the storage's class and by torch's name; those of size 1 are dlsim's formats.
_STORAGES = {
    "HalfStorage": "float16",
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "BFloat16Storage": _BFLOAT16,
}
_SIZES = {"float16": 2, "float32": 4, "float64": 8, _BFLOAT16: 2}
_FP8 = {"float8_e4m3fn": "fp8-e4m3", "float8_e5m2": "fp8-e5m2"}
_BAD_ZIP = (OSError, zipfile.BadZipFile, zlib.error, ValueError, RuntimeError, EOFError, KeyError)


class TorchFile:
    """An archive of torch.save; `tree` is what was saved, with StoredTensor where tensors were.

    Objects of foreign classes are refused unless `keeps_foreign`. Raises InputError for what is no
    such archive: TorchScript, files of PyTorch before 1.6, damaged ones.
    """

    def __init__(self, path: Path, *, keeps_foreign: bool = False) -> None:
        self.path = path
        try:
            self._size = path.stat().st_size
            self._archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            raise InputError(
                f"{path}: not an archive of torch.save, expected one of PyTorch 1.6 or later"
            ) from error
        except _BAD_ZIP as error:
            raise _unreadable(path, error) from error
        try:
            self._root = self._check_members()
            self._is_little = self._text("byteorder", "little") == "little"
            self.tree = self._read_tree(keeps_foreign)
        except BaseException:
            self._archive.close()
            raise

    def __enter__(self) -> TorchFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def array(self, name: str, tensor: StoredTensor) -> Any:
        """Returns the values as an array of their own type; 8-bit types become float32."""
        dtype = dtype_of(tensor)
        width = _SIZES.get(dtype, 1)
        data = self._storage(name, tensor.storage, width)
        base = np.dtype(f"{'<' if self._is_little else '>'}u{width}")
        codes = np.frombuffer(data, base)
        last = tensor.offset
        for extent, stride in zip(tensor.shape, tensor.strides, strict=False):
            last += (extent - 1) * stride
        numbers = (*tensor.shape, *tensor.strides, tensor.offset)
        fits = len(tensor.shape) == len(tensor.strides) <= 32 and min(numbers, default=0) >= 0
        if not fits or (0 not in tensor.shape and last >= codes.size):
            raise InputError(f"{self.path}: {name!r}: reaches beyond its storage")
        if 0 in tensor.shape:
            view = np.empty(tensor.shape, base)
        else:
            strides = [stride * width for stride in tensor.strides]
            view = np.lib.stride_tricks.as_strided(codes[tensor.offset :], tensor.shape, strides)
        native = np.ascontiguousarray(view, base.newbyteorder("<")).reshape(tensor.shape)
        return _of_codes(native, dtype)

    def _check_members(self) -> str:
        """Returns the folder of the archive."""
        members = self._archive.infolist()
        names = [member.filename for member in members]
        if any(name.endswith("/constants.pkl") or "/code/" in name for name in names):
            raise InputError(f"{self.path}: refused: a TorchScript archive, which is code")
        if sum(member.file_size for member in members) > self._size:
            raise InputError(
                f"{self.path}: members larger together than the archive, expected no more"
            )
        roots = [name.removesuffix("data.pkl") for name in names if name.endswith("/data.pkl")]
        if len(roots) != 1 or len(set(names)) != len(names):
            raise InputError(f"{self.path}: not an archive of torch.save, expected one data.pkl")
        return roots[0]

    def _read_tree(self, keeps_foreign: bool) -> Any:
        if self._archive.getinfo(self._root + "data.pkl").file_size > _LARGEST_PICKLE:
            raise InputError(f"{self.path}: data.pkl is too large")
        try:
            return read_pickle(self._member("data.pkl"), keeps_foreign=keeps_foreign)
        except InputError:
            raise
        except Refused as error:
            raise InputError(
                f"{self.path}: refused: {one_line(error)}, "
                "expected tensors, dicts, lists, numbers and text"
            ) from error
        except BAD_PICKLE as error:
            raise _unreadable(self.path, error) from error

    def _member(self, name: str) -> bytes:
        try:
            return self._archive.read(self._root + name)
        except _BAD_ZIP as error:
            raise _unreadable(self.path, error) from error

    def _text(self, name: str, default: str) -> str:
        if self._root + name not in self._archive.namelist():
            return default
        return self._member(name).decode("ascii", "replace")

    def _storage(self, name: str, storage: Storage, width: int) -> bytes:
        data = self._member(f"data/{storage.key}")
        elements = storage.elements * (1 if storage.kind == "UntypedStorage" else width)
        if elements != len(data) or len(data) % width:
            raise InputError(f"{self.path}: {name!r}: its storage has another size than it says")
        return data


def dtype_of(tensor: StoredTensor) -> str:
    """Returns the element type by torch's name; of others than floats that of the storage."""
    return tensor.dtype or _STORAGES.get(tensor.storage.kind, tensor.storage.kind)


def descend(place: object, tree: Any, key: str) -> Any:
    """Returns the part of a nested dict under the dotted `key`. Raises InputError."""
    for part in key.split(".") if key else ():
        if not isinstance(tree, Mapping) or part not in tree:
            keys = ", ".join(sorted(map(str, tree))[:8]) if isinstance(tree, Mapping) else "no dict"
            raise InputError(f"{place}: no key {part!r} of {key!r}, expected one of {keys}")
        tree = tree[part]
    return tree


def step_in(path: Path, tree: Any) -> int | None:
    """Returns the step number that a dict holds under "step", if it is one. Raises InputError."""
    if not isinstance(tree, Mapping) or "step" not in tree:
        return None
    step = tree["step"]
    if isinstance(step, bool) or not isinstance(step, int):
        return None
    if step < 0:
        raise InputError(f"{path}: a negative step number: {step}")
    return step


def tensors_in(file: TorchFile, tree: Any, name: str, notes: Notes) -> dict[str, Any]:
    """Returns the floating-point tensors of nested dicts and lists, by their dotted names.

    A lone tensor gets `name`. What holds no gradient values is left out with a note.
    """
    path = file.path
    tensors: dict[str, Any] = {}
    most = _MOST_REPEATED * path.stat().st_size + _MOST_EXPANDED
    needed = 0
    for found, value in _leaves(path, tree):
        label = check_name(path, found or name)
        if label in tensors:
            raise InputError(f"{path}: two tensors are named {label!r}")
        if isinstance(value, (OtherTensor, Foreign)):
            notes.add(f"left out {label!r}: {value.kind}, expected a dense tensor")
            continue
        dtype = dtype_of(value)
        if dtype not in _SIZES and dtype not in _FP8:
            notes.add(f"left out {label!r}: {dtype} is not a floating-point type")
            continue
        # An extent of 0 hides none of the others, which an array must be able to address.
        needed += math.prod(extent or 1 for extent in value.shape) * _SIZES.get(dtype, 4)
        if needed > most:
            raise InputError(
                f"{path}: {label!r}: tensors far larger than the file that holds them, expected at "
                f"most {most} bytes in all, got {needed}"
            )
        tensors[label] = file.array(label, value)
    return tensors


def _leaves(path: Path, tree: Any) -> Iterator[tuple[str, Any]]:
    """Yields the tensors of a tree in its order."""
    waiting: list[tuple[str, Any, int]] = [("", tree, 0)]
    nodes = 0
    while waiting:
        name, value, depth = waiting.pop()
        nodes += 1
        if depth > _DEEPEST or nodes > _MOST_NODES:
            raise InputError(f"{path}: nested deeper than {_DEEPEST} levels, or too large")
        if isinstance(value, (StoredTensor, OtherTensor, Foreign)):
            yield name, value
            continue
        if isinstance(value, Mapping):
            items = list(value.items())
        elif isinstance(value, (list, tuple, set)):
            items = list(enumerate(sorted(value, key=str) if isinstance(value, set) else value))
        else:
            continue
        for key, item in reversed(items):
            waiting.append((f"{name}.{key}" if name else str(key), item, depth + 1))


def _of_codes(codes: Any, dtype: str) -> Any:
    """Returns little-endian codes as values; bfloat16 as torch or ml_dtypes have it, or float32."""
    if dtype in _FP8:
        from ..arrays._convert import decode

        return decode(codes, _FP8[dtype])
    if dtype != _BFLOAT16:
        return codes.view(f"<f{_SIZES[dtype]}")
    try:
        torch = import_module("torch")
    except ImportError:
        return (codes.astype(np.uint32) << 16).view(np.float32)
    return torch.from_numpy(codes.view(np.int16).copy()).view(torch.bfloat16)


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: cannot be read: {one_line(error)}")
