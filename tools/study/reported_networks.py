# SPDX-License-Identifier: Apache-2.0
"""Networks of the kinds in which people report failures in 16 bits, small.

Many of the operations that fail are not modules: products, exponentials and sums are written in
`forward`, as in the reported models. Weights are drawn from torch's generator: seed it first.
"""

import torch
from networks import tanh_mlp
from torch import Tensor, nn


class FeedForward(nn.Module):
    """T5's: a gated layer after a norm without mean, added to the stream."""

    def __init__(self, width: int, stream: float) -> None:
        super().__init__()
        self.wi_0, self.wi_1 = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.wo = nn.Linear(2 * width, width, bias=False)
        nn.init.normal_(self.wo.weight, std=2 * stream / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the next stream."""
        normed = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True))
        return x + self.wo(nn.functional.gelu(self.wi_0(normed)) * self.wi_1(normed))


class PairModel(nn.Module):
    """Embeds each symbol and the one before it, then blocks, a norm and a head."""

    def __init__(self, symbols: int, width: int, stream: float, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.now, self.before = (nn.Embedding(symbols, width) for _ in range(2))
        self.block = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols)
        for embedding in (self.now, self.before):
            nn.init.normal_(embedding.weight, std=stream)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the scores of the next symbols."""
        return self.head(self.norm(self.block(self.now(x) + self.before(x.roll(1, -1)))))


class Attention(nn.Module):
    """Causal attention of one head whose scores are not divided by the root of the width."""

    def __init__(self, width: int, gain: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        for layer in (self.q, self.k):
            layer.weight.data.mul_(gain)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the next stream."""
        normed = self.norm(x)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = self.q(normed) @ self.k(normed).transpose(-1, -2)
        return x + scores.masked_fill(future, -torch.inf).softmax(-1) @ self.v(normed)


class Growing(nn.Module):
    """Residual blocks without norms, each `gain` times the stream; a norm at the end."""

    def __init__(self, inputs: int, width: int, depth: int, classes: int, gain: float) -> None:
        super().__init__()
        self.read = nn.Linear(inputs, width)
        self.bodies = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(depth)
        )
        for body in self.bodies:
            nn.init.kaiming_normal_(body[0].weight, nonlinearity="relu")
            nn.init.normal_(body[2].weight, std=gain / width**0.5)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the scores of the classes."""
        x = self.read(x)
        for body in self.bodies:
            x = x + body(x)
        return self.head(x)


class Contrastive(nn.Module):
    """Two towers; the cosines of all pairs of a batch times a temperature that is learned."""

    def __init__(self, inputs: int, width: int, temperature: float) -> None:
        super().__init__()
        self.left, self.right = (tanh_mlp(inputs, width, width) for _ in range(2))
        self.temperature = nn.Parameter(torch.tensor(temperature).log())

    def forward(self, x: Tensor) -> Tensor:
        """Returns the scores of each left with each right."""
        left, right = (tower(x[:, side]) for side, tower in enumerate((self.left, self.right)))
        left = left / left.norm(dim=-1, keepdim=True)
        right = right / right.norm(dim=-1, keepdim=True)
        return (left @ right.T) * self.temperature.exp()


class Denormalized(nn.Module):
    """A small network whose output is multiplied by the unit of the labels."""

    def __init__(self, inputs: int, unit: float) -> None:
        super().__init__()
        self.body, self.unit = tanh_mlp(inputs, 24, 1), unit

    def forward(self, x: Tensor) -> Tensor:
        """Returns a value in the labels' unit."""
        return self.body(x) * self.unit


class Pooled(nn.Module):
    """Features of a set's members, summed by `sum` or by a product with ones; then a norm."""

    def __init__(self, inputs: int, width: int, *, product: bool) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(inputs, width), nn.ReLU())
        self.after = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        """Returns a number for each set."""
        features = self.each(x)
        if not self.product:
            return self.after(features.sum(1))
        ones = torch.ones(len(x), 1, x.shape[1])
        return self.after((ones @ features)[:, 0])


class Autoencoder(nn.Module):
    """A variational one. The last input is the logarithm of the counts' sum, which rates follow."""

    def __init__(self, inputs: int, latent: int) -> None:
        super().__init__()
        self.encoder = tanh_mlp(inputs, 24, 2 * latent)
        self.decoder = tanh_mlp(latent, 24, inputs)

    def forward(self, x: Tensor) -> Tensor:
        """Returns rates, and the divergence in the last column."""
        mean, log_variance = self.encoder(x[:, :-1]).chunk(2, -1)
        z = mean + torch.randn_like(mean, dtype=torch.float32) * torch.exp(0.5 * log_variance)
        divergence = (mean.float() ** 2 + log_variance.exp() - 1 - log_variance).sum(-1, True) / 2
        return torch.cat([self.decoder(z).softmax(-1) * torch.exp(x[:, -1:]), divergence], -1)


class Exponential(nn.Module):
    """A layer that reads exponentials, of `log_size` at the start, and a norm behind it."""

    def __init__(self, inputs: int, width: int, log_size: float) -> None:
        super().__init__()
        self.log_scale = nn.Linear(inputs, width)
        self.read = nn.Sequential(
            nn.Linear(width, width), nn.LayerNorm(width), nn.Tanh(), nn.Linear(width, 1)
        )
        self.log_scale.bias.data.add_(log_size)

    def forward(self, x: Tensor) -> Tensor:
        """Returns a number for each sample."""
        return self.read(self.log_scale(x).exp())


class Oscillation(nn.Module):
    """u(x) of a small network and what it leaves of u'' + k^2 u = 0, by second derivatives."""

    def __init__(self, length: float, waves: float) -> None:
        super().__init__()
        self.body, self.k = tanh_mlp(1, 24, 1), waves / length
        self.body[0].weight.data.mul_(3 / length)

    def forward(self, x: Tensor) -> Tensor:
        """Returns, for each place, u and u'' / k^2 + u."""
        with torch.enable_grad():
            x = x.requires_grad_()
            u = self.body(x)
            slope = torch.autograd.grad(u.float().sum(), x, create_graph=True)[0]
            bend = torch.autograd.grad(slope.sum(), x, create_graph=True)[0]
            return torch.cat([u.float(), bend / self.k**2 + u], -1)


class Separate(nn.Module):
    """A network for each output."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(tanh_mlp(inputs, 16, 1) for _ in range(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Returns all outputs."""
        return torch.cat([body(x) for body in self.bodies], -1)


class Experts(nn.Module):
    """The two best of several experts for each sample, weighed by a softmax of the router."""

    def __init__(self, inputs: int, experts: int, gain: float) -> None:
        super().__init__()
        self.router = nn.Linear(inputs, experts, bias=False)
        self.router.weight.data.mul_(gain)
        self.up = nn.Parameter(torch.randn(experts, inputs, 16) / inputs**0.5)
        self.down = nn.Parameter(torch.randn(experts, 16, 1) / 4)

    def forward(self, x: Tensor) -> Tensor:
        """Returns a number for each sample."""
        shares = self.router(x).softmax(-1)
        best = shares.topk(2, -1)
        gates = torch.zeros_like(shares).scatter(-1, best.indices, best.values)
        hidden = torch.einsum("bi,eih->beh", x, self.up).relu()
        return (torch.einsum("beh,eho->beo", hidden, self.down) * gates[..., None]).sum(1)


class ActorCritic(nn.Module):
    """Scores of actions, and the value of a state in the unit of the returns."""

    def __init__(self, inputs: int, actions: int, unit: float) -> None:
        super().__init__()
        self.actor, self.critic = tanh_mlp(inputs, 24, actions), Denormalized(inputs, unit)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the scores and, in the last column, the value."""
        return torch.cat([self.actor(x), self.critic(x)], -1)
