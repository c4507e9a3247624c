# SPDX-License-Identifier: Apache-2.0
"""Trains a model while all gradients are rounded to a format under a policy, and in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import models
import torch
from torch import Tensor, nn

import dlsim

Rule = Callable[[str, Tensor], Tensor]


@dataclass
class Outcome:
    """How a training ended: the final loss, infinite if it was lost, and the scales it took."""

    loss: float
    steps: int
    skipped: int
    scales: list[float] = field(default_factory=list)


def activation_modules(network: nn.Module) -> dict[str, nn.Module]:
    """Returns the modules without parts of their own, the gradients of whose outputs count."""
    return {
        name: part
        for name, part in network.named_modules()
        if not any(part.children()) and not isinstance(part, nn.Flatten)
    }


@contextmanager
def gradient_hooks(network: nn.Module, rule: Rule) -> Iterator[None]:
    """Within it, `rule(name, gradient)` replaces the gradient of each output and parameter.

    Names are those of dlsim.Recorder. The gradient of a parameter is the sum over its uses.
    """
    handles: list[Any] = []
    calls: dict[str, int] = {}

    def watch(name: str) -> Callable[[Any, Any, Tensor], None]:
        def after(_module: Any, _inputs: Any, output: Tensor) -> None:
            if not output.requires_grad:
                return
            call = calls[name] = calls.get(name, -1) + 1
            full = f"{name}.act_grad" if call == 0 else f"{name}.call{call}.act_grad"
            output.register_hook(lambda gradient: rule(full, gradient))

        return after

    handles.append(network.register_forward_pre_hook(lambda *_: calls.clear()))
    for name, part in activation_modules(network).items():
        handles.append(part.register_forward_hook(watch(name)))
    for name, parameter in network.named_parameters():
        full = f"{name}.grad"
        handles.append(parameter.register_hook(lambda gradient, full=full: rule(full, gradient)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def train_float32(
    training: models.Training, see: Callable[[int, dict[str, Tensor]], None] | None = None
) -> float:
    """Trains without rounding; `see(step, gradients)` is called before each update."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, gradient: Tensor) -> Tensor:
        seen[name] = gradient
        return gradient

    with gradient_hooks(training.network, keep):
        for step, batch in enumerate(training.batches()):
            seen.clear()
            _backward(training, batch, 1.0)
            if see is not None:
                see(step, seen)
            _update(training)
    return training.error()


def train_rounded(training: models.Training, format: str, scaler: dlsim.LossScaler) -> Outcome:
    """Trains with every gradient rounded to a format at the scale; stops when the weights are lost.

    A step is applied as the policy says; policies but `static` skip it if a gradient of a
    parameter is not finite. Rounding is that of dlsim, to nearest even, with infinities.
    """
    outcome = Outcome(math.inf, 0, 0)
    target = dlsim.Format(format)

    def rounded(_name: str, gradient: Tensor) -> Tensor:
        return dlsim.quantize(gradient, target)

    with gradient_hooks(training.network, rounded):
        for batch in training.batches():
            scale = scaler.scale
            outcome.scales.append(scale)
            outcome.steps += 1
            _backward(training, batch, scale)
            finite = _unscale(training.network, scale)
            skip = scaler.next(not finite)["skip"]
            outcome.skipped += skip
            if not skip:
                if not finite:
                    return outcome
                _update(training)
    outcome.loss = training.error()
    return outcome


def _backward(training: models.Training, batch: models.Data, scale: float) -> None:
    training.network.train()
    for parameter in training.network.parameters():
        parameter.grad = None
    loss = training.recipe.loss(training.network(batch[0]), batch[1])
    (loss * scale).backward()


def _unscale(network: nn.Module, scale: float) -> bool:
    """Multiplies by the reciprocal in float32; tells whether all gradients are finite."""
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    torch._foreach_mul_(gradients, 1 / scale)
    return math.isfinite(sum(float(gradient.sum()) for gradient in gradients))


def _update(training: models.Training) -> None:
    if training.recipe.clip_norm is not None:
        nn.utils.clip_grad_norm_(training.network.parameters(), training.recipe.clip_norm)
    training.optimizer.step()
