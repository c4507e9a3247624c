# SPDX-License-Identifier: Apache-2.0
"""Layers or tensors by steps: the shares that underflow, of the energy that is lost, and overflow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ._inputs import Run
from ._json import number, packed
from ._names import NameTable, layer_of

MAX_PACKED = 3_000_000  # bytes of all maps of the page; above it neighbouring bins are joined
_SUMS = ("nonzero", "underflow", "overflow", "sum_of_squares", "underflow_sum_of_squares")


def heat_maps(runs: Sequence[Run], names: NameTable) -> list[str | None]:
    """Returns a packed map per run, None where the result has none; see `heat_map`."""
    join = 1
    while True:
        maps = [packed(m) if (m := heat_map(run, names, join)) else None for run in runs]
        if sum(len(m) for m in maps if m) <= MAX_PACKED or join > 1024:
            return maps
        join *= 2


def heat_map(run: Run, names: NameTable, join: int = 1) -> dict[str, Any] | None:
    """Returns bins and rows of a run's heat map, `join` bins of the result making one.

    A share is its binary logarithm with a resolution of 1/64, in 64ths; 1 stands for a share of
    zero, null for no share, where there is nothing to lose.
    """
    data = run.data.get("heat_map")
    if not isinstance(data, dict) or not data.get("tensors"):
        return None
    bins = data["bins"]
    count = len(bins["steps"])
    if count == 0:
        return None
    starts = range(0, count, join)
    ends = [min(start + join, count) for start in starts]
    tensors = [(row["name"], row["role"], _joined(row, join)) for row in data["tensors"]]
    layers: dict[tuple[str, str], dict[str, list[float]]] = {}
    for name, role, sums in tensors:
        _add(layers.setdefault((layer_of(name), role), {}), sums)
    return {
        "first": [bins["first_step"][start] for start in starts],
        "last": [bins["last_step"][end - 1] for end in ends],
        "skipped": _sums(bins["skipped_steps"], join),
        "steps": _sums(bins["steps"], join),
        "tensors": [_row(names.index(n), role, sums) for n, role, sums in tensors],
        "layers": [_row(names.index(n), role, sums) for (n, role), sums in layers.items()],
    }


def _sums(values: Sequence[float], join: int) -> list[float]:
    return [sum(values[i : i + join]) for i in range(0, len(values), join)]


def _joined(row: dict[str, Any], join: int) -> dict[str, list[float]]:
    return {key: _sums([number(v) or 0.0 for v in row[key]], join) for key in _SUMS}


def _add(total: dict[str, list[float]], sums: dict[str, list[float]]) -> None:
    for key, values in sums.items():
        old = total.get(key)
        total[key] = values if old is None else [a + b for a, b in zip(old, values, strict=True)]


def _row(name: int, role: str, sums: dict[str, list[float]]) -> list[Any]:
    return [
        name,
        role,
        _shares(sums["underflow"], sums["nonzero"]),
        _shares(sums["underflow_sum_of_squares"], sums["sum_of_squares"]),
        _shares(sums["overflow"], sums["nonzero"]),
    ]


def _shares(parts: Sequence[float], wholes: Sequence[float]) -> list[int | None]:
    return [_share(part, whole) for part, whole in zip(parts, wholes, strict=True)]


def _share(part: float, whole: float) -> int | None:
    if not whole > 0:
        return None
    if part <= 0:
        return 1
    # The logarithms apart: the quotient may be below the smallest float.
    return min(0, round(64 * (math.log2(part) - math.log2(whole)))) if whole < math.inf else 1
