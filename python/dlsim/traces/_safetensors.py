# SPDX-License-Identifier: Apache-2.0
"""Writes a file of safetensors whose forward tensors lie in the order in which they are given."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .. import _core

_TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class Stored(NamedTuple):
    """The elements of a tensor in memory, row by row; `owner` keeps them there."""

    dtype: str
    shape: list[int]
    address: int
    size: int  # bytes
    owner: object


def rank_of(name: str, element: str) -> tuple[int, bool, str]:
    """Returns what tensors are sorted by in a file; those of equal rank keep their order.

    The widest come first, so that all are aligned. Gradients are sorted by name.
    """
    forward = _core.role_of(name) in ("act", "value")
    return -_WIDTHS[element], forward, "" if forward else name


def header_of(
    metadata: Mapping[str, str], entries: Mapping[str, tuple[Mapping[str, Any], int]]
) -> bytes:
    """Returns the beginning of a file; `entries` are what it says of tensors, and their bytes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (entry, size) in entries.items():
        header[name] = {**entry, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_file(path: Path, tensors: Mapping[str, Stored], metadata: Mapping[str, str]) -> None:
    """Writes tensors; those of the forward pass stay in their order."""
    ordered = sorted(tensors.items(), key=lambda item: rank_of(item[0], _TYPES[item[1].dtype]))
    entries: dict[str, tuple[Mapping[str, Any], int]] = {
        name: ({"dtype": _TYPES[one.dtype], "shape": one.shape}, one.size) for name, one in ordered
    }
    with path.open("wb") as file:
        file.write(header_of(metadata, entries))
        for _, one in ordered:
            file.write((ctypes.c_char * one.size).from_address(one.address) if one.size else b"")
