# SPDX-License-Identifier: Apache-2.0
"""Measures what a probe costs a training step.

    PYTHONPATH=python OMP_NUM_THREADS=1 python3 bench/probe_overhead.py [--rounds 40] [--width 744]

Trains a transformer of 27 million weights in 52 parameters on the CPU, or one of another width, one
step with a probe and one without in turn, so that both see the same machine. Printed are medians of
processor time: of a step without a probe, of what is spent in the probe's own calls, in the
training's thread and in the one that writes, and of the differences between neighbors, whole
process against whole process, which other programs disturb more.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import dlsim
from dlsim.recorder import _probe

SPENT = [0.0]  # seconds in the probe's own calls


def timed(owner: type, name: str) -> None:
    """Adds up the processor time of a method."""
    method = getattr(owner, name)

    def wrapper(*args, **options):
        began = time.thread_time()
        try:
            return method(*args, **options)
        finally:
            SPENT[0] += time.thread_time() - began

    setattr(owner, name, wrapper)


class LanguageModel(nn.Module):
    """Predicts bytes: 4 layers, `width` wide, a multiple of 6."""

    def __init__(self, width: int, context: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.position = nn.Parameter(torch.zeros(context, width))
        layer = nn.TransformerEncoderLayer(width, 6, 4 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(width, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns logits of the next byte."""
        return self.head(self.layers(self.embedding(x) + self.position))


def seconds_of_step(model: nn.Module, optimizer: torch.optim.Optimizer, rec) -> float:
    """Trains a step; returns its processor time, with what the probe's thread does."""
    tokens = torch.randint(0, 256, (1, 33))
    began = time.process_time()
    optimizer.zero_grad(set_to_none=True)
    logits = model(tokens[:, :-1]).flatten(0, 1)
    nn.functional.cross_entropy(logits, tokens[0, 1:]).backward()
    optimizer.step()
    rec.wait()
    return time.process_time() - began


class Probe:
    """A probe that is followed in some steps only."""

    def __init__(self, model: nn.Module, path: Path, elements: int) -> None:
        self.recorder = dlsim.ProbeRecorder(model, path, elements=elements, on_error="raise")
        self._following = self.recorder._following

    def follow(self, *, active: bool) -> None:
        """Follows the coming steps, or does not."""
        (self._following._steps.add if active else self._following._steps.remove)()

    def wait(self) -> None:
        """Waits until everything is written."""
        self._following._thread.wait()


def main() -> None:
    """Trains, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--width", type=int, default=744)
    args = parser.parse_args()
    rounds = args.rounds
    torch.manual_seed(0)
    model = LanguageModel(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    weights = [parameter.numel() for parameter in model.parameters()]
    print(f"{sum(weights):,} weights in {len(weights)} parameters")
    for owner, name in (
        (_probe.Following, "before"),
        (_probe.Following, "after"),
        (_probe.ProbeFile, "write"),
    ):
        timed(owner, name)
    print("| probe | elements | bytes | step without, ms | probe, ms | share | pairs, ms |")
    print("|---|---|---|---|---|---|---|")
    for elements in (256, 1024, 4096):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.dlprobe"
            probe = Probe(model, path, elements)
            alone, added, spent = [], [], []
            for turn in range(rounds + 2):
                times = {}
                SPENT[0] = 0.0
                for active in (True, False) if turn % 2 else (False, True):
                    probe.follow(active=active)
                    times[active] = seconds_of_step(model, optimizer, probe)
                if turn >= 2:
                    alone.append(times[False])
                    added.append(times[True] - times[False])
                    spent.append(SPENT[0])
            probe.recorder.close()
            found = dlsim.open_probe(path)
            followed = sum(tensor.count for tensor in found.tensors.values())
            update = path.stat().st_size / len(found)
            base, more, pairs = (statistics.median(one) * 1e3 for one in (alone, spent, added))
            row = f"{base:.1f} | {more:.2f} | {more / base:.2%} | {pairs:.2f}"
            print(f"| {elements} | {followed:,} | {update:,.0f} | {row} |", flush=True)


if __name__ == "__main__":
    main()
