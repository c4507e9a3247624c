# SPDX-License-Identifier: Apache-2.0
"""The networks of the study: small, and every operation a module, so that hooks see all gradients.

Initialization draws from torch's global generator; seed it before.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn


def sigmoid_mlp(depth: int, width: int) -> nn.Module:
    """Returns a deep sigmoid network for points of a plane, two classes."""
    sizes = [2, *[width] * depth]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        linear = nn.Linear(inputs, outputs)
        nn.init.xavier_normal_(linear.weight, gain=3.0)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Linear(width, 2))


def tanh_mlp(inputs: int, width: int, outputs: int) -> nn.Module:
    """Returns a network of two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, outputs),
    )


def convolution(*, normalized: bool, classes: int = 4) -> nn.Module:
    """Returns two convolutions and a linear layer; with BatchNorm, their biases do nothing."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 6), (6, 12)):
        layers.append(nn.Conv2d(inputs, outputs, 3, padding=1))
        if normalized:
            layers.append(nn.BatchNorm2d(outputs))
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(48, classes))


class ResidualBlock(nn.Module):
    """x + W2 relu(W1 norm(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns the sum."""
        return x + self.body(x)


def residual_mlp(inputs: int, width: int, blocks: int, classes: int) -> nn.Module:
    """Returns a residual network of LayerNorm and two linear layers per block."""
    body = [ResidualBlock(width) for _ in range(blocks)]
    return nn.Sequential(nn.Linear(inputs, width), *body, nn.Linear(width, classes))


class Recurrent(nn.Module):
    """A tanh recurrence with large weights, so that gradients grow on their way back in time."""

    def __init__(self, inputs: int, width: int, gain: float) -> None:
        super().__init__()
        self.read = nn.Linear(inputs, width)
        self.state = nn.Linear(width, width, bias=False)
        self.activation = nn.Tanh()
        self.head = nn.Linear(width, 1)
        nn.init.orthogonal_(self.state.weight, gain=gain)

    def forward(self, x: Tensor) -> Tensor:
        """Returns a number for each sequence."""
        read = self.read(x)
        state = torch.zeros(len(x), read.shape[-1])
        for step in range(x.shape[1]):
            state = self.activation(read[:, step] + self.state(state))
        return self.head(state)


class Lstm(nn.Module):
    """An LSTM, step by step, and a linear layer for the last state."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.read = nn.Linear(inputs, 4 * width)
        self.state = nn.Linear(width, 4 * width, bias=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the scores of the classes."""
        read = self.read(x)
        hidden = cell = torch.zeros(len(x), read.shape[-1] // 4)
        for step in range(x.shape[1]):
            gates = read[:, step] + self.state(hidden)
            i, f, g, o = gates.chunk(4, -1)
            cell = torch.sigmoid(f + 1) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
        return self.head(hidden)


class Attention(nn.Module):
    """Causal attention of one head; the bias of the keys does nothing, as softmax is shifted."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.scores = nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the mixed values."""
        length, width = x.shape[1:]
        future = torch.full((length, length), -math.inf).triu(1)
        q, k, v = self.query(x), self.key(x), self.value(x)
        return self.out(self.scores(q @ k.transpose(-1, -2) / math.sqrt(width) + future) @ v)


class TransformerBlock(nn.Module):
    """Attention and two linear layers, normalized before each (pre) or after each sum (post)."""

    def __init__(self, width: int, *, pre: bool) -> None:
        super().__init__()
        self.pre = pre
        self.attention = Attention(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the next residual stream."""
        if self.pre:
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Transformer(nn.Module):
    """A causal language model of two blocks."""

    def __init__(self, symbols: int, length: int, width: int, *, pre: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(symbols, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, pre=pre) for _ in range(2)))
        self.head = nn.Linear(width, symbols)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the scores of the next symbols."""
        return self.head(self.blocks(self.tokens(x) + self.places.weight))


class Ratings(nn.Module):
    """Two large embeddings and a small network, as in a recommender."""

    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.items = nn.Embedding(items, width)
        self.head = nn.Sequential(nn.Linear(2 * width, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Returns a rating for each pair."""
        return self.head(torch.cat([self.users(x[:, 0]), self.items(x[:, 1])], -1))
