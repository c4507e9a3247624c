# SPDX-License-Identifier: Apache-2.0
"""Two runs compared: where they part, by how much over the steps, and in which tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ._inputs import ShownResult
from ._json import digits, number, objects, packed, part, visible
from ._text import format_count, format_number, number_cell
from .policies import TALL

MAX_POINTS = 2000  # steps that are drawn; of more, the largest difference of each bin
MAX_TENSORS = 500  # rows of the table, those that differ most

# Figures of a tensor by what was compared: JSON key, head of the column, what is shown of a value.
_FIGURES = {
    "elements": (
        ("max_relative_difference", "relative difference", lambda value: value),
        ("min_cosine", "1 \u2212 cosine", lambda value: 1 - value),
    ),
    "histograms": (
        ("max_histogram_distance", "distance in binades", lambda value: value),
        ("max_zero_difference", "difference of the shares of zeros", lambda value: value),
    ),
}
_MEASURES = {"elements": "relative difference", "histograms": "difference of histograms"}


def _compared(result: ShownResult) -> str:
    found = result.data.get("compared")
    return found if isinstance(found, str) and found in _FIGURES else "elements"


def difference_points(result: ShownResult) -> str:
    """Returns what differences.js draws, packed.

    `points` are [step, largest difference of its tensors, tensor, tensors beyond the threshold];
    `threshold` is that of the comparison.
    """
    kept = _largest(result.data["steps"])
    return packed(
        {
            "measure": _MEASURES[_compared(result)],
            "threshold": digits(number(part(result.data, "options").get("threshold"))),
            "points": [
                [
                    step["step"],
                    digits(number(step.get("difference"))),
                    visible(step.get("tensor") or ""),
                    digits(number(step.get("tensors_beyond"))),
                ]
                for step in kept
            ],
        }
    )


def _difference(item: Mapping[str, Any]) -> float:
    """The difference for ordering: what is missing comes last, what is infinite first."""
    found = number(item.get("difference"))
    return -1.0 if found is None or math.isnan(found) else found


def _largest(steps: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if len(steps) <= MAX_POINTS:
        return steps
    ends = [i * len(steps) // MAX_POINTS for i in range(MAX_POINTS + 1)]
    return [max(steps[ends[i] : ends[i + 1]], key=_difference) for i in range(MAX_POINTS)]


def differences_html(result: ShownResult, key: int) -> str:
    """Returns the HTML of one comparison; `key` tells its chart from those of others."""
    lines = result.data.get("lines")
    texts = lines if isinstance(lines, list) else []
    said = "".join(f"<p>{escape(visible(line))}</p>" for line in texts)
    return (
        f"<h3>{escape(compared_runs(result))}</h3>"
        f'<div class="said">{said}</div>{_runs(result)}'
        f"<figure><figcaption>Largest {_MEASURES[_compared(result)]} of a tensor at each step"
        f'</figcaption><div class="chart" data-chart="differences" data-key="{key}"></div></figure>'
        f"{_tensor_table(result)}{_unmatched(result)}"
    )


def compared_runs(result: ShownResult) -> str:
    """Returns the names of both runs: the last parts of their paths that tell them apart."""
    paths = [_paths(result, run) for run in ("a", "b")]
    short = [Path(path).name or path for path in paths]
    a, b = (visible(name) for name in (paths if short[0] == short[1] else short))
    return f"{a} and {b}"


def _paths(result: ShownResult, run: str) -> str:
    paths = part(result.data, run).get("paths")
    return ", ".join(map(str, paths)) if isinstance(paths, list) and paths else run.upper()


def _runs(result: ShownResult) -> str:
    items = []
    for name in ("a", "b"):
        run = part(result.data, name)
        text = f"{name.upper()}: {visible(_paths(result, name))}, "
        text += "profile" if run.get("profile") else "trace"
        steps = [format_count(run.get(key)) for key in ("steps", "first_step", "last_step")]
        text += f", {steps[0]} steps ({steps[1]} to {steps[2]})"
        items.append(f'<p class="facts-line">{escape(text)}</p>')
    return "".join(items)


def _tensor_table(result: ShownResult) -> str:
    tensors = sorted(result.data["tensors"], key=_difference, reverse=True)
    figures = _FIGURES[_compared(result)]
    heads = [
        ("tensor", "text"),
        *((head, "number") for _, head, _ in figures),
        ("worst step", "number"),
        ("least norm B/A", "number"),
        ("largest norm B/A", "number"),
        ("steps above", "number"),
        ("not finite", "number"),
    ]
    head = "".join(f'<th scope="col" data-type="{kind}">{name}</th>' for name, kind in heads)
    body = "".join(_row(tensor, figures) for tensor in tensors[:MAX_TENSORS])
    left = len(tensors) - MAX_TENSORS
    more = f'<p class="fine">{format_count(left)} tensors that differ less are left out.</p>'
    tall = " tall" if len(tensors) > TALL else ""
    return (
        f'<div class="scroll{tall}" tabindex="0"><table class="sortable differences"><thead><tr>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>{more if left > 0 else ''}"
    )


def _row(tensor: Mapping[str, Any], figures: Sequence[Any]) -> str:
    cells = []
    for key, _, shown in figures:
        found = number(tensor.get(key))
        value = None if found is None else shown(found)
        cells.append(number_cell(value, format_number(value)))
    cells.append(_count_cell(tensor, "worst_step"))
    for key in ("min_norm_ratio", "max_norm_ratio"):
        cells.append(number_cell(tensor.get(key), format_number(tensor.get(key), 4)))
    beyond, steps = tensor.get("steps_beyond"), tensor.get("steps")
    cells.append(number_cell(beyond, f"{format_count(beyond)} / {format_count(steps)}"))
    cells.append(_count_cell(tensor, "nonfinite_differences"))
    return f'<tr><th scope="row">{escape(visible(tensor["name"]))}</th>{"".join(cells)}</tr>'


def _count_cell(tensor: Mapping[str, Any], key: str) -> str:
    return number_cell(tensor.get(key), format_count(tensor.get(key)))


def _unmatched(result: ShownResult) -> str:
    """The tensors that could not be compared; the lines name the steps."""
    items = "".join(
        f"<li>{escape(visible(tensor.get('name')))}: {escape(visible(tensor.get('why')))}</li>"
        for tensor in objects(part(result.data, "unmatched"), "tensors")
    )
    return f"<details><summary>Not compared</summary><ul>{items}</ul></details>" if items else ""
