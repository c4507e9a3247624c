# SPDX-License-Identifier: Apache-2.0
"""The figure of a result: the safe loss scales of each step, and the paths of the runs in them."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from itertools import chain
from textwrap import wrap
from typing import Any

from .._errors import UsageError
from ..results._verdict import FormatVerdict
from ._inputs import Run, check_result, runs_of
from ._json import log2, visible
from ._names import NameTable
from ._text import raise_powers
from .scale_path import scale_path
from .scale_windows import OPEN, WITH_A_SCALE, bands_of

_GREEN, _SOFT_GREEN = "#2a9d5c", "rgba(42, 157, 92, 0.18)"
_COLORS = ("#2f6fd0", "#d1483d", "#7d4cc2", "#c9770c", "#1593a8", "#8a8a00")
_ROW_HEIGHT = 320  # pixels


def figure_of(data: Mapping[str, Any]) -> Any:
    """Returns a figure of plotly with a row for each format of a replay's or tune's JSON.

    Raises UsageError for other results, ModuleNotFoundError without plotly.
    """
    if data.get("schema") not in ("dlsim.replay/1", "dlsim.tune/1"):
        raise UsageError(f"plot: expected a result of replay or tune, got {data.get('schema')}")
    result = check_result("plot", data)
    try:
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise ModuleNotFoundError("plot needs plotly: pip install plotly", name="plotly") from error
    runs = runs_of([result])
    verdict = result.verdict
    found = {one.format: one for one in (verdict or ())}
    lines = dict(zip(found, verdict.lines if verdict else (), strict=False))  # one for each format
    names = list(dict.fromkeys([*found, *(run.format for run in runs)]))
    figure = make_subplots(
        rows=len(names),
        shared_xaxes=True,
        vertical_spacing=0.25 / len(names),
        subplot_titles=[_title(lines.get(name, name)) for name in names],
    )
    named: set[str] = set()
    for row, name in enumerate(names, 1):
        traces = [*_windows(found.get(name)), *_paths([run for run in runs if run.format == name])]
        for trace in traces:
            trace["showlegend"] = trace["name"] not in named
            named.add(trace["name"])
        figure.add_traces(traces, rows=[row] * len(traces), cols=[1] * len(traces))
        seen = chain.from_iterable(trace["y"] for trace in traces)
        figure.update_yaxes(range=_range(seen), row=row)
    figure.update_yaxes(title_text="loss scale", tickprefix="2^")
    figure.update_xaxes(title_text="step", row=len(names))
    figure.update_annotations(font_size=13, xanchor="left", align="left", x=0)  # the titles
    height = 160 + _ROW_HEIGHT * len(names)
    legend = {"orientation": "h", "yanchor": "top", "y": -60 / height}
    figure.update_layout(height=height, legend=legend)
    return figure


def _title(line: str) -> str:
    shown = [escape(raise_powers(visible(part))) for part in line.split("\n")]
    return "<br>".join(piece for part in shown for piece in wrap(part, 100))


def _windows(found: FormatVerdict | None) -> list[dict[str, Any]]:
    """The band of safe scales, a mark where no scale is safe, and the scale to use.

    Nothing where no loss scale helps.
    """
    if found is None or not found.steps or not found.serves:
        return []
    bands = bands_of(found.steps)
    steps, lows, highs = bands["step"], bands["low"], bands["high"]
    ends = [*steps[1:], bands["end"]]
    x: list[float | None] = []
    y: list[float | None] = []
    for from_step, to_step, low, high in zip(steps, ends, lows, highs, strict=True):
        if low is not None:
            x += [from_step, to_step, to_step, from_step, from_step, None]
            y += [low, low, high, high, low, None]
    traces = [
        _line("safe loss scales", x, y, _GREEN, width=0)
        | {"fill": "toself", "fillcolor": _SOFT_GREEN, "hoverinfo": "skip"}
    ]
    unsafe = [step for step, low in zip(steps, lows, strict=True) if low is None]
    if unsafe:
        foot = min((low for low in lows if low is not None), default=0.0)
        marks = _marks("no scale is safe from here", unsafe, [foot] * len(unsafe), "#7d4cc2")
        traces.append(marks)
    if found.scale is not None and found.verdict == WITH_A_SCALE:
        scale = log2(found.scale)
        x_ends: list[float | None] = [steps[0], bands["end"]]
        line = _line("scale to use", x_ends, [scale, scale], "#444444", width=1.5)
        traces.append({**line, "line": {**line["line"], "dash": "dash"}})
    return traces


def _paths(runs: list[Run]) -> list[dict[str, Any]]:
    """The scale of each run, and its skipped steps."""
    traces = []
    for i, run in enumerate(runs):
        path = scale_path(run, NameTable())
        color = _COLORS[i % len(_COLORS)]
        name = run.label.removeprefix(f"{visible(run.format)} \u00b7 ")
        line = _line(name, path["step"], path["log2"], color, width=2)
        line["line"]["shape"] = "hv"
        skipped = [mark for mark in path["marks"] if mark[7]]
        traces.append(line | {"mode": "lines+markers", "marker": {"size": 3}})
        if skipped:
            x, y = [mark[0] for mark in skipped], [mark[3] for mark in skipped]
            traces.append(_marks(f"{name}: skipped", x, y, color))
    return traces


def _line(name: str, x: Any, y: Any, color: str, width: float) -> dict[str, Any]:
    return {
        **{"type": "scatter", "mode": "lines", "name": name, "legendgroup": name, "x": x, "y": y},
        "line": {"color": color, "width": width},
        "hovertemplate": "step %{x}<br>scale 2<sup>%{y}</sup>",
    }


def _marks(name: str, x: Any, y: Any, color: str) -> dict[str, Any]:
    marker = {"symbol": "x", "size": 7, "color": color}
    return {**_line(name, x, y, color, 0), "mode": "markers", "marker": marker}


def _range(values: Any) -> list[float]:
    """The exponents in which something is to be seen: paths, and windows where they end."""
    seen = [value for value in values if value is not None and abs(value) < OPEN]
    return [min(seen) - 4, max(seen) + 4] if seen else [-20, 40]
