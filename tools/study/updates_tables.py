# SPDX-License-Identifier: Apache-2.0
"""Kept results of training with weights in bf16, and the table of docs/updates.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from evidence import spread
from reported_tables import LEAST, judged, outcome_of
from tables import percent, table

FLOAT32 = "float32"


@dataclass(frozen=True)
class Row:
    """A training with a variant, none of the figures for float32."""

    training: str
    variant: str
    errors: str  # by seed
    verdict: str = ""
    drift: str = ""
    progress: str = ""

    def values(self) -> list[float]:
        """Returns the errors."""
        return [float(error) for error in self.errors.split()]


def report(rows: list[Row]) -> str:
    """Returns a table of all trainings and variants."""
    return table(_HEAD, _found(rows))


def those_that_ended_worse(rows: list[Row]) -> str:
    """Returns the table of docs/updates.md."""
    return table(_HEAD, [cells for cells in _found(rows) if "worse" in cells])


_HEAD = [*"training weights drift progress excess spreads ends warning".split(), "of 5 %"]


def _found(rows: list[Row]) -> list[list[str]]:
    float32 = {row.training: row.values() for row in rows if row.variant == FLOAT32}
    return [_cells(row, float32[row.training]) for row in rows if row.variant != FLOAT32]


def _cells(row: Row, float32: list[float]) -> list[str]:
    errors = row.values()
    excess = float(np.mean(errors) - np.mean(float32))
    warned = row.verdict != "sound"
    drift = f"**{row.drift}**" if warned else row.drift
    share, spreads = percent(excess / float(np.mean(float32))), f"{excess / spread(float32):.1f}"
    outcomes = [outcome_of(errors, float32, least) for least in (0, LEAST)]
    fares = [judged(warned, one) for one in outcomes]
    return [row.training, row.variant, drift, row.progress, share, spreads, outcomes[0], *fares]
