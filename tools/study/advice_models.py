# SPDX-License-Identifier: Apache-2.0
"""Models that fail in 16 bits as those of a reader's first day do, for advice.py.

Each kind has a cause that people write by hand: squares, norms, masks, softmax, units, sums.
"""

import math
from collections.abc import Callable

import models
import reported_networks
import torch
from models import SYMBOLS, Data, Loss, Recipe, language
from networks import sigmoid_mlp
from torch import Tensor, nn

WIDTH = 24


class Squared(nn.Module):
    """A norm and two layers with relu squared between them, added to the stream."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        for layer in (self.up, self.down):
            layer.weight.data.mul_(gain)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the next stream."""
        return x + self.down(self.up(self.norm(x)).relu().square())


class ByHand(nn.Module):
    """Divides by the root of the mean square, computed in the type of the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the normalized stream."""
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-8) * self.weight


class NormedByHand(nn.Module):
    """Two layers after a norm by hand, of a stream that `size` makes large."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.norm, self.size = ByHand(), size
        self.read = nn.Linear(WIDTH, WIDTH)
        self.body = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.read.weight.data.mul_(size)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the next stream."""
        return x + self.body(self.norm(self.read(x)))


def _filled(scores: Tensor, future: Tensor) -> Tensor:
    return scores.masked_fill(future, -1e9)


def _written(scores: Tensor, future: Tensor) -> Tensor:
    scores = scores.clone()
    scores[:, future] = -1e9
    return scores


def _added(scores: Tensor, future: Tensor) -> Tensor:
    return scores + future * -1e9


def _chosen(scores: Tensor, future: Tensor) -> Tensor:
    return torch.where(future, -1e9, scores)


def _infinite(scores: Tensor, future: Tensor) -> Tensor:
    return scores.masked_fill(future, -math.inf)


def _exponentials(scores: Tensor) -> Tensor:
    powers = torch.exp(scores)
    return powers / powers.sum(-1, keepdim=True)


class Attention(nn.Module):
    """Causal attention of one head, its mask and its softmax as they are given."""

    def __init__(
        self,
        mask: Callable[[Tensor, Tensor], Tensor] = _infinite,
        softmax: Callable[[Tensor], Tensor] = lambda scores: scores.softmax(-1),
        gain: float = 1.0,
        divisor: float = WIDTH**0.5,
    ) -> None:
        super().__init__()
        self.mask, self.softmax, self.divisor = mask, softmax, divisor
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.qkv.weight.data[: 2 * WIDTH].mul_(gain)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the next stream."""
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = q @ k.transpose(-1, -2) / self.divisor
        return x + self.out(self.softmax(self.mask(scores, future)) @ v)


class Towers(nn.Module):
    """A small network for each quantity, in the unit of that quantity."""

    def __init__(self, units: tuple[float, ...]) -> None:
        super().__init__()
        self.towers = nn.ModuleList(reported_networks.Denormalized(8, unit) for unit in units)

    def forward(self, x: Tensor) -> Tensor:
        """Returns all quantities, in float32."""
        return torch.cat([tower(x).float() for tower in self.towers], -1)


class Denoiser(nn.Module):
    """Two convolutions with BatchNorm, whose output is multiplied by a small unit."""

    def __init__(self, unit: float) -> None:
        super().__init__()
        self.unit = unit
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Returns the clean image in its unit."""
        return self.body(x) * self.unit


def _text(
    block: Callable[[], nn.Module], stream: float = 1.0, loss: Loss = models.classes
) -> Recipe:
    def make() -> nn.Module:
        blocks = [block() for _ in range(2)]
        return reported_networks.PairModel(SYMBOLS, WIDTH, stream, blocks)

    return Recipe(make, language, loss, True, 0.005, 120, 16, error=models.classes)


def _sum_of(factor: float) -> Loss:
    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        scores, targets = scores.flatten(0, -2), targets.flatten()
        return factor * nn.functional.cross_entropy(scores, targets, reduction="sum")

    return loss


def _denoising(unit: float) -> Recipe:
    def data(generator: torch.Generator) -> Data:
        places = torch.arange(12.0)
        angles = math.pi * torch.rand(512, 1, 1, generator=generator)
        waves = 0.3 + 0.5 * torch.rand(512, 1, 1, generator=generator)
        along = places[:, None] * torch.cos(angles) + places * torch.sin(angles)
        clean = torch.sin(along * waves)[:, None]
        return clean + 0.5 * torch.randn(clean.shape, generator=generator), unit * clean

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return unit * models.squares(outputs.float(), targets)

    return Recipe(
        lambda: Denoiser(unit), data, loss, True, 0.003, 100, 8, epsilon=1e-20,
        error=lambda outputs, y: models.squares(outputs / unit, y / unit),
    )  # fmt: skip


def _deep(unit: float) -> Recipe:
    def make() -> nn.Module:
        body = sigmoid_mlp(6, 24)
        return nn.Sequential(nn.Linear(8, 2), *body[:-1], nn.Linear(24, 1))

    def data(generator: torch.Generator) -> Data:
        x, y = models.function(generator)
        return x, unit * y

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs.float() - targets) ** 2).sum()

    return Recipe(
        make, data, loss, True, 0.01, 200, 64,
        error=lambda outputs, y: models.squares(outputs / unit, y / unit),
    )  # fmt: skip


def _towers(*units: float) -> Recipe:
    """Returns a network for each quantity, which are in units far apart."""
    sizes = torch.tensor(units)

    def data(generator: torch.Generator) -> Data:
        x, y = models.function(generator, len(units))
        return x, y * sizes

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets) ** 2).mean(0).sum()

    def error(outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets) ** 2).mean(0).div(sizes**2).mean()

    return Recipe(
        lambda: Towers(units), data, loss, True, 0.01, 200, 64, epsilon=1e-20, error=error
    )  # fmt: skip


RECIPES = {
    "healthy": _text(lambda: Squared(1.0)),
    "squared_20": _text(lambda: Squared(20.0)),
    "squared_45": _text(lambda: Squared(45.0)),
    "by_hand_600": _text(lambda: NormedByHand(600.0)),
    "by_hand_3000": _text(lambda: NormedByHand(3000.0)),
    "mask_fill": _text(lambda: Attention(_filled)),
    "mask_write": _text(lambda: Attention(_written)),
    "mask_add": _text(lambda: Attention(_added)),
    "mask_where": _text(lambda: Attention(_chosen)),
    "scores_near": _text(lambda: Attention(gain=60.0, divisor=2000.0)),
    "scores_beyond": _text(lambda: Attention(gain=200.0, divisor=20000.0)),
    "softmax_by_hand": _text(lambda: Attention(softmax=_exponentials, gain=3.0)),
    "sum_10000": _text(lambda: Squared(1.0), loss=_sum_of(1e4)),
    "denoise_0.01": _denoising(1e-2),
    "deep_300": _deep(300.0),
    "towers_100_0.001": _towers(1e2, 1e-3),
    "towers_1000_0.0001": _towers(1e3, 1e-4),
}
