# SPDX-License-Identifier: Apache-2.0
"""What the command says of a recorded float32 run, and how real 16-bit training then ends."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lines
import models
import real
import reported_tables
from grid import FLOAT32, Setting
from grid import REAL_FORMATS as FORMATS
from lines import Line, head
from reported_models import RECIPES

import dlsim

KEPT = Path(__file__).resolve().parent / "results" / "reported.csv"
SLICE = ("inputs_1000000", "labels_300000", "units_shared")
SEEDS = range(8)  # three did not show the spread
VERDICTS = [Setting(format, "verdict") for format in FORMATS]
TRAININGS = [FLOAT32, *(Setting(format, "autocast") for format in FORMATS)]
TOLERANCE = 0.05  # of an error: sums of another BLAS round otherwise, which training amplifies
TORCH_START = 2.0**16  # of GradScaler, where the command recommends none


def verdicts(name: str, seed: int, chosen: list[Setting]) -> Iterable[Line]:
    """Yields what the command says of each format, with the forward pass recorded and without."""
    whole, gradients = (_tuned(name, seed, settings) for settings in ({}, {"forward_every": 0}))
    without = {one["format"]: one["verdict"] for one in gradients["verdict"]["formats"]}
    sentences = dict(zip(FORMATS, whole["verdict"]["lines"], strict=False))
    tuned = {one["format"]: one for one in whole["formats"]}
    found = {one["format"]: one for one in whole["verdict"]["formats"]}
    for setting in chosen:
        format = setting.format
        yield {
            **head(name, seed, setting),
            "verdict": found[format]["verdict"],
            "gradients_only": without[format],
            "headroom": round(found[format]["forward"]["headroom"], 1),
            "start": _start(tuned[format]),
            "sentence": sentences[format].partition(" ")[2].strip(),
            "risk": " ".join(whole["verdict"]["lines"][len(FORMATS) + 1 :]),
        }


def _tuned(name: str, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    training = models.training_of(RECIPES[name], seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.dlprof"
        training.network.train()
        with dlsim.Recorder(training.network, path, every=1, **settings) as recorder:
            for inputs, targets in training.batches():
                training.optimizer.zero_grad()
                loss = training.recipe.loss(training.network(inputs), targets)
                loss.backward()
                recorder.step(loss=loss, scale=1)
                training.optimizer.step()
        return dlsim.tune(path, formats=list(FORMATS), quiet=True).data


def _start(tuned: dict[str, Any]) -> float:
    """Returns the initial scale of torch's policy, or of another that is recommended.

    1, for no scaler, in bf16 if it needs none: that is how it is used.
    """
    if tuned["format"] == "bf16" and tuned["verdict"] == "no scale needed":
        return 1.0
    offered = [tuned["recommended"], *tuned["other_policies"]]
    starts = {one["policy"]: one["params"].get("init_scale") for one in offered if one}
    return starts.get("torch") or next(filter(None, starts.values()), TORCH_START)


def trainings(
    starts: dict[tuple[str, str], float], name: str, seed: int, chosen: list[Setting]
) -> Iterable[Line]:
    """Yields how the training ends; 16 bits begin with the loss scale that the command gives."""
    for setting in chosen:
        start = starts.get((name, setting.format), 1.0)
        outcome = real.train(models.training_of(RECIPES[name], seed), setting.format, start)
        line = {"loss": outcome.loss, "skipped_steps": outcome.skipped}
        yield {**head(name, seed, setting), **line}


def study(folder: Path, path: Path) -> None:
    """Does what is missing in a folder and writes the results."""
    folder.mkdir(parents=True, exist_ok=True)
    reported_tables.write(path, _rows(folder, list(RECIPES), SEEDS))


def _rows(folder: Path, names: list[str], seeds: Iterable[int]) -> list[reported_tables.Row]:
    said, ends = folder / "reported-verdicts.jsonl", folder / "reported-trainings.jsonl"
    lines.append(said, names, [0], VERDICTS, verdicts)
    starts = {(line["model"], line["format"]): line["start"] for line in lines.read(said)}
    make = functools.partial(trainings, starts)
    lines.append(ends, names, seeds, TRAININGS, make)
    return reported_tables.rows_of(lines.read(said), lines.read(ends))


def check(path: Path) -> int:
    """Trains a seed of a few models and prints what differs from the results; returns 1 if any."""
    known = {(row.model, row.format): row for row in reported_tables.read(path)}
    with tempfile.TemporaryDirectory() as folder:
        rows = _rows(Path(folder), list(SLICE), [0])
    wrong = 0
    for row in rows:
        expected = known[row.model, row.format]
        error, before = row.errors[0], expected.errors[0]
        same = error == before or abs(error - before) <= TOLERANCE * before
        if not same or row.verdict != expected.verdict:
            print(
                f"{row.model} {row.format}: {row.verdict} {error:.4g}, expected "
                f"{expected.verdict} {before:.4g}"
            )
            wrong += 1
    print(f"{len(rows)} trainings, {wrong} differences from {path.name}")
    return int(wrong > 0)
