# SPDX-License-Identifier: Apache-2.0
"""Writes arrays as a dlsim trace: a directory of step files that appear complete or not at all."""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Iterator, Mapping
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

from .. import _core
from .._errors import InputError, UsageError
from .._files import replacing
from ..arrays._convert import scale_of
from ..arrays._dtypes import VALUES, bad_element, is_torch, source_of

# -- Writes a file of safetensors whose forward tensors lie in the order in which they are given

_TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class Stored(NamedTuple):
    """The elements of a tensor in memory, row by row; `owner` keeps them there."""

    dtype: str
    shape: list[int]
    address: int
    size: int  # bytes
    owner: object


def _rank_of(name: str, element: str) -> tuple[int, bool, str]:
    """Returns what tensors are sorted by in a file; those of equal rank keep their order.

    The widest come first, so that all are aligned. Gradients are sorted by name.
    """
    forward = _core.role_of(name) in ("act", "value")
    return -_WIDTHS[element], forward, "" if forward else name


def write_file(path: Path, tensors: Mapping[str, Stored], metadata: Mapping[str, str]) -> None:
    """Writes tensors; those of the forward pass stay in their order."""
    ordered = sorted(tensors.items(), key=lambda item: _rank_of(item[0], _TYPES[item[1].dtype]))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, one in ordered:
        offsets = [end, end + one.size]
        header[name] = {"dtype": _TYPES[one.dtype], "shape": one.shape, "data_offsets": offsets}
        end += one.size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, one in ordered:
            file.write((ctypes.c_char * one.size).from_address(one.address) if one.size else b"")


# -- Writes arrays as a dlsim trace: a directory of step files that appear complete or not at all

_STEP_FILE = re.compile(
    r"step-(?P<step>[0-9]{1,18})(?:\.rank-(?P<rank>[0-9]{1,18}))?(?:\.micro-[0-9]{1,18})?"
    r"\.safetensors"
)
_MAX_NAME_BYTES = 4096
_MAX_NUMBER = 10**18 - 1
_MAX_LIST_CHARACTERS = 1 << 24  # a reader takes a trace.json of at most 32 MiB
_WRITTEN_HERE = ("trace_format", "files", "steps")


def checked_grad_scale(scale: float | str) -> str:
    """Returns a loss scale as the text of `grad_scale` in a step's metadata.

    It must be what a reader can divide out: a finite positive float32 with a finite reciprocal.
    Raises UsageError otherwise.
    """
    return repr(_core.checked_grad_scale(scale_of(scale)))


def _number(name: str, value: int) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name}: expected a whole number, got {value}")
    try:
        number = index(value)
    except TypeError:
        raise TypeError(f"{name}: expected a whole number, got {type(value).__name__}") from None
    if not 0 <= number <= _MAX_NUMBER:
        raise UsageError(f"{name}: out of range, expected 0 to {_MAX_NUMBER}, got {number}")
    return number


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"tensor name: expected str, got {type(name).__name__}")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise UsageError(f"tensor name {name!a}: not valid Unicode, expected UTF-8 text") from None
    if not 0 < length <= _MAX_NAME_BYTES or name == "__metadata__":
        raise UsageError(
            f"tensor name {name[:40]!a}: bad name, expected 1 to {_MAX_NAME_BYTES} bytes other "
            f"than '__metadata__', got {length}"
        )


def _stored_torch(name: str, array: Any) -> Stored:
    dtype = str(array.dtype).removeprefix("torch.")
    if dtype not in VALUES:
        raise bad_element(f"tensor {name!a}", VALUES, dtype)
    tensor = array.detach()
    if str(tensor.layout) != "torch.strided":
        tensor = tensor.to_dense()
    tensor = tensor.resolve_neg().cpu().contiguous()
    size = tensor.numel() * tensor.element_size()
    return Stored(dtype, list(tensor.shape), tensor.data_ptr(), size, tensor)


def _stored_array(name: str, array: Any) -> Stored:
    import numpy as np

    # A JAX array on a device comes through NumPy; NumPy would drop the mask of a masked array.
    readable = not isinstance(array, np.ndarray) and hasattr(array, "__array__")
    source = source_of(np.asarray(array) if readable else array, f"tensor {name!a}", VALUES)
    bits = source.bits
    return Stored(source.element, list(bits.shape), bits.ctypes.data, bits.nbytes, bits)


class TraceWriter:
    """Writes a trace as docs/traces.md describes it, one file per step, micro-step and rank.

    `description` becomes trace.json: text such as model and data, and `roles`. The directory must
    not hold a trace yet; with `exist_ok` its steps are kept, and those written again replaced.
    `describes=False` leaves trace.json to the process of another rank. A file that is written is
    complete, even if the process is killed then; `close()` adds the list of steps to trace.json.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        description: Mapping[str, object] = {},
        *,
        exist_ok: bool = False,
        describes: bool = True,
    ) -> None:
        self.directory = Path(directory)
        self.bytes_written = 0
        self._description = dict(description)
        for key in _WRITTEN_HERE:
            if key in self._description:
                raise UsageError(f"description: {key!r} is not free, expected another name")
        self._describes = describes
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{self.directory}: cannot be created: {error.strerror or error}"
            ) from error
        if describes and not exist_ok and next(self._step_files(), None) is not None:
            raise InputError(
                f"{self.directory}: holds a trace already, expected a directory without step files"
            )
        if describes:
            self._write_description({})

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(
        self,
        step: int,
        tensors: Mapping[str, Any],
        metadata: Mapping[str, str] = {},
        *,
        micro: int | None = None,
        rank: int | None = None,
    ) -> Path:
        """Writes the tensors of a step, or of one of its micro-steps or ranks, as one file.

        Tensors are arrays of NumPy, PyTorch, JAX and others, or lists of numbers, of float32,
        float64, float16 or bfloat16 and any shape; the end of a name tells the role
        (docs/traces.md). Contiguous ones on the CPU are written from where they are. Metadata as in
        docs/traces.md; `step`, `micro_step` and `rank` are added. Of tensors of the forward
        pass that overflow at a step, the first given is named first. Returns the path. Raises
        TypeError or UsageError for bad arguments, InputError if the file cannot be written.
        """
        path = self.directory / _file_name(step, micro, rank)
        places = {"step": step, "micro_step": micro, "rank": rank}
        texts = _checked_metadata(
            metadata, {key: str(index(value)) for key, value in places.items() if value is not None}
        )
        stored = {}
        for name, array in tensors.items():
            _check_name(name)
            stored[name] = (_stored_torch if is_torch(array) else _stored_array)(name, array)
        with replacing(path) as temporary:
            try:
                write_file(temporary, stored, texts)
            except OSError as error:
                raise InputError(f"{path}: cannot be written: {error.strerror}") from error
            size = temporary.stat().st_size
        self.bytes_written += size
        return path

    def steps(self, *, rank: int | None = None) -> list[int]:
        """Returns the numbers of the steps of `rank` that the directory holds, ascending."""
        return sorted({int(found["step"]) for found in self._files_of(rank)})

    def ranks(self) -> set[int | None]:
        """Returns the ranks whose files the directory holds; None stands for files without one."""
        return {
            None if found["rank"] is None else int(found["rank"]) for found in self._step_files()
        }

    def forget(self, step: int, *, rank: int | None = None) -> None:
        """Removes the files of `rank` of `step` and of later steps."""
        for found in list(self._files_of(rank)):
            if int(found["step"]) >= step:
                (self.directory / found[0]).unlink(missing_ok=True)

    def close(self) -> None:
        """Lists the steps in trace.json; steps can still be written after it."""
        if not self._describes:
            return
        matches = sorted(self._step_files(), key=lambda found: found[0])
        names = [found[0] for found in matches]
        lists: dict[str, object] = {"steps": sorted({int(found["step"]) for found in matches})}
        # Other ranks may still be writing theirs.
        if all(found["rank"] is None for found in matches):
            lists["files"] = names
        if sum(map(len, names)) > _MAX_LIST_CHARACTERS:
            lists = {}
        self._write_description(lists)

    def _step_files(self) -> Iterator[re.Match[str]]:
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if found := _STEP_FILE.fullmatch(entry.name):
                    yield found

    def _files_of(self, rank: int | None) -> Iterator[re.Match[str]]:
        for found in self._step_files():
            if (None if found["rank"] is None else int(found["rank"])) == rank:
                yield found

    def _write_description(self, lists: Mapping[str, object]) -> None:
        path = self.directory / "trace.json"
        try:
            text = json.dumps(
                {"trace_format": 1, **self._description, **lists}, indent=1, allow_nan=False
            )
        except (TypeError, ValueError) as error:
            raise UsageError(f"description: no JSON: {error}") from None
        with replacing(path) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")


def _file_name(step: int, micro: int | None, rank: int | None) -> str:
    name = f"step-{_number('step', step):08d}"
    if rank is not None:
        name += f".rank-{_number('rank', rank):05d}"
    if micro is not None:
        name += f".micro-{_number('micro', micro):02d}"
    return name + ".safetensors"


def _checked_metadata(metadata: Mapping[str, str], places: Mapping[str, str]) -> dict[str, str]:
    for key, text in metadata.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(f"metadata {key!a}: expected text, got {type(text).__name__}")
        if places.get(key, text) != text:
            raise UsageError(f"metadata {key!a}: differs, expected {places[key]}, got {text!a}")
    if "grad_scale" in metadata:
        try:
            checked_grad_scale(float(metadata["grad_scale"]))
        except ValueError:
            raise UsageError(
                "metadata 'grad_scale': bad loss scale, expected a finite positive float32 with a "
                f"finite reciprocal, got {metadata['grad_scale']!a}"
            ) from None
    if metadata.get("accumulate", "sum") != "sum":
        raise UsageError(f"metadata 'accumulate': expected 'sum', got {metadata['accumulate']!a}")
    return {**metadata, **places}
