# SPDX-License-Identifier: Apache-2.0
"""The page: sections, data, styles and scripts in one file that fetches nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from .._core import __version__
from ._inputs import Run, ShownResult
from ._json import digits, embed, log2, number, packed, part, visible
from ._names import NameTable
from .differences import compared_runs, difference_points, differences_html
from .exponents import exponent_counts, format_ranges
from .headline import headline, notes
from .headroom import forward_alone, headroom_data, headroom_html
from .heat_map import heat_maps
from .pareto import front_table, sweep_points
from .policies import fates, policies_table
from .recommendation import recommendation_cards, recommendation_charts
from .scale_path import scale_path
from .scale_windows import ShownVerdict, verdict_html, verdicts_of, windows_data
from .scaled import scaled_html
from .tensor_table import tensor_tables
from .training import Training, training_data

_SCRIPTS = (
    "page.js",
    "paper.js",
    "tables.js",
    "rows.js",
    "policies.js",
    "scale_path.js",
    "scale_windows.js",
    "headroom.js",
    "heat_map.js",
    "exponents.js",
    "tensor_table.js",
    "pareto.js",
    "differences.js",
    "recommendation.js",
    "start.js",
)


@dataclass
class Completed:
    """The runs of all replays, and what the trace told about its exponents and its training."""

    runs: list[Run]
    exponents: Any = None
    training: Training | None = None
    heat_map_problem: str | None = None
    exponents_problem: str | None = None


def render(results: Sequence[ShownResult], completed: Completed, title: str | None) -> str:
    """Returns the page as HTML. Every text of a result in it is escaped."""
    from plotly.offline import get_plotlyjs

    runs = completed.runs
    verdicts = verdicts_of(results, runs)
    data = _data(completed, results)
    data["windows"] = [windows_data(shown, runs) for shown in verdicts]
    data["training"] = training_data(completed.training)
    data["headroom"] = headroom_data(runs)
    parts = _sections(results, completed, verdicts, data)
    plotly = get_plotlyjs()
    own = "\n".join(_asset(name) for name in _SCRIPTS)
    shown = escape(visible(title or _title(results)))
    policy = _content_policy([plotly, own])
    links = "".join(f'<a href="#{key}">{escape(name)}</a>' for key, name, _ in parts)
    body = "".join(
        f'<section id="{key}" aria-labelledby="{key}-head"><h2 id="{key}-head">{escape(name)}</h2>'
        f"{html}</section>"
        for key, name, html in parts
    )
    return Template(_asset("page.html")).substitute(
        policy=policy,
        version=escape(__version__),
        title=shown,
        style=_asset("page.css"),
        paper_style=_asset("paper.css"),
        links=links,
        choice=_run_choice(runs),
        body=body,
        data=embed(data),
        plotly=plotly,
        own=own,
    )


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _content_policy(scripts: Sequence[str]) -> str:
    """Only these scripts run, and nothing is fetched; plotly styles its elements by itself."""
    hashes = (hashlib.sha256(script.encode("utf-8")).digest() for script in scripts)
    sources = " ".join(f"'sha256-{base64.b64encode(h).decode('ascii')}'" for h in hashes)
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _title(results: Sequence[ShownResult]) -> str:
    for result in results:
        described = part(part(result.data, "trace"), "description")
        if described.get("model"):
            return f"{described['model']}: loss scaling"
    compared = _of_kind(results, "diff")
    if len(compared) == len(results) == 1:
        return f"{compared_runs(compared[0])}, compared"
    return "Loss scaling"


def _of_kind(results: Sequence[ShownResult], kind: str) -> list[ShownResult]:
    return [result for result in results if result.kind == kind]


def _data(completed: Completed, results: Sequence[ShownResult]) -> dict[str, Any]:
    runs, names = completed.runs, NameTable()
    data: dict[str, Any] = {
        "runs": [_run_data(run, names) for run in runs],
        "formats": format_ranges(runs),
        "tensors": tensor_tables(runs, names) if runs else None,
        "sweeps": [packed(sweep_points(result)) for result in _of_kind(results, "sweep")],
        "tunes": [recommendation_charts(result) for result in _of_kind(results, "tune")],
        "differences": [difference_points(result) for result in _of_kind(results, "diff")],
        "exponents": None,
    }
    maps = heat_maps(runs, names)
    for run, found in zip(data["runs"], maps, strict=True):
        run["heat_map"] = found
    if completed.exponents is not None:
        data["exponents"] = exponent_counts(completed.exponents, names, runs)
    data["names"] = names.names
    return data


def _run_data(run: Run, names: NameTable) -> dict[str, Any]:
    ends = {key: log2(run.summary.get(f"{key}_scale")) for key in ("min", "max", "final")}
    return {
        "label": run.label,
        "format": visible(run.format),
        "policy": visible(run.data["policy"]),
        "path": packed(scale_path(run, names)),
        "fates": fates(run),
        "scales": ends,
        "underflow": digits(number(run.summary.get("underflow_fraction"))),
        "energy": digits(number(run.summary.get("worst_step_energy_lost"))),
    }


def _run_choice(runs: Sequence[Run]) -> str:
    if not runs:
        return ""
    options = "".join(f'<option value="{i}">{escape(r.label)}</option>' for i, r in enumerate(runs))
    return f'<label class="choice">Run <select id="run">{options}</select></label>'


def _sections(
    results: Sequence[ShownResult],
    completed: Completed,
    verdicts: Sequence[ShownVerdict],
    data: dict[str, Any],
) -> list[tuple[str, str, str]]:
    """Key, title and HTML of the sections that have something to show."""
    parts = []
    replayed = [result for result in results if result.kind != "diff"]
    if replayed:
        parts += _replayed_sections(replayed, completed, verdicts, data)
    if compared := _of_kind(results, "diff"):
        cards = [differences_html(result, i) for i, result in enumerate(compared)]
        html = _part("differences") + "".join(cards)
        parts.append(("differences", "Where two runs diverge", html))
    if replayed:
        parts.append(("about", "About these numbers", _part("about")))
    return parts


def _replayed_sections(
    results: Sequence[ShownResult],
    completed: Completed,
    verdicts: Sequence[ShownVerdict],
    data: dict[str, Any],
) -> list[tuple[str, str, str]]:
    """The sections of the results that formats and policies have."""
    runs = completed.runs
    sweeps, tunes = _of_kind(results, "sweep"), _of_kind(results, "tune")
    first = headroom_html() if data["headroom"] else ""
    parts = [("verdict", "Verdict", verdict_html(verdicts, first) + headline(results, runs))]
    if scaled := scaled_html(results):
        parts.append(("scaled", "Formats with their own scales", _part("scaled") + scaled))
    if forward_alone(runs):
        return [*parts, ("tensors", "Tensors", _part("tensor_table"))]
    cards = [
        recommendation_cards(result, str(i))
        for i, result in enumerate(tunes)
        if result.data["formats"]
    ]
    if cards:
        parts.append(("recommendation", "Recommendation", _part("recommendation") + "".join(cards)))
    if runs:
        parts.append(("policies", "Policies", _policies(runs)))
        parts.append(("scale", "Scale path", _part("scale_path")))
        found = any(run["heat_map"] for run in data["runs"])
        problem = completed.heat_map_problem
        html = _part("heat_map") if found else _absent("heat maps", problem)
        parts.append(("losses", "Where gradients are lost", html))
    if data["exponents"]:
        parts.append(("exponents", "Exponents", _part("exponents")))
    else:
        problem = completed.exponents_problem
        parts.append(("exponents", "Exponents", _absent("exponents", problem)))
    if runs:
        parts.append(("tensors", "Tensors", _part("tensor_table")))
    if sweeps:
        html = "".join(
            f'<h3>{escape(visible(Path(result.name).name))}</h3><figure><div class="chart" '
            f'data-chart="pareto" data-key="{i}"></div></figure>{front_table(result)}'
            for i, result in enumerate(sweeps)
        )
        parts.append(("sweep", "Sweep", _part("pareto") + html))
    return parts


def _policies(runs: list[Run]) -> str:
    return (
        _part("policies")
        + policies_table(runs)
        + '<figure><figcaption>Applied and skipped steps</figcaption><div class="chart" '
        + f'data-chart="fates"></div></figure>{notes(runs)}'
    )


def _part(name: str) -> str:
    return _asset(f"{name}.html")


def _absent(what: str, problem: str | None) -> str:
    reason = f" The trace: {escape(visible(problem))}." if problem else ""
    way = ", or write the result with <code>dlsim replay TRACE --heat-map --json FILE</code>"
    return (
        f'<p class="missing">No {what}: the results do not hold them, and no trace that does was '
        f"read.{reason} Give the trace or its profile: <code>dlsim report RESULT --trace TRACE"
        f"</code>{way if what == 'heat maps' else ''}.</p>"
    )
