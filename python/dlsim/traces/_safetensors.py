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
