# SPDX-License-Identifier: Apache-2.0
"""The runs side by side: how each ended, what it skipped and what it lost."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from ._inputs import Run
from ._json import number, visible
from ._text import format_count, format_number, format_scale, format_share

NEGLIGIBLE = 1e-6  # of a step's energy, as dlsim tune has it


def outcome(run: Run) -> tuple[str, str]:
    """Returns a grade ("good", "fair" or "bad") and what it is for, in a few words."""
    summary = run.summary
    steps, skipped = _count(summary, "steps"), _count(summary, "skipped_steps")
    in_vain = hopeless_skips(run)
    worst = number(summary.get("worst_step_energy_lost")) or 0.0
    if steps == 0:
        return "bad", "refused by the policy"
    if summary.get("stopped_at_step") is not None:
        return "bad", f"stopped at step {summary['stopped_at_step']}"
    if summary.get("first_applied_step") is None:
        return "bad", "no step applied"
    if applied_nonfinite(run) > 0:
        return "bad", f"{format_count(applied_nonfinite(run))} steps applied that are not finite"
    if skipped > in_vain:
        share = (skipped - in_vain) / steps
        return ("bad" if share > 0.1 else "fair"), (
            f"{format_count(skipped - in_vain)} steps skipped for the scale"
        )
    if worst > NEGLIGIBLE:
        return ("bad" if worst > 0.01 else "fair"), "a step loses part of its gradient"
    if in_vain:
        return "fair", f"{format_count(in_vain)} steps beyond help"
    return "good", "nothing lost"


def _count(summary: Mapping[str, Any], key: str) -> int:
    return int(number(summary.get(key)) or 0)


def applied_nonfinite(run: Run) -> int:
    """Returns how many steps were applied although they failed the finite test."""
    steps = run.data["steps"]
    return sum(step.get("finite") is False and not step.get("skipped") for step in steps)


def hopeless_skips(run: Run) -> int:
    """Returns how many skipped steps are not finite at any lower loss scale either."""
    steps = run.data["steps"]
    return sum(bool(s.get("skipped")) and s.get("lower_scale_helps") is False for s in steps)


def fates(run: Run) -> list[int]:
    """Returns the steps that were applied, skipped for the scale, skipped in vain, applied broken."""
    steps, skipped = _count(run.summary, "steps"), _count(run.summary, "skipped_steps")
    broken, in_vain = applied_nonfinite(run), hopeless_skips(run)
    return [steps - skipped - broken, skipped - in_vain, in_vain, broken]


def policies_table(runs: list[Run]) -> str:
    """Returns the HTML table with a row per run; every cell has its value for sorting."""
    heads = (
        ("run", "text", ""),
        ("outcome", "text", "one word for the run; how it is found stands below"),
        ("skipped", "number", "steps on which the optimizer did not step, of all steps"),
        ("first applied", "number", "number of the first step that was not skipped"),
        ("final scale", "number", "loss scale after the last step"),
        ("scales used", "number", "smallest and largest loss scale of the steps"),
        ("underflow", "number", "share of the finite nonzero gradients that become zero"),
        ("energy lost", "number", "worst applied step: share of its sum of squares lost"),
        ("overflow", "number", "finite gradients that become infinite"),
    )
    head = "".join(
        f'<th scope="col" data-type="{kind}" title="{escape(title)}">{escape(name)}</th>'
        for name, kind, title in heads
    )
    body = "".join(_row(i, run) for i, run in enumerate(runs))
    return (
        '<div class="scroll"><table class="sortable" id="policies-table">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(index: int, run: Run) -> str:
    summary = run.summary
    grade, reason = outcome(run)
    steps, skipped = _count(summary, "steps"), _count(summary, "skipped_steps")
    share = skipped / steps if steps else 0.0
    bar = f'<span class="bar" style="--share:{share:.4f}"></span>'
    first = summary.get("first_applied_step")
    ranged = "" if steps == 0 else f"{_scale(summary, 'min')} \u2026 {_scale(summary, 'max')}"
    cells = [
        f'<th scope="row" data-value="{escape(run.label)}">'
        f'<button type="button" class="pick" data-run="{index}">{escape(run.label)}</button></th>',
        f'<td data-value="{("good", "fair", "bad").index(grade)}">'
        f'<span class="grade {grade}">{grade}</span> {escape(reason)}</td>',
        f'<td data-value="{share}" class="number">{bar}{format_count(skipped)}'
        f'<span class="of"> / {format_count(steps)}</span></td>',
        _cell(first, "never" if first is None else format_count(first)),
        _cell(summary.get("final_scale"), format_scale(summary.get("final_scale"))),
        _cell(summary.get("max_scale"), ranged),
        _cell(summary.get("underflow_fraction"), format_share(summary.get("underflow_fraction"))),
        _cell(
            summary.get("worst_step_energy_lost"),
            format_share(summary.get("worst_step_energy_lost")),
        ),
        _cell(summary.get("overflow"), format_count(summary.get("overflow"))),
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _scale(summary: Mapping[str, Any], end: str) -> str:
    return format_scale(summary.get(f"{end}_scale"))


def _cell(value: object, text: str) -> str:
    found = number(value)
    key = "" if found is None else format_number(found, 17)
    return f'<td class="number" data-value="{key}">{escape(visible(text))}</td>'
