# SPDX-License-Identifier: Apache-2.0
"""The verdicts of the results: their lines, and the scale windows with the runs' paths in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ..results._verdict import FormatVerdict, StepWindow, Verdict
from ._inputs import Run, ShownResult
from ._json import log2, packed, visible
from ._text import format_count, format_scale, raise_powers

MAX_POINTS = 2000  # changes of a window; of more the narrowest of neighboring ones
OPEN = 126.0  # log2 of the largest scale that is tried: a window that ends there has no end
WITH_A_SCALE = "with a scale"
_GRADES = {
    "as is": ("good", "scale 1 is safe"),
    WITH_A_SCALE: ("fair", "needs a loss scale"),
    "no scale serves": ("bad", "no loss scale is safe"),
    "overflows": ("bad", "cannot be judged"),
    "fits in forward": ("fair", "fits in forward"),
    "fails in forward": ("bad", "fails in forward"),
}
_DYNAMIC = ("fair", "needs dynamic loss scaling")


@dataclass
class ShownVerdict:
    """A verdict, the files of the results that have it, and the numbers of their runs."""

    verdict: Verdict
    files: list[str]
    runs: list[int]

    def charts(self) -> list[tuple[int, FormatVerdict]]:
        """Returns the formats that some loss scale serves, with their places in the verdict.

        As far as their windows are known. A band of others would look as if their scales were safe.
        """
        formats = enumerate(self.verdict.formats)
        return [(i, found) for i, found in formats if found.steps and found.serves]


def verdicts_of(results: Sequence[ShownResult], runs: Sequence[Run]) -> list[ShownVerdict]:
    """Returns the verdicts of the results; what replay and tune both say is there once."""
    found: dict[object, ShownVerdict] = {}
    for result in results:
        verdict = result.verdict
        if verdict is None:
            continue
        said = (verdict.lines, verdict.formats)
        shown = found.setdefault(said, ShownVerdict(verdict, [], []))
        shown.files.append(Path(result.name).name)
        shown.runs += [i for i, run in enumerate(runs) if run.result is result]
    return list(found.values())


def windows_data(shown: ShownVerdict, runs: Sequence[Run]) -> dict[str, Any]:
    """Returns what scale_windows.js draws, by the format's place in the verdict: see `bands_of`."""
    return {
        str(i): {
            "format": visible(found.format),
            "scale": log2(found.scale) if found.verdict == WITH_A_SCALE else None,
            "bands": packed(bands_of(found.steps)),
            "runs": of_format,
        }
        for i, found in shown.charts()
        for of_format in [[r for r in shown.runs if runs[r].format == found.format]]
    }


def bands_of(steps: Sequence[StepWindow]) -> dict[str, Any]:
    """Returns where the window changes: from each step on until the next, the last until `end`.

    The ends of the windows are binary logarithms; null where no scale is safe.
    """
    kept = _thinned(
        [
            window
            for i, window in enumerate(steps)
            if i in (0, len(steps) - 1) or window[1:] != steps[i - 1][1:]
        ]
    )
    first, last = steps[0].step, steps[-1].step
    return {
        "step": [window.step for window in kept],
        "low": [log2(window.low) for window in kept],
        "high": [log2(window.high) for window in kept],
        "end": last + max(1, (last - first) // max(1, len(steps) - 1)),
    }


def _thinned(windows: list[StepWindow]) -> list[StepWindow]:
    if len(windows) <= MAX_POINTS:
        return windows
    bins = MAX_POINTS // 3
    kept: list[StepWindow] = []
    for b in range(bins):
        part = windows[b * len(windows) // bins : (b + 1) * len(windows) // bins]
        served = [window for window in part if window.low is not None]
        empty = [window for window in part if window.low is None][:1]
        ends = [max(served, key=_low), min(served, key=_high)] if served else []
        kept += sorted({*ends, *empty}, key=lambda window: window.step)
    return kept if kept[-1].step == windows[-1].step else [*kept, windows[-1]]


def _low(window: StepWindow) -> float:
    return window.low or 0.0


def _high(window: StepWindow) -> float:
    return window.high or 0.0


def verdict_html(verdicts: Sequence[ShownVerdict], first_figure: str = "") -> str:
    """Returns the HTML that opens the page: of each verdict its lines, then the windows.

    `first_figure` follows the lines of the first.
    """
    several = len(verdicts) > 1
    parts = [
        _shown(shown, str(key), several, "" if key else first_figure)
        for key, shown in enumerate(verdicts)
    ]
    return "".join(parts) or first_figure


def _shown(shown: ShownVerdict, key: str, named: bool, first_figure: str) -> str:
    files = escape(visible(", ".join(dict.fromkeys(shown.files))))
    head = f"<h3>{files}</h3>" if named else ""
    said = [line for entry in shown.verdict.lines for line in entry.split("\n")]
    lines = "".join(f"<p>{escape(raise_powers(visible(line)))}</p>" for line in said)
    figures = "".join(_figure(found, f"{key}-{i}") for i, found in shown.charts())
    if figures:
        figures = (
            '<p class="lead">The band holds the safe loss scales of each step: below it tensors '
            "lose too much, above it something overflows. Lines are the scales of the runs. Below "
            "are the loss of the recorded training and the norm of its gradients, where the trace "
            'has them. <a href="#about">What the words mean</a></p>'
            f'<div class="columns">{figures}</div>'
        )
    return f'{head}<div class="said">{lines}</div>{first_figure}{figures}'


def _figure(found: FormatVerdict, key: str) -> str:
    grade, word = _GRADES.get(found.verdict, ("fair", visible(found.verdict)))
    if found.verdict == WITH_A_SCALE and found.scale is None:
        grade, word = _DYNAMIC
    outside, steps = found.steps_outside_window, format_count(len(found.steps))
    facts = [f"all {steps} steps" if outside == 0 else f"{outside} of {steps} steps not covered"]
    if found.window is not None:
        facts.insert(0, _range(*found.window))
    if found.scale is not None and found.verdict == WITH_A_SCALE:
        facts.insert(0, f"use {format_scale(found.scale)}")
    return (
        f"<figure><figcaption><strong>{escape(visible(found.format))}</strong> "
        f'<span class="grade {grade}">{escape(word)}</span> '
        f'{escape("; ".join(facts))}</figcaption><div class="chart tall" data-chart="windows" '
        f'data-key="{key}"></div></figure>'
    )


def _range(low: float, high: float) -> str:
    from_any, to_any = (abs(log2(end) or 0.0) >= OPEN for end in (low, high))
    if from_any and to_any:
        return "any scale is safe"
    if from_any:
        return f"safe up to {format_scale(high)}"
    if to_any:
        return f"safe from {format_scale(low)}"
    return f"safe scales {format_scale(low)} to {format_scale(high)}"
