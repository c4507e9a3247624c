# SPDX-License-Identifier: Apache-2.0
"""What `dlsim tune` recommends for each format, why, and the configuration to copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ._inputs import ShownResult
from ._json import digits, log2, number, objects, part, visible
from ._text import format_count, format_number, format_scale, format_share, raise_powers

MAX_STEPS = 2000  # points of the plot of head-room; of more the lowest of each bin
_GRADES = {
    "no scale needed": ("good", "no loss scale needed"),
    "static scale enough": ("good", "a fixed loss scale is enough"),
    "dynamic scaling recommended": ("fair", "dynamic loss scaling recommended"),
    "no scale helps": ("bad", "no loss scale helps"),
}
_BLOCKS = (
    ("zoo", "Cerebras Model Zoo"),
    ("deepspeed", "DeepSpeed"),
    ("torch", "PyTorch"),
    ("accelerate", "Accelerate"),
    ("trainer", "Hugging Face Trainer"),
    ("lightning", "Lightning"),
)
_TENSORS = 8  # rows of a list of tensors
# What a tensor lost: the first of these that the result has.
_LOSSES = {
    "worst_harm": "worst step's harm",
    "worst_step_energy_lost": "worst step's energy lost",
}


def recommendation_charts(result: ShownResult) -> list[dict[str, Any]]:
    """Returns per format the bars of gradient lost, and the head-room over the steps."""
    return [
        {"format": visible(item["format"]), "bars": _bars(item), **_headroom(item)}
        for item in result.data["formats"]
    ]


def _bars(item: Mapping[str, Any]) -> dict[str, Any]:
    """Mean loss of the recommendation and of what it is compared with."""
    rows: list[tuple[str, Any, Any]] = []
    chosen = part(item, "recommended")
    if chosen:
        rows.append((f"recommended: {chosen.get('policy')}", chosen, chosen.get("skipped_steps")))
    for other in objects(item, "other_policies"):
        rows.append((f"tuned {other.get('policy')}", other, other.get("skipped_steps")))
    static = part(item, "static")
    if static:
        label = f"best fixed scale, {format_scale(static.get('scale'))}"
        rows.append((label, static, static.get("nonfinite_steps")))
    for other in objects(item, "comparisons"):
        rows.append((str(other.get("label")), other, other.get("skipped_steps")))
    kept = [
        (label, loss, n)
        for label, of, n in rows
        if (loss := number(of.get("mean_loss"))) is not None
    ]
    return {
        "label": [visible(label) for label, _, _ in kept],
        "loss": [digits(loss, 6) for _, loss, _ in kept],
        "skipped": [n for _, _, n in kept],
        "bound": digits(number(item.get("least_possible_mean_loss")), 6),
    }


def _headroom(item: Mapping[str, Any]) -> dict[str, Any]:
    steps = objects(part(item, "headroom"), "steps")
    window = part(item, "window")
    return {
        "steps": [[s.get("step"), log2(s.get("largest_scale"))] for s in _thinned(steps)],
        "recommended": [
            log2(part(item, "recommended").get("min_scale")),
            log2(part(item, "recommended").get("max_scale")),
        ],
        "window": None
        if not window or window.get("empty")
        else [log2(window.get("low")), log2(window.get("high"))],
    }


def _thinned(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of each bin the step with the least head-room; one that no scale makes finite is least."""
    if len(steps) <= MAX_STEPS:
        return list(steps)
    bins = MAX_STEPS
    parts = [steps[b * len(steps) // bins : (b + 1) * len(steps) // bins] for b in range(bins)]
    return [min(part, key=lambda s: number(s.get("largest_scale")) or -1.0) for part in parts]


def recommendation_cards(result: ShownResult, key: str) -> str:
    """Returns the HTML of the formats as asked: the first, the others folded, notes once.

    `key` tells this result's charts from another's.
    """
    items = list(enumerate(result.data["formats"]))
    common = _common_notes([item for _, item in items])
    cards = [_card(item, f"{key}-{i}", common) for i, item in items]
    names = ", ".join(escape(visible(item["format"])) for _, item in items[1:])
    others = "".join(cards[1:])
    folded = f"<details><summary>Other formats: {names}</summary>{others}</details>"
    return cards[0] + _note_list(common) + (folded if others else "")


def _common_notes(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the notes that all formats have; none where there is one format."""
    notes = [_texts(item) for item in items]
    return [] if len(notes) < 2 else [note for note in notes[0] if all(note in n for n in notes)]


def _card(item: Mapping[str, Any], key: str, common: Sequence[str]) -> str:
    grade, verdict = _GRADES.get(item["verdict"], ("fair", visible(item["verdict"])))
    start = _start(item)
    if item["verdict"] == "no scale needed" and start > 1:  # as the command says it
        verdict = f"start a loss scaler at {format_scale(start)}"
    name = escape(visible(item["format"]))
    if item["verdict"] == "no scale helps":  # nothing to copy, and no band
        return f"""<article class="card">
<h3>{name} <span class="grade {grade}">{escape(verdict)}</span></h3>
<p>{escape(raise_powers(visible(item.get("reason", ""))))}</p>
{_note_list([note for note in _texts(item) if note not in common])}
</article>"""
    return f"""<article class="card">
<h3>{name} <span class="grade {grade}">{escape(verdict)}</span></h3>
<p>{escape(raise_powers(visible(item.get("reason", ""))))}</p>
{_recommended(item)}
<div class="columns">
<figure><figcaption>Gradient lost per step, on average; a skipped step loses all. The dashed line is
what the best power of two loses, chosen for each step in hindsight.</figcaption>
<div class="chart" data-chart="loss" data-key="{key}"></div></figure>
<figure><figcaption>Largest loss scale at which each step is finite. The band holds the scales that
the recommendation used{_window_words(item)}.</figcaption>
<div class="chart" data-chart="headroom" data-key="{key}"></div></figure>
</div>
{_tensors(item)}
{_blocks(item, key)}
{_note_list([note for note in _texts(item) if note not in common])}
</article>"""


def _start(item: Mapping[str, Any]) -> float:
    """Returns the initial scale of the recommended policy; 1 if it has none."""
    params = part(part(item, "recommended"), "params")
    return next((number(value) or 1.0 for key, value in params.items() if "init" in key), 1.0)


def _window_words(item: Mapping[str, Any]) -> str:
    window = part(item, "window")
    if not window:
        return ""
    if window.get("empty"):
        return "; no single scale is safe at all steps"
    low, high = format_scale(window.get("low")), format_scale(window.get("high"))
    return f"; scales from {low} to {high} are safe at all steps"


def _recommended(item: Mapping[str, Any]) -> str:
    chosen = part(item, "recommended")
    if not chosen:
        return ""
    pairs = [
        (f"<code>{escape(visible(key))}</code>", escape(_value(value)))
        for key, value in part(chosen, "params").items()
    ]
    pairs += [
        ("gradient lost", format_share(chosen.get("mean_loss"))),
        ("skipped steps", format_count(chosen.get("skipped_steps"))),
        (
            "skipped before the first applied",
            format_count(chosen.get("skipped_before_first_applied")),
        ),
        ("policies tried", format_count(chosen.get("policies_tried"))),
    ]
    rows = "".join(f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in pairs)
    optimal = ""
    if chosen.get("optimal"):
        optimal = " No better choice exists, even one chosen per step in hindsight."
    if chosen.get("eligible") is False:
        optimal = " The original software raises an error under every policy that was tried."
    policy = escape(visible(chosen.get("policy")))
    return f"<p>Recommended: <strong>{policy}</strong>.{optimal}</p><dl class='facts'>{rows}</dl>"


def _value(value: object) -> str:
    found = number(value)
    if found is None:
        return visible(value)
    text = f"{found:.10g}"
    if found <= 0 or not found.hex().startswith("0x1.0000000000000p"):
        return text
    power = format_scale(found)
    return power if found < 0.01 else f"{text} = {power}" if found > 16 else text


def _tensors(item: Mapping[str, Any]) -> str:
    lists = (
        ("tensors", "Loses most at the recommendation", _LOSSES, format_share),
        (
            "overflow_tensors",
            "Overflow first",
            {"absmax": "largest magnitude"},
            format_number,
        ),
        ("underflow_tensors", "Lose most to underflow", _LOSSES, format_share),
    )
    parts = []
    for key, title, columns, show in lists:
        rows = objects(item, key)
        column = next((name for name in columns if any(name in t for t in rows)), "")
        rows = [t for t in rows if number(t.get(column))][:_TENSORS]
        if not rows:
            continue
        unit = columns[column]
        body = "".join(
            f"<tr><th scope='row'>{escape(visible(t.get('name')))}</th>"
            f"<td class='number'>{escape(show(t.get(column)))}</td></tr>"
            for t in rows
        )
        parts.append(
            f"<div><h4>{title}</h4><table class='plain'><thead><tr><th scope='col'>tensor</th>"
            f"<th scope='col'>{unit}</th></tr></thead><tbody>{body}</tbody></table></div>"
        )
    if not parts:
        return ""
    lists_html = f"<div class='columns'>{''.join(parts)}</div>"
    return f"<details><summary>Tensors that decide</summary>{lists_html}</details>"


def _blocks(item: Mapping[str, Any], key: str) -> str:
    config = part(item, "config")
    blocks = [(name, config[name]) for name, _ in _BLOCKS if isinstance(config.get(name), str)]
    titles = dict(_BLOCKS)
    parts = []
    for name, text in blocks:
        block = f"config-{key}-{name}"
        shown = escape("\n".join(visible(line) for line in text.split("\n")))
        parts.append(
            f'<figure class="config"><figcaption>{titles[name]} '
            f'<button type="button" class="copy" data-copy="{block}">Copy</button></figcaption>'
            f'<pre id="{block}" tabindex="0">{shown}</pre></figure>'
        )
    if not parts:
        return ""
    return f'<h4>Configuration</h4><div class="columns">{"".join(parts)}</div>'


def _note_list(notes: Sequence[str]) -> str:
    rows = "".join(f"<li>{escape(raise_powers(note))}</li>" for note in notes)
    return f"<ul class='notes'>{rows}</ul>" if rows else ""


def _texts(item: Mapping[str, Any]) -> list[str]:
    notes = item.get("notes")
    return [visible(note) for note in notes] if isinstance(notes, list) else []
