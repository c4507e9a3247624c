# SPDX-License-Identifier: Apache-2.0
"""Measures what recording adds to a training step, with steps of all modes interleaved.

    OMP_NUM_THREADS=1 python bench/recorder_overhead.py [--rounds 40] [--width 468]

Trains transformers of 4 layers on text, on the CPU: 10.7 million parameters, or 1.3 million with
--width 160. Each mode has a model of its own, and each round has a step of each mode, which is
compared with the step without a recorder. Printed are medians: of the process's processor time
until all of the step is recorded, and of the time within the recorder's calls.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn

import dlsim
from dlsim.recorder import _shadows

_shadows._DISTANCE, _shadows._FREE_SECONDS = 0.0, float("inf")  # each step is run again
TEXT = (Path(__file__).parents[1] / "LICENSE").read_bytes()
CONTEXT, WARM_UP = 32, 5
GRADIENTS = {"every": 1, "forward_every": 0, "shadow": None}
MODES = {
    "no recorder": None,
    "profile, gradients": GRADIENTS,
    "the same, activations=None": {**GRADIENTS, "activations": None},
    "profile, a step with forward pass": {**GRADIENTS, "forward_every": 1},
    "the same, run again in three formats": {
        **GRADIENTS,
        "forward_every": 1,
        "shadow": _shadows.FORMATS,
    },
    "trace": {"shadow": None},
}


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


class Training:
    """A model in training, recorded as a mode says; keeps seconds of each step."""

    def __init__(self, options: dict | None, width: int, path: Path) -> None:
        torch.manual_seed(0)
        self.model = LanguageModel(width)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.recorder = None if options is None else dlsim.Recorder(self.model, path, **options)
        self.process: list[float] = []
        self.calls: list[float] = []

    def step(self, window: torch.Tensor) -> None:
        """Trains a step and notes its times."""
        began = time.process_time()
        self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(self.model(window[:, :-1])[0], window[0, 1:])
        loss.backward()
        called = time.thread_time()
        if self.recorder is not None:
            self.recorder.step(loss=loss, scale=1.0)
        self.calls.append(time.thread_time() - called)
        self.optimizer.step()
        if self.recorder is not None:
            assert self.recorder.report().errors == 0  # waits
        self.process.append(time.process_time() - began)


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--width", type=int, default=468)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
    with tempfile.TemporaryDirectory() as folder:
        trainings = [
            Training(
                options,
                arguments.width,
                Path(folder) / (f"{i}" if name == "trace" else f"{i}.profile"),
            )
            for i, (name, options) in enumerate(MODES.items())
        ]
        for turn in range(WARM_UP + arguments.rounds):
            start = int(torch.randint(0, len(text) - CONTEXT - 1, ()))
            for i in range(len(trainings)):
                training = trainings[(turn + i) % len(trainings)]
                training.step(text[None, start : start + CONTEXT + 1])
        for training in trainings:
            if training.recorder is not None:
                training.recorder.close()
    alone = trainings[0].process[WARM_UP:]
    print(f"a step without a recorder: {1e3 * median(alone):.3g} ms of processor time\n")
    print("| mode | of a step | ms within its calls |\n|---|---|---|")
    for mode, training in zip(list(MODES)[1:], trainings[1:], strict=True):
        added = [a - b for a, b in zip(training.process[WARM_UP:], alone, strict=True)]
        share, calls = median(added) / median(alone), 1e3 * median(training.calls[WARM_UP:])
        print(f"| {mode} | {share:.0%} | {calls:.3g} |")


if __name__ == "__main__":
    main()
