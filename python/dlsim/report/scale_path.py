# SPDX-License-Identifier: Apache-2.0
"""The loss scale over the steps of a run, and its steps that were skipped or not finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ._inputs import Run
from ._json import digits, log2, number
from ._names import NameTable

MAX_POINTS = 2000  # corners of the line; more are thinned to two per bin
MAX_MARKERS = 1500  # marks of steps; more are gathered per bin and cause


def scale_path(run: Run, names: NameTable) -> dict[str, Any]:
    """Returns what scale_path.js draws: the corners of the line, and marks for all odd steps.

    A mark is [first step, last step, steps, log2 scale, scale, cause, tensor, skipped, helps]: so
    many steps, from the first to the last, that share cause and fate. No step is left out.
    """
    steps = run.data["steps"]
    corners = _corners(steps)
    return {
        "step": [step["step"] for step in corners],
        "log2": [log2(step.get("scale")) for step in corners],
        "marks": _marks(steps, names),
        "odd": sum(_is_odd(step) for step in steps),
    }


def _corners(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Steps at which the scale changes, and the last; of very many the extremes of each bin."""
    kept = [
        step
        for i, step in enumerate(steps)
        if i in (0, len(steps) - 1) or step.get("scale") != steps[i - 1].get("scale")
    ]
    if len(kept) <= MAX_POINTS:
        return kept
    thinned: list[Mapping[str, Any]] = []
    bins = MAX_POINTS // 2
    for b in range(bins):
        part = kept[b * len(kept) // bins : (b + 1) * len(kept) // bins]
        order = sorted(range(len(part)), key=lambda i: number(part[i].get("scale")) or 0.0)
        thinned += [part[i] for i in sorted({order[0], order[-1]})]
    if thinned[-1] is not kept[-1]:
        thinned.append(kept[-1])
    return thinned


def _is_odd(step: Mapping[str, Any]) -> bool:
    return bool(step.get("skipped")) or step.get("finite") is False


def _marks(steps: Sequence[Mapping[str, Any]], names: NameTable) -> list[list[Any]]:
    odd = [(i, step) for i, step in enumerate(steps) if _is_odd(step)]
    if len(odd) <= MAX_MARKERS:
        return [_mark([step], names) for _, step in odd]
    bins = MAX_MARKERS // 10  # causes times fates, at most
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for i, step in odd:
        key = (i * bins // len(steps), step.get("cause"), bool(step.get("skipped")))
        groups.setdefault(key, []).append(step)
    return [_mark(group, names) for group in groups.values()]


def _mark(steps: Sequence[Mapping[str, Any]], names: NameTable) -> list[Any]:
    first = steps[0]
    tensor = first.get("cause_tensor")
    return [
        first["step"],
        steps[-1]["step"],
        len(steps),
        log2(first.get("scale")),
        digits(number(first.get("scale")), 6),
        str(first.get("cause") or "policy"),
        names.index(tensor) if isinstance(tensor, str) and tensor else -1,
        int(bool(first.get("skipped"))),
        int(first.get("lower_scale_helps") is not False),
    ]
