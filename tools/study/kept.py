# SPDX-License-Identifier: Apache-2.0
"""The kept results: one row for each model and setting, with the losses of all seeds."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from lines import Line, key_of

COLUMNS = ("model", "format", "under", "losses", "skipped_steps")


@dataclass
class Row:
    """A model and a setting: final losses by seed, skipped steps and figures as means over seeds.

    A loss is infinite where the weights were lost. The format is empty for float32.
    """

    model: str
    format: str
    under: str
    losses: list[float]
    skipped_steps: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def is_static(self) -> bool:
        """Tells a static scale from a policy."""
        return self.under.startswith("2^")

    @property
    def loss(self) -> float:
        """The mean over seeds, infinite if one was lost."""
        return float(np.mean(self.losses))


def rows_of(trainings: list[Line], figures: list[Line]) -> list[Row]:
    """Joins the trainings that differ in their seed alone, with their figures."""
    known = {key_of(line): line["figures"] for line in figures}
    groups = defaultdict(list)
    for line in sorted(trainings, key=lambda line: line["seed"]):
        found = known.get(key_of(line), line.get("figures", {}))
        groups[line["model"], line["format"], line["under"]].append({**line, "figures": found})
    return [_joined(key, group) for key, group in groups.items()]


def _joined(key: tuple[str, str, str], group: list[Line]) -> Row:
    losses = [line["loss"] if math.isfinite(line["loss"]) else math.inf for line in group]
    row = Row(*key, losses, float(np.mean([line.get("skipped_steps", 0) for line in group])))
    for figure in group[0]["figures"]:
        row.figures[figure] = float(np.mean([line["figures"][figure] for line in group]))
    return row


def write(path: Path, rows: list[Row]) -> None:
    """Writes rows as CSV: three digits of each figure, six of each loss."""
    figures = sorted({figure for row in rows for figure in row.figures})
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*COLUMNS, *figures])
        for row in rows:
            losses = " ".join(f"{loss:.6g}" for loss in row.losses)
            values = [f"{row.figures[f]:.3g}" if f in row.figures else "" for f in figures]
            head = [row.model, row.format, row.under, losses, f"{row.skipped_steps:g}"]
            writer.writerow([*head, *values])


def read(path: Path) -> list[Row]:
    """Returns the rows of a file that `write` has written."""
    with path.open(newline="") as file:
        return [_read_row(record) for record in csv.DictReader(file)]


def _read_row(record: dict[str, str]) -> Row:
    losses = [float(loss) for loss in record["losses"].split()]
    figures = {name: float(v) for name, v in record.items() if name not in COLUMNS and v}
    skipped = float(record["skipped_steps"])
    return Row(record["model"], record["format"], record["under"], losses, skipped, figures)
