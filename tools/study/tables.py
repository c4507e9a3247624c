# SPDX-License-Identifier: Apache-2.0
"""What the kept results say, as Markdown: figures, misses, policies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
from evidence import (
    ADAM,
    CHOSEN,
    WHOLE,
    WITH_CHANNELS,
    Case,
    Judgment,
    cases,
    excess_of,
    harmed_of,
    is_held_out,
    judge,
    values_of,
    warned_by,
    warned_by_any,
)
from kept import Row
from roc import best_threshold, errors_of

CROSS_VALIDATED = (
    "act_channel",
    "act_mean",
    "param_channel",
    "param_mean",
    "param_element_run",
    "param_underflow",
    "param_energy",
)
MODES = {
    "": "Means over the steps:",
    "max": "Largest of all steps:",
    "begin": "Means over the first tenth of the steps:",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(share: float) -> str:
    """Returns a share in per cent."""
    return f"{100 * share:.1f} %"


def figures_table(judgments: list[Judgment]) -> str:
    """Returns the judgments, best first."""
    rows = [
        (
            f"`{j.figure}`",
            f"{j.threshold:.2g}",
            f"{j.area_in:.3f}",
            f"{j.area_out:.3f}",
            percent(j.errors_in.missed),
            percent(j.errors_in.false_alarms),
            percent(j.errors_out.missed),
            percent(j.errors_out.false_alarms),
        )
        for j in sorted(judgments, key=lambda j: -j.area_in)
    ]
    head = ("figure", "threshold", "AUC", "held out", "missed", "false alarms")
    return table((*head, "held out: missed", "held out: false alarms"), rows)


def judgments(all_cases: list[Case]) -> list[Judgment]:
    """Judges every figure."""
    names = sorted(all_cases[0].row.figures)
    skip = ("skipped", "overflow", "begin_overflow")
    return [judge(all_cases, name) for name in names if name not in skip]


def cross_validated(all_cases: list[Case], figure: str) -> tuple[float, float, float, float]:
    """Chooses by all models but three, in each way; returns how the thresholds and errors vary.

    That is the least and the largest threshold, the mean share missed and of false alarms.
    """
    models = np.array([case.row.model for case in all_cases])
    values, harmed = values_of(all_cases, figure), harmed_of(all_cases)
    chosen, missed, alarms = [], [], []
    for out in combinations(np.unique(models), 3):
        outside = np.isin(models, out)
        threshold = best_threshold(values[~outside], harmed[~outside])
        errors = errors_of(values[outside] > threshold, harmed[outside])
        chosen.append(threshold)
        missed.append(errors.missed)
        alarms.append(errors.false_alarms)
    if not chosen:  # of fewer than three models
        return math.nan, math.nan, math.nan, math.nan
    return min(chosen), max(chosen), float(np.mean(missed)), float(np.mean(alarms))


def cross_validation_table(all_cases: list[Case]) -> str:
    """Returns how thresholds vary when any three models are held out, and how they fare there."""
    rows = []
    for figure in CROSS_VALIDATED:
        least, largest, missed, alarms = cross_validated(all_cases, figure)
        rows.append(
            (f"`{figure}`", f"{least:.2g} to {largest:.2g}", percent(missed), percent(alarms))
        )
    return table(("figure", "threshold", "missed", "false alarms"), rows)


def rules_table(inside: list[Case], outside: list[Case]) -> str:
    """Returns the error rates of what the verdict looks at, without and with channels."""
    rows = []
    for name, rule in (("whole tensors", WHOLE), ("with their channels", WITH_CHANNELS)):
        cells = [name]
        for part in (inside, outside):
            errors = errors_of(warned_by_any(part, rule), harmed_of(part))
            cells += [percent(errors.missed), percent(errors.false_alarms)]
        rows.append(tuple(cells))
    head = ("rule", "missed", "false alarms", "held out: missed", "held out: false alarms")
    return table(head, rows)


def thresholds_table(inside: list[Case], outside: list[Case], figure: str) -> str:
    """Returns the error rates of a figure at other thresholds."""
    rows = []
    for threshold in (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2):
        cells = [f"{threshold:g}"]
        for part in (inside, outside):
            errors = errors_of(values_of(part, figure) > threshold, harmed_of(part))
            cells += [percent(errors.missed), percent(errors.false_alarms)]
        rows.append(cells)
    head = (f"threshold of `{figure}`", "missed", "false alarms")
    return table((*head, "held out: missed", "held out: false alarms"), rows)


def misses_table(all_cases: list[Case]) -> str:
    """Returns the cases in which the chosen rule is wrong."""
    rows = []
    for case, warned in zip(all_cases, warned_by(all_cases), strict=True):
        if warned == case.harmed:
            continue
        row = case.row
        value = f"{row.figures[CHOSEN]:.2g}"
        wrong = "missed" if case.harmed else "false alarm"
        name = f"{row.model}{' (held out)' if is_held_out(case) else ''}"
        rows.append((name, row.format, row.under, wrong, value, f"{case.excess:.1f}"))
    head = ("model", "format", "scale", "wrong how", f"`{CHOSEN}`", "excess, spreads")
    return table(head, rows)


def rule_line(name: str, chosen: list[Case]) -> str:
    """Returns how the chosen rule fares on some cases."""
    errors = errors_of(warned_by(chosen), harmed_of(chosen))
    return (
        f"{name}: {errors.harmed} harmed, {percent(errors.missed)} missed; "
        f"{errors.sound} sound, {percent(errors.false_alarms)} false alarms"
    )


def overflow_line(rows: list[Row]) -> str:
    """Returns what became of static scales at which the recorded run overflows."""
    float32 = {row.model: row for row in rows if not row.format}
    found = [row for row in rows if row.is_static and row.figures["overflow"] > 0]
    lost = sum(not math.isfinite(row.loss) for row in found)
    worse = sum(not excess_of(row, float32[row.model]) <= 1 for row in found)
    return f"{len(found)} overflow in the recorded run: {lost} lost, {worse} worse than float32"


def comparison_table(rows: list[Row]) -> str:
    """Returns excess in spreads and skipped steps of the recommendation and of each policy."""
    found = {(row.model, row.format, row.under): row for row in rows}
    columns = ["recommended", "torch", "cerebras-2.10", "megatron"]
    lines = []
    for model, format, under in found:
        if under != "recommended":
            continue
        float32 = found[model, "", "float32"]
        picked = [found[model, format, name] for name in columns]
        figures = picked[0].figures
        serves = "" if figures["serves"] == 1 else " (none serves)"
        where = f"2^{figures['exponent']:.1f}{serves}".replace(".0", "")
        cells = [f"{excess_of(row, float32):.1f} / {row.skipped_steps:g}" for row in picked]
        lines.append((model, format, where, *cells))
    return table(("model", "format", "scale", *columns), lines)


def recommendation_line(rows: list[Row]) -> str:
    """Returns how the recommendation fares where some static scale trains, and where none does."""
    float32 = {row.model: row for row in rows if not row.format}

    def trains(row: Row) -> bool:
        return excess_of(row, float32[row.model]) <= 1

    served = {(row.model, row.format) for row in rows if row.is_static and trains(row)}
    found = [row for row in rows if row.under == "recommended"]
    some = [row for row in found if (row.model, row.format) in served]
    none = [row for row in found if (row.model, row.format) not in served]

    def warned(rows: list[Row]) -> int:
        return sum(row.figures["serves"] < 1 for row in rows)

    return (
        f"recommended: {sum(map(trains, some))} of {len(some)} train where some static scale does, "
        f"{warned(some)} are warned that none is safe; "
        f"where none does: {len(none)}, {warned(none)} are warned"
    )


def report(rows: list[Row]) -> str:
    """Returns everything, as docs/evidence.md quotes it."""
    static, policies = cases(rows), cases(rows, static=False)
    judged = judgments(static)
    inside = [case for case in static if not is_held_out(case)]
    outside = [case for case in static if is_held_out(case)]
    adam = [case for case in static if case.row.model in ADAM]
    sgd = [case for case in static if case.row.model not in ADAM]
    parts = [
        rule_line("static scales, thresholds chosen by these", inside),
        rule_line("static scales, held out", outside),
        rule_line("all with Adam", adam),
        rule_line("all with SGD", sgd),
        rule_line("policies, replayed", policies),
        overflow_line(rows),
        recommendation_line(rows),
    ]
    for mode, title in MODES.items():
        some = [j for j in judged if j.figure.partition(":")[2] == mode]
        parts += [f"\n{title}\n", figures_table(some)]
    parts += ["\nOther thresholds:\n", thresholds_table(inside, outside, CHOSEN)]
    parts += ["\nThe rule of the verdict:\n", rules_table(inside, outside)]
    parts += ["\nAny three models held out:\n", cross_validation_table(static)]
    parts += ["\nWrong:\n", misses_table(static), "\nPolicies, wrong:\n", misses_table(policies)]
    parts += ["\nExcess in spreads / skipped steps:\n", comparison_table(rows)]
    return "\n".join(parts)
