# SPDX-License-Identifier: Apache-2.0
"""Sharded models are recognized, by stand-ins for what newer PyTorch has on this machine."""

from pathlib import Path

import pytest
import torch
from recording import load
from torch import nn

import dlsim


class FullyShardedDataParallel(nn.Module):
    """Wraps a module as the class of that name does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._fsdp_wrapped_module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._fsdp_wrapped_module(x)


class DTensor(torch.Tensor):
    """A tensor of which this process holds the first half."""

    def to_local(self) -> torch.Tensor:
        flat = self.as_subclass(torch.Tensor).reshape(-1)
        return flat[: flat.numel() // 2]


def test_a_wrapped_model_is_sharded_and_keeps_its_names(tmp_path: Path) -> None:
    model = FullyShardedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
    with dlsim.Recorder(model, tmp_path, distributed=(None, 1, 2), activations="0") as rec:
        model(torch.ones(3, 4)).sum().backward()
        rec.step(scale=1.0)
    tensors, _ = load(tmp_path / "shard-00001-of-00002", 0)
    assert tensors.keys() == {
        "0.weight.shard-1-of-2.grad",
        "0.bias.shard-1-of-2.grad",
        "1.weight.shard-1-of-2.grad",
        "1.bias.shard-1-of-2.grad",
        "0.shard-1-of-2.act_grad",
    }


def test_local_elements_of_distributed_tensors_are_recorded(tmp_path: Path) -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(4, 2).as_subclass(DTensor))
    assert type(model.weight).__name__ == "DTensor"
    model.weight.grad = torch.arange(8.0).reshape(4, 2).as_subclass(DTensor)
    with dlsim.Recorder(model, tmp_path, distributed=(None, 0, 2), on_error="raise") as rec:
        rec.step(scale=1.0)
    tensors, _ = load(tmp_path / "shard-00000-of-00002", 0)
    assert tensors["weight.shard-0-of-2.grad"].tolist() == [0, 1, 2, 3]


def test_a_single_process_records_a_wrapped_model_whole(tmp_path: Path) -> None:
    model = FullyShardedDataParallel(nn.Linear(4, 1))
    with dlsim.Recorder(model, tmp_path) as rec:
        model(torch.ones(3, 4)).sum().backward()
        rec.step(scale=1.0)
    assert load(tmp_path, 0)[0].keys() == {"weight.grad", "bias.grad", "(root).act_grad"}


@pytest.mark.parametrize("wrapper", ["_orig_mod", "_checkpoint_wrapped_module"])
def test_names_of_wrappers_are_left_out(tmp_path: Path, wrapper) -> None:
    model = nn.Module()
    model.add_module(wrapper, nn.Linear(2, 1))
    getattr(model, wrapper)(torch.ones(1, 2)).sum().backward()
    with dlsim.Recorder(model, tmp_path) as rec:
        rec.step(scale=1.0)
    assert load(tmp_path, 0)[0].keys() == {"weight.grad", "bias.grad"}


def test_shards_with_the_same_tensor_are_refused(tmp_path: Path) -> None:
    for rank in range(2):
        model = nn.Linear(2, 1)
        model(torch.ones(1, 2)).sum().backward()
        options = {"distributed": ("sharded", rank, 2)}
        with dlsim.Recorder(model, tmp_path, **options) as rec:
            rec.step(scale=1.0)
    steps = sorted(tmp_path.glob("shard-*/step-*.safetensors"))
    steps[1].write_bytes(steps[0].read_bytes())
    with pytest.raises(dlsim.InputError, match=r"tensor '.*': is in a shard before, expected once"):
        dlsim.replay(tmp_path, quiet=True)


def test_micro_steps_of_fully_sharded_models_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(dlsim.UsageError, match="micro_steps: hooks see no gradients of fully"):
        dlsim.Recorder(FullyShardedDataParallel(nn.Linear(2, 1)), tmp_path, micro_steps=True)


class Squares(nn.Module):
    """Has values above fp16's largest, where autocast keeps float32."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.add_module(f"fc{stage}", nn.Linear(4, 4))
        self.add_module(f"norm{stage}", nn.LayerNorm(4))

    def forward(self, x):
        for module in self.children():
            x = module(x)
        return (x * 2e4).pow(2)
