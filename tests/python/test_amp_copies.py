# SPDX-License-Identifier: Apache-2.0
"""Scalers of dlsim.amp are copied and pickled between steps, with all that decides the scale."""

import copy
import io
import pickle

import pytest
import torch

from dlsim import amp
from dlsim.amp import cbtorch


def _saved(scaler):
    buffer = io.BytesIO()
    torch.save(scaler, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


_COPIES = [copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler)), _saved]


def _step(scaler, factor):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler.scale((weight * factor).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return float(scaler.get_scale()), weight.tolist()


def _state(scaler):
    return {name: float(value) for name, value in scaler.state_dict().items()}


@pytest.mark.parametrize("copied", _COPIES)
@pytest.mark.parametrize(
    "scaler",
    [
        lambda: amp.GradScaler("dynamic", 2.0**20, 2, half_dtype="cbfloat16"),
        lambda: amp.GradScaler(8.0, half_dtype="bfloat16"),
        lambda: amp.GradScaler("dynamic", enabled=False),
        lambda: cbtorch.amp.GradScaler("dynamic", min_loss_scale=2e-14),
    ],
)
def test_a_copy_goes_on_as_the_scaler_does(scaler, copied):
    scaler = scaler()
    for factor in (1e30, 1e30, 1.0):
        _step(scaler, factor)
    other = copied(scaler)
    assert _state(other) == _state(scaler)
    assert other.half_dtype == scaler.half_dtype
    assert other.get_non_clamped_scale() == scaler.get_non_clamped_scale()
    for factor in (1.0, 1.2345678, 1e30, 1.0, 1.0, 1.0):
        assert _step(other, factor) == _step(scaler, factor)


def test_a_copy_has_a_state_of_its_own():
    scaler = amp.GradScaler("dynamic")
    other = copy.deepcopy(scaler)
    _step(other, 1e30)
    assert float(scaler.get_scale()) == 2.0**15
    assert float(other.get_scale()) == 2.0**14


@pytest.mark.parametrize("copied", _COPIES)
def test_no_copy_in_the_middle_of_a_step(copied):
    scaler = amp.GradScaler("dynamic")
    scaler.scale(torch.tensor(1.0))
    with pytest.raises(RuntimeError, match=r"in the middle of a step, .* after update\(\)"):
        copied(scaler)
