# SPDX-License-Identifier: Apache-2.0
"""What the command says of a float32 run's updates, and how weights in bf16 then end.

Networks of four trainings compute in bf16 but for float32's; the variants differ in what the
optimizer keeps. Torch's own optimizers throughout.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import row_files
import torch
from torch import Tensor, nn
from updates_tables import FLOAT32, Row

import dlsim

KEPT = Path(__file__).resolve().parent / "results" / "updates.csv"
SEEDS, STEPS, BATCH, SAMPLES = range(8), 400, 64, 2048
# What is trained, and the run of `dlsim updates` that is the same.
VARIANTS = {
    "bf16": "bf16",
    "bf16 + sr": "bf16 + sr",
    "bf16 + kahan": "bf16 + kahan",
    "fp32 master": "fp32 master, bf16 states",
}
Optimizing = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Training:
    """A network and its optimizer; fine-tuning begins near the data, for all seeds alike."""

    optimizer: Optimizing
    network: Callable[[], nn.Sequential]
    fine: bool = False


def plain() -> nn.Sequential:
    """Returns a tanh network of 3,364 weights."""
    hidden = (nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
    return nn.Sequential(*hidden, nn.Linear(48, 4))


def normed() -> nn.Sequential:
    """Returns one with LayerNorm, whose weights begin at 1."""
    first = (nn.Linear(16, 48), nn.LayerNorm(48), nn.GELU())
    return nn.Sequential(*first, nn.Linear(48, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 4))


def _adamw(rate: float, decay: float = 0.0) -> Optimizing:
    return lambda weights: torch.optim.AdamW(weights, lr=rate, weight_decay=decay)


TRAININGS = {
    "fine-tuning, AdamW, rate 3e-5": Training(_adamw(3e-5), plain, fine=True),
    "LayerNorm, AdamW, rate 1e-3": Training(_adamw(1e-3), normed),
    "AdamW, rate 3e-3, weight decay 0.1": Training(_adamw(3e-3, 0.1), plain),
    "SGD with momentum, rate 0.02": Training(
        lambda weights: torch.optim.SGD(weights, lr=0.02, momentum=0.9), plain
    ),
}


def begin(training: Training, seed: int) -> tuple[nn.Sequential, Tensor, Tensor]:
    """Returns a network and the data, which another network makes, with noise."""
    torch.manual_seed(7)
    teacher = plain().requires_grad_(False)
    for weight in teacher.parameters():
        weight.mul_(3)
    inputs = torch.randn(SAMPLES, 16)
    targets = teacher(inputs) + 0.1 * torch.randn(SAMPLES, 4)
    if training.fine:
        return teacher.requires_grad_(True), inputs, targets + 0.3 * torch.sin(inputs[:, :4])
    torch.manual_seed(1000 + seed)
    return training.network(), inputs, targets


def stochastic(values: Tensor, generator: torch.Generator) -> Tensor:
    """Returns float32 values rounded to bf16 at random: 16 random bits are added, 16 are cut."""
    more = torch.randint(1 << 16, values.shape, generator=generator, dtype=torch.int32)
    return ((values.view(torch.int32) + more) & -(1 << 16)).view(torch.float32)


class Stored:
    """Updates in float32 by torch's optimizer; what is kept from step to step is in bf16.

    The weights, too, unless there is a float32 master. `kahan`: what rounding takes from a weight
    is kept in bf16 and added to the next update.
    """

    def __init__(self, network: nn.Module, make: Optimizing, variant: str, seed: int) -> None:
        self._variant, self._parameters = variant, list(network.parameters())
        self.weights = [one.detach().clone() for one in self._parameters]
        network.bfloat16()
        if variant != "fp32 master":
            self.weights = [one.detach().float() for one in self._parameters]
        self._lost = [torch.zeros_like(one, dtype=torch.bfloat16) for one in self.weights]
        self._inner = make(self.weights)
        self._generator = torch.Generator().manual_seed(seed)

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Updates the weights, and the network's copies."""
        before = [weight.clone() for weight in self.weights]
        for weight, parameter in zip(self.weights, self._parameters, strict=True):
            weight.grad = parameter.grad.float()
        self._inner.step()
        for state in self._inner.state.values():
            for name in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
                if name in state:
                    state[name].copy_(state[name].bfloat16())
        for i, weight in enumerate(self.weights):
            if self._variant == "bf16 + sr":
                weight.copy_(stochastic(weight, self._generator))
            elif self._variant == "bf16 + kahan":
                update = self._lost[i].add_(weight - before[i])
                weight.copy_((before[i] + update).bfloat16())
                update.sub_(weight - before[i])
            self._parameters[i].copy_(weight)


def train(training: Training, seed: int, variant: str, probe: Path | None = None) -> float:
    """Returns the mean squared error of all data, in float32, at the end."""
    network, inputs, targets = begin(training, seed)
    stored = None
    if variant in (FLOAT32, "bf16"):
        network.to(torch.float32 if variant == FLOAT32 else torch.bfloat16)
        optimizer: Any = training.optimizer(network.parameters())
    else:
        optimizer = stored = Stored(network, training.optimizer, variant, seed)
    recorder = dlsim.ProbeRecorder(network, probe, on_error="raise") if probe else None
    picks = torch.Generator().manual_seed(2000 + seed)
    dtype = next(network.parameters()).dtype
    for _ in range(STEPS):
        batch = torch.randint(SAMPLES, (BATCH,), generator=picks)
        optimizer.zero_grad()
        outputs = network(inputs[batch].to(dtype)).float()
        nn.functional.mse_loss(outputs, targets[batch]).backward()
        optimizer.step()
    if recorder:
        recorder.close()
    network.float()
    with torch.no_grad():
        if stored:
            for parameter, weight in zip(network.parameters(), stored.weights, strict=True):
                parameter.copy_(weight)
        return float(nn.functional.mse_loss(network(inputs), targets))


def rows_of(name: str, seeds: Iterable[int], variants: Iterable[str]) -> list[Row]:
    """Trains with float32, whose first seed is recorded, and with the variants."""
    training, seeds = TRAININGS[name], list(seeds)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.dlprobe"
        float32 = [train(training, seeds[0], FLOAT32, path)]
        said = {run["name"]: run for run in dlsim.updates(path, quiet=True).data["runs"]}
    float32 += [train(training, seed, FLOAT32) for seed in seeds[1:]]
    rows = [Row(name, FLOAT32, _text(float32))]
    for variant in variants:
        run = said[VARIANTS[variant]]
        figures = (f"{run[one]:.3g}" for one in ("drift", "progress"))
        errors = [train(training, seed, variant) for seed in seeds]
        rows.append(Row(name, variant, _text(errors), run["verdict"], *figures))
    return rows


def _text(errors: list[float]) -> str:
    return " ".join(f"{error:.6g}" for error in errors)


def study() -> None:
    """Trains all and writes the results."""
    row_files.write(
        KEPT, Row, [row for name in TRAININGS for row in rows_of(name, SEEDS, VARIANTS)]
    )
