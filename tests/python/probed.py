# SPDX-License-Identifier: Apache-2.0
"""What tests of probes share: a training that keeps by itself what its optimizer reads."""

import numpy as np
import torch
from torch import nn

import dlsim


class Seen:
    """What an optimizer reads, kept by the test itself."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.values: list[dict[str, torch.Tensor]] = []

    def look(self) -> None:
        named = list(self.model.named_parameters())
        self.gradients.append({n: p.grad.clone() for n, p in named if p.grad is not None})
        self.values.append({n: p.detach().clone() for n, p in named})


def followed(probe: dlsim.Probe, name: str, tensor: torch.Tensor) -> np.ndarray:
    return tensor.float().reshape(-1).numpy()[probe.tensors[name].indices]


def check(probe: dlsim.Probe, seen: Seen) -> None:
    """The probe holds exactly what the test has seen."""
    assert len(probe) == len(seen.gradients) > 0
    assert probe.cut_bytes == 0
    for step, gradients in zip(probe, seen.gradients, strict=True):
        assert list(step.gradients) == [name for name in probe.tensors if name in gradients]
        for name, elements in step.gradients.items():
            np.testing.assert_array_equal(elements, followed(probe, name, gradients[name]))
    first = probe.values(0)
    assert first is not None
    for name, elements in first.values.items():
        np.testing.assert_array_equal(elements, followed(probe, name, seen.values[0][name]))


def batch(step: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(step))


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    return model(batch(step)).float().square().mean()


def train(model, optimizer, seen: Seen, steps=range(5), before=lambda: None) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        before()
        seen.look()
        optimizer.step()
