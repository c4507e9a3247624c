# SPDX-License-Identifier: Apache-2.0
"""Cerebras act_dumps*.npz (DumpContext of the Model Zoo) to a trace or profile.

The rules are those of docs/traces.md, "Cerebras dumps", which the commands apply when they read
such files themselves.
"""

from __future__ import annotations

import lzma
import re
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from .._core import role_of
from .._errors import InputError, UsageError
from ._gradients import (
    Gradients,
    Notes,
    Selection,
    check_name,
    one_line,
    scale_metadata,
    selection,
)
from ._numbering import PathText, Position, files_of
from ._progress import shown
from ._runs import Imported, write_all

_NAME = re.compile(r"act_dumps(?:_([1-9]\d{0,17}))?\.npz")
_INDEX = re.compile(r"[0-9.]*")
_MOST_STEPS = 1_000_000
# The best that deflate can do.
_BEST_RATIO = 1032
_FORMAT: Any = np.lib.format
_READERS = {(1, 0): _FORMAT.read_array_header_1_0, (2, 0): _FORMAT.read_array_header_2_0}
# What zipfile and numpy.lib.format raise for damaged files.
_BAD_NPZ = (
    EOFError,
    KeyError,
    MemoryError,
    OSError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    lzma.LZMAError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class _Member:
    """An array of a dump, open behind its header; its first axis counts steps."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stream: IO[bytes]


def import_act_dumps(
    inputs: PathText | Iterable[PathText],
    output: PathText,
    *,
    tensors: str | Iterable[str] = "*",
    step: int = 0,
    npy_void: str | None = None,
    grad_scale: float | None = None,
    force: bool = False,
) -> Imported:
    """Imports dumps of the Cerebras Model Zoo, in the order of their numbers.

    Steps count from `step` on. Forward activations that are not floating-point numbers are
    left out.
    Values keep their bits; bfloat16, which NumPy saves as V2, becomes float32 with `npy_void` =
    "bf16". Memory is that of one step.
    Raises InputError and UsageError.
    """
    if npy_void not in (None, "bf16"):
        raise UsageError(f"npy void: expected bf16, got {npy_void!r}")
    if step < 0:
        raise UsageError(f"step: expected a number from 0 on, got {step}")
    chosen = selection(tensors, ())
    metadata = scale_metadata(grad_scale)
    notes = Notes()
    files = sorted(files_of(inputs, (".npz",)), key=_number)

    def items() -> Iterator[Gradients]:
        number = step
        for path in shown(files, "files"):
            for found in _steps(path, chosen, npy_void is not None, notes):
                roles = {name: role(name) for name in found}
                yield Gradients(Position(number), found, roles, metadata)
                number += 1

    description = {"imported_from": "act-dumps"}
    return write_all(output, items(), notes, description=description, force=force)


def role(key: str) -> str:
    """Returns the role of an array by its key.

    Keys are <module>.fwd and <module>.bwd, with .<index> for each item of a tuple, and
    <module>.bwd.<parameter>.
    """
    dotted = key + "."
    forward, backward = dotted.rfind(".fwd."), dotted.rfind(".bwd.")
    if forward > backward:
        return "act"
    if backward < 0:
        return role_of(key)
    return "act_grad" if _INDEX.fullmatch(dotted[backward + 5 :]) else "grad"


def _number(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    if found is None:
        raise InputError(f"{path}: expected a name such as act_dumps.npz or act_dumps_1.npz")
    return int(found[1] or 0)


def _steps(
    path: Path, chosen: Selection, is_bf16: bool, notes: Notes
) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Yields the tensors of one step after another."""
    with ExitStack() as stack:
        members = _open(path, chosen, stack, notes)
        counts = {member.shape[0] for member in members}
        if len(counts) > 1:
            raise InputError(f"{path}: arrays differ in their number of steps: {sorted(counts)}")
        for _ in range(counts.pop() if counts else 0):
            yield {member.name: _next(path, member, is_bf16) for member in members}


def _open(path: Path, chosen: Selection, stack: ExitStack, notes: Notes) -> list[_Member]:
    members: list[_Member] = []
    seen: set[str] = set()
    try:
        archive = stack.enter_context(zipfile.ZipFile(path))
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name == info.filename or name in seen:
                raise InputError(f"{path}: {info.filename!r}: not *.npy, or there twice")
            seen.add(check_name(path, name))
            if not chosen.takes(name):
                continue
            member = _member(path, archive, info, stack)
            if role(name) == "act" and member.dtype.kind != "f" and member.dtype != "V2":
                notes.add(
                    "left out forward activations that are not floating-point numbers, "
                    f"of {path.name}"
                )
            else:
                members.append(member)
    except _BAD_NPZ as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read: {one_line(error)}") from error
    if not members:
        raise InputError(
            f"{path}: holds no values of a training, expected arrays named <module>.bwd... or "
            "<module>.fwd..."
        )
    return members


def _member(
    path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, stack: ExitStack
) -> _Member:
    name = info.filename.removesuffix(".npy")
    if info.file_size > max(info.compress_size, 1) * _BEST_RATIO:
        raise InputError(f"{path}: {name!r}: larger than its compressed size allows")
    stream = stack.enter_context(archive.open(info))
    version = _FORMAT.read_magic(stream)
    if version not in _READERS:
        raise InputError(f"{path}: {name!r}: unsupported version {version} of .npy")
    shape, fortran, dtype = _READERS[version](stream)
    size = int(dtype.itemsize)
    for extent in shape:
        size *= extent
    if not shape or (fortran and len(shape) > 1):
        raise InputError(f"{path}: {name!r}: expected a first axis of steps, and C order")
    if shape[0] > min(_MOST_STEPS, path.stat().st_size):
        raise InputError(f"{path}: {name!r}: {shape[0]} steps are too many for this file")
    if size != info.file_size - stream.tell():
        raise InputError(f"{path}: {name!r}: its header does not fit its size")
    return _Member(name, shape, dtype, stream)


def _next(path: Path, member: _Member, is_bf16: bool) -> np.ndarray[Any, Any]:
    """Reads the next step of an array."""
    dtype, shape = member.dtype, member.shape[1:]
    if dtype not in (np.float16, np.float32, np.float64) and not (is_bf16 and dtype == "V2"):
        hint = "; bfloat16 of ml_dtypes needs --npy-void bf16" if dtype == "V2" else ""
        raise InputError(f"{path}: {member.name!r}: unsupported type {dtype.str}{hint}")
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    try:
        data = member.stream.read(size)
    except _BAD_NPZ as error:
        raise InputError(f"{path}: {member.name!r}: {one_line(error)}") from error
    if len(data) != size:
        raise InputError(f"{path}: {member.name!r}: ends before its last step")
    if dtype == "V2":
        codes = np.frombuffer(data, "<u2").astype(np.uint32)
        return (codes << 16).view(np.float32).reshape(shape)
    return np.frombuffer(data, dtype).reshape(shape)
