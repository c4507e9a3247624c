# SPDX-License-Identifier: Apache-2.0
"""Trains a slice of the study and compares it with the kept results."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import kept
import lines
import trainings
from evidence import spread
from grid import FLOAT32, Setting
from kept import Row

MODELS = ("sigmoid_sgd", "conv_norm", "embedding", "regression", "units", "residual")
SETTINGS = [
    Setting("fp16", "2^-20"),
    Setting("fp16", "2^-12"),
    Setting("fp16", "2^4"),
    Setting("fp8-e5m2", "2^0"),
    Setting("fp16", "torch"),
]
SEED = 0
# Sums of another BLAS round otherwise, which training amplifies.
LOSS_TOLERANCE = 1.0  # in spreads of float32
FIGURE_TOLERANCE = 0.1  # absolute; between total harm and none there is 1


def main(path: Path) -> int:
    """Prints each difference; returns 1 if there is one."""
    known = {(row.model, row.format, row.under): row for row in kept.read(path)}
    with tempfile.TemporaryDirectory() as folder:
        raw, figures = Path(folder) / "trainings.jsonl", Path(folder) / "figures.jsonl"
        lines.append(raw, MODELS, [SEED], [FLOAT32, *SETTINGS], trainings.trainings)
        lines.append(figures, MODELS, [SEED], SETTINGS, trainings.figures)
        rows = kept.rows_of(lines.read(raw), lines.read(figures))
    wrong = 0
    for row in rows:
        expected = known[row.model, row.format, row.under]
        float32 = known[row.model, "", "float32"]
        for text in differences(row, expected, float32):
            print(f"{row.model} {row.format or 'float32'} {row.under}: {text}")
            wrong += 1
    print(f"{len(rows)} trainings, {wrong} differences from {path.name}")
    return int(wrong > 0)


def differences(row: Row, expected: Row, float32: Row) -> list[str]:
    """Returns what differs: the loss of the seed, or the mean harm over all seeds."""
    result = []
    loss, known = row.losses[0], expected.losses[SEED]
    if loss != known and not abs(loss - known) <= LOSS_TOLERANCE * spread(float32.losses):
        result.append(f"expected a final loss of {known:.4g}, got {loss:.4g}")
    for figure in ("param_mean", "act_channel"):
        harm, before = row.figures.get(figure, 0.0), expected.figures.get(figure, 0.0)
        if math.isnan(harm) != math.isnan(before) or abs(harm - before) > FIGURE_TOLERANCE:
            result.append(f"expected {figure} of {before:.3g}, got {harm:.3g}")
    return result
