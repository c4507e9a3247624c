# SPDX-License-Identifier: Apache-2.0
"""What the command says of a recorded float32 run, and how real 16-bit training then ends."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import models
import real
from grid import FLOAT32, Setting
from lines import Line, head
from reported_models import RECIPES

import dlsim

FORMATS = ("fp16", "bf16", "cb16")
SEEDS = range(8)
VERDICTS = [Setting(format, "verdict") for format in FORMATS]
TRAININGS = [FLOAT32, *(Setting(format, "autocast") for format in FORMATS)]
TORCH_START = 2.0**16  # of GradScaler, where the command recommends none


def verdicts(name: str, seed: int, chosen: list[Setting]) -> Iterable[Line]:
    """Yields what the command says of each format, with the forward pass recorded and without."""
    whole, gradients = (_tuned(name, seed, settings) for settings in ({}, {"forward_every": 0}))
    without = {one["format"]: one["verdict"] for one in gradients["verdict"]["formats"]}
    for place, setting in enumerate(chosen):
        format = setting.format
        found = next(one for one in whole["verdict"]["formats"] if one["format"] == format)
        yield {
            **head(name, seed, setting),
            "verdict": found["verdict"],
            "gradients_only": without[format],
            "headroom": round(found["forward"]["headroom"], 2),
            "start": _start(next(one for one in whole["formats"] if one["format"] == format)),
            "sentence": whole["verdict"]["lines"][place],
            "risk": " ".join(whole["verdict"]["lines"][len(FORMATS) + 1 :]),
        }


def trainings(name: str, seed: int, chosen: list[Setting]) -> Iterable[Line]:
    """Yields how the training ends; 16 bits begin with the start that the command recommends."""
    starts = {line["format"]: line["start"] for line in verdicts_of(name)}
    for setting in chosen:
        start = starts.get(setting.format, 1.0)
        outcome = real.train(models.training_of(RECIPES[name], seed), setting.format, start)
        yield {
            **head(name, seed, setting),
            "loss": outcome.loss,
            "skipped_steps": outcome.skipped,
        }
