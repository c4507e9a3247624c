# SPDX-License-Identifier: Apache-2.0
"""Made-up traces on which commands are timed, and the limit: reading their files."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_LARGE_STEPS, _LARGE_TENSORS = 4, 2
_LARGE_COLUMNS = 4096
# The matrices and vectors of a layer: 62,464 bytes.
_LAYER = ((96, 96), (96,), (64, 96), (64,), (96,))
_LAYERS = 13
SHAPES = ("large", "small")

_READ_BYTES = 256 << 10
# What a thread takes at once: small enough to share a file, large enough to open it for.
_PIECE_BYTES = 4 << 20
_PIECES_AHEAD = 16


@dataclass
class BenchTrace:
    """A directory of steps, and the size of all files together."""

    directory: Path
    files: list[Path]
    size: int


def write_trace(directory: Path, shape: str, mib: int) -> BenchTrace:
    """Writes a trace of about `mib` MiB into a new directory.

    Of shape "large", it has 4 steps of 2 matrices, whatever the size; of "small", steps of 65
    matrices and vectors and 0.8 MiB. Values are N(0,1) * 2^U{-48..-9}: at a loss scale of 2^16, a
    third is subnormal or zero in fp16, and none is too large.
    """
    shapes: list[tuple[int, ...]] = list(_LAYER * _LAYERS)
    if shape == "large":
        rows = (mib << 18) // _LARGE_STEPS // _LARGE_TENSORS // _LARGE_COLUMNS
        shapes = [(rows, _LARGE_COLUMNS)] * _LARGE_TENSORS
    prefix, elements = _prefix(shapes), sum(map(math.prod, shapes))
    step_bytes = len(prefix) + 4 * elements
    steps = _LARGE_STEPS if shape == "large" else max(1, (mib << 20) // step_bytes)
    generator = np.random.default_rng(1)
    powers = 2.0 ** generator.integers(-48, -8, 1 << 20)
    values = (generator.standard_normal(1 << 20) * powers).astype("<f4")
    directory.mkdir()
    files = [directory / f"step-{step:06}.safetensors" for step in range(steps)]
    for step, path in enumerate(files):
        turned = np.roll(values, -(step * elements) % len(values))
        with path.open("wb") as file:
            file.write(prefix)
            for left in range(elements, 0, -len(values)):
                file.write(turned[:left].data)
    return BenchTrace(directory, files, steps * step_bytes)


def _prefix(shapes: Sequence[tuple[int, ...]]) -> bytes:
    header, begin = {}, 0
    for i, shape in enumerate(shapes):
        end = begin + 4 * math.prod(shape)
        header[f"layer.{i}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (8 - len(text) % 8)  # data is aligned, as by other writers
    return len(text).to_bytes(8, "little") + text


def drop_from_cache(files: Iterable[Path]) -> None:
    """Has the system forget the content of files; it keeps what is in memory alone."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())  # what is not written yet cannot be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_and_sum(files: Iterable[Path], threads: int, *, ahead: bool) -> tuple[float, float]:
    """Reads files, 256 KiB at a time, and adds them up; returns wall-clock and processor time.

    Each of the threads takes pieces of 4 MiB. `ahead`: pieces are asked for before they are read,
    so that the device is never idle.
    """
    pieces = [
        (path, begin) for path in files for begin in range(0, path.stat().st_size, _PIECE_BYTES)
    ]

    def work(i: int) -> int:
        if ahead and i + _PIECES_AHEAD < len(pieces):
            _ask_for(*pieces[i + _PIECES_AHEAD])
        return _sum(*pieces[i])

    wall, cpu = time.monotonic(), time.process_time()
    for piece in pieces[: _PIECES_AHEAD if ahead else 0]:
        _ask_for(*piece)
    if threads == 1:
        sum(map(work, range(len(pieces))))
    else:
        with ThreadPoolExecutor(threads) as pool:
            sum(pool.map(work, range(len(pieces))))
    return time.monotonic() - wall, time.process_time() - cpu


def _ask_for(path: Path, begin: int) -> None:
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), begin, _PIECE_BYTES, os.POSIX_FADV_WILLNEED)


def _sum(path: Path, begin: int) -> int:
    buffer = np.empty(_READ_BYTES // 8, np.uint64)
    total = 0
    with path.open("rb", buffering=0) as file:
        for offset in range(begin, begin + _PIECE_BYTES, _READ_BYTES):
            got = os.preadv(file.fileno(), [buffer.data], offset)
            total += int(buffer[: got // 8].sum())
            if got < _READ_BYTES:
                break
    return total
