# SPDX-License-Identifier: Apache-2.0
"""A recorder leaves gradient checkpointing as it is: what runs again computes the same."""

import threading
from pathlib import Path

import pytest
import torch
from recording import load
from torch import nn
from torch.nn import functional
from torch.utils import checkpoint

import dlsim

pytestmark = pytest.mark.skipif(
    not hasattr(torch.nn, "attention"), reason="needs PyTorch 2.3 or later"
)


class Block(nn.Module):
    """A block with PyTorch's attention, which has several kernels, and a conversion."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one.view(2, 4, 2, 4).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 4, 8)
        return x + self.out(y.clone().float())


def plain(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return block(x)


def without_reentry(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint.checkpoint(block, x, use_reentrant=False)


def with_reentry(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint.checkpoint(block, x, use_reentrant=True)


def nested(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint.checkpoint(without_reentry, block, x, use_reentrant=False)


def selective(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Saves the results of all operators, and takes them for those that run again."""
    save = checkpoint.CheckpointPolicy.MUST_SAVE
    contexts = checkpoint.create_selective_checkpoint_contexts
    return checkpoint.checkpoint(
        block, x, use_reentrant=False, context_fn=lambda: contexts(lambda *_, **__: save)
    )


class Model(nn.Module):
    def __init__(self, run) -> None:
        super().__init__()
        self.blocks, self.run = nn.ModuleList([Block(), Block()]), run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.run(block, x)
        return x


def trained(run, path: Path | None, *, thread: bool = False, **options) -> list[torch.Tensor]:
    """Trains for four steps, of which every other one has its forward pass recorded."""
    torch.manual_seed(0)
    model = Model(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rec = None
    if path is not None:
        rec = dlsim.Recorder(model, path, forward_every=2, on_error="raise", **options)
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(2, 4, 8).requires_grad_()).square().mean()
        if thread:  # as autograd's own, in which nothing of the recorder's is entered
            backward = threading.Thread(target=loss.backward)
            backward.start()
            backward.join()
        else:
            loss.backward()
        assert all(one.grad is not None for one in model.parameters())
        if rec is not None:
            rec.step(scale=1.0)
        optimizer.step()
    if rec is not None:
        rec.close()
    return list(model.parameters())


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("run", [without_reentry, with_reentry, nested, selective])
def test_a_training_with_checkpointing_is_the_same(tmp_path: Path, run, thread) -> None:
    if run is selective and not hasattr(checkpoint, "CheckpointPolicy"):
        pytest.skip("needs PyTorch 2.4 or later")
    expected = trained(run, None, thread=thread)
    found = trained(run, tmp_path / "run", thread=thread)
    assert all(map(torch.equal, found, expected))
    tensors, _ = load(tmp_path / "run", 2)
    assert "blocks.1.qkv.act" in tensors and "blocks.1.qkv.act_grad" in tensors


def test_attention_is_left_as_it_is(tmp_path: Path) -> None:
    expected = trained(plain, None)
    assert all(map(torch.equal, trained(plain, tmp_path / "run"), expected))
