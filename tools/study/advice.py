#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is the advice enough? Records models in float32, does what the verdict says, and trains.

    tools/study/advice.py [--formats fp16 bf16 cb16] [--seeds 4] [MODEL ...]

Nothing but the advice is changed: the loss scaler starts where the verdict says, and the modules
that its plan names are kept in float32. The advice suffices if no training is lost and the error is
that of float32, within its spread over seeds or 5 %. Needs dlsim and PyTorch 2.3 or later.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: threads would cost the most

import advice_models
import models
import reported_models
import torch
from evidence import spread
from tables import table

import dlsim
from dlsim.emulation._autocast_rules import CudaAutocast

FORMATS = ("fp16", "bf16", "cb16")
TORCH_START = 2.0**16  # of torch.amp.GradScaler
LEAST = 0.05  # an excess of float32's error that matters
IN_A_ROW, SHARE = 40, 0.2  # skipped steps beyond which a training is lost
RECIPES = {**reported_models.RECIPES, **advice_models.RECIPES}
FAILS = ("fails in forward", "no scale serves", "overflows")


@dataclass(frozen=True)
class Ends:
    """How trainings of all seeds end: errors, infinite where lost, and why the first was lost."""

    errors: list[float]
    why: str = ""

    def suffices(self, float32: Ends) -> bool:
        """Returns whether they end as in float32."""
        if not all(map(math.isfinite, self.errors)):
            return False
        mean = _mean(float32.errors)
        return _mean(self.errors) - mean <= max(spread(float32.errors), LEAST * mean)

    def __str__(self) -> str:
        lost = sum(not math.isfinite(one) for one in self.errors)
        if lost:
            return f"lost {lost}/{len(self.errors)}{f': {self.why}' if self.why else ''}"
        return f"{_mean(self.errors):.4g}"


@dataclass(frozen=True)
class Advice:
    """What the verdict on a format says to do: a start of the scaler, and a plan."""

    verdict: str
    start: float
    keep: tuple[str, ...]
    share: float

    @property
    def nothing_helps(self) -> bool:
        """Whether the verdict says that the format fails, and names nothing to change."""
        return self.verdict in FAILS and not self.keep


def recorded(name: str, folder: Path) -> Path:
    """Records a training of the first seed in float32."""
    training, path = models.training_of(RECIPES[name], 0), folder / f"{name}.dlprof"
    training.network.train()
    with dlsim.Recorder(training.network, path, every=1) as recorder:
        for inputs, targets in training.batches():
            training.optimizer.zero_grad()
            loss = training.recipe.loss(training.network(inputs), targets)
            loss.backward()
            recorder.step(loss=loss, scale=1)
            training.optimizer.step()
    return path


def advice_of(path: Path, format: str) -> Advice:
    """Returns what a replay of the recording advises."""
    (found,) = dlsim.replay(path, formats=[format]).data["verdict"]["formats"]
    change = found["change"] or {"keep_float32": [], "scale": None, "share": 0.0}
    start = change["scale"] or found["scale"] or (1.0 if format == "bf16" else TORCH_START)
    names = tuple(change["keep_float32"])
    return Advice(found["verdict"], float(start), names, change["share"])


def train(name: str, seed: int, format: str, start: float, keep: tuple[str, ...] = ()) -> Any:
    """Returns the error at the end of a training and, if it was lost, why; no format: float32."""
    training = models.training_of(RECIPES[name], seed)
    network, recipe = training.network, training.recipe
    scaler = torch.amp.GradScaler("cpu", init_scale=start, enabled=bool(format) and start != 1)
    skipped = in_a_row = 0
    network.train()
    with ExitStack() as stack:
        if keep:
            stack.enter_context(dlsim.keep_float32(network, keep))
        rules = stack.enter_context(CudaAutocast(format)) if format else None
        for inputs, targets in training.batches():
            training.optimizer.zero_grad()
            try:
                with rules.forward() if rules else ExitStack():
                    loss = recipe.loss(network(inputs), targets)
            except RuntimeError as error:
                return math.inf, str(error).splitlines()[0][:60]
            scaler.scale(loss).backward()
            before = scaler.get_scale()
            scaler.step(training.optimizer)
            scaler.update()
            in_a_row = in_a_row + 1 if scaler.get_scale() < before else 0
            skipped += in_a_row > 0
            if in_a_row >= IN_A_ROW:
                return math.inf, f"{IN_A_ROW} steps skipped in a row"
    error = training.error()
    if skipped > SHARE * recipe.steps:
        return math.inf, f"{skipped} of {recipe.steps} steps skipped"
    return (error, "") if math.isfinite(error) else (math.inf, "not finite")


def ends(name: str, seeds: int, *settings: Any) -> Ends:
    """Trains with all seeds."""
    found = [train(name, seed, *settings) for seed in range(seeds)]
    return Ends([error for error, _ in found], next((why for _, why in found if why), ""))


@dataclass(frozen=True)
class Pair:
    """A model and a format: how float32, 16 bits as they are, and the advice end."""

    model: str
    format: str
    advice: Advice
    float32: Ends
    plain: Ends
    advised: Ends

    def answer(self) -> str:
        """Returns whether the advice sufficed."""
        if self.advised.suffices(self.float32):
            return "yes"
        return "said that nothing helps" if self.advice.nothing_helps else "no"

    def row(self) -> list[str]:
        """Returns the cells of the pair."""
        advice = self.advice
        scale = f"scale 2^{math.log2(advice.start):g}" if advice.start != 1 else "no scale"
        keep = ", ".join(advice.keep)
        return [
            self.model,
            self.format,
            advice.verdict,
            f"{scale}; {keep} in float32" if keep else scale,
            f"{advice.share:.0%}" if keep else "",
            f"{self.float32} ± {spread(self.float32.errors):.2g}",
            str(self.plain),
            str(self.advised),
            self.answer(),
        ]


HEAD = [
    "model", "format", "verdict", "advice", "share", "float32", "16 bits as is", "with the advice",
    "sufficed",
]  # fmt: skip


def pairs(names: list[str], formats: list[str], seeds: int, *, every: bool) -> Iterator[Pair]:
    """Yields the pairs that fail as they are, or that dlsim says to change; or every one."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            float32, path = ends(name, seeds, "", 1.0), recorded(name, Path(folder))
            for format in formats:
                advice = advice_of(path, format)
                start = 1.0 if format == "bf16" else TORCH_START
                plain = ends(name, seeds, format, start)
                wanted = advice.keep or advice.verdict in FAILS or not plain.suffices(float32)
                if wanted or every:
                    same = not advice.keep and advice.start == start
                    settings = format, advice.start, advice.keep
                    advised = plain if same else ends(name, seeds, *settings)
                    yield Pair(name, format, advice, float32, plain, advised)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def main(say: Callable[[str], None] = print) -> int:
    """Prints a row for each pair, and how many are served."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(RECIPES), metavar="MODEL")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--every", action="store_true", help="also what trains as it is")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for pair in pairs(arguments.models, arguments.formats, arguments.seeds, every=arguments.every):
        found.append(pair)
        print(*pair.row(), sep=" | ", file=sys.stderr, flush=True)
    say(table(HEAD, [pair.row() for pair in found]))
    counts = Counter(pair.answer() for pair in found)
    say(
        f"{len(found)} pairs: " + ", ".join(f"{count} {answer}" for answer, count in counts.items())
    )
    return int(counts["no"] > 0)


if __name__ == "__main__":
    sys.exit(main())
