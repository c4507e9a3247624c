# SPDX-License-Identifier: Apache-2.0
"""Measures what recording costs a training step, with steps of all modes interleaved.

    PYTHONPATH=python OMP_NUM_THREADS=1 python3 bench/recorder_overhead.py [--rounds 40]
        [--model 80|13] [--memory]

Trains transformers on text, on the CPU: 10.7 million parameters, whose step takes about 80 ms, or
1.3 million and 13 ms. Each mode has a model of its own, and each round a step of each mode, so that
all see the same machine; a mode is compared with the step without recording of the same round.
Printed are medians of these differences: of the processor time of the whole process, until all of
the step is recorded; of the time on the clock until the next step may begin; and of the recorder's
calls alone; and what a profile takes in the mean of steps, by how far recorded ones are apart.
`--memory` runs each mode in a process of its own and prints the most that it held.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from math import lcm
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import dlsim
from dlsim.recorder._pace import DISTANCES, FIRST_STEPS
from dlsim.recorder._selection import FORWARD_EVERY

TEXT = (Path(__file__).parents[1] / "LICENSE").read_bytes()
CONTEXT = 32
EACH_STEP = {"every": 1}
GRADIENTS = {**EACH_STEP, "forward_every": 0}
DEFAULT = "profile, as by default"
MODES: dict[str, dict[str, Any] | None] = {
    "no recorder": None,
    "profile, gradients": GRADIENTS,
    "the same, copy=False": {**GRADIENTS, "copy": False},
    "the same, activations=None": {**GRADIENTS, "activations": None},
    "profile, a step with its forward pass": {**EACH_STEP, "forward_every": 1, "ops": False},
    "profile, a step with operations, too": {**EACH_STEP, "forward_every": 1},
    DEFAULT: {},
    "trace": {"format": "safetensors"},
    "trace, activations=None, sample=65536": {
        "activations": None,
        "sample": 65536,
        "format": "safetensors",
    },
}
GRADIENTS_ALONE, OPERATIONS = "profile, gradients", "profile, a step with operations, too"
# Modes whose cost comes with few steps by default, and the mode of the others.
SELDOM = {
    "profile, a step with its forward pass": "profile, gradients",
    "profile, a step with operations, too": "profile, gradients",
}
# Width, batch: of 4 layers.
MODELS = {80: (468, 1), 13: (160, 1)}


class LanguageModel(nn.Module):
    """Predicts bytes, with 4 layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, width)
        self.position = nn.Parameter(torch.zeros(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(width, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns logits of the next byte."""
        return self.head(self.layers(self.embedding(x) + self.position))


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns windows of the text as bytes, and the byte after each."""
    data = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
    starts = torch.randint(0, len(data) - CONTEXT - 1, (size,))
    windows = torch.stack([data[i : i + CONTEXT + 1] for i in starts])
    return windows[:, :-1], windows[:, 1:]


@dataclass
class Times:
    """Seconds of the steps of one mode."""

    process: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)


class Training:
    """A model in training, recorded as a mode says."""

    def __init__(self, mode: str, width: int, folder: Path) -> None:
        torch.manual_seed(0)
        self.model = LanguageModel(width)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.recorder = None
        options = MODES[mode]
        if options is not None:
            path = folder / mode.replace(" ", "-")
            self.recorder = dlsim.Recorder(self.model, path, **{"format": "profile", **options})
        self.times = Times()

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Trains a step and notes its times."""
        used, began = time.process_time(), time.perf_counter()
        self._optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
        loss.backward()
        before = time.thread_time()
        if self.recorder is not None:
            self.recorder.step(loss=loss, scale=1.0)
        after = time.thread_time()
        self._optimizer.step()
        self.times.clock.append(time.perf_counter() - began)
        if self.recorder is not None:
            self.recorder.report()  # waits
        self.times.process.append(time.process_time() - used)
        self.times.calls.append(after - before)

    def close(self) -> None:
        """Ends recording."""
        if self.recorder is not None:
            self.recorder.close()
            assert self.recorder.errors == 0, self.recorder.report()


def trained(modes: list[str], model: int, rounds: int) -> dict[str, Times]:
    """Trains each mode for `rounds` steps after five warm-up steps; returns the times by mode."""
    width, size = MODELS[model]
    with tempfile.TemporaryDirectory() as folder:
        trainings = {mode: Training(mode, width, Path(folder)) for mode in modes}
        for i in range(rounds + 5):
            x, y = batch(size)
            for k in range(len(modes)):
                trainings[modes[(i + k) % len(modes)]].step(x, y)
        for training in trainings.values():
            training.close()
    return {mode: training.times for mode, training in trainings.items()}


def chosen(model: int) -> int:
    """Returns the distance of recorded steps that the default chooses, in a training alone."""
    width, size = MODELS[model]
    with tempfile.TemporaryDirectory() as folder:
        training = Training(DEFAULT, width, Path(folder))
        for _ in range(5 * FIRST_STEPS):
            training.step(*batch(size))
        training.close()
    return training.recorder.report().every or 1


def added(times: dict[str, Times], mode: str, measure: str, base: str = "no recorder") -> float:
    """Returns the median of what a mode adds to a step of another, in milliseconds."""
    own, other = getattr(times[mode], measure)[5:], getattr(times[base], measure)[5:]
    return 1e3 * median(a - b for a, b in zip(own, other, strict=True))


def print_table(times: dict[str, Times], every: int) -> None:
    """Prints what each mode adds to a step, and the default in the mean of its steps."""
    alone = median(times["no recorder"].process[5:]) * 1e3
    clock = median(times["no recorder"].clock[5:]) * 1e3
    print(f"a step without recording: {alone:.3g} ms of processor time, {clock:.3g} ms\n")
    print("| mode | processor, ms | of a step | clock, ms | of a step | calls, ms |")
    print("|---|---|---|---|---|---|")

    def row(mode: str, process: float, on_clock: float, calls: float) -> None:
        shares = f"{process:.3g} | {process / alone:.1%} | {on_clock:.3g} | {on_clock / clock:.1%}"
        print(f"| {mode} | {shares} | {calls:.3g} |")

    for mode in list(times)[1:]:
        row(mode, *(added(times, mode, measure) for measure in ("process", "clock", "calls")))
    for mode, other in SELDOM.items():
        more = [added(times, mode, one, other) for one in ("process", "clock", "calls")]
        row(f"{mode}: more, by default in the mean", *(one / FORWARD_EVERY for one in more))
    print(f"\nBy these figures, in the mean of steps (the default has chosen every={every}):\n")
    print("| every | of a step |\n|---|---|")
    for distance in DISTANCES:
        print(f"| {distance} | {mean_of(times, distance) / alone:.1%} |")


def mean_of(times: dict[str, Times], every: int) -> float:
    """Returns the milliseconds of processor time that a profile adds to a step in the mean."""
    gradients, forward = (added(times, mode, "process") for mode in (GRADIENTS_ALONE, OPERATIONS))
    both = lcm(every, FORWARD_EVERY)
    return gradients * (1 / every - 1 / both) + forward / both


def most_held() -> int:
    """Returns KiB; getrusage would count what the process held that started this one, too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def print_memory(model: int) -> None:
    """Prints the most memory that each mode holds."""
    print("\n| mode | MiB at most |\n|---|---|")
    for mode in MODES:
        words = [sys.executable, __file__, "--model", str(model), "--rounds", "20", "--only", mode]
        found = subprocess.run(words, check=True, capture_output=True, text=True)
        print(f"| {mode} | {int(found.stdout) / 1024:.0f} |")


def main() -> None:
    """Prints tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--model", type=int, choices=list(MODELS), default=80)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--only", choices=list(MODES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.only:
        trained([arguments.only], arguments.model, arguments.rounds)
        print(most_held())
        return
    modes = [mode for mode in MODES if mode != DEFAULT]
    print_table(trained(modes, arguments.model, arguments.rounds), chosen(arguments.model))
    if arguments.memory:
        print_memory(arguments.model)


if __name__ == "__main__":
    main()
