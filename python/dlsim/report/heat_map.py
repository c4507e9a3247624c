# SPDX-License-Identifier: Apache-2.0
"""Layers or tensors by steps: harm or the energy lost, shares that underflow and that overflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._errors import InputError
from ._inputs import Run
from ._json import packed
from ._names import NameTable, in_order, layer_of

MAX_BINS = 400  # more than a screen has room for
MAX_PACKED = 3_000_000  # bytes of all maps of the page; above it neighboring bins are joined
_BINS = ("first_step", "last_step", "steps", "skipped_steps")
_SUMS = ("nonzero", "underflow", "overflow", "sum_of_squares", "underflow_sum_of_squares")
_ERROR = "error_sum_of_squares"  # not in older results

Shares = NDArray[np.float64]  # 64ths of binary logarithms, [row, bin]; see `heat_map`
Sums = dict[str, NDArray[np.float64]]  # per key of _SUMS, and _ERROR if known, [row, bin]


def heat_maps(runs: Sequence[Run], names: NameTable) -> list[str | None]:
    """Returns a packed map per run, None where the result has none; see `heat_map`."""
    sums = [_sums(run) if run.has_heat_map else None for run in runs]
    most = max((found["nonzero"].shape[1] for found in sums if found), default=1)
    join = -(-most // MAX_BINS)
    while True:
        maps = [
            packed(heat_map(run, found, names, join)) if found else None
            for run, found in zip(runs, sums, strict=True)
        ]
        size = sum(len(packed_map) for packed_map in maps if packed_map)
        if size <= MAX_PACKED or join >= 1024:
            return maps
        while size > MAX_PACKED:
            join, size = 2 * join, size // 2


def _sums(run: Run) -> Sums | None:
    """Returns the arrays of a heat map; None without bins. Raises InputError if they do not fit."""
    data = run.data["heat_map"]
    try:
        count = len(data["bins"]["steps"])
        bins = [data["bins"][key] for key in _BINS]
        fits = all(len(row) == count and all(type(n) is int for n in row) for row in bins)
        keys = (*_SUMS, *((_ERROR,) if all(_ERROR in t for t in data["tensors"]) else ()))
        sums = {key: np.array([t[key] for t in data["tensors"]], np.float64) for key in keys}
        texts = [t[key] for t in data["tensors"] for key in ("name", "role")]
        fits = fits and all(isinstance(text, str) for text in texts)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{run.result.name}: heat_map of {run.label}: {error!r}") from error
    rows = len(data["tensors"])
    if rows == 0 or count == 0:
        return None
    if not fits or any(values.shape != (rows, count) for values in sums.values()):
        raise InputError(f"{run.result.name}: heat_map of {run.label}: arrays that do not fit")
    return sums


def heat_map(run: Run, sums: Sums, names: NameTable, join: int = 1) -> dict[str, Any]:
    """Returns bins and rows of a run's heat map, `join` bins of the result making one.

    A row is [name, role, underflow, harm, overflow], with the energy lost instead of harm where the
    result does not know it. A share is its binary logarithm with a resolution of 1/64, in 64ths; 1
    stands for a share of zero, null for no share, where there is nothing to lose. Rows are in the
    order of `in_order`. The harm of a
    layer is that of its worst tensor, without those that are rounding noise of float32. Layers are
    null where each has one tensor.
    """
    data = run.data["heat_map"]
    bins: Mapping[str, list[int]] = data["bins"]
    starts = np.arange(0, len(bins["steps"]), join)
    ends = np.append(starts[1:], len(bins["steps"])) - 1
    joined = {key: np.add.reduceat(values, starts, axis=1) for key, values in sums.items()}
    tensors = [(tensor["name"], tensor["role"]) for tensor in data["tensors"]]
    layers: dict[tuple[str, str], int] = {}
    of = [layers.setdefault((layer_of(name), role), len(layers)) for name, role in tensors]
    lost = _lost(joined)
    return {
        "harm": _ERROR in sums,
        "first": [bins["first_step"][start] for start in starts],
        "last": [bins["last_step"][end] for end in ends],
        "skipped": np.add.reduceat(bins["skipped_steps"], starts).tolist(),
        "steps": np.add.reduceat(bins["steps"], starts).tolist(),
        "tensors": _rows(tensors, joined, lost, names),
        "layers": None
        if len(layers) == len(tensors)
        else _rows(list(layers), *_of_layers(run, joined, lost, of), names),
    }


def _of_layers(run: Run, sums: Sums, lost: Shares, of: Sequence[int]) -> tuple[Sums, Shares]:
    """Returns the sums of the layers, and what they lost; row i belongs to layer of[i]."""
    count = max(of) + 1
    added = _added(sums, of, count)
    if _ERROR not in sums:
        return added, _lost(added)
    noise = {(t["name"], t.get("role")) for t in run.data["tensors"] if t.get("noise") is True}
    worst = np.full((count, lost.shape[1]), np.nan)
    for row, layer, tensor in zip(lost, of, run.data["heat_map"]["tensors"], strict=True):
        if (tensor["name"], tensor["role"]) not in noise:
            np.fmax(worst[layer], row, out=worst[layer])
    return added, worst


def _added(sums: Sums, of: Sequence[int], count: int) -> Sums:
    """The sums of the rows that belong together: row i goes into row of[i]."""
    totals: Sums = {}
    for key, values in sums.items():
        totals[key] = np.zeros((count, values.shape[1]))
        np.add.at(totals[key], np.asarray(of), values)
    return totals


def _lost(sums: Sums) -> Shares:
    """Returns harm, or the energy lost where the error is not known."""
    return _shares(sums.get(_ERROR, sums["underflow_sum_of_squares"]), sums["sum_of_squares"])


def _rows(
    tensors: Sequence[tuple[str, str]], sums: Sums, lost: Shares, names: NameTable
) -> list[list[Any]]:
    underflow, overflow = (_shares(sums[key], sums["nonzero"]) for key in ("underflow", "overflow"))
    columns = [_codes(shares) for shares in (underflow, lost, overflow)]
    return [
        [names.index(tensors[i][0]), tensors[i][1], *(column[i] for column in columns)]
        for i in in_order(name for name, _ in tensors)
    ]


def _shares(parts: NDArray[np.float64], wholes: NDArray[np.float64]) -> Shares:
    """Returns logarithms of shares: -inf for zero, NaN where there is nothing to lose."""
    known = (wholes > 0) & np.isfinite(wholes) & ~np.isnan(parts)
    with np.errstate(divide="ignore", invalid="ignore"):
        # The logarithms apart: the quotient may be below the smallest float.
        logarithms = 64 * (np.log2(np.maximum(parts, 0)) - np.log2(wholes))
    return np.where(known, np.minimum(logarithms, 0), np.nan)


def _codes(shares: Shares) -> list[list[int | None]]:
    whole = np.where(np.isneginf(shares), 1, np.rint(shares))
    codes = np.where(np.isnan(shares), 2, whole).astype(np.int64).tolist()
    return [[None if code == 2 else code for code in row] for row in codes]
