# SPDX-License-Identifier: Apache-2.0
"""The figures of a page, one function for each, as figures of plotly.

`layout.meta["label"]` of each says in words what it shows. Texts of results are escaped, since
plotly reads tags.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from .._core import Format
from .._errors import UsageError
from ..results import FormatVerdict
from ._results import Run, Shown, contents_of, log2, number, share, shown_result, text

# Hues that can be seen on light and on dark ground.
_COLORS = ("#2f7fd6", "#e0692f", "#8a63d2", "#1593a8", "#b8862b", "#c2578f", "#6f7d1f", "#7d8590")
_GREEN, _SOFT_GREEN, _RED, _GRAY = "#2a9d5c", "rgba(42, 157, 92, 0.2)", "#d1483d", "#808894"
_CONTROL = "rgba(128, 136, 148, 0.2)"
_HEAT = ((0, "rgba(240, 150, 50, 0.08)"), (0.5, "rgb(240, 160, 60)"), (1, "rgb(176, 30, 40)"))
_SYMBOLS = {"overflow": "x", "input": "diamond", "norm": "square", "sum": "triangle-up"}
_POWERS = {"tickprefix": "2<sup>", "ticksuffix": "</sup>"}  # of an axis of binary logarithms

OPEN = 126.0  # log2 of the largest scale that is tried: a window that ends there has no end
MAX_POINTS = 2000  # marks of a run, runs of a sweep; of more, every n-th
MAX_ROWS = 120  # of a heat map; of more, neighbors are joined
MANY_TENSORS = 48  # above this number a row of a heat map is a layer
FLOOR = -8  # of the colors of a heat map, as a power of ten


def _finished(figure: go.Figure, label: str, height: float, **layout: Any) -> go.Figure:
    figure.update_layout(
        height=height,
        meta={"label": label},
        margin={"l": 60, "r": 20, "t": 52, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "yanchor": "top", "y": -56 / (height - 84)},
        hoverlabel={"namelength": -1},
    )
    return figure.update_layout(**layout)


def figure_of(data: Mapping[str, Any]) -> go.Figure:
    """Returns the figure of a replay's or tune's JSON; raises UsageError for other results."""
    if data.get("schema") not in ("dlsim.replay/1", "dlsim.tune/1"):
        raise UsageError(f"plot: expected a result of replay or tune, got {data.get('schema')}")
    result = shown_result("plot", data)
    runs = contents_of([result], read_trace=False).runs
    return loss_scales(result, runs).update_layout(template="plotly_white")


def loss_scales(result: Shown, runs: Sequence[Run]) -> go.Figure:
    """Returns a row for each format: safe loss scales of each step, and those of the runs."""
    found = {one.format: one for one in result.verdict or ()}
    names = list(dict.fromkeys([*found, *(run.format for run in runs)]))
    heads = list(map(text, names))
    spacing = 0.12 / len(names)
    figure = make_subplots(
        len(names), shared_xaxes=True, vertical_spacing=spacing, subplot_titles=heads
    )
    colors = {short: i for i, short in enumerate(dict.fromkeys(run.short for run in runs))}
    named: set[str] = set()
    for row, name in enumerate(names, 1):
        traces = _windows(found.get(name))
        for run in runs:
            if run.format == name:
                traces += _scales_of(run, _COLORS[colors[run.short] % len(_COLORS)])
        for trace in traces:
            trace["showlegend"] = trace["name"] not in named
            named.add(trace["name"])
        figure.add_traces(traces, rows=[row] * len(traces), cols=[1] * len(traces))
        seen = [y for trace in traces for y in trace["y"] if y is not None and abs(y) < OPEN]
        ends = [min(seen) - 4, max(seen) + 4] if seen else [-20, 40]
        figure.update_yaxes(range=ends, title_text="loss scale", row=row, **_POWERS)
    figure.update_xaxes(title_text="step", row=len(names))
    figure.update_annotations(font_size=13, xanchor="left", align="left", x=0)  # the titles
    label = f"Safe loss scales of each step in {', '.join(names)}; scales of {len(runs)} runs"
    return _finished(figure, label, 130 + 230 * len(names))


def _windows(found: FormatVerdict | None) -> list[dict[str, Any]]:
    """The band of safe scales and the scale to use; nothing where no loss scale helps."""
    steps = found and found.get("steps")
    if found is None or not steps or not found.serves:
        return []
    kept = _corners(found.windows, lambda window: (window.low, window.high))
    first, last = kept[0].step, kept[-1].step
    end = last + max(1, (last - first) // max(1, len(steps) - 1))
    x: list[float | None] = []
    y: list[float | None] = []
    for window, following in zip(kept, [*(each.step for each in kept[1:]), end], strict=True):
        low, high = log2(window.low), log2(window.high)
        if low is not None:
            x += [window.step, following, following, window.step, window.step, None]
            y += [low, low, high, high, low, None]
    band = _line("safe loss scales", x, y, _GREEN, width=0)
    traces = [band | {"fill": "toself", "fillcolor": _SOFT_GREEN, "hoverinfo": "skip"}]
    unsafe = [window.step for window in kept if window.low is None]
    if unsafe:
        feet = [min((low for low in y if low is not None), default=0.0)] * len(unsafe)
        traces.append(_marks("no scale is safe from here", unsafe, feet, _COLORS[2]))
    if found.scale is not None and found.verdict == "with a scale":
        line = _line("scale to use", [first, end], [log2(found.scale)] * 2, _GRAY, width=1.5)
        line["line"]["dash"] = "dash"
        traces.append(line)
    return traces


def _corners(items: Sequence[Any], value: Any) -> list[Any]:
    """Items at which a value changes, and both ends."""
    ends = (0, len(items) - 1)
    return [x for i, x in enumerate(items) if i in ends or value(x) != value(items[i - 1])]


def _evenly(items: Sequence[Any], most: int = MAX_POINTS) -> Sequence[Any]:
    return items[:: -(-len(items) // most) or 1]


def _scales_of(run: Run, color: str) -> list[dict[str, Any]]:
    """The scale of a run, its skipped steps, and those applied though they are not finite."""
    steps = run.data["steps"]
    name, kept = text(run.short), _corners(steps, lambda step: step.get("scale"))
    scales = [log2(step.get("scale")) for step in kept]
    line = _line(name, [step["step"] for step in kept], scales, color, width=2)
    line["line"]["shape"] = "hv"
    traces = [line]
    skipped = [step for step in steps if step.get("skipped")]
    broken = [step for step in steps if step.get("finite") is False and not step.get("skipped")]
    for what, odd, ending in (("skipped", skipped, ""), ("applied, not finite", broken, "-open")):
        shown = _evenly(odd)
        left = f" ({len(shown)} of {len(odd)} shown)" if len(shown) < len(odd) else ""
        feet = [log2(step.get("scale")) or 0.0 for step in shown]
        marks = _marks(f"{name}: {what}{left}", [step["step"] for step in shown], feet, color)
        symbols = [_SYMBOLS.get(str(step.get("cause")), "circle") + ending for step in shown]
        marks["marker"]["symbol"] = symbols
        marks |= {"text": [_why(step, what) for step in shown], "hovertemplate": "%{text}"}
        traces += [marks] if odd else []
    return traces


def _why(step: Mapping[str, Any], what: str) -> str:
    helps = "no lower" if step.get("lower_scale_helps") is False else "a lower"
    said = [f"<b>step {step['step']}: {what}</b>", f"cause: {text(step.get('cause') or 'policy')}"]
    tensor = step.get("cause_tensor")
    return "<br>".join([*said, *[f"tensor: {text(tensor)}"] * bool(tensor), f"{helps} scale helps"])


def _line(name: str, x: Any, y: Any, color: str, width: float) -> dict[str, Any]:
    return {
        **{"type": "scatter", "mode": "lines", "name": name, "legendgroup": name, "x": x, "y": y},
        "line": {"color": color, "width": width},
        "hovertemplate": "step %{x}<br>scale 2<sup>%{y}</sup>",
    }


def _marks(name: str, x: Any, y: Any, color: str) -> dict[str, Any]:
    marker = {"symbol": "x", "size": 8, "color": color}
    return {**_line(name, x, y, color, 0), "mode": "markers", "marker": marker}


def largest_values(runs: Sequence[Run]) -> go.Figure | None:
    """Returns the largest output of each layer, with the ends of the formats.

    None without outputs of the forward pass. Outputs that stay in float32 are left out.
    """
    verdicts = [one for run in runs for one in run.result.verdict or ()]
    forward = [one.get("forward") or {} for one in verdicts]
    kept = {name for one in forward for name in one.get("kept_in_float32", ())}
    layers: dict[str, float] = {}
    for tensor in (tensor for run in runs for tensor in run.data["tensors"]):
        size, layer = log2(tensor.get("absmax")), layer_of(tensor["name"])
        if tensor.get("role") == "act" and tensor["name"] not in kept and size is not None:
            layers[layer] = max(size, layers.get(layer, size))
    if not layers:
        return None
    shown = in_order(layers)
    ends = {run.format: math.log2(Format(run.format).max_finite) for run in runs}
    sizes = [layers[name] for name in shown]
    said = [
        "<br>".join(
            [text(name), *(f"{of}: {end - size:.1f} binades left" for of, end in ends.items())]
        )
        for name, size in zip(shown, sizes, strict=True)
    ]
    points = {"x": sizes, "y": list(range(len(shown))), "text": said, "mode": "markers"}
    marker = {"size": 10, "color": _COLORS[0]}
    figure = go.Figure(go.Scatter(**points, marker=marker, hovertemplate="%{text}<extra></extra>"))
    high = max(*sizes, min(ends.values())) + 3
    for i, (name, end) in enumerate(ends.items(), 1):
        if end <= high:
            figure.add_vline(end, line_color=_COLORS[i % len(_COLORS)], annotation_text=name)
    figure.update_xaxes(range=[min(sizes) - 2, high], title_text="largest magnitude", **_POWERS)
    figure.update_yaxes(**_names_axis(shown))
    label = f"Largest output of {len(shown)} layers"
    return _finished(figure, label, 120 + min(20 * len(shown), 1200))


def _names_axis(names: Sequence[str]) -> dict[str, Any]:
    """An axis of rows with names, which are shortened in the middle; of many every n-th."""
    places = _evenly(range(len(names)), 60)
    parts = ((names[i][:12], names[i][12:-29], names[i][-29:], names[i]) for i in places)
    texts = [text(f"{a}\u2026{c}" if len(b) > 1 else name) for a, b, c, name in parts]
    axis = {"showgrid": False, "zeroline": False, "automargin": True}
    return {**axis, "tickvals": list(places), "ticktext": texts, "range": [len(names) - 0.5, -0.5]}


def layer_of(name: str) -> str:
    """Returns the module of a tensor: `blocks.0.attn` of `blocks.0.attn.weight.grad`.

    Activations and their gradients, `<module>.act_grad`, belong to the layer that they flow out of,
    those of operations, `<module>/<operation>.act_grad`, to that which they run in.
    """
    parts = name.split(".")
    if parts[-1] in ("act", "act_grad"):
        layer = ".".join(parts[:-1])
        return layer.rpartition("/")[0] or layer or name
    if parts[-1] in ("grad", "value"):
        parts.pop()
    return ".".join(parts[:-1]) or ".".join(parts) or name


def in_order(names: Iterable[str]) -> list[str]:
    """Returns names in an order in which those that differ in a number count up.

    Files often are in alphabetical order, with layer 11 before layer 2. Where words differ, the one
    that came first in the file stays first: that may be the order of the model.
    """
    words: dict[tuple[str, ...], dict[str, int]] = {}

    def key(name: str) -> list[int]:
        parts = re.split(r"(\d+)", name)
        found = []
        for i, word in enumerate(parts):
            known = words.setdefault(tuple(parts[:i]), {})
            found.append(int(word[:18]) if i % 2 else known.setdefault(word, len(known)))
        return found

    keyed = [(key(name), name) for name in names]
    return [name for _, name in sorted(keyed, key=lambda item: item[0])]


def heat_map(run: Run) -> go.Figure | None:
    """Returns harm, underflow and overflow of tensors or layers over the steps; None without a map.

    A row of several tensors shows the worst of them. Tensors that are rounding noise of float32 do
    not count among others.
    """
    found = run.data.get("heat_map")
    if not found or not found["tensors"] or not found["bins"]["steps"]:
        return None
    bins, tensors = found["bins"], found["tensors"]
    noise = {tensor["name"] for tensor in run.data["tensors"] if tensor.get("noise")}
    groups: dict[str, list[int]] = {}
    for i, tensor in enumerate(tensors):
        name = tensor["name"]
        if len(tensors) > MANY_TENSORS:
            name = layer_of(name) + " (act_grad)" * (tensor["role"] == "act_grad")
        if len(tensors) <= MANY_TENSORS or tensor["name"] not in noise:
            groups.setdefault(name, []).append(i)
    if not groups:
        return None
    parts = {"harm": "error_sum_of_squares", "underflow": "underflow", "overflow": "overflow"}
    figure = go.Figure()
    for name, key in parts.items():
        part = np.array([tensor[key] for tensor in tensors], np.float64)
        total = "sum_of_squares" if name == "harm" else "nonzero"
        whole = np.array([tensor[total] for tensor in tensors], np.float64)
        with np.errstate(all="ignore"):
            shares = np.where(whole > 0, np.minimum(part / whole, 1), np.nan)
        names, worst = _joined({row: np.fmax.reduce(shares[of]) for row, of in groups.items()})
        trace = _share_map(worst, bins["first_step"], names, f"from step %{{x}}: {name}", FLOOR)
        figure.add_trace(trace | {"visible": name == "harm"})
    figure.update_yaxes(**_names_axis(names))
    figure.update_xaxes(showgrid=False, title_text="step")
    shown = {name: [{"visible": [name == other for other in parts]}] for name in parts}
    buttons = [{"label": k, "method": "restyle", "args": args} for k, args in shown.items()]
    menu = {"buttons": buttons, "showactive": False, "bgcolor": _CONTROL, "bordercolor": _CONTROL}
    menu |= {"x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    label = f"Harm, underflow and overflow in {len(names)} rows over the steps of {run.label}"
    return _finished(figure, label, 170 + min(14 * len(names), 900), updatemenus=[menu])


def _joined(rows: Mapping[str, NDArray[np.float64]]) -> tuple[list[str], NDArray[np.float64]]:
    """Puts rows in order; of very many, neighbors make one with the largest share of them."""
    names = in_order(rows)
    step = -(-len(names) // MAX_ROWS) or 1
    parts = [names[i : i + step] for i in range(0, len(names), step)]
    shown = [part[0] + (f" and {len(part) - 1} more" if part[1:] else "") for part in parts]
    return shown, np.array([np.fmax.reduce([rows[name] for name in part]) for part in parts])


def _share_map(
    shares: NDArray[np.float64], x: Any, names: Sequence[str], said: str, floor: int
) -> dict[str, Any]:
    """A heat map of shares with logarithmic colors; NaN stays blank."""
    with np.errstate(all="ignore"):
        colors = np.round(np.maximum(np.log10(shares), floor), 2)
    percents = [[share(None if math.isnan(v) else float(v)) for v in row] for row in shares]
    bar = {
        "tickvals": [floor, -4, -2, 0],
        "ticktext": ["less", "10<sup>\u22124</sup>", "1 %", "100 %"],
    }
    return {
        **{"type": "heatmap", "x": x, "z": colors.astype(np.float32), "zmin": floor, "zmax": 0},
        **{"colorscale": _HEAT, "hoverongaps": False, "customdata": percents},
        "text": [[text(name)] * shares.shape[1] for name in names],
        "hovertemplate": f"%{{text}}<br>{said} %{{customdata}}<extra></extra>",
        "colorbar": bar | {"thickness": 12, "outlinewidth": 0},
    }


def exponents(counted: Any, role: str, runs: Sequence[Run], scale: int = 0) -> go.Figure | None:
    """Returns counts per binade and layer, and what formats hold of them at a scale to choose.

    `counted` is what dlsim.exponents returns, `scale` the binary logarithm of the loss scale at
    first. None without gradients of this role.
    """
    tensors = {name: tensor for name, tensor in counted.tensors.items() if tensor.role == role}
    layers: dict[str, NDArray[np.float64]] = {}
    for name, tensor in tensors.items():
        layers[layer_of(name)] = layers.get(layer_of(name), 0.0) + tensor.counts
    total = sum(layers.values(), np.zeros(len(counted.exponents)))
    used = np.flatnonzero(total)
    if not used.size:
        return None
    binades = slice(int(used[0]), int(used[-1]) + 1)
    powers = counted.exponents[binades]
    names, shares = _joined({
        name: np.where(n > 0, n / max(n.sum(), 1), np.nan)[binades] for name, n in layers.items()
    })  # fmt: skip
    of_runs = (tensor for run in runs for tensor in run.data["tensors"])
    sizes = [log2(tensor.get("absmax")) for tensor in of_runs if tensor["name"] in tensors]
    last = max((size for size in sizes if size is not None), default=math.inf)
    moved = _Held(powers, total[binades], last, runs)
    figure = make_subplots(rows=3, shared_xaxes=True, vertical_spacing=0.03, row_heights=[3, 5, 6])
    data, lines, _ = moved(scale)
    formats = len(moved.ends)
    for i, x in enumerate(data["x"][:-1]):
        line = {"color": _COLORS[(i // 2 + 1) % len(_COLORS)], "width": 9 if i % 2 else 3}
        bar = {"x": x, "y": [formats - i // 2] * 2, "mode": "lines", "line": line}
        figure.add_scatter(**bar, hoverinfo="skip", row=1, col=1)
        at = lines[f"shapes[{i}].x0"]
        edge = {"width": 1.2, "color": line["color"], "dash": "dot" if i % 2 else "solid"}
        figure.add_shape(x0=at, x1=at, y0=0, y1=1, xref="x", yref="paper", type="line", line=edge)
    heights = [formats - i + 0.42 for i in range(formats)]
    texts = {"x": data["x"][-1], "y": heights, "text": data["text"][-1], "mode": "text"}
    figure.add_scatter(**texts, textposition="middle right", hoverinfo="skip", row=1, col=1)
    said = "2<sup>%{customdata}</sup>: %{y:,} gradients<extra></extra>"
    bars = {"x": powers + 0.5, "y": total[binades], "customdata": powers, "width": 0.92}
    figure.add_bar(**bars, marker_color=_COLORS[0], hovertemplate=said, row=2, col=1)
    trace = _share_map(shares, powers + 0.5, names, "2<sup>%{x:d}</sup>:", -6)
    figure.add_trace(trace | {"showscale": False}, row=3, col=1)
    figure.update_xaxes(range=[powers[0] - 12, powers[-1] + 13], zeroline=False, **_POWERS)
    figure.update_xaxes(title_text="magnitude of the unscaled gradient", row=3)
    figure.update_yaxes(range=[0.5, formats + 0.8], showgrid=False, showticklabels=False, row=1)
    figure.update_yaxes(type="log", title_text="gradients", exponentformat="power", dtick=1, row=2)
    figure.update_yaxes(**_names_axis(names), row=3)
    scales = range(min(-16, scale), max(40, scale) + 1)
    steps = [{"label": f"2<sup>{s}</sup>", "method": "update", "args": moved(s)} for s in scales]
    slider = {"active": scale - scales[0], "steps": steps, "pad": {"t": 46}, "font": {"size": 10}}
    slider |= {"currentvalue": {"prefix": "loss scale ", "xanchor": "left"}, "bgcolor": _CONTROL}
    slider |= {"ticklen": 0, "minorticklen": 0, "activebgcolor": _COLORS[0]}
    label = f"Gradients per binade in {len(names)} layers, and what formats hold of them"
    more = {"sliders": [slider], "showlegend": False}
    return _finished(figure, label, 490 + min(14 * len(names), 500), **more)


class _Held:
    """What formats hold of counted gradients: called with a scale, what the slider changes."""

    def __init__(self, powers: Any, counts: Any, last: float, runs: Sequence[Run]) -> None:
        self.lows, self.counts = powers.astype(np.float64), counts
        self.highs = self.lows + 1
        if self.lows[-1] < last < self.highs[-1]:  # the largest magnitude
            self.highs[-1] = last
        options: dict[str, Any] = {name: {} for name in ("fp16", "bf16", "cb16")}
        options |= {run.format: run.result.data.get("options") or {} for run in runs}
        self.ends = {name: _ends_of(name, of) for name, of in options.items()}
        self.told = {name for name, of in options.items() if of.get("rounding", "rne") == "rne"}

    def __call__(self, by: int) -> list[Any]:
        """Returns the new places and texts of traces, the places of lines, and which traces."""
        bars: list[list[float]] = []
        edges: list[float] = []
        texts = []
        for name, ends in self.ends.items():
            zero, normal, over = (end - by for end in ends)
            bars += [[zero, normal], [normal, over]]
            edges += [zero, over]
            low, some, high = (self.below(end) for end in (zero, normal, over))
            shares = {"zero": low, "subnormal": some - low, "overflow": 1 - high}
            said = [f"{key} {'~' * (v > 0)}{share(v)}" for key, v in shares.items()]
            texts.append("   ".join([f"<b>{name}</b>", *(said if name in self.told else ())]))
        places = [float(self.lows[0]) - 11.5] * len(texts)
        changed = {"x": [*bars, places], "text": [*[None] * len(bars), texts]}
        lines = {f"shapes[{i}].x{k}": x for i, x in enumerate(edges) for k in (0, 1)}
        return [changed, lines, list(range(len(bars) + 1))]

    def below(self, limit: float) -> float:
        """The share of values below 2^limit, as if even over the logarithm in a binade."""
        parts = np.clip((limit - self.lows) / (self.highs - self.lows), 0, 1)
        return round(float((parts * self.counts).sum() / self.counts.sum()), 12)


def _ends_of(name: str, options: Mapping[str, Any]) -> tuple[float, float, float]:
    """Binary logarithms of the ends of what a format makes zero, subnormal and finite."""
    known = Format(name)
    flushed = options.get("subnormals") == "flush"  # looks at the rounded value
    zero = known.min_normal - known.min_positive / 2 if flushed else known.min_positive / 2
    return math.log2(zero), math.log2(known.min_normal), math.log2(known.overflow_threshold)


def pareto(result: Shown, names: Sequence[str], lost: Sequence[float | None]) -> go.Figure:
    """Returns the runs of a sweep with these texts and losses; stars are the front."""
    runs, front = result.data["runs"], set(result.data.get("pareto") or ())
    shown = sorted({*_evenly(range(len(runs))), *front})
    heights, ticks = _decades(lost)
    figure = go.Figure()
    kinds = {i: (runs[i]["format"], runs[i]["policy"]) for i in shown}
    for k, kind in enumerate(dict.fromkeys(kinds.values())):
        of = [i for i in shown if kinds[i] == kind]
        figure.add_scatter(
            x=[number(runs[i]["summary"].get("skipped_steps")) for i in of],
            y=[heights[i] for i in of],
            mode="markers",
            name=" \u00b7 ".join(map(text, kind)),
            text=[names[i] for i in of],
            hovertemplate="%{text}<extra></extra>",
            marker={
                "color": _COLORS[k % len(_COLORS)],
                "size": [14 if i in front else 7 for i in of],
                "symbol": ["star" if i in front else "circle" for i in of],
            },
        )
    figure.update_xaxes(title_text="skipped steps", rangemode="tozero")
    figure.update_yaxes(title_text="lost of the gradients", **ticks)
    label = f"Skipped steps against what is lost, {len(shown)} of {len(runs)} runs"
    return _finished(figure, label, 420)


def _decades(values: Sequence[float | None]) -> tuple[list[float], dict[str, Any]]:
    """Returns decimal logarithms with zeros on a floor below the others, and an axis for them."""
    logarithms = [math.log10(v) if v is not None and 0 < v < math.inf else None for v in values]
    known = [value for value in logarithms if value is not None]
    floor, top = math.floor(min(known, default=0)) - 1, math.ceil(max(known, default=0)) + 1
    powers = range(floor + 1, top + 1, max(1, (top - floor) // 7))
    texts = ["0", *("1" if power == 0 else f"10<sup>{power}</sup>" for power in powers)]
    heights = [floor if v is None else v for v in logarithms]
    return heights, {"tickvals": [floor, *powers], "ticktext": texts, "range": [floor - 0.5, top]}


def differences(steps: Sequence[Mapping[str, Any]], measure: str, threshold: object) -> go.Figure:
    """Returns the largest difference of a tensor at each step of a diff, and the threshold."""
    limit = number(threshold)
    heights, ticks = _decades([*(number(step.get("difference")) for step in steps), limit])
    said = [
        f"step {s['step']}: {text(s.get('difference'))}<br>{text(s.get('tensor'))}" for s in steps
    ]
    places = [step["step"] for step in steps]
    line = _line(measure, places, heights[:-1], _COLORS[0], width=1)
    figure = go.Figure(line | {"mode": "lines+markers", "text": said, "hovertemplate": "%{text}"})
    if limit:
        figure.add_hline(
            heights[-1], line={"color": _RED, "dash": "dash"}, annotation_text="threshold"
        )
    figure.update_xaxes(title_text="step")
    figure.update_yaxes(title_text=measure, **ticks)
    label = f"Largest {measure} of a tensor at each of {len(steps)} steps"
    return _finished(figure, label, 340)


def logged_scales(result: Shown) -> go.Figure:
    """Returns the loss scale that a log tells, with the steps that were skipped at it."""
    parts = result.data["brackets"]
    skips = [part for part in parts if part["skipped"]]
    places = [*(part["first_step"] for part in parts), *(part["last_step"] for part in parts[-1:])]
    scales = [log2(part["scale"]) for part in (*parts, *parts[-1:])]
    line = _line("loss scale", places, scales, _COLORS[0], width=2)
    line["line"]["shape"] = "hv"
    heights = [log2(part["scale"]) for part in skips]
    marks = _marks("steps skipped", [part["last_step"] for part in skips], heights, _RED)
    said = "steps {first_step} to {last_step}: {skipped} skipped"
    marks |= {"text": [said.format(**part) for part in skips], "hovertemplate": "%{text}"}
    figure = go.Figure([line, marks])
    figure.update_xaxes(title_text="step")
    figure.update_yaxes(title_text="loss scale", **_POWERS)
    return _finished(figure, f"Loss scale over the steps of the log {result.file}", 340)
