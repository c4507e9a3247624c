# SPDX-License-Identifier: Apache-2.0
"""What was trained and recorded, and the verdict on each run in a paragraph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ._inputs import Run, ShownResult
from ._json import integer, number, objects, part, visible
from ._text import format_bytes, format_count, format_number, format_scale, format_share, likeliest
from .headroom import forward_alone
from .policies import applied_nonfinite, hopeless_skips, outcome

OPEN_RUNS = 6  # verdicts that are shown at once; more are folded


def headline(results: Sequence[ShownResult], runs: Sequence[Run]) -> str:
    """Returns the HTML that opens the page."""
    parts = [_recordings(results)]
    if runs and not forward_alone(runs):
        cards = [_card(run) for run in runs]
        parts.append(f'<div class="verdicts">{"".join(cards[:OPEN_RUNS])}</div>')
        if len(cards) > OPEN_RUNS:
            parts.append(
                f"<details><summary>{len(cards) - OPEN_RUNS} more runs</summary>"
                f'<div class="verdicts">{"".join(cards[OPEN_RUNS:])}</div></details>'
            )
    return "".join(parts)


def _recordings(results: Sequence[ShownResult]) -> str:
    """What was recorded, once per distinct trace."""
    seen: dict[str, list[ShownResult]] = {}
    for result in results:
        trace = _trace(result)
        key = repr((trace.get("steps"), trace.get("file_bytes"), _text_of(result)))
        seen.setdefault(key, []).append(result)
    return "".join(_recording(group) for group in seen.values())


def _trace(result: ShownResult) -> dict[str, Any]:
    return part(result.data, "trace")


def _text_of(result: ShownResult) -> dict[str, Any]:
    return part(_trace(result), "description")


def _recording(group: Sequence[ShownResult]) -> str:
    trace, described = _trace(group[0]), _text_of(group[0])
    name = described.get("model") or ", ".join(group[0].trace_paths) or "unnamed trace"
    facts = []
    if trace.get("steps") is not None:
        facts.append(
            f"{format_count(trace['steps'])} recorded steps "
            f"({format_count(trace.get('first_step'))} to {format_count(trace.get('last_step'))})"
        )
    if trace.get("file_bytes") is not None:
        kind = "profile" if trace.get("profile") else "trace"
        facts.append(f"{kind} of {format_bytes(trace['file_bytes'])}")
    facts.append("results: " + ", ".join(f"{r.kind} {visible(Path(r.name).name)}" for r in group))
    about = described.get("description")
    lead = f"<p>{escape(visible(about))}</p>" if about else ""
    rows = "".join(
        f"<div><dt>{escape(visible(key))}</dt><dd>{escape(visible(value))}</dd></div>"
        for key, value in described.items()
        if key != "description"
    )
    paths = escape(", ".join(visible(path) for path in group[0].trace_paths))
    rows += f"<div><dt>path</dt><dd>{paths}</dd></div>" if paths else ""
    more = f"<details><summary>How it was recorded</summary><dl class='facts'>{rows}</dl></details>"
    return (
        f'<div class="recording"><p class="model">{escape(visible(name))}</p>{lead}'
        f"<p class='facts-line'>{escape('; '.join(facts))}</p>{more if rows else ''}</div>"
    )


def _card(run: Run) -> str:
    grade, reason = outcome(run)
    return (
        f'<article class="verdict {grade}"><h3>{escape(run.label)} '
        f'<span class="grade {grade}">{escape(reason)}</span></h3>'
        f"<p>{escape(verdict(run))}</p></article>"
    )


def verdict(run: Run) -> str:
    """Returns the paragraph on a run: what was skipped and why, the scale's path, what was lost."""
    summary = run.summary
    steps = integer(summary.get("steps"))
    if steps == 0:
        events = objects(run.data, "events") or [{}]
        return f"The policy refused its parameters: {visible(events[0].get('message', ''))}"
    sentences = [_skipped(run, steps), _path(summary), _broken(run), _lost(summary)]
    if summary.get("stopped_at_step") is not None:
        sentences.append(
            f"The original software raises an error at step {summary['stopped_at_step']} and ends "
            "the training."
        )
    uncertain = integer(summary.get("uncertain_steps"))
    if uncertain:
        sentences.append(
            f"The profile leaves {format_count(uncertain)} steps undetermined; the most likely "
            "outcome is shown for them."
        )
    return " ".join(sentence for sentence in sentences if sentence)


def _skipped(run: Run, steps: int) -> str:
    skipped = integer(run.summary.get("skipped_steps"))
    if skipped == 0:
        return f"All {format_count(steps)} steps were applied."
    were = "was" if skipped == 1 else "were"
    text = f"{format_count(skipped)} of {format_count(steps)} steps {were} skipped"
    text += f" ({format_share(skipped / steps)})"
    in_vain = hopeless_skips(run)
    if in_vain:
        text += f", {format_count(in_vain)} of them not finite at any lower loss scale"
    first = run.summary.get("first_applied_step")
    if first is None:
        return text + "; the optimizer never stepped."
    run_length = integer(run.summary.get("longest_skip_run"))
    return (
        text
        + f"; the first applied step is {first}"
        + (
            f", at most {format_count(run_length)} were skipped in a row."
            if run_length > 1
            else "."
        )
    )


def _path(summary: Mapping[str, Any]) -> str:
    low, high, final = (format_scale(summary.get(f"{k}_scale")) for k in ("min", "max", "final"))
    if low == high == final:
        return f"The loss scale stayed at {low}."
    return f"The loss scale ranged from {low} to {high} and ended at {final}."


def _broken(run: Run) -> str:
    count = applied_nonfinite(run)
    if count == 0:
        return ""
    if count == 1:
        return "One step was applied although it is not finite."
    return f"{format_count(count)} steps were applied although they are not finite."


def _lost(summary: Mapping[str, Any]) -> str:
    share = number(summary.get("underflow_fraction")) or 0.0
    if share == 0:
        return "No gradient became zero."
    text = likeliest(format_share(share), summary) + " of the nonzero gradients became zero."
    mean, worst = number(summary.get("mean_harm")), number(summary.get("worst_harm"))
    if mean is None or worst is None:
        return text
    return text + (
        f" Mean harm of the applied steps: {format_share(mean)}, at most {format_share(worst)}."
    )


def notes(runs: Sequence[Run]) -> str:
    """Returns the remarks of the runs, each once, with the runs that it is about."""
    about: dict[str, list[str]] = {}
    for run in runs:
        noted = run.data.get("notes")
        for note in noted if isinstance(noted, list) else []:
            about.setdefault(visible(note), []).append(run.label)
        for event in objects(run.data, "events")[:3]:
            text = f"step {event.get('step')}: {event.get('type')}: {event.get('message')}"
            about.setdefault(visible(text), []).append(run.label)
    items = "".join(
        f"<li>{escape(note)} <span class='of'>({escape(_labels(labels))})</span></li>"
        for note, labels in about.items()
    )
    return (
        f"<details><summary>Notes on the policies</summary><ul>{items}</ul></details>"
        if items
        else ""
    )


def _labels(labels: Sequence[str]) -> str:
    more = f" and {format_number(len(labels) - 4)} more" if len(labels) > 4 else ""
    return ", ".join(labels[:4]) + more
