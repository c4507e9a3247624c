# SPDX-License-Identifier: Apache-2.0
"""The runs side by side: how each ended, what it skipped and what it lost."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from ._inputs import Run
from ._json import integer, objects, part, visible
from ._text import format_count, format_scale, format_share, likeliest, number_cell

TALL = 20  # rows above which the table scrolls by itself
MANY = 0.1  # of the steps: above this share, unsafe scales are no exception


def outcome(run: Run) -> tuple[str, str]:
    """Returns a grade ("good", "fair" or "bad") and the worst that it is for, in a few words."""
    summary = run.summary
    steps, skipped = _count(summary, "steps"), _count(summary, "skipped_steps")
    in_vain, broken = hopeless_skips(run), applied_nonfinite(run)
    for_scale = skipped - in_vain
    path = _path_in_windows(run)
    low, unserved = _count(path, "steps_below"), _count(path, "steps_with_empty_window")
    stopped = summary.get("stopped_at_step")
    never = summary.get("first_applied_step") is None
    hopeless = _says_no_scale_helps(run)
    grades = (
        (steps == 0, "bad", "refused by the policy"),
        (bool(hopeless), "bad", f"{hopeless}: no loss scale helps"),
        (stopped is not None, "bad", f"stopped at step {visible(stopped)}"),
        (never, "bad", "no step applied"),
        (broken > 0, "bad", f"{format_count(broken)} applied though not finite"),
        (for_scale > MANY * steps, "bad", f"{format_count(for_scale)} skipped: scale too high"),
        (low > MANY * steps, "bad", f"scale too low at {format_count(low)} steps"),
        (
            unserved - in_vain > MANY * steps,
            "bad",
            f"no scale is safe at {format_count(unserved)} steps",
        ),
        (for_scale > 0, "fair", f"{format_count(for_scale)} skipped: scale too high"),
        (low > 0, "fair", f"scale too low at {format_count(low)} steps"),
        (in_vain > 0, "fair", f"{format_count(in_vain)} skipped: {_why_in_vain(run)}"),
        (unserved > 0, "fair", f"no scale is safe at {format_count(unserved)} steps"),
        (not path, "fair", "not judged: the file has no verdict"),
    )
    return next(
        ((grade, why) for found, grade, why in grades if found), ("good", "the scale was safe")
    )


def _says_no_scale_helps(run: Run) -> str:
    """Returns what the verdict says of a format that fails whatever the loss scale, or ""."""
    words = {"fails in forward": "fails in forward", "no scale serves": "fails in backward"}
    for found in objects(part(run.result.data, "verdict"), "formats"):
        if found.get("format") == run.format:
            return words.get(str(found.get("verdict")), "")
    return ""


def _path_in_windows(run: Run) -> Mapping[str, Any]:
    """Returns at how many steps the run's scale was safe, or too low; empty if unknown."""
    of_run = [run.data.get(key) for key in ("format", "policy", "config")]
    for path in objects(part(run.result.data, "verdict"), "paths"):
        if [path.get(key) for key in ("format", "policy", "config")] == of_run:
            return path
    return {}


def _count(summary: Mapping[str, Any], key: str) -> int:
    return integer(summary.get(key))


def applied_nonfinite(run: Run) -> int:
    """Returns how many steps were applied although they failed the finite test."""
    steps = run.data["steps"]
    return sum(step.get("finite") is False and not step.get("skipped") for step in steps)


def hopeless_skips(run: Run) -> int:
    """Returns how many skipped steps are not finite at any lower loss scale either."""
    steps = run.data["steps"]
    return sum(bool(s.get("skipped")) and s.get("lower_scale_helps") is False for s in steps)


def _why_in_vain(run: Run) -> str:
    in_vain = [
        s for s in run.data["steps"] if s.get("skipped") and s.get("lower_scale_helps") is False
    ]
    causes = {step.get("cause") for step in in_vain}
    return "Inf/NaN recorded" if causes == {"input"} else "no scale helps"


def fates(run: Run) -> list[int]:
    """Returns the steps applied, skipped as the scale was too high, in vain, applied not finite."""
    steps, skipped = _count(run.summary, "steps"), _count(run.summary, "skipped_steps")
    broken, in_vain = applied_nonfinite(run), hopeless_skips(run)
    return [steps - skipped - broken, skipped - in_vain, in_vain, broken]


def policies_table(runs: list[Run]) -> str:
    """Returns the HTML table with a row per run; every cell has its value for sorting."""
    heads = (
        ("run", "text", ""),
        ("outcome", "text", "the worst that happened; the last section says how it is graded"),
        ("skipped", "number", "skipped optimizer steps, of all steps"),
        ("first applied", "number", "number of the first step that was not skipped"),
        ("final scale", "number", "loss scale after the last step"),
        ("scales used", "number", "smallest and largest loss scale of the steps"),
        ("underflow", "number", "share of the finite nonzero gradients that become zero"),
        ("worst harm", "number", "worst applied step: mean relative squared error of its tensors"),
        ("overflow", "number", "finite gradients that become infinite"),
    )
    head = "".join(
        f'<th scope="col" data-type="{kind}" title="{escape(title)}">{escape(name)}</th>'
        for name, kind, title in heads
    )
    body = "".join(_row(i, run) for i, run in enumerate(runs))
    tall = " tall" if len(runs) > TALL else ""
    return (
        f'<div class="scroll{tall}" tabindex="0"><table class="sortable" id="policies-table">'
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
        f'<span class="grade {grade}">{escape(reason)}</span></td>',
        f'<td data-value="{share}" class="number">{bar}{format_count(skipped)}'
        f'<span class="of"> / {format_count(steps)}</span></td>',
        number_cell(first, "never" if first is None else format_count(first)),
        number_cell(summary.get("final_scale"), format_scale(summary.get("final_scale"))),
        number_cell(summary.get("max_scale"), ranged),
        number_cell(
            summary.get("underflow_fraction"),
            likeliest(format_share(summary.get("underflow_fraction")), summary),
        ),
        number_cell(
            summary.get("worst_harm"),
            likeliest(format_share(summary.get("worst_harm")), summary),
        ),
        number_cell(
            summary.get("overflow"), likeliest(format_count(summary.get("overflow")), summary)
        ),
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _scale(summary: Mapping[str, Any], end: str) -> str:
    return format_scale(summary.get(f"{end}_scale"))
