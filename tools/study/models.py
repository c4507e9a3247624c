# SPDX-License-Identifier: Apache-2.0
"""The models of the study: small, of the kinds in which people report failures in 16 bits.

The data of a model are always the same; the seed decides the initial weights and the batches. Many
of the operations that fail are not modules but written in `forward`, as in the reported models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, gelu, mse_loss, poisson_nll_loss

Data = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Forward = Callable[[Any, Tensor], Tensor]

SAMPLES = 2048
WIDTH = 24  # of all hidden layers, unless said otherwise
LENGTH, SYMBOLS = 10, 12  # of texts
USERS, ITEMS = 200, 100


def classes(scores: Tensor, targets: Tensor) -> Tensor:
    """Returns the cross entropy, of texts over all places."""
    return cross_entropy(scores.flatten(0, -2), targets.flatten())


def in_unit(unit: float) -> Loss:
    """Returns the mean squared error of what is in a unit."""
    return lambda outputs, targets: mse_loss(outputs.float() / unit, targets.float() / unit)


@dataclass(frozen=True)
class Model:
    """How a model is made, and trained by Adam; `error` counts at the end, by default the loss."""

    network: Callable[[], nn.Module]
    data: Callable[[Generator], Data]
    loss: Loss = mse_loss
    error: Loss | None = None
    rate: float = 0.01
    steps: int = 150
    batch: int = 64
    epsilon: float = 1e-8


class Net(nn.Module):
    """Parts with names, and what is computed of them; weights are drawn in the parts' order."""

    def __init__(self, forward: Forward, **parts: Any) -> None:
        super().__init__()
        self.compute = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        """Returns what is computed."""
        return self.compute(self, x)


# -- data --------------------------------------------------------------------------------------


def function(generator: Generator, outputs: int = 1) -> Data:
    """Returns sines of random mixtures of eight inputs."""
    x = torch.randn(SAMPLES, 8, generator=generator)
    return x, torch.sin(x @ (torch.randn(8, outputs, generator=generator) / 2))


def clusters(generator: Generator) -> Data:
    """Returns points and which of six scores, of a hidden layer, is the largest."""
    x = torch.randn(SAMPLES, 12, generator=generator)
    hidden = torch.tanh(x @ torch.randn(12, 12, generator=generator) / 2)
    return x, (hidden @ torch.randn(12, 6, generator=generator)).argmax(-1)


def language(generator: Generator) -> Data:
    """Returns texts in which two symbols decide what may follow."""
    follow = torch.randint(SYMBOLS, (SYMBOLS, 4, 2), generator=generator)
    text = torch.randint(SYMBOLS, (SAMPLES, LENGTH + 1), generator=generator)
    for place in range(2, LENGTH + 1):
        pick = (torch.rand(SAMPLES, generator=generator) < 0.2).long()
        text[:, place] = follow[text[:, place - 1], text[:, place - 2] % 4, pick]
    return text[:, :-1], text[:, 1:]


def tastes(generator: Generator) -> Data:
    """Returns pairs of a user and an item, and ratings; popular items are more frequent."""
    users = torch.randn(USERS, 3, generator=generator)
    items = torch.randn(ITEMS, 3, generator=generator)
    draw = torch.randint(USERS * ITEMS, (SAMPLES,), generator=generator)
    user, item = draw % USERS, (draw // USERS) ** 2 // ITEMS
    noise = 0.1 * torch.randn(SAMPLES, generator=generator)
    ratings = torch.tanh((users[user] * items[item]).sum(-1)) + noise
    return torch.stack([user, item], -1), ratings[:, None]


def function_in(unit: float | Tensor, outputs: int = 1) -> Callable[[Generator], Data]:
    """Returns data whose labels are in a unit, or each in its own."""

    def data(generator: Generator) -> Data:
        x, y = function(generator, outputs)
        return x, unit * y

    return data


# -- networks and models of reported failures ----------------------------------------------------


def tanh_mlp(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Returns a network of two hidden layers."""
    hidden = (nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
    return nn.Sequential(*hidden, nn.Linear(width, outputs))


def text_model(
    block: Callable[[], nn.Module],
    stream: float = 1.0,
    rate: float = 0.01,
    loss: Loss = classes,
) -> Model:
    """Embeds each symbol and the one before it, then two blocks, a norm and a head."""

    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head(net.norm(net.block(net.now(x) + net.before(x.roll(1, -1)))))

    def network() -> nn.Module:
        blocks = [block() for _ in range(2)]
        net = Net(
            forward,
            now=nn.Embedding(SYMBOLS, WIDTH),
            before=nn.Embedding(SYMBOLS, WIDTH),
            block=nn.Sequential(*blocks),
            norm=nn.LayerNorm(WIDTH),
            head=nn.Linear(WIDTH, SYMBOLS),
        )
        for embedding in (net.now, net.before):
            nn.init.normal_(embedding.weight, std=stream)
        return net

    return Model(network, language, loss, classes, rate, 120, 16)


def t5(stream: float) -> Model:
    """T5's feed-forward: a gated layer after a norm without mean, added to a large stream."""

    def forward(net: Any, x: Tensor) -> Tensor:
        normed = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True))
        return x + net.wo(gelu(net.wi_0(normed)) * net.wi_1(normed))

    def block() -> nn.Module:
        net = Net(
            forward,
            wi_0=nn.Linear(WIDTH, 2 * WIDTH, bias=False),
            wi_1=nn.Linear(WIDTH, 2 * WIDTH, bias=False),
            wo=nn.Linear(2 * WIDTH, WIDTH, bias=False),
        )
        nn.init.normal_(net.wo.weight, std=2 * stream / WIDTH**0.5)
        return net

    return text_model(block, stream)


def attention(gain: float) -> Model:
    """Causal attention of one head whose scores are not divided by the root of the width."""

    def forward(net: Any, x: Tensor) -> Tensor:
        normed = net.norm(x)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = net.q(normed) @ net.k(normed).transpose(-1, -2)
        return x + scores.masked_fill(future, -torch.inf).softmax(-1) @ net.v(normed)

    def block() -> nn.Module:
        q, k, v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        for layer in (q, k):
            layer.weight.data.mul_(gain)
        return Net(forward, norm=nn.LayerNorm(WIDTH), q=q, k=k, v=v)

    return text_model(block)


def residual(gain: float) -> Model:
    """Residual blocks without norms, each `gain` times the stream; a norm at the end."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.read(x)
        for body in net.bodies:
            x = x + body(x)
        return net.head(x)

    def network() -> nn.Module:
        read = nn.Linear(12, WIDTH)
        bodies = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
            for _ in range(6)
        )
        for body in bodies:
            nn.init.kaiming_normal_(body[0].weight, nonlinearity="relu")
            nn.init.normal_(body[2].weight, std=gain / WIDTH**0.5)
        head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 6))
        return Net(forward, read=read, bodies=bodies, head=head)

    return Model(network, clusters, classes, rate=0.003, batch=32)


def contrastive(temperature: float) -> Model:
    """Two towers; the cosines of all pairs of a batch times a temperature that is learned."""

    def forward(net: Any, x: Tensor) -> Tensor:
        left, right = net.left(x[:, 0]), net.right(x[:, 1])
        left = left / left.norm(dim=-1, keepdim=True)
        right = right / right.norm(dim=-1, keepdim=True)
        return (left @ right.T) * net.temperature.exp()

    def network() -> nn.Module:
        log = nn.Parameter(torch.tensor(temperature).log())
        left, right = (tanh_mlp(12, WIDTH, WIDTH) for _ in range(2))
        return Net(forward, left=left, right=right, temperature=log)

    def views(generator: Generator) -> Data:
        latent = torch.randn(SAMPLES, 1, 12, generator=generator)
        noise = torch.randn(SAMPLES, 2, 12, generator=generator)
        return latent + 0.3 * noise, torch.zeros(SAMPLES)

    def loss(scores: Tensor, _targets: Tensor) -> Tensor:
        return cross_entropy(scores, torch.arange(len(scores)))

    def error(scores: Tensor, targets: Tensor) -> Tensor:
        return loss(20 * scores / scores.abs().max(), targets)

    return Model(network, views, loss, error, rate=0.005, batch=32)


def denormalized(inputs: int, unit: float) -> nn.Module:
    """Returns a small network whose output is multiplied by the unit of the labels."""
    return Net(lambda net, x: net.body(x) * unit, body=tanh_mlp(inputs, WIDTH, 1))


def labels(unit: float) -> Model:
    """A regression whose labels are large or small."""
    return Model(
        lambda: denormalized(8, unit), function_in(unit), error=in_unit(unit), epsilon=1e-30
    )


def inputs(size: float, gain: float = 1.0, rate: float = 0.01) -> Model:
    """A regression whose inputs are large; `gain` makes the weights that they meet small."""

    def data(generator: Generator) -> Data:
        x, y = function(generator)
        return x * size, y

    def network() -> nn.Module:
        body = tanh_mlp(8, WIDTH, 1)
        body[0].weight.data.mul_(gain)
        return nn.Sequential(body[0], nn.LayerNorm(WIDTH), *body[1:])

    return Model(network, data, rate=rate)


def pooling(members: int, size: float, *, product: bool) -> Model:
    """Features of a set's members, summed by `sum` or by a product with ones; then a norm."""

    def forward(net: Any, x: Tensor) -> Tensor:
        features = net.each(x)
        if not product:
            return net.after(features.sum(1))
        return net.after((torch.ones(len(x), 1, x.shape[1]) @ features)[:, 0])

    def network() -> nn.Module:
        each = nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU())
        after = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1))
        return Net(forward, each=each, after=after)

    def data(generator: Generator) -> Data:
        x = torch.rand(512, members, 4, generator=generator)
        x = x * (0.2 + torch.rand(512, 1, 4, generator=generator))
        y = torch.sin(3 * x.mean(1)[:, :1] / (x.mean(1)[:, 1:2] + 0.2))
        return size * x, y

    return Model(network, data, steps=120, batch=16)


def autoencoder(log_size: float) -> Model:
    """A variational one of counts; the last input is the logarithm of their sum."""

    def forward(net: Any, x: Tensor) -> Tensor:
        mean, log_variance = net.encoder(x[:, :-1]).chunk(2, -1)
        z = mean + torch.randn_like(mean, dtype=torch.float32) * torch.exp(0.5 * log_variance)
        divergence = (mean.float() ** 2 + log_variance.exp() - 1 - log_variance).sum(-1, True) / 2
        return torch.cat([net.decoder(z).softmax(-1) * torch.exp(x[:, -1:]), divergence], -1)

    def network() -> nn.Module:
        return Net(forward, encoder=tanh_mlp(12, WIDTH, 8), decoder=tanh_mlp(4, WIDTH, 12))

    def data(generator: Generator) -> Data:
        x, _ = function(generator)
        shares = torch.softmax(x @ torch.randn(8, 12, generator=generator) / 4, -1)
        log_sizes = log_size + 0.3 * torch.randn(SAMPLES, 1, generator=generator)
        counts = torch.poisson(shares * log_sizes.exp(), generator=generator)
        return torch.cat([(counts / log_sizes.exp() * 12).log1p(), log_sizes], -1), counts

    def loss(outputs: Tensor, counts: Tensor) -> Tensor:
        fit = poisson_nll_loss(outputs[:, :-1], counts, log_input=False)
        return fit + outputs[:, -1].mean() / 12

    def error(outputs: Tensor, counts: Tensor) -> Tensor:
        sizes = counts.sum(-1, True)
        return mse_loss(12 * outputs[:, :-1] / sizes, 12 * counts / sizes)

    return Model(network, data, loss, error)


def exponential(log_size: float) -> Model:
    """A layer that reads exponentials, of `log_size` at the start, and a norm behind it."""

    def network() -> nn.Module:
        log_scale, linear = nn.Linear(8, WIDTH), nn.Linear(WIDTH, WIDTH)
        read = nn.Sequential(linear, nn.LayerNorm(WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
        log_scale.bias.data.add_(log_size)
        return Net(lambda net, x: net.read(net.log_scale(x).exp()), log_scale=log_scale, read=read)

    return Model(network, function, epsilon=1e-20)


def derivatives(length: float) -> Model:
    """Learns u(x), and u'' + k^2 u = 0 by second derivatives; outputs are u and u'' / k^2 + u."""
    k = 4 / length

    def forward(net: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.requires_grad_()
            u = net.body(x)
            slope = torch.autograd.grad(u.float().sum(), x, create_graph=True)[0]
            bend = torch.autograd.grad(slope.sum(), x, create_graph=True)[0]
            return torch.cat([u.float(), bend / k**2 + u], -1)

    def network() -> nn.Module:
        body = tanh_mlp(1, WIDTH, 1)
        body[0].weight.data.mul_(3 / length)
        return Net(forward, body=body)

    def data(generator: Generator) -> Data:
        x = torch.rand(SAMPLES, 1, generator=generator)
        return x * length, torch.cos(4 * x)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        few = len(targets) // 8  # places at which u is measured
        return mse_loss(outputs[:few, :1], targets[:few]) + (outputs[:, 1] ** 2).mean()

    return Model(network, data, loss, lambda outputs, y: mse_loss(outputs[:, :1], y), steps=200)


def tokens(decades: int) -> Model:
    """Two embeddings and a small network; samples weigh less by a power of ten by user."""

    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head(torch.cat([net.users(x[:, 0]), net.items(x[:, 1])], -1))

    def network() -> nn.Module:
        users, items = nn.Embedding(USERS, 8), nn.Embedding(ITEMS, 8)
        head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
        return Net(forward, users=users, items=items, head=head)

    def data(generator: Generator) -> Data:
        x, y = tastes(generator)
        return x, torch.cat([y, 10.0 ** -(x[:, :1] % (decades + 1))], -1)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs.float() - targets[:, :1]) ** 2 * targets[:, 1:]).mean()

    def error(outputs: Tensor, targets: Tensor) -> Tensor:
        return mse_loss(outputs, targets[:, :1])

    return Model(network, data, loss, error, rate=0.03, steps=200, epsilon=1e-20)


def units(*sizes: float, separate: bool = False) -> Model:
    """Outputs whose errors count in units far apart, of one network or of one each."""
    count, factors = len(sizes), torch.tensor(sizes)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (((outputs.float() - targets) * factors) ** 2).mean()

    def network() -> nn.Module:
        if not separate:
            return tanh_mlp(8, WIDTH, count)
        bodies = nn.ModuleList(tanh_mlp(8, 16, 1) for _ in range(count))
        return Net(lambda net, x: torch.cat([one(x) for one in net.bodies], -1), bodies=bodies)

    return Model(network, function_in(1.0, count), loss, mse_loss, steps=200, epsilon=1e-25)


def router(gain: float) -> Model:
    """The two best of four experts for each sample, weighed by a softmax of the router."""

    def forward(net: Any, x: Tensor) -> Tensor:
        shares = net.router(x).softmax(-1)
        best = shares.topk(2, -1)
        gates = torch.zeros_like(shares).scatter(-1, best.indices, best.values)
        hidden = torch.einsum("bi,eih->beh", x, net.up).relu()
        return (torch.einsum("beh,eho->beo", hidden, net.down) * gates[..., None]).sum(1)

    def network() -> nn.Module:
        first = nn.Linear(8, 4, bias=False)
        first.weight.data.mul_(gain)
        up = nn.Parameter(torch.randn(4, 8, 16) / 8**0.5)
        return Net(forward, router=first, up=up, down=nn.Parameter(torch.randn(4, 16, 1) / 4))

    return Model(network, function)


def policy(unit: float) -> Model:
    """Scores of actions and, in the last column, the value of a state in the returns' unit."""

    def network() -> nn.Module:
        actor, critic = tanh_mlp(8, WIDTH, 4), denormalized(8, unit)
        return Net(
            lambda net, x: torch.cat([net.actor(x), net.critic(x)], -1),
            actor=actor,
            critic=critic,
        )

    def loss(outputs: Tensor, returns: Tensor) -> Tensor:
        scores, values = outputs[:, :-1].float(), outputs[:, -1:]
        actions = torch.multinomial(scores.detach().softmax(-1).nan_to_num(1.0), 1)
        earned = returns.gather(-1, actions)
        gain = scores.log_softmax(-1).gather(-1, actions) * (earned - values.detach())
        return mse_loss(values, earned) / 2 - gain.mean()

    def error(outputs: Tensor, returns: Tensor) -> Tensor:
        expected = (outputs[:, :-1].softmax(-1) * returns).sum(-1)
        return (returns.max(-1).values - expected).mean() / unit

    return Model(network, function_in(unit, 4), loss, error, steps=200, epsilon=1e-20)


# Of these kinds nothing was tuned, neither model nor rule; named before the first training.
HELD_OUT = ("residual", "contrastive", "pooling", "derivatives", "router", "policy")
REPORTED = {
    "t5_200": t5(2e2),
    "t5_200000": t5(2e5),
    "attention_plain": attention(1.0),
    "attention_massive": attention(200.0),
    "residual_1": residual(1.0),
    "residual_7": residual(7.0),
    "contrastive_20": contrastive(20.0),
    "contrastive_100000": contrastive(1e5),
    "labels_100": labels(1e2),
    "labels_300000": labels(3e5),
    "labels_1e-8": labels(1e-8),
    "inputs_300": inputs(3e2),
    "inputs_1000000": inputs(1e6),
    "inputs_100000_small": inputs(1e5, 0.01, 0.002),
    "pooling_few": pooling(16, 10.0, product=True),
    "pooling_sum": pooling(512, 1e3, product=False),
    "pooling_product": pooling(512, 1e3, product=True),
    "vae_counts": autoencoder(7.0),
    "vae_library": autoencoder(14.0),
    "vae_exp_3": exponential(3.0),
    "vae_exp_13": exponential(13.0),
    "derivatives_metre": derivatives(1.0),
    "derivatives_millimetre": derivatives(1e-3),
    "tokens_even": tokens(0),
    "tokens_rare": tokens(7),
    "units_shared": units(1.0, 1e-4),
    "units_separate": units(1e2, 1.0, 1e-3, 1e-6, separate=True),
    "router_1": router(1.0),
    "router_100000": router(1e5),
    "policy_1": policy(1.0),
    "policy_100000": policy(1e5),
}


def is_held_out(name: str) -> bool:
    """Tells whether nothing was tuned by a model; its kind is the first part of its name."""
    return name.partition("_")[0] in HELD_OUT


# -- what a reader writes by hand: squares, norms, masks, softmax, units, sums -------------------


def squared(gain: float) -> nn.Module:
    """Returns a norm and two layers with relu squared between them, added to the stream."""
    net = Net(
        lambda net, x: x + net.down(net.up(net.norm(x)).relu().square()),
        norm=nn.LayerNorm(WIDTH),
        up=nn.Linear(WIDTH, 2 * WIDTH),
        down=nn.Linear(2 * WIDTH, WIDTH),
    )
    for layer in (net.up, net.down):
        layer.weight.data.mul_(gain)
    return net


def normed_by_hand(size: float) -> nn.Module:
    """Returns two layers after a norm by hand, in the type of a stream that `size` makes large."""
    norm = Net(
        lambda net, x: x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-8) * net.weight,
        weight=nn.Parameter(torch.ones(WIDTH)),
    )
    read = nn.Linear(WIDTH, WIDTH)
    layers = (nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
    read.weight.data.mul_(size)
    return Net(
        lambda net, x: x + net.body(net.norm(net.read(x))),
        norm=norm,
        read=read,
        body=nn.Sequential(*layers),
    )


def written(scores: Tensor, future: Tensor) -> Tensor:
    """Returns scores whose future is overwritten."""
    scores = scores.clone()
    scores[:, future] = -1e9
    return scores


MASKS: dict[str, Loss] = {
    "infinite": lambda scores, future: scores.masked_fill(future, -math.inf),
    "fill": lambda scores, future: scores.masked_fill(future, -1e9),
    "write": written,
    "add": lambda scores, future: scores + future * -1e9,
    "where": lambda scores, future: torch.where(future, -1e9, scores),
}


def softmax_by_hand(scores: Tensor) -> Tensor:
    """Returns the exponentials divided by their sum."""
    powers = torch.exp(scores)
    return powers / powers.sum(-1, keepdim=True)


def attending(
    mask: str = "infinite",
    softmax: Callable[[Tensor], Tensor] = lambda scores: scores.softmax(-1),
    gain: float = 1.0,
    divisor: float = WIDTH**0.5,
) -> Model:
    """Causal attention of one head, its mask and its softmax as they are given."""

    def forward(net: Any, x: Tensor) -> Tensor:
        q, k, v = net.qkv(net.norm(x)).chunk(3, -1)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = q @ k.transpose(-1, -2) / divisor
        return x + net.out(softmax(MASKS[mask](scores, future)) @ v)

    def block() -> nn.Module:
        norm, out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        qkv = nn.Linear(WIDTH, 3 * WIDTH)
        qkv.weight.data[: 2 * WIDTH].mul_(gain)
        return Net(forward, norm=norm, out=out, qkv=qkv)

    return text_model(block, rate=0.005)


def summed(factor: float) -> Loss:
    """Returns the sum of the cross entropies, times a factor."""

    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        scores, targets = scores.flatten(0, -2), targets.flatten()
        return factor * cross_entropy(scores, targets, reduction="sum")

    return loss


def denoising(unit: float) -> Model:
    """Two convolutions with BatchNorm, whose output is multiplied by a small unit."""

    def network() -> nn.Module:
        layers = (
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 1),
        )  # fmt: skip
        return Net(lambda net, x: net.body(x) * unit, body=nn.Sequential(*layers))

    def data(generator: Generator) -> Data:
        places = torch.arange(12.0)
        angles = math.pi * torch.rand(512, 1, 1, generator=generator)
        waves = 0.3 + 0.5 * torch.rand(512, 1, 1, generator=generator)
        along = places[:, None] * torch.cos(angles) + places * torch.sin(angles)
        clean = torch.sin(along * waves)[:, None]
        return clean + 0.5 * torch.randn(clean.shape, generator=generator), unit * clean

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return unit * mse_loss(outputs.float(), targets)

    return Model(network, data, loss, in_unit(unit), 0.003, 100, 8, 1e-20)


def deep(unit: float) -> Model:
    """A deep sigmoid network, whose gradients become small, for labels in a large unit."""

    def network() -> nn.Module:
        first, size = nn.Linear(8, 2), 2
        layers: list[nn.Module] = []
        for _ in range(6):
            linear = nn.Linear(size, WIDTH)
            nn.init.xavier_normal_(linear.weight, gain=3.0)
            nn.init.zeros_(linear.bias)
            layers += [linear, nn.Sigmoid()]
            size = WIDTH
        return nn.Sequential(first, *layers, nn.Linear(WIDTH, 1))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs.float() - targets) ** 2).sum()

    return Model(network, function_in(unit), loss, in_unit(unit), steps=200)


def towers(*sizes: float) -> Model:
    """A small network for each quantity, which are in units far apart."""
    scale = torch.tensor(sizes)

    def network() -> nn.Module:
        return Net(
            lambda net, x: torch.cat([tower(x).float() for tower in net.towers], -1),
            towers=nn.ModuleList(denormalized(8, unit) for unit in sizes),
        )

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets) ** 2).mean(0).sum()

    def error(outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets) ** 2).mean(0).div(scale**2).mean()

    data = function_in(scale, len(sizes))
    return Model(network, data, loss, error, steps=200, epsilon=1e-20)


BY_HAND = {
    "healthy": text_model(lambda: squared(1.0), rate=0.005),
    "squared_20": text_model(lambda: squared(20.0), rate=0.005),
    "squared_45": text_model(lambda: squared(45.0), rate=0.005),
    "by_hand_600": text_model(lambda: normed_by_hand(600.0), rate=0.005),
    "by_hand_3000": text_model(lambda: normed_by_hand(3000.0), rate=0.005),
    "mask_fill": attending("fill"),
    "mask_write": attending("write"),
    "mask_add": attending("add"),
    "mask_where": attending("where"),
    "scores_near": attending(gain=60.0, divisor=2000.0),
    "scores_beyond": attending(gain=200.0, divisor=20000.0),
    "softmax_by_hand": attending(softmax=softmax_by_hand, gain=3.0),
    "sum_10000": text_model(lambda: squared(1.0), rate=0.005, loss=summed(1e4)),
    "denoise_0.01": denoising(1e-2),
    "deep_300": deep(300.0),
    "towers_100_0.001": towers(1e2, 1e-3),
    "towers_1000_0.0001": towers(1e3, 1e-4),
}
MODELS = REPORTED | BY_HAND
