# SPDX-License-Identifier: Apache-2.0
"""Runs the trainings of the study and keeps one JSON line for each, so that it can go on later."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import models
from grid import Setting
from offline import record, summary_of
from training import train_rounded

Key = tuple[str, int, str, str]  # model, seed, format, under; no format is float32


def key_of(line: dict[str, Any]) -> Key:
    """Returns what a line is about."""
    return line["model"], line["seed"], line["format"], line["under"]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a file; none if there is no file, without one that was cut off."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


def run(path: Path, names: Iterable[str], seeds: Iterable[int], chosen: list[Setting]) -> None:
    """Appends a line for each training that the file does not hold yet."""
    done = {key_of(line) for line in read_lines(path)}
    names = list(names)
    with path.open("a") as file:
        for seed in seeds:
            for name in names:
                begin = time.monotonic()
                for line in _trainings(name, seed, chosen, done):
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                seconds = time.monotonic() - begin
                print(f"{name}, seed {seed}: {seconds:.0f} s", file=sys.stderr, flush=True)


def _trainings(
    name: str, seed: int, chosen: list[Setting], done: set[Key]
) -> Iterable[dict[str, Any]]:
    missing = [s for s in chosen if (name, seed, s.format, s.under) not in done]
    if not missing and (name, seed, "", "float32") in done:
        return
    recording = record(name, seed)
    if (name, seed, "", "float32") not in done:
        noise = sorted({tensor for step in recording.steps.values() for tensor in step.noise})
        yield {**_head(name, seed, Setting("", "float32")), "loss": recording.loss, "noise": noise}
    for setting in missing:
        outcome = train_rounded(models.make(name, seed), setting.format, setting.scaler())
        yield {
            **_head(name, seed, setting),
            "loss": outcome.loss,
            "steps": outcome.steps,
            "skipped_steps": outcome.skipped,
            "final_scale": outcome.scales[-1],
            "figures": {
                figure: float(f"{value:.4g}")
                for figure, value in summary_of(recording, setting).items()
            },
        }


def _head(name: str, seed: int, setting: Setting) -> dict[str, Any]:
    return {"model": name, "seed": seed, "format": setting.format, "under": setting.under}
