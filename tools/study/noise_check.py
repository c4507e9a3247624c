# SPDX-License-Identifier: Apache-2.0
"""Compares the rule for noise with the truth: the same gradients in float64."""

from __future__ import annotations

import copy

import models
import torch
from noise import NOISE, noise_names, outputs_of, squares_of
from training import gradient_hooks

WRONG = 0.05  # of the norm: a gradient that differs so much from float64's is noise


def main() -> int:
    """Prints what is noise in an early and a late step of each model; returns 1 if it differs."""
    wrong = 0
    for name, recipe in models.RECIPES.items():
        for step in (10, recipe.steps - 5):
            single, double = gradients_at(name, step)
            truth, found, gap = compare(single, double)
            wrong += truth != found
            verdict = "as float64 says" if truth == found else f"float64 says {sorted(truth)}"
            print(f"{name} {step}: noise {sorted(found)}, {verdict}; ratios {gap}")
    return int(wrong > 0)


def gradients_at(name: str, step: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Trains up to a step; returns its gradients in float32 and in float64."""
    training = models.make(name, seed=0)
    for number, batch in enumerate(training.batches()):
        if number == step:
            break
        training.optimizer.zero_grad()
        training.recipe.loss(training.network(batch[0]), batch[1]).backward()
        training.optimizer.step()
    return _gradients(training, batch, torch.float32), _gradients(training, batch, torch.float64)


def _gradients(
    training: models.Training, batch: models.Data, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    network = copy.deepcopy(training.network).to(dtype)
    inputs, targets = (x.to(dtype) if x.is_floating_point() else x for x in batch)
    seen: dict[str, torch.Tensor] = {}
    torch.set_default_dtype(dtype)  # for the states that networks begin with
    try:
        with gradient_hooks(network, seen.setdefault):
            training.recipe.loss(network(inputs), targets).backward()
    finally:
        torch.set_default_dtype(torch.float32)
    return seen


def compare(
    single: dict[str, torch.Tensor], double: dict[str, torch.Tensor]
) -> tuple[set[str], set[str], str]:
    """Returns what is noise in truth and by the rule, and the ratios next to the rule's limit."""
    squares = {name: squares_of(gradient) for name, gradient in single.items()}
    truth = {
        name
        for name, gradient in single.items()
        if squares[name] > 0
        and float((gradient - double[name]).norm()) > WRONG * float(double[name].norm())
    }
    outputs = outputs_of(squares)
    ratios = [
        (square / outputs[module]) ** 0.5
        for name, square in squares.items()
        if name.endswith(".grad")
        and square
        and (module := name.removesuffix(".grad").rpartition(".")[0]) in outputs
    ]
    below = max((ratio for ratio in ratios if ratio < NOISE), default=0.0)
    above = min(ratio for ratio in ratios if ratio >= NOISE)
    return truth, set(noise_names(squares)), f"{below:.1e}, {above:.1e}"
