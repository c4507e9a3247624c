# SPDX-License-Identifier: Apache-2.0
"""Modules that change their input in place: the gradients recorded are those of the values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dlsim


def _recorded(path: Path, chosen: str, *, inplace: bool) -> dict[str, np.ndarray]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(inplace), nn.Linear(6, 6), nn.ELU(0.5, inplace))
    model.append(nn.Linear(6, 2))
    seen: list[torch.Tensor] = []
    model[0].register_forward_hook(
        lambda _m, _i, output: output.register_hook(seen.append) and None
    )
    with dlsim.Recorder(model, path, activations=chosen, on_error="raise") as rec:
        model(torch.randn(7, 5)).square().sum().backward()
        rec.step(scale=1.0)
    tensors = dict(dlsim.open_trace(path)[0].tensors)
    return {**tensors, "hook of the user": seen[0].numpy()}


@pytest.mark.parametrize("chosen", ["*", "[0123]", "[13]", "1"])
def test_modules_in_place_give_the_gradients_of_their_outputs(tmp_path: Path, chosen: str) -> None:
    plain = _recorded(tmp_path / "plain", chosen, inplace=False)
    changed = _recorded(tmp_path / "inplace", chosen, inplace=True)
    assert list(changed) == list(plain)
    for name, values in plain.items():
        np.testing.assert_array_equal(changed[name], values, err_msg=name)
