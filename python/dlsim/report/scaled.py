# SPDX-License-Identifier: Apache-2.0
"""Formats with scales of their own: what each loses in both passes, and which tensors lose most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ._inputs import ShownResult, scaled_formats
from ._json import integer, number, objects, part, visible
from ._text import format_count, format_scale, format_share, number_cell
from .policies import TALL

MAX_TENSORS = 60  # rows of a format's table, those that lose most

_GRADES = {
    "as is": ("good", "trains"),
    "no scale serves": ("bad", "loses too much in backward"),
    "fails in forward": ("bad", "fails in forward"),
    "overflows": ("fair", "cannot be judged"),
}
_SIDES = {"act": "output", "value": "parameter", "act_grad": "gradient"}
_FORMATS = (
    ("format", "text", "with its options"),
    ("verdict", "text", "the sentence is in the first section"),
    ("forward harm", "number", "mean over the steps and over outputs of modules and parameters"),
    ("worst step", "number", "mean over the tensors of the worst step"),
    ("backward harm", "number", "mean over the steps and over gradients of activations"),
    ("worst step", "number", "mean over the tensors of the worst step"),
    ("failing steps", "number", "steps that fail in forward or in backward, of all steps"),
    ("clipped", "number", "elements larger, scaled, than the largest of the format"),
)
_TENSORS = (
    ("tensor", "text", "name as recorded"),
    ("kind", "text", "output of a module, parameter, or gradient of an activation"),
    ("mean harm", "number", "mean over the steps, of the axis that loses more"),
    ("worst harm", "number", "largest of a step"),
    ("by channel", "number", "mean harm of its channels"),
    ("lost", "number", "share of the nonzero elements that become zero"),
    ("clipped", "number", "elements larger, scaled, than the largest of the format"),
    ("clipped steps", "number", "steps with such elements"),
    ("scales", "number", "smallest and largest scale that multiplied values"),
)


def scaled_html(results: Sequence[ShownResult]) -> str:
    """Returns the HTML of all scaled formats: a table of them, and one of tensors for each."""
    entries = [entry for result in results for entry in scaled_formats(result.data)]
    if not entries:
        return ""
    tables = "".join(
        f"<details{' open' if i == 0 else ''}><summary>{escape(visible(entry.get('format')))}: "
        f"tensors that lose most</summary>{_tensor_table(entry['scaled'])}</details>"
        for i, entry in enumerate(entries)
    )
    return _table(_FORMATS, [_format_row(entry) for entry in entries]) + tables


def _table(heads: Sequence[tuple[str, str, str]], rows: Sequence[str]) -> str:
    head = "".join(
        f'<th scope="col" data-type="{kind}" title="{escape(title)}">{escape(name)}</th>'
        for name, kind, title in heads
    )
    tall = " tall" if len(rows) > TALL else ""
    return (
        f'<div class="scroll{tall}" tabindex="0"><table class="sortable"><thead><tr>{head}</tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _format_row(entry: Mapping[str, Any]) -> str:
    scaled = entry["scaled"]
    steps = objects(scaled, "steps")
    grade, word = _GRADES.get(str(entry.get("verdict")), ("fair", visible(entry.get("verdict"))))
    failing = sum(integer(scaled.get(f"{side}_failures")) for side in ("forward", "backward"))
    cells = [f'<td><span class="grade {grade}">{escape(word)}</span></td>']
    for side in ("forward", "backward"):
        harms = [number(part(step, side).get("mean_harm")) for step in steps]
        known = [harm for harm in harms if harm is not None]
        mean = sum(known) / len(known) if known else None
        cells += [_share(mean), _share(max(known, default=None))]
    cells.append(number_cell(failing, f"{format_count(failing)} / {format_count(len(steps))}"))
    cells.append(_count(sum(integer(step.get("clipped")) for step in steps)))
    return f'<tr><th scope="row">{escape(visible(entry.get("format")))}</th>{"".join(cells)}</tr>'


def _tensor_table(scaled: Mapping[str, Any]) -> str:
    judged = [tensor for tensor in objects(scaled, "tensors") if tensor.get("judged")]
    shown = sorted(judged, key=lambda tensor: number(tensor.get("mean_harm")) or 0.0, reverse=True)
    left = len(judged) - MAX_TENSORS
    more = f"<p class='of'>{format_count(left)} tensors that lose less are left out.</p>"
    rows = [_tensor_row(tensor) for tensor in shown[:MAX_TENSORS]]
    return _table(_TENSORS, rows) + (more if left > 0 else "")


def _tensor_row(tensor: Mapping[str, Any]) -> str:
    axes = [part(tensor, axis) for axis in ("row", "column")]
    lost = [number(axis.get("underflow_fraction")) for axis in axes]
    low, high = (part(tensor, "scale").get(end) for end in ("min", "max"))
    cells = [
        f"<td>{_SIDES.get(str(tensor.get('role')), '')}</td>",
        *(_share(tensor.get(key)) for key in ("mean_harm", "worst_harm", "mean_channel_harm")),
        _share(max((share for share in lost if share is not None), default=None)),
        _count(max(integer(axis.get("overflow")) for axis in axes)),
        _count(tensor.get("clipped_steps")),
        number_cell(high, f"{format_scale(low)} \u2026 {format_scale(high)}"),
    ]
    name = escape(visible(tensor.get("name")))
    return f'<tr><th scope="row">{name}</th>{"".join(cells)}</tr>'


def _share(value: object) -> str:
    return number_cell(value, format_share(value))


def _count(value: object) -> str:
    return number_cell(value, format_count(value))
