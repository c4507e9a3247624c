# SPDX-License-Identifier: Apache-2.0
"""The models of the study, each with its data, optimizer and loss, made for a seed.

The data of a model are always the same; the seed decides the initial weights and the batches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import networks
import torch
from torch import Tensor, nn

Data = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Recipe:
    """How a model is made and trained; `error` is what counts at the end, by default the loss."""

    network: Callable[[], nn.Module]
    data: Callable[[torch.Generator], Data]
    loss: Loss
    adam: bool
    rate: float
    steps: int
    batch: int = 32
    epsilon: float = 1e-8
    clip_norm: float | None = None
    error: Loss | None = None


@dataclass
class Training:
    """A model that is ready to be trained; `rate` of the optimizer falls linearly to zero."""

    recipe: Recipe
    network: nn.Module
    optimizer: torch.optim.Optimizer
    data: Data
    generator: torch.Generator

    def batches(self) -> Iterator[Data]:
        """Yields the batch of each step and sets the rate of that step."""
        inputs, targets = self.data
        steps = self.recipe.steps
        for step in range(steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.recipe.rate * (1 - step / steps)
            chosen = torch.randint(len(inputs), (self.recipe.batch,), generator=self.generator)
            yield inputs[chosen], targets[chosen]

    def error(self) -> float:
        """Returns the final loss: that of a quarter of the data, or the recipe's own error."""
        judge = self.recipe.error or self.recipe.loss
        self.network.eval()
        with torch.no_grad():
            return float(judge(self.network(self.data[0][:JUDGED]), self.data[1][:JUDGED]))


SAMPLES, JUDGED = 2048, 512


def make(name: str, seed: int) -> Training:
    """Returns the training of a model; two calls give the same."""
    return training_of(RECIPES[name], seed)


def training_of(recipe: Recipe, seed: int) -> Training:
    """Returns the training of a recipe."""
    torch.manual_seed(seed)
    network = recipe.network()
    parameters = network.parameters()
    optimizer: torch.optim.Optimizer
    if recipe.adam:
        optimizer = torch.optim.Adam(parameters, lr=recipe.rate, eps=recipe.epsilon, foreach=True)
    else:
        optimizer = torch.optim.SGD(parameters, lr=recipe.rate, momentum=0.9, foreach=True)
    data = recipe.data(torch.Generator().manual_seed(100))
    return Training(recipe, network, optimizer, data, torch.Generator().manual_seed(1000 + seed))


def classes(scores: Tensor, targets: Tensor) -> Tensor:
    """Returns the cross entropy, of texts over all places."""
    return nn.functional.cross_entropy(scores.flatten(0, -2), targets.flatten())


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the mean squared error."""
    return nn.functional.mse_loss(outputs, targets)


UNITS = torch.tensor([1.0, 1e-4])


def _in_units(outputs: Tensor, targets: Tensor) -> Tensor:
    return (((outputs - targets) * UNITS) ** 2).mean()


def _rings(generator: torch.Generator) -> Data:
    x = torch.randn(SAMPLES, 2, generator=generator)
    return x, (torch.sin(3 * x[:, 0]) + x[:, 1] > 0).long()


def _gratings(generator: torch.Generator) -> Data:
    """Returns 8 x 8 stripes of four directions, with noise."""
    labels = torch.randint(4, (SAMPLES,), generator=generator)
    angles = labels * torch.pi / 4
    across = torch.arange(8.0)
    phase = 6.3 * torch.rand(SAMPLES, 1, 1, generator=generator)
    wave = torch.cos(angles)[:, None, None] * across[:, None]
    wave = wave + torch.sin(angles)[:, None, None] * across[None, :]
    noise = torch.randn(SAMPLES, 8, 8, generator=generator)
    return (torch.sin(1.5 * wave + phase) + noise)[:, None], labels


def function(generator: torch.Generator, outputs: int = 1) -> Data:
    """Returns sines of random mixtures of eight inputs."""
    x = torch.randn(SAMPLES, 8, generator=generator)
    mix = torch.randn(8, outputs, generator=generator) / 2
    return x, torch.sin(x @ mix)


def clusters(generator: torch.Generator) -> Data:
    """Returns points and which of six scores, of a hidden layer, is the largest."""
    x = torch.randn(SAMPLES, 12, generator=generator)
    hidden = torch.tanh(x @ torch.randn(12, 12, generator=generator) / 2)
    scores = hidden @ torch.randn(12, 6, generator=generator)
    return x, scores.argmax(-1)


def _memory(generator: torch.Generator, length: int = 6) -> Data:
    """Returns sequences whose class is that of their first symbol; the rest is noise."""
    labels = torch.randint(4, (SAMPLES,), generator=generator)
    x = 0.5 * torch.randn(SAMPLES, length, 4, generator=generator)
    x[:, 0] += 1.5 * nn.functional.one_hot(labels, 4)
    return x, labels


def _sums(generator: torch.Generator) -> Data:
    """Returns sequences and a nonlinear sum; one sample in 50 is 20 times too large."""
    x = torch.randn(SAMPLES, 8, 2, generator=generator)
    weights = torch.linspace(0.3, 1, 8)[:, None]
    y = torch.sin((x * weights).sum((1, 2)) / 3)[:, None]
    broken = torch.rand(SAMPLES, 1, generator=generator) < 0.02
    broken[:JUDGED] = False
    return x, torch.where(broken, 20 * y, y)


LENGTH, SYMBOLS = 10, 12


def language(generator: torch.Generator) -> Data:
    """Returns texts in which two symbols decide what may follow."""
    follow = torch.randint(SYMBOLS, (SYMBOLS, 4, 2), generator=generator)
    text = torch.randint(SYMBOLS, (SAMPLES, LENGTH + 1), generator=generator)
    for place in range(2, LENGTH + 1):
        pick = (torch.rand(SAMPLES, generator=generator) < 0.2).long()
        text[:, place] = follow[text[:, place - 1], text[:, place - 2] % 4, pick]
    return text[:, :-1], text[:, 1:]


USERS, ITEMS = 200, 100


def tastes(generator: torch.Generator) -> Data:
    """Returns pairs of a user and an item, and ratings."""
    users = torch.randn(USERS, 3, generator=generator)
    items = torch.randn(ITEMS, 3, generator=generator)
    draw = torch.randint(USERS * ITEMS, (SAMPLES,), generator=generator)
    # Popular items are more frequent, rare ones have few gradients.
    user, item = draw % USERS, (draw // USERS) ** 2 // ITEMS
    noise = 0.1 * torch.randn(SAMPLES, generator=generator)
    ratings = torch.tanh((users[user] * items[item]).sum(-1)) + noise
    return torch.stack([user, item], -1), ratings[:, None]


RECIPES = {
    "sigmoid_adam": Recipe(
        lambda: networks.sigmoid_mlp(8, 16), _rings, classes, True, 0.015, 150, 64
    ),
    "sigmoid_sgd": Recipe(
        lambda: networks.sigmoid_mlp(4, 16), _rings, classes, False, 0.3, 200, 64
    ),
    "conv_plain": Recipe(
        lambda: networks.convolution(normalized=False), _gratings, classes, False, 0.03, 120
    ),
    "conv_norm": Recipe(
        lambda: networks.convolution(normalized=True), _gratings, classes, False, 0.05, 120
    ),
    "lstm": Recipe(lambda: networks.Lstm(4, 12, 4), _memory, classes, True, 0.02, 120),
    "transformer_pre": Recipe(
        lambda: networks.Transformer(SYMBOLS, LENGTH, 12, pre=True),
        language, classes, True, 0.01, 100, 8,
    ),
    "transformer_post": Recipe(
        lambda: networks.Transformer(SYMBOLS, LENGTH, 12, pre=False),
        language, classes, True, 0.01, 100, 8,
    ),
    "embedding": Recipe(
        lambda: networks.Ratings(USERS, ITEMS, 8), tastes, squares, True, 0.03, 200, 64
    ),
    "regression": Recipe(
        lambda: networks.tanh_mlp(8, 24, 1), function, squares, False, 0.1, 200, 64
    ),
    "units": Recipe(
        lambda: networks.tanh_mlp(8, 24, 2), lambda generator: function(generator, 2),
        _in_units, True, 0.01, 200, 64, epsilon=1e-20, error=squares,
    ),
    "exploding": Recipe(
        lambda: networks.Recurrent(2, 16, 1.6), _sums, squares, False, 0.03, 120, 32,
        clip_norm=1.0,
    ),
    "residual": Recipe(
        lambda: networks.residual_mlp(12, 16, 4, 6), clusters, classes, False, 0.05, 150
    ),
}  # fmt: skip
