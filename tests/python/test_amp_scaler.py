# SPDX-License-Identifier: Apache-2.0
"""GradScaler: what it tests, skips, remembers and refuses."""

import copy
import math

import numpy as np
import pytest
import torch

from dlsim import amp

_INF = float("inf")


@pytest.fixture(autouse=True)
def float16():
    """Each test starts and ends with float16."""
    amp.set_half_dtype("float16")
    yield
    amp.set_half_dtype("float16")


def _parameters(*values):
    return [torch.nn.Parameter(torch.tensor(value)) for value in values]


def _give(parameters, *grads):
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = None if grad is None else torch.full_like(parameter, grad)


def _snapshot(optimizer):
    parameters = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]
    return parameters, copy.deepcopy(optimizer.state_dict())


def _same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(_same, left, right))
    return left == right


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop])
@pytest.mark.parametrize("bad", [_INF, -_INF, float("nan")])
def test_skipped_step_leaves_everything_alone(make, bad):
    parameters = _parameters([1.0, 2.0], 3.0)
    optimizer = make(parameters, lr=0.1, **({"momentum": 0.9} if make != torch.optim.Adam else {}))
    scaler = amp.GradScaler("dynamic", init_scale=1024.0)
    for grad in (1024.0, bad, 2048.0):
        before = _snapshot(optimizer)
        _give(parameters, 512.0, grad)
        scaler.step(optimizer)
        scaler.update()
        assert _same(_snapshot(optimizer), before) is not math.isfinite(grad)
        assert bool(amp.isfinite(optimizer)) is math.isfinite(grad)
    assert float(scaler.get_scale()) == 512.0
    assert int(scaler.get_num_skipped_steps()) == 1


def test_finite_gradients_of_infinite_norm_are_an_overflow():
    parameters = _parameters(1.0, 1.0)
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    scaler = amp.GradScaler("dynamic", init_scale=1.0, half_dtype="bfloat16")
    _give(parameters, 2.0**63, 2.0**63)
    scaler.step(optimizer)
    assert bool(scaler.isfinite)
    scaler.update()
    _give(parameters, 2.0**64, 0.0)
    scaler.step(optimizer)
    assert not scaler.isfinite
    scaler.update()
    assert float(scaler.get_scale()) == 0.5


def test_optimizers_unscaled_before_the_first_step_skip_together():
    one, two = _parameters(1.0, 1.0)
    optimizers = [torch.optim.SGD([one], lr=1.0), torch.optim.SGD([two], lr=1.0)]
    scaler = amp.GradScaler("dynamic", init_scale=4.0)
    _give([one, two], 4.0, _INF)
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    for optimizer in optimizers:
        scaler.step(optimizer)
    # As in the original, each optimizer counts its skipped step at once.
    assert int(scaler.get_num_skipped_steps()) == 2
    scaler.update()
    assert (one.item(), two.item()) == (1.0, 1.0)
    assert int(scaler.state_dict()["num_skipped_steps"]) == 2
    assert int(scaler.state_dict()["overflows_since_rescale"]) == 0
    assert float(scaler.get_scale()) == 2.0


@pytest.mark.parametrize(("grads", "after"), [((4.0, _INF), (0.0, 1.0)), ((_INF, 4.0), (1.0, 1.0))])
def test_optimizer_unscaled_by_its_step_does_not_undo_an_earlier_one(grads, after):
    one, two = _parameters(1.0, 1.0)
    scaler = amp.GradScaler("dynamic", init_scale=4.0)
    _give([one, two], *grads)
    scaler.step(torch.optim.SGD([one], lr=1.0))
    scaler.step(torch.optim.SGD([two], lr=1.0))
    scaler.update()
    assert (one.item(), two.item()) == after
    assert float(scaler.get_scale()) == 2.0


def test_parameters_without_gradients_are_left_out():
    parameters = _parameters(1.0, 1.0)
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    scaler = amp.GradScaler("dynamic", init_scale=4.0)
    _give(parameters, None, 4.0)
    scaler.step(optimizer)
    scaler.update()
    assert [p.item() for p in parameters] == [1.0, 0.0] and parameters[0].grad is None
    _give(parameters, None, None)
    scaler.step(optimizer)
    scaler.update()
    assert int(scaler.state_dict()["steps_since_rescale"]) == 2


def test_step_hands_over_arguments_and_result():
    (weight,) = _parameters(1.0)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = amp.GradScaler("dynamic")
    _give([weight], 1.0)
    assert scaler.step(optimizer, lambda: 7.0) == 7.0
    scaler.update()
    _give([weight], _INF)
    assert scaler.step(optimizer, closure=lambda: 7.0) is None


def test_unscale_acts_once():
    (weight,) = _parameters(1.0)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = amp.GradScaler("dynamic", init_scale=8.0)
    _give([weight], 16.0)
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)
    assert weight.grad.item() == 2.0


def test_reciprocal_of_the_scale_is_rounded_to_float32():
    (weight,) = _parameters(1.0)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for loss_scale in (3.0, "dynamic"):
        scaler = amp.GradScaler(loss_scale, init_scale=3.0, half_dtype="float32")
        _give([weight], 7.0)
        scaler.unscale_(optimizer)
        assert weight.grad.item() == float(np.float32(7) * (np.float32(1) / np.float32(3)))
        scaler.update()
        weight.grad, old = None, weight.data
        weight.data = old.double()
        _give([weight], 7.0)
        scaler.unscale_(optimizer)
        assert weight.grad.item() == 7 * float(np.float32(1) / np.float32(3))
        weight.grad, weight.data = None, old


def test_static_scale_tests_nothing():
    (weight,) = _parameters(1.0)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = amp.GradScaler(loss_scale=16.0)
    assert not scaler.dynamic and scaler.get_scale() == 16.0 and scaler.isfinite is True
    for _ in range(3):
        weight.grad = None
        scaler.scale(weight * 0.25).backward()
        assert weight.grad.item() == 4.0
        scaler.step(optimizer)
        scaler.update()
    assert weight.item() == 0.25
    _give([weight], _INF)
    scaler.step(optimizer)
    assert weight.item() == -_INF
    assert scaler.state_dict() == {"loss_scale": 16.0} and int(scaler.get_num_skipped_steps()) == 0


def test_scale_of_one_needs_no_update():
    (weight,) = _parameters(1.0)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = amp.GradScaler()
    assert not scaler.loss_is_scaled and scaler.get_scale() == 1.0
    for _ in range(3):
        weight.grad = None
        scaler.scale(weight * 2).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
    assert weight.item() == -5.0


def test_deprecated_clipping_clips_the_global_norm():
    parameters = _parameters(0.0, 0.0)
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    with pytest.warns(UserWarning, match="deprecated. Use torch.nn.utils.clip_grad_norm_"):
        scaler = amp.GradScaler("dynamic", init_scale=2.0, max_gradient_norm=1.0)
    _give(parameters, 6.0, 8.0)
    scaler.step(optimizer)
    assert scaler.global_norm.item() == 5.0
    assert [p.item() for p in parameters] == pytest.approx([-0.6, -0.8], rel=1e-6)
    scaler.update()
    _give(parameters, 0.2, 0.0)
    scaler.step(optimizer)
    assert parameters[0].item() == pytest.approx(-0.7, rel=1e-3)


def test_training_resumes_from_a_checkpoint(tmp_path):
    def run(scaler, optimizer, parameters, grads):
        path = []
        for grad in grads:
            _give(parameters, grad)
            scaler.step(optimizer)
            scaler.update()
            path.append((float(scaler.get_scale()), parameters[0].item()))
        return path

    def start():
        parameters = _parameters(1.0)
        optimizer = torch.optim.Adam(parameters, lr=0.1)
        return amp.GradScaler("dynamic", steps_per_increase=2), optimizer, parameters

    grads = [_INF, 1.0, 2.0, _INF, 3.0, 1.0, 4.0, 1.0, _INF, 5.0, 9.0, 2.0]
    whole = run(*start(), grads)
    for cut in range(1, len(grads)):
        scaler, optimizer, parameters = start()
        run(scaler, optimizer, parameters, grads[:cut])
        state = {"o": optimizer.state_dict(), "s": scaler.state_dict(), "p": parameters[0].data}
        torch.save(state, tmp_path / "checkpoint.pt")
        state = torch.load(tmp_path / "checkpoint.pt")
        scaler, optimizer, parameters = start()
        parameters[0].data.copy_(state["p"])
        optimizer.load_state_dict(state["o"])
        scaler.load_state_dict(state["s"])
        assert run(scaler, optimizer, parameters, grads[cut:]) == whole[cut:]


def test_state_dict_is_a_copy_with_the_original_keys():
    scaler = amp.GradScaler("dynamic")
    state = scaler.state_dict()
    assert {name: value.dtype for name, value in state.items()} == {
        "loss_scale": torch.float32,
        "steps_since_rescale": torch.int64,
        "overflows_since_rescale": torch.int64,
        "num_skipped_steps": torch.int64,
    }
    scale = scaler.get_scale()
    (weight,) = _parameters(1.0)
    _give([weight], _INF)
    scaler.step(torch.optim.SGD([weight], lr=1.0))
    scaler.update()
    assert float(scale) == float(state["loss_scale"]) == 2.0**15


def test_state_may_be_numbers_and_partial():
    scaler = amp.GradScaler("dynamic")
    scaler.load_state_dict({"loss_scale": 64, "num_skipped_steps": np.int64(3), "other": "ignored"})
    assert {name: float(value) for name, value in scaler.state_dict().items()} == {
        "loss_scale": 64.0,
        "steps_since_rescale": 0.0,
        "overflows_since_rescale": 0.0,
        "num_skipped_steps": 3.0,
    }
    static = amp.GradScaler(2.0)
    static.load_state_dict({"loss_scale": 8.0})
    assert static.get_scale() == 8.0 and static.loss_is_scaled


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_of_gradients(dtype, monkeypatch):
    monkeypatch.setattr("dlsim.amp._grad_scaler._CHUNK", 3)  # the sum comes in parts
    weight = torch.nn.Parameter(torch.ones(7, dtype=dtype))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = amp.GradScaler("dynamic", init_scale=4.0)
    for factor, after in ((2.0**-30, 1.0), (0.5, 0.5), (65536.0, 0.5)):
        weight.grad = None
        scaler.scale((weight * factor).sum()).backward()
        assert weight.grad.dtype == dtype
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == [after] * 7
    assert scaler.global_norm.item() == _INF
    assert int(scaler.get_num_skipped_steps()) == 1


def test_norm_of_half_precision_parameters_is_that_of_float64():
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.float16))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = amp.GradScaler("dynamic", init_scale=1.0)
    weight.grad = torch.full_like(weight, 60000.0)  # whose squares float16 does not hold
    scaler.step(optimizer)
    assert bool(scaler.isfinite) and scaler.global_norm.item() == 120000.0
