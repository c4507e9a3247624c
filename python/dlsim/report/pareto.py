# SPDX-License-Identifier: Apache-2.0
"""The runs of a sweep: skipped steps against what is lost, and those that no other beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ._inputs import ShownResult
from ._json import digits, number, visible
from ._text import format_count, format_number, format_scale, format_share, number_cell

MAX_POINTS = 4000  # runs that are drawn; of more, those that look alike are left out
MAX_FRONT = 500  # rows of the table


def sweep_points(result: ShownResult) -> dict[str, Any]:
    """Returns the points of the scatter plot: runs of the front, and one per place of the others.

    A point is [run, skipped steps, what is lost, steps below their window, final scale, format,
    policy, its parameters that vary, whether it is on the front].
    """
    runs = result.data["runs"]
    front = set(_front(result))
    varied = _varied(runs)
    chosen = _spread([i for i in range(len(runs)) if i not in front], runs, MAX_POINTS)
    return {
        "name": visible(result.name),
        "runs": len(runs),
        "what": LOST[_lost_key(runs)],
        "points": [_point(i, runs, varied, i in front) for i in sorted(front) + chosen],
    }


def _front(result: ShownResult) -> list[int]:
    count = len(result.data["runs"])
    front = result.data.get("pareto")
    positions = front if isinstance(front, list) else []
    return [i for i in positions if isinstance(i, int) and 0 <= i < count]


def _summary(run: Mapping[str, Any], key: str) -> float | None:
    return number(run["summary"].get(key))


# What is lost: of the gradients as dlsim tune counts it, or, in a sweep without windows, energy.
LOST = {"mean_loss": "gradient lost", "mean_energy_lost": "mean energy lost"}


def _lost_key(runs: Sequence[Mapping[str, Any]]) -> str:
    known = bool(runs) and _summary(runs[0], "mean_loss") is not None
    return "mean_loss" if known else "mean_energy_lost"


def _spread(indices: list[int], runs: Sequence[Mapping[str, Any]], most: int) -> list[int]:
    """The first run of each place in the plane, then every n-th of those, at most `most`."""
    key = _lost_key(runs)
    seen: set[tuple[Any, ...]] = set()
    kept = []
    for i in indices:
        run = runs[i]
        lost = format_number(_summary(run, key), 3)
        place = (run["format"], run["policy"], _summary(run, "skipped_steps"), lost)
        if len(indices) <= most or place not in seen:
            seen.add(place)
            kept.append(i)
    stride = -(-len(kept) // most)
    return kept[:: max(stride, 1)]


Varied = dict[tuple[str, str], set[str]]  # parameters with several values, by format and policy


def _varied(runs: Sequence[Mapping[str, Any]]) -> Varied:
    values: dict[tuple[str, str], dict[str, set[str]]] = {}
    for run in runs:
        found = values.setdefault((run["format"], run["policy"]), {})
        for key, value in {**run["params"], "rounding": run.get("rounding")}.items():
            found.setdefault(key, set()).add(str(value))
    return {
        group: {key for key, several in found.items() if len(several) > 1}
        for group, found in values.items()
    }


def _parameters(run: Mapping[str, Any], varied: Varied) -> str:
    keys = varied[run["format"], run["policy"]]
    pairs = {**run["params"], "rounding": run.get("rounding")}
    return ", ".join(f"{key} {_value(value)}" for key, value in pairs.items() if key in keys)


def _value(value: object) -> str:
    found = number(value)
    if found is None or found <= 0:
        return visible(value)
    scale = format_scale(found)
    return scale if found.hex().startswith("0x1.0000000000000p") else f"{found:g}"


def _point(index: int, runs: Sequence[Mapping[str, Any]], varied: Varied, front: bool) -> list[Any]:
    run = runs[index]
    return [
        index,
        _summary(run, "skipped_steps"),
        digits(_summary(run, _lost_key(runs))),
        _summary(run, "steps_below_window"),
        digits(_summary(run, "final_scale"), 6),
        visible(run["format"]),
        visible(run["policy"]),
        visible(_parameters(run, varied)),
        int(front),
    ]


def front_table(result: ShownResult) -> str:
    """Returns the HTML table of the Pareto front."""
    runs = result.data["runs"]
    varied = _varied(runs)
    key = _lost_key(runs)
    heads = (
        ("run", "number"),
        ("format", "text"),
        ("policy", "text"),
        ("parameters that vary", "text"),
        ("skipped", "number"),
        (LOST[key], "number"),
        ("scale too low", "number"),
        ("final scale", "number"),
    )
    head = "".join(f'<th scope="col" data-type="{kind}">{name}</th>' for name, kind in heads)
    body = "".join(_front_row(i, runs[i], varied, key) for i in _front(result)[:MAX_FRONT])
    return (
        '<div class="scroll"><table class="sortable">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _front_row(index: int, run: Mapping[str, Any], varied: Varied, lost: str) -> str:
    steps = _summary(run, "steps")
    cells = [
        (index, f"#{index}"),
        (None, visible(run["format"])),
        (None, visible(run["policy"])),
        (None, visible(_parameters(run, varied))),
        (
            _summary(run, "skipped_steps"),
            f"{format_count(_summary(run, 'skipped_steps'))} / {format_count(steps)}",
        ),
        (_summary(run, lost), format_share(_summary(run, lost))),
        (below := _summary(run, "steps_below_window"), format_count(below)),
        (_summary(run, "final_scale"), format_scale(_summary(run, "final_scale"))),
    ]
    return "<tr>" + "".join(_td(value, text) for value, text in cells) + "</tr>"


def _td(value: float | None, text: str) -> str:
    return f"<td>{escape(text)}</td>" if value is None else number_cell(value, text)
