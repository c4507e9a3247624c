# SPDX-License-Identifier: Apache-2.0
"""The trainings of the study, and the figures of their settings, as lines."""

from __future__ import annotations

import math
from collections.abc import Iterable

import models
import recommendation
from grid import FLOAT32, Setting
from lines import Line, head
from offline import record, summary_of
from training import train_float32, train_rounded

import dlsim


def trainings(name: str, seed: int, chosen: list[Setting]) -> Iterable[Line]:
    """Yields how the training of a model ends under each setting."""
    for setting in chosen:
        if setting == FLOAT32:
            loss = train_float32(models.make(name, seed))
            yield {**head(name, seed, setting), "loss": loss, "skipped_steps": 0}
        else:
            yield _trained(name, seed, setting, setting.scaler())


def recommendations(name: str, seed: int, chosen: list[Setting]) -> Iterable[Line]:
    """Yields how it ends with what the command recommends from the beginning of the run."""
    found = recommendation.recommendations(name, seed)
    for setting in chosen:
        recommended = found[setting.format]
        scaler = recommended.scaler()
        figures = {"exponent": math.log2(scaler.scale), "serves": float(recommended.serves)}
        yield {**_trained(name, seed, setting, scaler), "figures": figures}


def figures(name: str, seed: int, chosen: list[Setting]) -> Iterable[Line]:
    """Yields the offline figures of each setting."""
    recording = record(name, seed)
    for setting in chosen:
        found = summary_of(recording, setting)
        rounded = {figure: float(f"{value:.4g}") for figure, value in found.items()}
        yield {**head(name, seed, setting), "figures": rounded}


def _trained(name: str, seed: int, setting: Setting, scaler: dlsim.LossScaler) -> Line:
    outcome = train_rounded(models.make(name, seed), setting.format, scaler)
    return {
        **head(name, seed, setting),
        "loss": outcome.loss,
        "steps": outcome.steps,
        "skipped_steps": outcome.skipped,
        "final_scale": outcome.scales[-1],
    }
