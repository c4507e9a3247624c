# SPDX-License-Identifier: Apache-2.0
"""Which figures keep their meaning when the batch grows: one model, a small and a large batch."""

from __future__ import annotations

import dataclasses

import models
import numpy as np
from evidence import spread
from grid import Setting
from offline import record, summary_of
from tables import table
from training import train_rounded

MODEL, BATCHES, SEEDS, EXPONENTS = "sigmoid_adam", (16, 1024), range(3), range(-14, 3, 2)
FIGURES = ("act_channel", "act_mean", "param_channel", "param_mean", "param_energy")


def main() -> int:
    """Prints a table; returns the exit code."""
    recipe = models.RECIPES[MODEL]
    rows = []
    for batch in BATCHES:
        models.RECIPES[MODEL] = dataclasses.replace(recipe, batch=batch)
        rows += [(str(batch), *row) for row in _rows()]
    models.RECIPES[MODEL] = recipe
    names = [f"`{figure}`" for figure in FIGURES]
    print(table(("batch", "scale", "excess, spreads", *names), rows))
    return 0


def _rows() -> list[tuple[str, ...]]:
    recordings = [record(MODEL, seed) for seed in SEEDS]
    float32 = [recording.loss for recording in recordings]
    rows = []
    for exponent in EXPONENTS:
        setting = Setting("fp16", f"2^{exponent}")
        losses = [
            train_rounded(models.make(MODEL, seed), setting.format, setting.scaler()).loss
            for seed in SEEDS
        ]
        excess = (np.mean(losses) - np.mean(float32)) / spread(float32)
        figures = [summary_of(recording, setting) for recording in recordings]
        means = [np.mean([found[name] for found in figures]) for name in FIGURES]
        rows.append((setting.under, f"{excess:.1f}", *(f"{mean:.2g}" for mean in means)))
    return rows
