# SPDX-License-Identifier: Apache-2.0
"""Floating-point buffers that the forward pass reads, which `model.half()` casts."""

from pathlib import Path

import pytest
import torch
from recording import load
from torch import nn

import dlsim
from dlsim.recorder._ranks import Pieces, Ranks


class Scored(nn.Module):
    """Attention scores with a mask that is a buffer, added and filled in."""

    def __init__(self, constant: float) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        mask = torch.full((4, 4), constant).triu(1)
        self.register_buffer("mask", mask, persistent=False)
        self.register_buffer("fill", torch.tensor(constant))

    def forward(self, x):
        scores = self.inner(x)
        hidden = torch.where(torch.eye(4, dtype=torch.bool), self.fill, scores)
        return (scores + self.mask).softmax(-1) + hidden.softmax(-1)


class Unread(nn.Module):
    """Scales by a table that is in no state_dict; of its other buffers nothing reads one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("table", torch.tensor([1e6, 2.0, 3.0, 4.0]), persistent=False)
        self.register_buffer("seen", torch.tensor(1e9))
        self.register_buffer("places", torch.arange(4))

    def forward(self, x):
        return self.inner(x) / self.table + self.places


def normed() -> nn.Module:
    """Returns a model in evaluation whose batch norm was trained on values of a thousand."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    model[1].running_var.fill_(1e6)
    return model


def record(path: Path, model: nn.Module, **options) -> dlsim.Recorder:
    with dlsim.Recorder(model, path, forward_every=1, on_error="raise", **options) as rec:
        for _ in range(2):
            model.zero_grad()
            model(torch.ones(4, 4)).square().sum().backward()
            rec.step(scale=1.0)
    return rec


def buffers(path: Path, model: nn.Module) -> set[str]:
    parameters = {f"{name}.value" for name, _ in model.named_parameters()}
    return {name for name in load(path, 1)[0] if name.endswith(".value")} - parameters


def fp16(path: Path, recipe: str):
    return dlsim.replay(path, formats=["fp16"], recipe=recipe, quiet=True).verdict["fp16"]


def test_running_statistics_that_overflow_fail_half_and_not_autocast(tmp_path: Path) -> None:
    model = normed()
    record(tmp_path, model)
    names = {"1.running_mean.value", "1.running_var.value"}
    assert buffers(tmp_path, model) == names
    tensors, metadata = load(tmp_path, 1)
    assert torch.equal(tensors["1.running_var.value"], torch.full((4,), 1e6))
    assert names <= set(metadata["autocast_float32"].split("\n"))
    failed = fp16(tmp_path, "half")
    assert failed.verdict == "fails in forward"
    assert [one.tensor for one in failed.values.overflowing] == ["1.running_var.value"]
    assert failed.values.first.tensor == "1.running_var.value"
    fits = fp16(tmp_path, "autocast")
    assert fits.values.state == fits.forward.state == "fits" and fits.serves
    assert names <= set(fits.values.kept_in_float32)


def test_half_loses_what_the_verdict_says_it_does() -> None:
    assert normed().half()[1].running_var.isinf().all()


def test_running_statistics_are_those_of_the_step(tmp_path: Path) -> None:
    model = normed().train()
    record(tmp_path, model)
    found = load(tmp_path, 1)[0]
    assert torch.equal(found["1.running_var.value"], model[1].running_var)


@pytest.mark.parametrize("constant", [-1e9, torch.finfo(torch.float32).min, -torch.inf])
def test_masks_in_buffers_fail_nothing(tmp_path: Path, constant) -> None:
    model = Scored(constant)
    record(tmp_path, model)
    for recipe in ("half", "autocast"):
        assert fp16(tmp_path, recipe).values.state == "fits"
    if constant != -torch.inf:
        assert buffers(tmp_path, model) == set()


def test_large_values_that_are_no_mask_are_recorded(tmp_path: Path) -> None:
    model = normed()
    model[1].running_mean.copy_(torch.tensor([-1e6, 1.0, 2.0, 3.0]))
    model[1].running_var.fill_(1.0)
    record(tmp_path, model)
    failed = fp16(tmp_path, "half")
    assert [one.tensor for one in failed.values.overflowing] == ["1.running_mean.value"]


def test_only_floating_point_buffers_of_modules_that_run_are_recorded(tmp_path: Path) -> None:
    model = Unread()
    record(tmp_path, model)
    assert buffers(tmp_path, model) == {"table.value"}
    assert fp16(tmp_path, "half").verdict == "fails in forward"
    assert fp16(tmp_path, "autocast").values.state == "fits"


def test_buffers_are_chosen_with_their_modules(tmp_path: Path) -> None:
    for name, options in (("apart", {"activations": "!1"}), ("none", {"activations": None})):
        model = normed()
        record(tmp_path / name, model, **options)
        assert buffers(tmp_path / name, model) == set()


def test_micro_steps_have_buffers_once(tmp_path: Path) -> None:
    model = normed()
    with dlsim.Recorder(
        model, tmp_path, forward_every=1, micro_steps=True, on_error="raise"
    ) as rec:
        for _ in range(2):
            model.zero_grad()
            model(torch.ones(4, 4)).square().sum().backward()
            rec.micro_step(scale=1.0)
        rec.step()
    assert fp16(tmp_path, "half").verdict == "fails in forward"
    assert fp16(tmp_path, "autocast").values.state == "fits"


def test_sharded_training_records_them_once() -> None:
    found = {"1.running_var.value": torch.ones(2)}
    own = [Pieces([], {}, Ranks("sharded", rank, 2)).own(found, {}) for rank in (0, 1)]
    assert own == [found, {}]
