# SPDX-License-Identifier: Apache-2.0
"""Channels of activations follow what has made them, not only how many axes they have."""

from pathlib import Path

import pytest
import torch
from recording import load
from torch import nn

import dlsim


class Sounds(nn.Module):
    """A filter over time, a norm, a function, and a layer on each place."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.norm, self.relu = nn.Conv1d(3, 5, 3), nn.BatchNorm1d(5), nn.ReLU()
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.relu(self.norm(self.filter(x))).transpose(1, 2))


def recorded(path: Path, model: nn.Module, *inputs: torch.Tensor) -> None:
    torch.manual_seed(0)
    with dlsim.Recorder(model, path, forward_every=1, on_error="raise") as rec:
        for x in inputs:
            output = model(x)
            (output[0] if isinstance(output, tuple) else output).square().mean().backward()
        rec.step(scale=1.0)


def axes(path: Path) -> dict[str, str]:
    lines = load(path, 0)[1].get("feature_axes", "").splitlines()
    return {name: axis for axis, name in (line.split(" ") for line in lines)}


def test_a_convolution_over_time_has_its_features_second(tmp_path: Path) -> None:
    recorded(tmp_path, Sounds(), torch.randn(4, 3, 9), torch.randn(4, 3, 9))
    told = axes(tmp_path)
    for call in ("", ".call1"):
        assert told[f"filter{call}.act_grad"] == told[f"norm{call}.act_grad"] == "1"
        assert told[f"relu{call}.act_grad"] == "?"
        assert f"head{call}.act_grad" not in told


def test_images_and_sequences_need_no_word(tmp_path: Path) -> None:
    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filter, self.relu, self.head = nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Linear(16, 2)

        def forward(self, x):
            return self.head(self.relu(self.filter(x)).flatten(2))

    recorded(tmp_path, Images(), torch.randn(2, 3, 6, 6))
    assert axes(tmp_path) == {}


def test_layers_on_the_places_of_an_image_have_features_last(tmp_path: Path) -> None:
    class Places(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filter, self.head = nn.Conv2d(3, 5, 3), nn.Linear(5, 2)

        def forward(self, x):
            return self.head(self.filter(x).permute(0, 2, 3, 1)) * 2

    recorded(tmp_path, Places(), torch.randn(2, 3, 6, 6))
    assert axes(tmp_path) == {"head.act_grad": "3", "(root).act_grad": "?"}


@pytest.mark.parametrize(
    ("module", "shape", "axis"),
    [
        (nn.Conv1d(3, 5, 3), (3, 9), "0"),
        (nn.Conv2d(3, 5, 3), (3, 9, 9), "0"),
        (nn.ConvTranspose1d(3, 5, 3), (2, 3, 9), "1"),
        (nn.InstanceNorm1d(3, affine=True), (3, 9), "0"),
        (nn.InstanceNorm1d(3, affine=True), (2, 3, 9), "1"),
        (nn.GroupNorm(1, 3), (2, 3, 9), "1"),
        (nn.LSTM(9, 4), (2, 3, 9), None),
        (nn.LayerNorm(9), (2, 3, 4, 9), "3"),
        (nn.Embedding(4, 3), None, None),
    ],
)
def test_modules_tell(tmp_path: Path, module, shape, axis) -> None:
    x = torch.zeros(2, 3, dtype=torch.long) if shape is None else torch.randn(shape)
    recorded(tmp_path, nn.ModuleDict({"m": module})["m"], x)
    assert axes(tmp_path).get("(root).act_grad") == axis


@pytest.mark.parametrize("name", ["run", "run.profile"])
def test_channels_are_counted_along_them(tmp_path: Path, name: str) -> None:
    recorded(tmp_path / name, Sounds(), torch.randn(4, 3, 9))
    (run,) = dlsim.replay(tmp_path / name, formats=["fp16"], policies=["torch"])["runs"]
    channels = {one["name"]: one.get("channels") for one in run["tensors"]}
    assert channels["filter.act_grad"] == channels["norm.act_grad"] == 5
    assert channels["head.act_grad"] == 2 and channels["relu.act_grad"] == 1  # not known
