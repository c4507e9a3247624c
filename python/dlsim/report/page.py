# SPDX-License-Identifier: Apache-2.0
"""The page: sections, figures, style and scripts in one file that fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from statistics import fmean
from string import Template
from typing import Any

from .._core import __version__
from .._text import bytes_text, scale_text
from . import figures
from ._results import Contents, Run, Shown, form_of, number, sentence, share, text

MAX_ROWS = 300  # of a table; tensors that lose or differ most
MANY = 0.1  # of the steps: above this share, unsafe scales are no exception

_VERDICTS = {
    "as is": ("good", "scale 1 is safe"),
    "with a scale": ("fair", "needs a loss scale"),
    "no scale serves": ("bad", "no loss scale is safe"),
    "overflows": ("bad", "cannot be judged"),
    "fits in forward": ("fair", "fits in forward"),
    "fails in forward": ("bad", "fails in forward"),
}
_SCALED = _VERDICTS | {
    "as is": ("good", "trains"),
    "no scale serves": ("bad", "loses too much in backward"),
}
_TUNED = {
    "no scale needed": ("good", "no loss scale needed"),
    "static scale enough": ("good", "a fixed loss scale is enough"),
    "dynamic scaling recommended": ("fair", "dynamic loss scaling recommended"),
    "no scale helps": ("bad", "no loss scale helps"),
}
_STACKS = {"torch": "PyTorch", "trainer": "Hugging Face Trainer", "accelerate": "Accelerate"}
_STACKS |= {"lightning": "Lightning", "deepspeed": "DeepSpeed", "zoo": "Cerebras Model Zoo"}
_LEAST = "least_possible_mean_loss"


def render(contents: Contents, title: str | None) -> str:
    """Returns the page as HTML. Every text of a result in it is escaped."""
    from plotly.offline import get_plotlyjs

    names = ", ".join(result.name for result in contents.results)
    with form_of(names, " or ".join({str(r.data["schema"]): 0 for r in contents.results})):
        parts = [part for part in _sections(contents) if part[2]]
    scripts = [get_plotlyjs(), _asset("page.js")]
    digests = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    return Template(_asset("page.html")).substitute(
        hashes=" ".join(f"'sha256-{each}'" for each in digests),  # only these scripts run
        version=escape(__version__),
        title=text(title or _title(contents)),
        style=_asset("page.css"),
        links="".join(f'<a href="#{key}">{name}</a>' for key, name, _ in parts),
        body="".join(
            f'<section id="{key}"><h2>{name}</h2>{html}</section>' for key, name, html in parts
        ),
        plotly=scripts[0],
        own=scripts[1],
    )


def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _title(contents: Contents) -> str:
    models = [(result.trace.get("description") or {}).get("model") for result in contents.results]
    return f"{next(filter(None, models), contents.results[0].file)}: loss scaling"


def _sections(contents: Contents) -> list[tuple[str, str, str]]:
    """Key, title and HTML of all sections; those without HTML have nothing to show."""
    runs = contents.runs
    forward_alone = _forward_alone(runs)
    judged = [result for result in contents.results if result.kind not in ("diff", "explain")]
    return [
        ("verdict", "Verdict", _verdicts(contents, judged)),
        ("log", "Log", "".join(map(_log, contents.of_kind("explain")))),
        ("scaled", "Formats with their own scales", _scaled_formats(judged)),
        ("recommendation", "Recommendation", "".join(map(_tune, contents.of_kind("tune")))),
        ("policies", "Policies", "" if forward_alone else _policies(runs)),
        ("losses", "Where gradients are lost", _losses(contents, forward_alone)),
        ("exponents", "Exponents", "" if forward_alone or not judged else _exponents(contents)),
        ("sweep", "Sweep", "".join(map(_sweep, contents.of_kind("sweep")))),
        ("differences", "Where two runs diverge", "".join(map(_diff, contents.of_kind("diff")))),
    ]


class _Html(str):
    """Text that is HTML already."""


Columns = Mapping[str, Callable[[Any], Any]]


def _table(items: Sequence[Any], columns: Columns, most: int = MAX_ROWS) -> _Html:
    """Returns a table that sorts: by "head" or "head: what it is", how an item becomes a cell.

    A cell is a text, _Html, or a number and its text.
    """
    heads = "".join(
        f'<th scope="col" title="{text(about)}"><button>{text(name)}</button></th>'
        for name, _, about in (head.partition(": ") for head in columns)
    )
    rows = "".join(
        f"<tr>{''.join(_cell(column(item)) for column in columns.values())}</tr>"
        for item in items[:most]
    )
    left = len(items) - most
    more = f'<p class="fine">{left} more are left out; the JSON has all.</p>' if left > 0 else ""
    return _Html(
        f'<div class="scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{more}"
    )


def _cell(cell: Any) -> str:
    if isinstance(cell, tuple):
        key = number(cell[0])
        value = "" if key is None else f"{key:.17g}"
        return f'<td class="number" data-value="{value}">{sentence(cell[1])}</td>'
    return f"<td>{cell if isinstance(cell, _Html) else text(cell)}</td>"


def _share(value: object) -> tuple[object, str]:
    """A cell with a percentage."""
    return value, share(value)


def _number(value: object) -> tuple[object, str]:
    """A cell with a count, or another number with four digits."""
    found = number(value)
    if found is None or not math.isfinite(found):
        return value, "" if value is None else str(value)
    return value, f"{found:,.0f}" if found.is_integer() and abs(found) < 2**53 else f"{found:.4g}"


def _scale(value: object) -> tuple[object, str]:
    found = number(value)
    return value, "\u2013" if found is None else scale_text(found)


def _of(path: str, shown: Callable[[object], Any] = _number) -> Callable[[Any], Any]:
    """A column with the value of a key; dots lead into objects."""
    *parents, key = path.split(".")

    def cell(item: Any) -> Any:
        for parent in parents:
            item = item.get(parent) or {}
        return shown(item.get(key))

    return cell


def _badge(grade: str, words: str) -> _Html:
    return _Html(f'<span class="grade {grade}">{sentence(words)}</span>')


def _paragraphs(lines: Iterable[object], kind: str) -> str:
    """Lines as the command prints them; those that are to be pasted stay as they are."""
    parts = [line for entry in lines for line in str(entry).split("\n")]
    pasted, shown = "<pre>{}</pre>".format, "<p>{}</p>".format
    html = (pasted(text(x.strip())) if x[:4] == "    " else shown(sentence(x)) for x in parts)
    return f'<div class="{kind}">{"".join(html)}</div>'


def _list(items: Iterable[object]) -> str:
    rows = "".join(f"<li>{sentence(item)}</li>" for item in items)
    return f"<ul>{rows}</ul>" if rows else ""


def _facts(pairs: Iterable[tuple[object, object]]) -> str:
    rows = (f"<div><dt>{text(key)}</dt><dd>{sentence(value)}</dd></div>" for key, value in pairs)
    return f'<dl class="facts">{"".join(rows)}</dl>'


def _folded(summary: str, html: str) -> str:
    return f"<details><summary>{text(summary)}</summary>{html}</details>" if html else ""


def _figure(figure: Any, caption: str = "") -> str:
    """Returns a figure, packed, with its text alternative; nothing for None."""
    if figure is None:
        return ""
    from plotly.io.json import to_json_plotly

    made = figure.to_plotly_json()
    made["layout"].pop("template")  # page.js has one that follows the colors of the page
    label = text(made["layout"].pop("meta")["label"])
    packed = base64.b64encode(zlib.compress(to_json_plotly(made).encode(), 6)).decode()
    return (
        f"<figure><figcaption>{caption}</figcaption>"
        f'<div class="chart" role="img" aria-label="{label}" '
        f'style="min-height:{made["layout"]["height"]:.0f}px" data-figure="{packed}">'
        "</div></figure>"
    )


def _verdicts(contents: Contents, judged: Sequence[Shown]) -> str:
    """What is said of each format, safe scales with the runs in them, and what was recorded."""
    said: set[str] = set()
    parts: list[str] = []
    for result in judged:
        verdict = result.verdict
        runs = [run for run in contents.runs if run.result is result]
        lines = verdict.lines if verdict else ()
        if not runs and said.issuperset(lines):
            continue
        parts += [f"<h3>{text(result.file)}</h3>"] if parts else []
        if verdict and not said.issuperset(lines):
            scaled = {found["format"] for found in result.scaled}
            cards = "".join(_card(found) for found in verdict if found.format not in scaled)
            parts.append(f'{_paragraphs(lines, "said")}<div class="cards">{cards}</div>')
            said.update(lines)
        parts.append(_figure(figures.largest_values(runs), _LARGEST))
        served = any(found.get("steps") and found.serves for found in verdict or ())
        if served or (runs and not _forward_alone(runs)):
            parts.append(_figure(figures.loss_scales(result, runs), _SCALES))
    traces = [result.trace for result in judged]
    parts += [_recording(t) for i, t in enumerate(traces) if t and t not in traces[:i]]
    return "".join(parts)


def _forward_alone(runs: Sequence[Run]) -> bool:
    roles = {tensor.get("role") for run in runs for tensor in run.data["tensors"]}
    return bool(roles) and roles <= {"act", "value"}


_SCALES = (
    "<b>Loss scales.</b> The band holds the safe scales of each step: below it tensors lose too "
    "much, above it something overflows. Lines are the scales of the policies, marks the steps "
    "that were not finite (open: applied all the same). Point at a mark for its cause."
)
_LARGEST = (
    "<b>Largest outputs of each layer.</b> Vertical lines are the largest values of the formats, "
    "if they are near. An output to the right of one overflows; no loss scale changes that."
)
_HEAT = (
    "<b>What is lost, by step.</b> A row of several tensors shows the worst of them; blank cells "
    "hold no finite nonzero gradient. Choose harm, underflow or overflow on the left."
)
_FRONT = (
    "Each point is a run: further left skips less, further down loses less of the gradients. "
    "Stars are the runs that no other beats in both."
)
_BINADES = (
    "<b>Magnitudes of {}.</b> Thick lines: a format keeps all bits; thin: subnormal, with fewer "
    "bits. Values to the left become zero, those to the right overflow. Move the slider to see "
    "what another loss scale does. Shares with ~ are estimated from the counts per power of two."
)


def _card(found: Any) -> str:
    """What the verdict says of a format, in a few words; no scale where none helps."""
    grade, words = _VERDICTS.get(found.verdict, ("fair", found.verdict))
    facts = []
    if found.verdict == "with a scale" and found.scale is None:
        words = "needs dynamic loss scaling"
    elif found.verdict == "with a scale":
        facts = [f"use {scale_text(found.scale)}"]
    if found.serves and found.window is not None:
        ends = zip(("from", "up to"), found.window, strict=True)
        parts = [f"{w} {scale_text(x)}" for w, x in ends if abs(math.log2(x)) < figures.OPEN]
        facts.append(f"safe {' '.join(parts)}" if parts else "any scale is safe")
    if found.serves and found.get("steps"):
        outside, steps = found.steps_outside_window, len(found["steps"])
        facts.append(f"not at {outside} of {steps} steps" if outside else f"all {steps} steps")
    return (
        f'<div class="card {grade}"><h3>{text(found.format)}</h3>{_badge(grade, words)}'
        f'<p class="fine">{sentence(", ".join(facts))}</p></div>'
    )


def _recording(trace: Mapping[str, Any]) -> str:
    described = dict(trace.get("description") or {})
    paths = ", ".join(map(str, trace.get("paths") or ()))
    name, about = described.get("model") or paths, described.pop("description", "")
    kind = "profile" if trace.get("profile") else "trace"
    facts = (
        f"{trace.get('steps')} recorded steps ({trace.get('first_step')} to "
        f"{trace.get('last_step')}), {kind} of {bytes_text(trace.get('file_bytes') or 0)}"
    )
    more = _folded("How it was recorded", _facts([*described.items(), ("path", paths)]))
    return f"<h3>{text(name)}</h3><p>{text(about)}</p><p>{text(facts)}</p>{more}"


def outcome(run: Run) -> tuple[str, str]:
    """Returns a grade ("good", "fair" or "bad") and the worst that it is for, in a few words."""
    summary, steps = run.data["summary"], run.data["steps"]
    count, skipped = int(summary.get("steps") or 0), int(summary.get("skipped_steps") or 0)
    in_vain = [s for s in steps if s.get("skipped") and s.get("lower_scale_helps") is False]
    recorded = {step.get("cause") for step in in_vain} == {"input"}
    broken = sum(s.get("finite") is False and not s.get("skipped") for s in steps)
    verdict = run.result.data.get("verdict") or {}
    of_format = [f["verdict"] for f in verdict.get("formats") or () if f["format"] == run.format]
    fails = {"fails in forward": "forward", "no scale serves": "backward"}.get(
        of_format[0] if of_format else "", ""
    )
    keys = ("format", "policy", "config")
    paths = {tuple(map(path.get, keys)): path for path in verdict.get("paths") or ()}
    path = paths.get(tuple(map(run.data.get, keys)), {})
    stopped = summary.get("stopped_at_step")
    ends = (
        (count == 0, "refused by the policy"),
        (fails, f"fails in {fails}: no loss scale helps"),
        (stopped is not None, f"stopped at step {stopped}"),
        (summary.get("first_applied_step") is None, "no step applied"),
        (broken, f"{broken} applied though not finite"),
    )
    high, low = skipped - len(in_vain), int(path.get("steps_below") or 0)
    unsafe = int(path.get("steps_with_empty_window") or 0)
    vain = f"{len(in_vain)} skipped: {'Inf/NaN recorded' if recorded else 'no scale helps'}"
    found = (  # steps, how many of them count against the policy, and what to say
        (high, high, f"{high} skipped: scale too high"),
        (low, low, f"scale too low at {low} steps"),
        (len(in_vain), 0, vain),
        (unsafe, unsafe - len(in_vain), f"no scale is safe at {unsafe} steps"),
    )
    bad = [words for is_so, words in ends if is_so]
    bad += [words for _, counted, words in found if counted > MANY * count]
    fair = [words for some, _, words in found if some]
    fair += [] if path else ["not judged: the file has no verdict"]
    if bad or fair:
        return ("bad", bad[0]) if bad else ("fair", fair[0])
    return "good", "the scale was safe"


def _policies(runs: Sequence[Run]) -> str:
    columns: Columns = {
        "run": _of("label", str),
        "outcome: the worst that happened, see About": lambda row: _badge(*outcome(row["run"])),
        "skipped: steps": _of("summary.skipped_steps"),
        "of steps": _of("summary.steps"),
        "first applied: step": _of("summary.first_applied_step"),
        "lowest scale": _of("summary.min_scale", _scale),
        "highest scale": _of("summary.max_scale", _scale),
        "final scale": _of("summary.final_scale", _scale),
        "underflow: share of the gradients": _of("summary.underflow_fraction", _share),
        "worst harm: of a step, the mean of its tensors": _of("summary.worst_harm", _share),
        "overflow: finite gradients that become infinite": _of("summary.overflow"),
    }
    rows = [{**run.data, "label": run.label, "run": run} for run in runs]
    notes: dict[str, list[str]] = {}
    for row in rows:
        events = [f"step {e['step']}: {e['message']}" for e in (row.get("events") or ())[:3]]
        for note in [*(row.get("notes") or ()), *events]:
            notes.setdefault(note, []).append(row["label"])
    said = [f"{note} ({', '.join(about[:4])})" for note, about in notes.items()]
    return _table(rows, columns) + _folded("Notes on the policies", _list(said)) if rows else ""


def _losses(contents: Contents, forward_alone: bool) -> str:
    """The heat map and the tensors of each run, one run at a time."""
    runs = contents.runs
    columns: Columns = {
        "tensor": _of("name", str),
        "role": lambda tensor: tensor.get("role", "grad"),
        "mean harm: relative squared error, mean of the applied steps": _of("mean_harm", _share),
        "worst harm: of a step": _of("worst_harm", _share),
        "underflow: share that becomes zero": _of("underflow_fraction", _share),
        "subnormal": _of("subnormal"),
        "overflow": _of("overflow"),
        "not finite: as recorded": _of("nonfinite"),
        "largest": _of("absmax"),
        "elements": _of("elements"),
    }
    box = '<label class="choice">Tensors <input type="search" placeholder="part of a name"></label>'
    options, parts = "", []
    for i, run in enumerate(runs):
        options += f'<option value="{i}">{text(run.label)}</option>'
        tensors = sorted(run.data["tensors"], key=lambda t: -(number(t.get("mean_harm")) or -1))
        figure = "" if forward_alone else _figure(figures.heat_map(run), _HEAT)
        head = f'<div data-run="{i}"><h3>{text(run.label)}</h3>'
        parts.append(f"{head}{figure}{box}{_table(tensors, columns)}</div>")
    if runs and not forward_alone and not any(run.data.get("heat_map") for run in runs):
        way = "<code>dlsim replay TRACE --heat-map --json FILE</code> writes results with them"
        parts.insert(0, f'<p class="missing">No heat maps: {way}.</p>')
    choice = f'<label class="choice">Run <select>{options}</select></label>' * (len(runs) > 1)
    return choice + "".join(parts)


def _exponents(contents: Contents) -> str:
    if contents.exponents is None:
        way = "<code>dlsim report RESULT --trace TRACE</code> reads them from it or its profile"
        reason = f": {text(contents.problem)}" if contents.problem else ""
        return f'<p class="missing">No exponents: no trace was read{reason}. {way}.</p>'
    serving = (one for result in contents.results for one in result.verdict or () if one.serves)
    scale = next((round(math.log2(one.scale)) for one in serving if one.scale), 0)
    parts = []
    for role, words in (("grad", "parameter gradients"), ("act_grad", "gradients of activations")):
        figure = figures.exponents(contents.exponents, role, contents.runs, scale)
        parts.append(_figure(figure, _BINADES.format(words)))
    return "".join(parts)


def _tune(result: Shown) -> str:
    """The formats as asked: what to set, what else would lose, and blocks to copy."""
    first, others = result.data["formats"][:1], result.data["formats"][1:]
    title = f"Other formats: {', '.join(str(item['format']) for item in others)}"
    return "".join(map(_tuned, first)) + _folded(title, "".join(map(_tuned, others)))


def _tuned(item: Mapping[str, Any]) -> str:
    chosen, static = item.get("recommended") or {}, item.get("static") or {}
    params = chosen.get("params") or {}
    grade, words = _TUNED.get(item["verdict"], ("fair", item["verdict"]))
    start = next((number(value) or 1.0 for key, value in params.items() if "init" in key), 1.0)
    if item["verdict"] == "no scale needed" and start > 1:  # as the command says it
        words = f"start a loss scaler at {scale_text(start)}"
    head = (
        f"<h3>{text(item['format'])} {_badge(grade, words)}</h3><p>{sentence(item['reason'])}</p>"
    )
    notes = _list(item.get("notes") or ())
    if item["verdict"] == "no scale helps":  # nothing to copy
        return head + notes
    compared = [
        {"label": f"recommended: {chosen.get('policy')}", **chosen},
        *({"label": f"tuned {o.get('policy')}", **o} for o in item.get("other_policies") or ()),
        {"label": f"best fixed scale, {_scale(static.get('scale'))[1]}", **static}
        | {"skipped_steps": static.get("nonfinite_steps")},
        *(item.get("comparisons") or ()),
        {"label": "best power of two for each step", "mean_loss": item.get(_LEAST)},
    ]
    rows = [one for one in compared if one.get("mean_loss") is not None]
    columns: Columns = {
        "setting": lambda one: _Html(sentence(one.get("label"))),
        "gradient lost: per step; a skipped step loses all": _of("mean_loss", _share),
        "skipped: steps": _of("skipped_steps"),
    }
    stacks = "".join(
        _folded(
            f"Configuration of {title}",
            f'<button type="button" class="copy">Copy</button><pre tabindex="0">'
            f"{chr(10).join(map(text, item['config'][name].splitlines()))}</pre>",
        )
        for name, title in _STACKS.items()
        if (item.get("config") or {}).get(name)
    )
    facts = _facts(
        [("policy", chosen.get("policy")), *((k, _parameter(params[k])) for k in params)]
    )
    return f"{head}{facts}{_table(rows, columns)}{stacks}{notes}"


def _parameter(value: object) -> str:
    found = number(value)
    if found is None or not 0 < found < math.inf:
        return str(value)
    is_power = math.frexp(found)[0] == 0.5 and not 0.01 <= found <= 16
    return f"{found:.10g} = {scale_text(found)}" if is_power else f"{found:.10g}"


def _sweep(result: Shown) -> str:
    runs = result.data["runs"]
    key = "mean_loss" if "mean_loss" in runs[0]["summary"] else "mean_energy_lost"
    pairs = {
        (run["policy"], name, str(run["params"][name])) for run in runs for name in run["params"]
    }
    counts = Counter(pair[:2] for pair in pairs)

    def varied(run: Mapping[str, Any]) -> _Html:
        several = {key: v for key, v in run["params"].items() if counts[run["policy"], key] > 1}
        return _Html(sentence(", ".join(f"{key} {_parameter(several[key])}" for key in several)))

    lost = [number(run["summary"].get(key)) for run in runs]
    names = [
        f"{text(run['format'])} \u00b7 {text(run['policy'])}<br>{varied(run)}<br>"
        f"{text(run['summary'].get('skipped_steps'))} skipped, {share(loss)} lost"
        for run, loss in zip(runs, lost, strict=True)
    ]
    columns: Columns = {
        "format": _of("format", str),
        "policy": _of("policy", str),
        "parameters that vary": varied,
        "skipped: steps": _of("summary.skipped_steps"),
        "lost: of the gradients": _of(f"summary.{key}", _share),
        "scale too low: steps": _of("summary.steps_below_window"),
        "final scale": _of("summary.final_scale", _scale),
    }
    figure = figures.pareto(result, names, lost)
    front = [runs[i] for i in result.data.get("pareto") or () if 0 <= i < len(runs)]
    return f"<h3>{text(result.file)}</h3>{_figure(figure, _FRONT)}{_table(front, columns)}"


def _diff(result: Shown) -> str:
    data = result.data
    by_element = data.get("compared") != "histograms"
    measure = "relative difference" if by_element else "difference of histograms"
    columns: Columns = {
        "tensor": _of("name", str),
        measure: _of("max_relative_difference" if by_element else "max_histogram_distance"),
        "least cosine": _of("min_cosine"),
        "worst step": _of("worst_step"),
        "least norm B/A": _of("min_norm_ratio"),
        "largest norm B/A": _of("max_norm_ratio"),
        "steps above: the threshold": _of("steps_beyond"),
        "not finite": _of("nonfinite_differences"),
    }
    tensors = sorted(data.get("tensors") or (), key=lambda t: -(number(t.get("difference")) or -1))
    figure = figures.differences(data["steps"], measure, data["options"].get("threshold"))
    unmatched = (data.get("unmatched") or {}).get("tensors") or ()
    missing = _list(f"{tensor.get('name')}: {tensor.get('why')}" for tensor in unmatched)
    sides = ((side.upper(), ", ".join(map(str, data[side].get("paths") or ()))) for side in "ab")
    caption = f"Largest {measure} of a tensor at each step"
    return (
        f"<h3>{text(result.file)}</h3>{_paragraphs(data.get('lines') or (), 'said')}{_facts(sides)}"
        f"{_figure(figure, caption)}{_table(tensors, columns)}{_folded('Not compared', missing)}"
    )


def _log(result: Shown) -> str:
    """The facts that a log tells, and the policies whose scaler goes the same way."""
    data, summary = result.data, result.data["summary"]
    policies, diagnosis = data.get("policies") or (), data.get("diagnosis") or {}
    skips = (data.get("skips") or {}).get("verdict")
    low, high = (_scale(summary.get(f"{end}_scale"))[1] for end in ("min", "max"))
    facts = [
        *(("stack", data.get("stack")), ("steps", summary.get("steps"))),
        *(
            ("skipped", f"{summary.get('skipped_steps')}: {skips}"),
            ("loss scale", f"{low} to {high}"),
        ),
        *(("policy", f"{each['policy']}: {', '.join(each['settings'])}") for each in policies),
    ]
    said = [f"{diagnosis.get('side')}: {diagnosis.get('evidence')}"] if diagnosis else []
    figure = figures.logged_scales(result) if data["brackets"] else None
    return (
        f"<h3>{text(result.file)}</h3>{_paragraphs(said, 'said')}{_facts(facts)}"
        f"{_figure(figure, 'The loss scale as printed')}{_list(data.get('notes') or ())}"
    )


def _scaled_formats(judged: Sequence[Shown]) -> str:
    """What formats with scales of their own lose in both passes, and in which tensors."""
    columns: Columns = {
        "format": _of("format", str),
        "verdict": lambda row: _badge(*_SCALED.get(row["verdict"], ("fair", row["verdict"]))),
        "forward harm: mean over steps and tensors": _of("forward", _share),
        "its worst step": _of("worst_forward", _share),
        "backward harm: mean over steps and tensors": _of("backward", _share),
        "worst step of it": _of("worst_backward", _share),
        "failing steps": _of("failing"),
        "clipped: elements larger, scaled, than the largest of the format": _of("clipped"),
    }
    of_tensors: Columns = {
        "tensor": _of("name", str),
        "role": _of("role", str),
        "mean harm: of the axis that loses more": _of("mean_harm", _share),
        "worst harm: of a step": _of("worst_harm", _share),
        "lost in rows: share that becomes zero": _of("row.underflow_fraction", _share),
        "lost in columns": _of("column.underflow_fraction", _share),
        "clipped steps: with elements that are clipped": _of("clipped_steps"),
        "lowest scale": _of("scale.min", _scale),
        "highest scale": _of("scale.max", _scale),
    }
    rows, tables = [], []
    for entry in (entry for result in judged for entry in result.scaled):
        scaled, steps = entry["scaled"], entry["scaled"]["steps"]
        row = {**entry, "failing": 0}
        row["clipped"] = sum(step.get("clipped") or 0 for step in steps)
        for side in ("forward", "backward"):
            found = [number((step.get(side) or {}).get("mean_harm")) for step in steps]
            known = [harm for harm in found if harm is not None]
            row |= {side: fmean(known), f"worst_{side}": max(known)} if known else {side: None}
            row["failing"] += scaled.get(f"{side}_failures") or 0
        rows.append(row)
        tensors = [tensor for tensor in scaled["tensors"] if tensor.get("judged")]
        tensors.sort(key=lambda tensor: -(number(tensor.get("mean_harm")) or 0))
        title = f"{entry['format']}: tensors that lose most"
        tables.append(_folded(title, _table(tensors, of_tensors)))
    return _table(rows, columns) + "".join(tables) if rows else ""
