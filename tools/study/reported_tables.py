# SPDX-License-Identifier: Apache-2.0
"""Whether the command's sentences are true of real training: kept results, test and tables."""

from __future__ import annotations

import csv
import itertools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from evidence import spread
from grid import REAL_FORMATS as FORMATS
from lines import Line
from reported_models import is_held_out
from tables import table

LEVEL, LEAST = 0.05, 0.05  # of the test; an excess of float32's error that matters
QUANTILE = 1.9  # of Student's t at 95 %, one-sided, 8 seeds
FAILS = ("fails in forward", "no scale serves", "overflows")


@dataclass
class Row:
    """A model and a format, none for float32, with what the command says and how training ends."""

    model: str
    format: str
    errors: list[float]  # by seed; infinite where a training was lost
    skipped_steps: float
    verdict: str = ""
    gradients_only: str = ""
    headroom: str = ""
    start: str = ""
    sentence: str = ""
    risk: str = ""


def rows_of(verdicts: list[Line], trainings: list[Line]) -> list[Row]:
    """Joins the trainings that differ in their seed alone, with the verdict on their format."""
    said = {(line["model"], line["format"]): line for line in verdicts}
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in sorted(trainings, key=lambda line: line["seed"]):
        groups.setdefault((line["model"], line["format"]), []).append(line)
    rows = []
    for key, group in groups.items():
        errors = [line["loss"] if math.isfinite(line["loss"]) else math.inf for line in group]
        skipped = float(np.mean([line["skipped_steps"] for line in group]))
        names = [field.name for field in fields(Row)[4:]]
        about = {name: str(said[key][name]) for name in names} if key in said else {}
        rows.append(Row(*key, errors, skipped, **about))
    models = [row.model for row in rows]
    order = ("", *FORMATS)
    return sorted(rows, key=lambda row: (models.index(row.model), order.index(row.format)))


def write(path: Path, rows: Iterable[Row]) -> None:
    """Writes rows as CSV, six digits of each error."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Row)])
        for row in rows:
            errors = " ".join(f"{error:.6g}" for error in row.errors)
            rest = [getattr(row, field.name) for field in fields(Row)[4:]]
            writer.writerow([row.model, row.format, errors, f"{row.skipped_steps:g}", *rest])


def read(path: Path) -> list[Row]:
    """Returns the rows of a file that `write` has written."""
    with path.open(newline="") as file:
        return [_row(record) for record in csv.DictReader(file)]


def _row(record: dict[str, str]) -> Row:
    errors = [float(error) for error in record.pop("errors").split()]
    return Row(errors=errors, skipped_steps=float(record.pop("skipped_steps")), **record)


def chance(differences: np.ndarray) -> float:
    """Returns the share of all choices of signs whose mean is not below that of the differences."""
    signs = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    means = (signs * differences).mean(1)
    return float(np.mean(means >= differences.mean() - 1e-12 * np.abs(differences).mean()))


def outcome_of(errors: list[float], float32: list[float], least: float = LEAST) -> str:
    """Returns `lost`, `worse`, `sound` or `undecided`, by pairs of the same seed.

    Lost: a training of any seed. Worse: by a spread of float32 over seeds and by 5 % (`least`) in
    the mean, and the pairs' signs would give that by chance in less than 5 % of the cases. Sound:
    such an excess can be ruled out at 95 %.
    """
    if not np.isfinite(errors).all():
        return "lost"
    known = np.array(float32)
    differences = np.array(errors) - known
    matters = max(spread(float32), least * float(known.mean()))
    if differences.mean() > matters and chance(differences) < LEVEL:
        return "worse"
    bound = differences.mean() + QUANTILE * differences.std(ddof=1) / math.sqrt(len(known))
    return "sound" if bound < matters else "undecided"


def judged(fails: bool, outcome: str) -> str:
    """Returns how a sentence fares: `right`, `missed`, `false alarm` or `undecided`."""
    if outcome == "undecided":
        return "undecided"
    harmed = outcome != "sound"
    if fails == harmed:
        return "right"
    return "false alarm" if fails else "missed"


@dataclass(frozen=True)
class Case:
    """A model and a format, judged with the forward pass and by gradients alone."""

    row: Row
    float32: Row
    outcome: str
    whole: str
    gradients: str


def cases(rows: list[Row]) -> list[Case]:
    """Returns all models and formats."""
    float32 = {row.model: row for row in rows if not row.format}
    result = []
    for row in rows:
        if row.format:
            outcome = outcome_of(row.errors, float32[row.model].errors)
            both = (judged(one in FAILS, outcome) for one in (row.verdict, row.gradients_only))
            result.append(Case(row, float32[row.model], outcome, *both))
    return result


def report(rows: list[Row]) -> str:
    """Returns the tables of docs/evidence.md."""
    found = cases(rows)
    return "\n\n".join([_counts(found), _wrong(found), _models(found)])


def _counts(found: list[Case]) -> str:
    kinds = ("right", "missed", "false alarm", "undecided")
    parts = {"held in": False, "held out": True}
    rows = []
    for format, by in itertools.product(FORMATS, ("gradients", "whole")):
        row = [format, "gradients only" if by == "gradients" else "forward pass, too"]
        for held_out in parts.values():
            counts = Counter(
                getattr(case, by)
                for case in found
                if case.row.format == format and is_held_out(case.row.model) == held_out
            )
            row += [str(counts[kind]) for kind in kinds]
        rows.append(row)
    columns = [f"{part}: {kind}" for part, kind in itertools.product(parts, kinds)]
    return table(["format", "recorded", *columns], rows)


def _wrong(found: list[Case]) -> str:
    rows = [
        [_model(case), case.row.format, _wrong_how(case), case.row.sentence, case.outcome]
        for case in found
        if case.whole in ("missed", "false alarm")
    ]
    return table(["model", "format", "wrong how", "sentence", "outcome"], rows)


def _wrong_how(case: Case) -> str:
    risk = f"At risk in {case.row.format} in forward" in case.row.risk
    return f"{case.whole}; said to be at risk" if risk else case.whole


def _models(found: list[Case]) -> str:
    rows = []
    for _name, group in itertools.groupby(found, lambda case: case.row.model):
        by_format = {case.row.format: case for case in group}
        first = by_format[FORMATS[0]]
        float32 = f"{_mean(first.float32)} ± {spread(first.float32.errors):.2g}"
        rows.append([_model(first), float32, *(_cell(by_format[one]) for one in FORMATS)])
    return table(["model", "float32", *FORMATS], rows)


def _cell(case: Case) -> str:
    says = "fails" if case.row.verdict in FAILS else "trains"
    mark = "" if case.whole == "right" else f", {case.whole}"
    error = "" if case.outcome == "lost" else f" {_mean(case.row)}"
    return f"{says}: {case.outcome}{error}{mark}"


def _model(case: Case) -> str:
    return f"{case.row.model}{' (held out)' if is_held_out(case.row.model) else ''}"


def _mean(row: Row) -> str:
    return f"{float(np.mean(row.errors)):.3g}"
