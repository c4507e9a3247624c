# SPDX-License-Identifier: Apache-2.0
"""Models of the kinds in which people report failures in 16 bits, in several sizes.

Named before the first training: HELD_OUT, of which nothing was tuned, neither model nor rule.
"""

import models
import reported_networks as networks
import torch
from models import SAMPLES, SYMBOLS, Data, Loss, Recipe, language
from networks import tanh_mlp
from torch import Tensor, nn

HELD_OUT = ("residual", "contrastive", "pooling", "derivatives", "router", "policy")


def kind_of(name: str) -> str:
    """Returns the kind of a model, the first part of its name."""
    return name.partition("_")[0]


def is_held_out(name: str) -> bool:
    """Tells whether nothing was tuned by a model."""
    return kind_of(name) in HELD_OUT


def _pairs(network: type[nn.Module], stream: float, gain: float, rate: float = 0.01) -> Recipe:
    def make() -> nn.Module:
        blocks = [network(24, gain) for _ in range(2)]
        return networks.PairModel(SYMBOLS, 24, stream, blocks)

    return Recipe(make, language, models.classes, True, rate, 120, 16)


def _residual(gain: float) -> Recipe:
    return Recipe(
        lambda: networks.Growing(12, 24, 6, 6, gain),
        models.clusters, models.classes, True, 0.003, 150,
    )  # fmt: skip


def _views(generator: torch.Generator) -> Data:
    latent = torch.randn(SAMPLES, 1, 12, generator=generator)
    views = latent + 0.3 * torch.randn(SAMPLES, 2, 12, generator=generator)
    return views, torch.zeros(SAMPLES)


def _matching(scores: Tensor, _targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores, torch.arange(len(scores)))


def _contrastive(temperature: float) -> Recipe:
    def error(scores: Tensor, targets: Tensor) -> Tensor:
        return _matching(20 * scores / scores.abs().max(), targets)

    return Recipe(
        lambda: networks.Contrastive(12, 24, temperature),
        _views, _matching, True, 0.005, 150, error=error,
    )  # fmt: skip


def _in_unit(unit: float) -> Loss:
    return lambda outputs, targets: models.squares(outputs.float() / unit, targets.float() / unit)


def _labels(unit: float) -> Recipe:
    def data(generator: torch.Generator) -> Data:
        x, y = models.function(generator)
        return x, unit * y

    return Recipe(
        lambda: networks.Denormalized(8, unit), data, models.squares, True, 0.01, 150, 64,
        epsilon=1e-30, error=_in_unit(unit),
    )  # fmt: skip


def _inputs(size: float, gain: float = 1.0, rate: float = 0.01) -> Recipe:
    """Returns a model whose inputs are large; `gain` makes the weights that they meet small."""

    def data(generator: torch.Generator) -> Data:
        x, y = models.function(generator)
        return x * size, y

    def make() -> nn.Module:
        body = tanh_mlp(8, 24, 1)
        body[0].weight.data.mul_(gain)
        return nn.Sequential(body[0], nn.LayerNorm(24), *body[1:])

    return Recipe(make, data, models.squares, True, rate, 150, 64)


def _pooling(members: int, size: float, *, product: bool) -> Recipe:
    def data(generator: torch.Generator) -> Data:
        x = torch.rand(512, members, 4, generator=generator)
        x = x * (0.2 + torch.rand(512, 1, 4, generator=generator))
        y = torch.sin(3 * x.mean(1)[:, :1] / (x.mean(1)[:, 1:2] + 0.2))
        return size * x, y

    return Recipe(
        lambda: networks.Pooled(4, 24, product=product), data, models.squares, True, 0.01, 120, 16
    )


def _autoencoder(log_size: float) -> Recipe:
    def data(generator: torch.Generator) -> Data:
        x, _ = models.function(generator)
        shares = torch.softmax(x @ torch.randn(8, 12, generator=generator) / 4, -1)
        log_sizes = log_size + 0.3 * torch.randn(SAMPLES, 1, generator=generator)
        counts = torch.poisson(shares * log_sizes.exp(), generator=generator)
        return torch.cat([(counts / log_sizes.exp() * 12).log1p(), log_sizes], -1), counts

    def loss(outputs: Tensor, counts: Tensor) -> Tensor:
        fit = nn.functional.poisson_nll_loss(outputs[:, :-1], counts, log_input=False)
        return fit + outputs[:, -1].mean() / 12

    def error(outputs: Tensor, counts: Tensor) -> Tensor:
        sizes = counts.sum(-1, True)
        return models.squares(12 * outputs[:, :-1] / sizes, 12 * counts / sizes)

    return Recipe(lambda: networks.Autoencoder(12, 4), data, loss, True, 0.01, 150, 64, error=error)


def _exponential(log_size: float) -> Recipe:
    return Recipe(
        lambda: networks.Exponential(8, 24, log_size),
        models.function, models.squares, True, 0.01, 150, 64, epsilon=1e-20,
    )  # fmt: skip


def _derivatives(length: float) -> Recipe:
    def data(generator: torch.Generator) -> Data:
        x = torch.rand(SAMPLES, 1, generator=generator)
        return x * length, torch.cos(4 * x)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        few = len(targets) // 8  # places at which u is measured
        return models.squares(outputs[:few, :1], targets[:few]) + (outputs[:, 1] ** 2).mean()

    def error(outputs: Tensor, targets: Tensor) -> Tensor:
        return models.squares(outputs[:, :1], targets)

    return Recipe(
        lambda: networks.Oscillation(length, 4), data, loss, True, 0.01, 200, 64, error=error
    )


def _tokens(decades: int) -> Recipe:
    """Returns a model whose samples weigh less by a power of ten from user to user."""

    def data(generator: torch.Generator) -> Data:
        x, y = models.tastes(generator)
        weights = 10.0 ** -(x[:, :1] % (decades + 1))
        return x, torch.cat([y, weights], -1)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs.float() - targets[:, :1]) ** 2 * targets[:, 1:]).mean()

    return Recipe(
        lambda: models.networks.Ratings(models.USERS, models.ITEMS, 8), data, loss, True, 0.03,
        200, 64, epsilon=1e-20, error=lambda outputs, y: models.squares(outputs, y[:, :1]),
    )  # fmt: skip


def _units(*units: float, separate: bool = False) -> Recipe:
    count, sizes = len(units), torch.tensor(units)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (((outputs.float() - targets) * sizes) ** 2).mean()

    def make() -> nn.Module:
        return networks.Separate(8, count) if separate else tanh_mlp(8, 24, count)

    return Recipe(
        make, lambda generator: models.function(generator, count), loss, True, 0.01, 200, 64,
        epsilon=1e-25, error=models.squares,
    )  # fmt: skip


def _router(gain: float) -> Recipe:
    return Recipe(
        lambda: networks.Experts(8, 4, gain), models.function, models.squares, True, 0.01, 150, 64
    )


def _policy(unit: float) -> Recipe:
    def data(generator: torch.Generator) -> Data:
        x, y = models.function(generator, 4)
        return x, unit * y

    def loss(outputs: Tensor, returns: Tensor) -> Tensor:
        scores, values = outputs[:, :-1].float(), outputs[:, -1:]
        actions = torch.multinomial(scores.detach().softmax(-1).nan_to_num(1.0), 1)
        earned = returns.gather(-1, actions)
        advantage = earned - values.detach()
        gain = scores.log_softmax(-1).gather(-1, actions) * advantage
        return nn.functional.mse_loss(values, earned) / 2 - gain.mean()

    def error(outputs: Tensor, returns: Tensor) -> Tensor:
        expected = (outputs[:, :-1].softmax(-1) * returns).sum(-1)
        return (returns.max(-1).values - expected).mean() / unit

    return Recipe(
        lambda: networks.ActorCritic(8, 4, unit), data, loss, True, 0.01, 200, 64,
        epsilon=1e-20, error=error,
    )  # fmt: skip


RECIPES = {
    "t5_200": _pairs(networks.FeedForward, 2e2, 2e2),
    "t5_200000": _pairs(networks.FeedForward, 2e5, 2e5),
    "attention_plain": _pairs(networks.Attention, 1.0, 1.0),
    "attention_massive": _pairs(networks.Attention, 1.0, 200.0),
    "residual_1": _residual(1.0),
    "residual_7": _residual(7.0),
    "contrastive_20": _contrastive(20.0),
    "contrastive_100000": _contrastive(1e5),
    "labels_100": _labels(1e2),
    "labels_300000": _labels(3e5),
    "labels_1e-8": _labels(1e-8),
    "inputs_300": _inputs(3e2),
    "inputs_1000000": _inputs(1e6),
    "inputs_100000_small": _inputs(1e5, 0.01, 0.002),
    "pooling_few": _pooling(16, 10.0, product=True),
    "pooling_sum": _pooling(512, 1e3, product=False),
    "pooling_product": _pooling(512, 1e3, product=True),
    "vae_counts": _autoencoder(7.0),
    "vae_library": _autoencoder(14.0),
    "vae_exp_3": _exponential(3.0),
    "vae_exp_13": _exponential(13.0),
    "derivatives_metre": _derivatives(1.0),
    "derivatives_millimetre": _derivatives(1e-3),
    "tokens_even": _tokens(0),
    "tokens_rare": _tokens(7),
    "units_shared": _units(1.0, 1e-4),
    "units_separate": _units(1e2, 1.0, 1e-3, 1e-6, separate=True),
    "router_1": _router(1.0),
    "router_100000": _router(1e5),
    "policy_1": _policy(1.0),
    "policy_100000": _policy(1e5),
}
