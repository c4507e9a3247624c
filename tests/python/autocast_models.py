# SPDX-License-Identifier: Apache-2.0
"""Small models whose operations are compared with those under torch.autocast."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn
from torch.amp import custom_bwd, custom_fwd
from torch.nn import functional


class Attention(nn.Module):
    """Attention by hand, with a mask, as models had it before it was one function."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / 4
        mask = torch.ones_like(scores, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
        weights = scores.float().softmax(-1).type_as(scores)
        return (self.out(weights @ v) - x).square().mean()


class Norm(nn.Module):
    """A norm by root mean square that computes in float32, as those of T5 and Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x):
        before = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(before)


class FeedForward(nn.Module):
    """The feed-forward part of T5: gated, on a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.gate, self.up, self.down = (nn.Linear(16, 16, bias=False) for _ in range(3))

    def forward(self, x):
        for _ in range(2):
            inner = self.norm(self.down(functional.gelu(self.gate(x)) * self.up(x)))
            x = x + inner
        return functional.smooth_l1_loss(x, torch.zeros_like(x))


class Words(nn.Module):
    """Embeddings, positions, two kinds of norms and a cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, 16), nn.Parameter(torch.randn(5, 16))
        self.first, self.second = nn.LayerNorm(16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 9)

    def forward(self, x):
        words = x[..., 0].abs().long() % 9
        hidden = self.first(self.words(words) + self.places)
        hidden = torch.tanh(self.second(hidden)) + hidden
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), words.flatten())


class Images(nn.Module):
    """Convolutions with batch and group norms, pooling, interpolation, changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.batch, self.group = nn.BatchNorm2d(4), nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = functional.relu(self.batch(self.first(x[:, None])), inplace=True)
        x = functional.max_pool2d(x, 2)
        x = functional.silu(self.group(self.second(x)))
        x = functional.interpolate(x, scale_factor=2.0, mode="bilinear")
        x += 1
        logits = self.head(x.sum((2, 3)))
        return functional.binary_cross_entropy_with_logits(logits, torch.sigmoid(logits).detach())


class Contrast(nn.Module):
    """Two towers, cosines and a temperature that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(16, 8), nn.Linear(16, 8)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        a = functional.normalize(self.left(x).mean(1), dim=-1)
        b = self.right(x).mean(1)
        b = b / b.norm(dim=-1, keepdim=True)
        logits = self.temperature.exp() * a @ b.t()
        far = functional.cosine_similarity(a, b).sum()
        return functional.cross_entropy(logits, torch.arange(len(x))) + far


class Latent(nn.Module):
    """A variational autoencoder: exp, log, squares, a divergence."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(16, 8), nn.Linear(4, 16)

    def forward(self, x):
        mean, log_variance = self.encode(x).chunk(2, -1)
        z = mean + torch.exp(0.5 * log_variance) * torch.ones_like(mean)
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(-1)
        return functional.mse_loss(self.decode(z), x) + divergence.mean()


class Experts(nn.Module):
    """A router, the best two of four experts, and a loss that balances them."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        shares = self.router(x).softmax(-1)
        best, which = shares.topk(2, -1)
        best = best / best.sum(-1, keepdim=True)
        every = torch.stack([expert(x) for expert in self.experts], -2)
        chosen = every.gather(-2, which[..., None].expand(*which.shape, 16))
        out = (chosen * best[..., None]).sum(-2)
        return out.logsumexp(-1).mean() + shares.mean((0, 1)).var()


class Recurrent(nn.Module):
    """A recurrent cell by hand, over all places."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 32), nn.Linear(8, 32, bias=False)

    def forward(self, x):
        hidden = cell = x.new_zeros(len(x), 8)
        for place in x.unbind(1):
            i, f, g, o = (self.inner(place) + self.outer(hidden)).chunk(4, -1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
        return functional.kl_div(
            hidden.log_softmax(-1), torch.full_like(hidden, 0.125), reduction="batchmean"
        )


class Graph(nn.Module):
    """Sums over neighbors, distances, cumulative sums, softplus and prelu."""

    def __init__(self) -> None:
        super().__init__()
        self.send, self.slope = nn.Linear(16, 8), nn.PReLU()
        self.weigh = nn.Bilinear(8, 8, 3)

    def forward(self, x):
        sent = self.slope(self.send(x))
        near = torch.exp(-torch.cdist(sent, sent))
        gathered = torch.einsum("bij,bjk->bik", near, sent)
        total = torch.zeros_like(sent).index_add(1, torch.arange(5), gathered)
        steps = functional.softplus(total).cumsum(1).clamp(max=50).sqrt()
        return functional.huber_loss(steps, torch.ones_like(steps))


class Channels(nn.Module):
    """Attention over channels by batched products, and a filter over time."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.scale = nn.Conv1d(5, 5, 3, padding=1), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        x = functional.leaky_relu(self.filter(x))
        alike = torch.bmm(x, x.transpose(1, 2))
        alike = torch.where(alike > 0, alike, torch.full_like(alike, -1e4))
        weights = (alike.amax(-1, keepdim=True) - alike).softmax(-1)
        out = self.scale * torch.bmm(weights, x) + x
        return torch.addcmul(out, out, out, value=0.1).std()


class Apart(nn.Module):
    """Parts that turn autocast off, for the sake of float32 and as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        with torch.autocast("cuda", enabled=False):
            wide = q.float() @ k.float().transpose(-1, -2)
            same = torch.relu(q @ k.transpose(-1, -2))
            powers = same.pow(2) + wide.exp()
        return self.out((same @ v) * 2) + powers.softmax(-1).sum()


def maybe_autocast(device_type: str, enabled: bool = True):
    """Returns what that of transformers does: a context only where it makes a difference."""
    if torch.is_autocast_enabled(device_type) or enabled:
        return torch.autocast(device_type, enabled=enabled)
    return nullcontext()


class _Energy(torch.autograd.Function):
    """Squares of products, in float32 whatever it is given."""

    @staticmethod
    @custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x, weight):
        scores = x @ weight
        return scores * scores

    @staticmethod
    @custom_bwd(device_type="cuda")
    def backward(ctx, gradient):
        return None, None


class _Scaled(torch.autograd.Function):
    """A product, in what autocast says."""

    @staticmethod
    @custom_fwd(device_type="cuda")
    def forward(ctx, x, weight):
        return (x @ weight) * 2

    @staticmethod
    @custom_bwd(device_type="cuda")
    def backward(ctx, gradient):
        return None, None


class Sometimes(nn.Module):
    """Parts that turn autocast off only where it is on, as libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x):
        x = self.first(x)
        with maybe_autocast("cuda", enabled=False):
            places = x.float() @ self.weight
            same = torch.tanh(x)
        energy = _Energy.apply(x, self.weight) + places
        return self.second(_Scaled.apply(same, self.weight) * energy).square().mean()


class Places(nn.Module):
    """Places as integers, made to numbers of the type of the hidden state and of others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        hidden = self.first(x)
        places = torch.arange(5)[:, None] * 3
        narrow = torch.sin(places.to(hidden.dtype) / 7) + torch.cos((places + 1).type_as(hidden))
        wide = torch.sin(places.float() / 7) * torch.cos(places.to(x.dtype))
        more = torch.arange(5, dtype=hidden.dtype)[:, None] + torch.arange(5.0)[:, None]
        return self.second((hidden + narrow) * more).tanh().sum() + (hidden * wide).sum()


class Heads(nn.Module):
    """PyTorch's attention, whose inputs are transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        out, weights = self.attention(x, x, x)
        return out.tanh().sum() + weights.square().sum()


MODELS: tuple[Callable[[], nn.Module], ...] = (
    Attention, FeedForward, Words, Images, Contrast, Latent, Experts, Recurrent, Graph, Channels,
    Apart, Sometimes, Places, Heads,
)  # fmt: skip
