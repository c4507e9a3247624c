# SPDX-License-Identifier: Apache-2.0
"""Training loops of cerebras.pytorch.amp and torch.amp run with dlsim.amp as they stand."""

import pytest
import torch
from torch import nn

import dlsim
from dlsim import amp
from dlsim.amp import cbtorch


@pytest.fixture(autouse=True)
def float16():
    """Each test starts and ends with float16."""
    amp.set_half_dtype("float16")
    yield
    amp.set_half_dtype("float16")


@pytest.fixture
def model():
    """A small regression, the same each time."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))


def _batches(count=30):
    generator = torch.Generator().manual_seed(2)
    for _ in range(count):
        inputs = torch.randn(16, 4, generator=generator)
        yield inputs, inputs.sum(1, keepdim=True)


def _loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def _expect_trained(losses):
    assert losses[-1] < 0.3 * losses[0]


def test_documented_loop_trains(model):
    # Cerebras' documentation, "Gradient Scaling".
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grad_scaler = amp.GradScaler(loss_scale="dynamic")
    losses = []
    for batch in _batches():
        loss = _loss(model, batch)
        optimizer.zero_grad()
        grad_scaler.scale(loss).backward()
        grad_scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        grad_scaler.step(optimizer)
        grad_scaler.update()
        losses.append(loss.item())
    _expect_trained(losses)
    assert int(grad_scaler.state_dict()["steps_since_rescale"]) == 30


@pytest.mark.parametrize(
    "limits", [{}, {"max_gradient_norm": 1.0}, {"max_gradient_value": 0.5}, {"max_gradient_val": 1}]
)
def test_optimizer_step_trains(model, limits):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grad_scaler = amp.GradScaler(loss_scale="dynamic")
    losses = []
    for batch in _batches():
        loss = _loss(model, batch)
        amp.optimizer_step(loss, optimizer, grad_scaler, **limits)
        losses.append(loss.item())
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    _expect_trained(losses)


def test_accumulation_loop_trains(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scaler = amp.GradScaler("dynamic")
    losses = []
    for i, batch in enumerate(_batches(60)):
        loss = _loss(model, batch) / 4
        scaler.scale(loss).backward()
        losses.append(loss.item())
        if (i + 1) % 4 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    _expect_trained(losses)
    assert int(scaler.state_dict()["steps_since_rescale"]) == 15


def test_gradient_penalty_loop_trains(model):
    # PyTorch's AMP examples, "Gradient penalty".
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = amp.GradScaler("dynamic")
    losses = []
    for batch in _batches():
        optimizer.zero_grad()
        loss = _loss(model, batch)
        scaled_grad_params = torch.autograd.grad(
            outputs=scaler.scale(loss), inputs=model.parameters(), create_graph=True
        )
        inv_scale = 1.0 / scaler.get_scale()
        grad_params = [p * inv_scale for p in scaled_grad_params]
        grad_norm = 0
        for grad in grad_params:
            grad_norm += grad.pow(2).sum()
        loss = loss + 0.01 * grad_norm.sqrt()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    _expect_trained(losses)


def test_two_optimizers_train_under_one_scale(model):
    # PyTorch's AMP examples, "Working with multiple models, losses, and optimizers".
    optimizer0 = torch.optim.SGD(model[0].parameters(), lr=0.1)
    optimizer1 = torch.optim.Adam(model[2].parameters(), lr=0.02)
    scaler = amp.GradScaler("dynamic")
    losses = []
    for batch in _batches():
        optimizer0.zero_grad()
        optimizer1.zero_grad()
        output = model(batch[0])
        loss0 = nn.functional.mse_loss(output, batch[1])
        loss1 = nn.functional.l1_loss(output, batch[1])
        scaler.scale(loss0).backward(retain_graph=True)
        scaler.scale(loss1).backward()
        scaler.unscale_(optimizer0)
        scaler.step(optimizer0)
        scaler.step(optimizer1)
        scaler.update()
        losses.append(loss0.item())
    _expect_trained(losses)


def test_list_of_losses_is_scaled():
    scaler = amp.GradScaler(loss_scale=8.0)
    one, two = torch.tensor(1.0), torch.tensor(2.0, dtype=torch.float64)
    assert [loss.item() for loss in scaler.scale([one, two])] == [8.0, 16.0]
    assert [loss.item() for loss in scaler.scale(iter((one, two)))] == [8.0, 16.0]
    assert scaler.scale((two,))[0].dtype == torch.float32
    with pytest.raises(ValueError, match="outputs must be a Tensor or an iterable of Tensors"):
        scaler.scale(3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("grad_clip", [0.0, 1.0])
def test_nanogpt_loop_trains(model, dtype, grad_clip):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scaler = amp.GradScaler("dynamic", enabled=(dtype == "float16"))
    gradient_accumulation_steps = 2
    batches = _batches(60)
    losses = []
    for _ in range(30):
        for _ in range(gradient_accumulation_steps):
            loss = _loss(model, next(batches)) / gradient_accumulation_steps
            scaler.scale(loss).backward()
        if grad_clip != 0.0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    _expect_trained(losses)


def test_disabled_scaler_changes_nothing(model):
    plain = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = amp.GradScaler("dynamic", enabled=False)
    batch = next(_batches())
    loss = _loss(model, batch)
    assert scaler.scale(loss) is loss
    loss.backward()
    before = [p.grad.clone() for p in model.parameters()]
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    for p, old, grad in zip(model.parameters(), plain, before, strict=True):
        assert torch.equal(p.grad, grad)
        assert torch.equal(p.detach(), old.add(grad, alpha=-0.1))
    assert scaler.state_dict() == {} and scaler.get_scale() == 1.0 and not scaler.is_enabled()


def test_callable_form_trains(model):
    # The form of Model Zoo R1 with the 2.10 scaler: calling is scaling.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = amp.GradScaler(loss_scale="dynamic")
    losses = []
    for batch in _batches():
        optimizer.zero_grad()
        loss = _loss(model, batch)
        scaler(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    _expect_trained(losses)


def test_cbtorch_loop_trains_and_skips(model):
    optimizer = cbtorch.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    with pytest.warns(UserWarning, match="misprints"):
        # PyTorch Dynamic Loss Scaling, documentation 1.6.1; its 2e15 overflows float16.
        scaler = cbtorch.amp.GradScaler(
            loss_scale="dynamic",
            initial_loss_scale=2e15,
            steps_per_increase=2000,
            min_loss_scale=2e-14,
            max_loss_scale=2e15,
        )
    losses = []
    for batch in _batches(80):
        optimizer.zero_grad()
        loss = _loss(model, batch)
        scaler(loss).backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    _expect_trained(losses)
    skipped = int(scaler.get_num_skipped_steps())
    assert 30 < skipped < 50
    assert losses[0] > 0.5 * losses[skipped - 1]
    assert float(scaler.get_scale()) == pytest.approx(2e15 / 2**skipped, rel=1e-6)


def test_cbtorch_optimizers_take_turns(model):
    optimizers = [
        cbtorch.optimizer(torch.optim.SGD(model[0].parameters(), lr=0.1)),
        cbtorch.optimizer(torch.optim.SGD(model[2].parameters(), lr=0.1)),
    ]
    scaler = cbtorch.amp.GradScaler("dynamic", initial_loss_scale=1024.0)
    for turn, batch in enumerate(_batches(6)):
        optimizer = optimizers[turn % 2]
        optimizer.zero_grad()
        before = [p.detach().clone() for p in model.parameters()]
        scaler(_loss(model, batch)).backward()
        optimizer.step()
        changed = [
            not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)
        ]
        assert changed == (
            [True, True, False, False] if turn % 2 == 0 else [False] * 2 + [True] * 2
        )
    assert int(scaler.get_num_skipped_steps()) == 0


def test_cbtorch_takes_one_step_per_loss():
    weight = nn.Parameter(torch.ones(1))
    optimizers = [cbtorch.optimizer(torch.optim.SGD([weight], lr=1.0)) for _ in range(2)]
    scaler = cbtorch.amp.GradScaler("dynamic", initial_loss_scale=1024.0)
    scaler(weight.sum() * torch.inf).backward()
    optimizers[0].step()
    assert (weight.item(), float(scaler.get_scale())) == (1.0, 512.0)
    with pytest.raises(dlsim.UsageError, match=r"a second step\(\) after one loss"):
        optimizers[1].step()


def test_cbtorch_scale_of_one_and_built_in_clipping():
    weight = nn.Parameter(torch.zeros(1))
    optimizer = cbtorch.optimizer(torch.optim.SGD([weight], lr=1.0))
    scaler = cbtorch.amp.GradScaler(loss_scale=1.0)
    for _ in range(3):
        optimizer.zero_grad()
        scaler(weight.sum() * 2).backward()
        optimizer.step()
    assert weight.item() == -6.0
    scaler = cbtorch.amp.GradScaler("dynamic", 4.0, max_gradient_norm=0.5)
    optimizer.zero_grad()
    scaler(weight.sum() * 2).backward()
    optimizer.step()
    assert weight.item() == pytest.approx(-6.5, rel=1e-6)
    assert cbtorch.amp.GradScaler(mixed_precision=False).half_dtype == "float32"
