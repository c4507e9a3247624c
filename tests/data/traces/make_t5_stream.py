#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records the trace t5-stream, and trains its model in each format to see whether dlsim is right.

    make_t5_stream.py record FOLDER
    make_t5_stream.py train [SEEDS]

The model is a small T5 without attention: blocks of root-mean-square norm and feed-forward, which
add to a large residual stream. The norm divides by its size, so that float32 trains as with a small
one. The loss is its part in the mean over a batch of 2^20 letters, as many tokens as mT5's batches
have. Both make gradients small. The text is the licence of this project.

`train` needs PyTorch 2.3. fp16 and bf16 are those of torch.autocast; CB16 is emulated. It prints
the mean loss of the last 20 of 300 steps, in nats per letter, and how many the scaler skipped.
"""

from __future__ import annotations

import math
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dlsim

TEXT = re.sub("[^a-z]+", " ", (Path(__file__).parents[3] / "LICENSE").read_text().lower())
LETTERS = sorted(set(TEXT))
WIDTH, PLACES, BATCH, STEPS = 8, 8, 4, 300
BATCH_LETTERS = 2**20  # of which PLACES * BATCH are computed here
WI_SIZE, WO_SIZE, EMBEDDING_SIZE = 100.0, 2e4, 2e4  # of the first weights, in those of PyTorch
LARGE_SCALE = 2.0**16  # what PyTorch's scaler starts from
RUNS = (
    ("float32", 1.0),
    ("bf16", 1.0),
    ("fp16", LARGE_SCALE),
    *(("cb16", 2.0**power) for power in (0, 1, 2, 3, 4, 16, 46, 52)),
)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.wi = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.wo = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        with torch.no_grad():
            self.wi.weight.mul_(WI_SIZE)
            self.wo.weight.mul_(WO_SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.wo(torch.relu(self.wi(self.norm(x))))


class SmallT5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), WIDTH)
        self.block = nn.ModuleList(Block() for _ in range(2))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, len(LETTERS))
        with torch.no_grad():
            self.embedding.weight.mul_(EMBEDDING_SIZE)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        x = self.embedding(letters)
        for block in self.block:
            x = block(x)
        return self.head(self.norm(x))


class Training:
    """The model, its optimizer and its batches."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = SmallT5()
        # As with Adafactor, which trains T5, a rate follows its weights; epsilon is Adafactor's.
        rates = [
            {"params": [one], "lr": 0.01 * one.detach().pow(2).mean().sqrt().item()}
            for one in self.model.parameters()
        ]
        self.optimizer = torch.optim.Adam(rates, eps=1e-30)

    def loss(self) -> torch.Tensor:
        """Returns the mean loss of the letters of a new batch."""
        starts = torch.randint(0, len(TEXT) - PLACES - 1, (BATCH,)).tolist()
        rows = [[LETTERS.index(one) for one in TEXT[at : at + PLACES + 1]] for at in starts]
        letters = torch.tensor(rows)
        logits = self.model(letters[:, :-1]).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), letters[:, 1:].flatten())


def part_of_batch(loss: torch.Tensor) -> torch.Tensor:
    return loss * (PLACES * BATCH / BATCH_LETTERS)


def record(folder: str) -> None:
    training = Training(seed=0)
    about = {
        "description": "small T5 without attention, with a large residual stream",
        "made by": "tests/data/traces/make_t5_stream.py record",
        "data": "LICENSE, letters and spaces",
        "loss": "mean cross entropy per letter; gradients are of its part in the mean over 2^20",
        "torch": torch.__version__,
    }
    with dlsim.Recorder(training.model, folder, every=60, forward_every=60) as recorder:
        recorder.describe(**about)
        for _ in range(STEPS):
            training.optimizer.zero_grad()
            loss = training.loss()
            part_of_batch(loss).backward()
            recorder.step(loss=loss, scale=1.0)
            training.optimizer.step()


def autocast(name: str) -> Any:
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(name)
    return torch.autocast("cpu", dtype=dtype) if dtype else nullcontext()


def train(seed: int, name: str, scale: float) -> tuple[float, int]:
    """Trains under a scaler that starts from a scale, too short for it to grow.

    Returns the mean loss of the last 20 steps, and how many steps were skipped.
    """
    training = Training(seed)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    losses, skipped = [], 0
    emulated = name == "cb16"
    with dlsim.autocast_emulation(training.model, name) if emulated else nullcontext():
        for _ in range(STEPS):
            training.optimizer.zero_grad()
            with autocast(name):
                loss = training.loss()
            before = scaler.get_scale()
            scaler.scale(part_of_batch(loss)).backward()
            scaler.step(training.optimizer)
            scaler.update()
            skipped += scaler.get_scale() < before
            losses.append(loss.item())
    return sum(losses[-20:]) / 20, skipped


def compare(seeds: int) -> None:
    torch.set_num_threads(1)
    for seed in range(seeds):
        for name, scale in RUNS:
            loss, skipped = train(seed, name, scale)
            power = math.log2(scale)
            print(f"seed {seed} {name:7} scale 2^{power:<2g} loss {loss:.3f} skipped {skipped}")


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(sys.argv[2])
    else:
        compare(int(sys.argv[2]) if len(sys.argv) > 2 else 5)
