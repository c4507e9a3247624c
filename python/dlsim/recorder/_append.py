# SPDX-License-Identifier: Apache-2.0
"""Adds tensors of other files to a file of safetensors."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..traces._safetensors import header_of, rank_of
from ._spill import Spilled

_COPIED_AT_ONCE = 1 << 24


class _Place(NamedTuple):
    """Where a file has a tensor; `entry` is what its header says."""

    name: str
    entry: Mapping[str, Any]
    path: Path
    begin: int

    @property
    def size(self) -> int:
        first, last = self.entry["data_offsets"]
        return int(last - first)


def append(path: Path, spilled: Mapping[str, Spilled]) -> None:
    """Adds tensors to a file of safetensors; copies bytes, and holds no tensor."""
    places: list[_Place] = []
    for source in dict.fromkeys(one.path for one in spilled.values()):
        found = _places_in(source)[1]
        places += [one for one in found if one.name in spilled and spilled[one.name].path == source]
    metadata, later = _places_in(path)
    # What was put aside came before the rest.
    places = sorted(places + later, key=lambda one: rank_of(one.name, one.entry["dtype"]))
    joined = path.with_name(f"{path.name}.tmp")
    with joined.open("wb") as target:
        target.write(header_of(metadata, {one.name: (one.entry, one.size) for one in places}))
        _copy(places, target)
    shutil.copymode(path, joined)
    os.replace(joined, path)


def _places_in(path: Path) -> tuple[dict[str, str], list[_Place]]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    metadata = header.pop("__metadata__", {})
    begin = 8 + length
    return metadata, [
        _Place(name, entry, path, begin + entry["data_offsets"][0])
        for name, entry in header.items()
    ]


def _copy(places: Iterable[_Place], target: Any) -> None:
    files = {path: path.open("rb") for path in {one.path for one in places}}
    try:
        for one in places:
            source, left = files[one.path], one.size
            source.seek(one.begin)
            while left > 0:
                block = source.read(min(left, _COPIED_AT_ONCE))
                if not block:
                    raise OSError(f"{one.path}: was cut while it was read")
                target.write(block)
                left -= len(block)
    finally:
        for file in files.values():
            file.close()
