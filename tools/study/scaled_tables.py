# SPDX-License-Identifier: Apache-2.0
"""Kept results of training in formats with scales of their own, and their table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from evidence import spread
from reported_tables import LEAST, judged, outcome_of
from tables import percent, table

FLOAT32 = "float32"


@dataclass(frozen=True)
class Row:
    """A model with a format; none of the figures for float32."""

    model: str
    format: str
    errors: str  # by seed
    verdict: str = ""
    forward: str = ""  # mean harm over steps and tensors
    backward: str = ""

    def values(self) -> list[float]:
        """Returns the errors."""
        return [float(error) for error in self.errors.split()]


def report(rows: list[Row]) -> str:
    """Returns a table of all models and formats."""
    float32 = {row.model: row.values() for row in rows if row.format == FLOAT32}
    found = [_cells(row, float32[row.model]) for row in rows if row.format != FLOAT32]
    head = "model format forward backward verdict excess spreads ends sentence".split()
    return table(head, found)


def summary(rows: list[Row]) -> str:
    """Returns the table of docs/scaled-formats.md: how many sentences were right, by format."""
    cells = [line.strip("| ").split(" | ") for line in report(rows).splitlines()[2:]]
    words = ["right", "missed", "false alarm", "undecided"]
    found = {}
    for cell in cells:
        found.setdefault(cell[1], []).append(cell[-1])
    return table(
        ["format", *words],
        [[name, *(str(said.count(word)) for word in words)] for name, said in found.items()],
    )


def _cells(row: Row, float32: list[float]) -> list[str]:
    errors = row.values()
    excess = float(np.mean(errors) - np.mean(float32))
    share, spreads = percent(excess / float(np.mean(float32))), f"{excess / spread(float32):.1f}"
    outcome = outcome_of(errors, float32, LEAST)
    harm = [percent(float(one)) if one else "-" for one in (row.forward, row.backward)]
    fails = row.verdict != "as is"
    verdict = "worse" if fails else "trains"
    return [row.model, row.format, *harm, verdict, share, spreads, outcome, judged(fails, outcome)]
