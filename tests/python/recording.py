# SPDX-License-Identifier: Apache-2.0
"""What tests of the recorder share: a model, its training, what was written."""

import subprocess
from pathlib import Path

import torch
from running import DLSIM
from safetensors import safe_open
from torch import nn

import dlsim


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))


def train(model: nn.Module, rec: dlsim.Recorder, steps: int = 1, scale: float = 8.0) -> list[dict]:
    """Trains and returns the gradients of each step."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 6)).square().mean()
        (loss * scale).backward()
        rec.step(loss=loss, scale=scale)
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
        optimizer.step()
    return gradients


def load(path: Path, step: int, suffix: str = "") -> tuple[dict, dict]:
    with safe_open(path / f"step-{step:08d}{suffix}.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def steps_in(path: Path) -> list[int]:
    return [int(name.name[5:13]) for name in sorted(path.glob("step-*.safetensors"))]


def info(path: Path) -> str:
    done = subprocess.run([*DLSIM, "info", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
