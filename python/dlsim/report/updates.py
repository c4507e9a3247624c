# SPDX-License-Identifier: Apache-2.0
"""A probe replayed: which settings keep the updates, and how far each tensor drifts in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ._inputs import ShownResult
from ._json import digits, integer, number, packed, part, visible
from ._text import format_count, format_number, format_share, number_cell
from .policies import TALL

MAX_TENSORS = 60  # rows of the chart, those that drift most in any run
LIMIT = 0.2  # of a drift: a run beyond it is warned of (docs/updates.md)

_GRADES = {"sound": "good", "drifts": "fair", "not finite": "bad"}
_HEADS = (
    ("setting", "text", "what is kept in which format, and how weights are written"),
    ("verdict", "text", "at the end of the probe"),
    ("kept by", "text", "what would keep the updates"),
    ("drift", "number", "distance from float32's weights over the distance that those moved"),
    ("progress", "number", "share of float32's movement that the run made in the same direction"),
    ("lost", "number", "nonzero updates that left the weight as it was"),
    ("altered", "number", "updates that moved the weight by less than half or 1.5 times as much"),
    ("2nd moment", "number", "its sum divided by that of float32, at the end"),
    ("not finite", "number", "followed weights that are finite in float32"),
    ("harmed from", "number", "step from which on it drifts, or is not finite, to the end"),
    ("weights", "text", "format, and that of the master weights which the optimizer updates"),
    ("moments", "text", "formats of the first and second moment"),
)


def update_points(result: ShownResult) -> str:
    """Returns what updates.js draws, packed.

    `points` are per run and shown tensor [drift, share lost, share altered, second moment, elements
    that are not finite, harmed from]; `left` tensors that drift less are left out.
    """
    runs = result.data["runs"]
    tensors = [{item["tensor"]: item for item in run["tensors"]} for run in runs]
    names = list(dict.fromkeys(name for found in tensors for name in found))
    shown = sorted(names, key=lambda name: _worst(name, tensors), reverse=True)[:MAX_TENSORS]
    return packed(
        {
            "limit": LIMIT,
            "runs": [visible(run["name"]) for run in runs],
            "tensors": [visible(name) for name in shown],
            "left": len(names) - len(shown),
            "points": [[_point(found.get(name, {})) for name in shown] for found in tensors],
        }
    )


def _worst(name: str, runs: Sequence[Mapping[str, Any]]) -> tuple[bool, float]:
    found = [run[name] for run in runs if name in run]
    drifts = [number(item.get("drift")) for item in found]
    known = [drift for drift in drifts if drift is not None and not math.isnan(drift)]
    return any(integer(item.get("nonfinite")) for item in found), max(known, default=-1.0)


def _point(item: Mapping[str, Any]) -> list[Any]:
    shares = [digits(_share(item, key)) for key in ("lost", "altered")]
    drift, moment = (digits(number(item.get(key))) for key in ("drift", "second_moment_ratio"))
    harmed = number(item.get("harmed_from"))
    return [drift, *shares, moment, integer(item.get("nonfinite")), digits(harmed, 15)]


def _share(item: Mapping[str, Any], key: str) -> float | None:
    """The share of the updates that a count is."""
    count, updates = number(item.get(key)), number(item.get("updates"))
    return count / updates if count is not None and updates else None


def updates_html(result: ShownResult, key: int) -> str:
    """Returns the HTML of one replayed probe; `key` tells its chart from those of others."""
    lines = result.data.get("lines")
    texts = lines if isinstance(lines, list) else []
    said = "".join(f"<p>{escape(visible(line))}</p>" for line in texts)
    return (
        f"<h3>{escape(probe_name(result))}</h3>"
        f'<div class="said">{said}</div>{_facts(result)}{_run_table(result)}'
        "<figure><figcaption>Drift of each tensor</figcaption>"
        f'<div class="chart" data-chart="updates" data-key="{key}"></div></figure>'
    )


def probe_name(result: ShownResult) -> str:
    """Returns the name of the probe's file."""
    path = str(part(result.data, "probe").get("path") or result.name)
    return visible(Path(path).name or path)


def _facts(result: ShownResult) -> str:
    probe = part(result.data, "probe")
    elements, tensors, updates = (
        f"{format_count(probe.get(key))} {name if probe.get(key) == 1 else name + 's'}"
        for key, name in (("elements", "element"), ("tensors", "tensor"), ("updates", "update"))
    )
    first, last = (format_count(probe.get(key)) for key in ("first_step", "last_step"))
    optimizers = probe.get("optimizers")
    of = ", ".join(map(visible, optimizers)) if isinstance(optimizers, list) else ""
    text = f"{elements} of {tensors}, {updates}"
    text += f" of {of} (steps {first} to {last})" if of else f" (steps {first} to {last})"
    distance = number(probe.get("distance_from_recorded"))
    if distance is not None:
        text += f"; the float32 replay was {format_number(distance, 2)} of its way from the "
        text += "weights when these were last recorded"
    return f'<p class="facts-line">{escape(text)}</p>'


def _run_table(result: ShownResult) -> str:
    runs = result.data["runs"]
    head = "".join(
        f'<th scope="col" data-type="{kind}" title="{escape(title)}">{escape(name)}</th>'
        for name, kind, title in _HEADS
    )
    tall = " tall" if len(runs) > TALL else ""
    return (
        f'<div class="scroll{tall}" tabindex="0"><table class="sortable updates"><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(_row(run) for run in runs)}</tbody></table></div>"
    )


def _row(run: Mapping[str, Any]) -> str:
    grade = _GRADES.get(run["verdict"], "fair")
    lost, altered = (_share(run, key) for key in ("lost", "altered"))
    fixes = run.get("fixes")
    cells = [
        f'<td data-value="{list(_GRADES.values()).index(grade)}">'
        f'<span class="grade {grade}">{escape(visible(run["verdict"]))}</span></td>',
        _text_cell(" or ".join(map(str, fixes)) if isinstance(fixes, list) else ""),
        *(number_cell(run.get(key), format_number(run.get(key))) for key in ("drift", "progress")),
        number_cell(lost, format_share(lost)),
        number_cell(altered, format_share(altered)),
        number_cell(run.get("second_moment_ratio"), format_number(run.get("second_moment_ratio"))),
        *(
            number_cell(run.get(key), format_count(run.get(key)))
            for key in ("nonfinite", "harmed_from")
        ),
        _text_cell(_weights(run)),
        _text_cell(_moments(run)),
    ]
    return f'<tr><th scope="row">{escape(visible(run["name"]))}</th>{"".join(cells)}</tr>'


def _text_cell(text: str) -> str:
    return f"<td>{escape(visible(text))}</td>"


def _weights(run: Mapping[str, Any]) -> str:
    text = str(run.get("weights") or "")
    return f"{text}, master fp32" if run.get("master") == "fp32" else text


def _moments(run: Mapping[str, Any]) -> str:
    return ", ".join(dict.fromkeys(str(run.get(key) or "") for key in ("first", "second")))
