# SPDX-License-Identifier: Apache-2.0
"""A recorder records its own training, not another recorder's work or another thread's model."""

import threading
from pathlib import Path

import pytest
import torch
from recording import load, small_model, steps_in
from torch import nn, overrides
from torch.utils import _python_dispatch

import dlsim
from dlsim.emulation import _cuda_autocast
from dlsim.recorder import _tensors

pytestmark = pytest.mark.skipif(
    not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"),
    reason="needs PyTorch 2.1 or later",
)


class Model(nn.Module):
    """What a recorder looks at with operators of its own: conversions, divisors, masks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.first(x)))
        scores = hidden.float().softmax(-1).to(hidden.dtype)
        return self.last(scores / (hidden.square().mean() + 1e-8).sqrt())


HAS_FP16 = _cuda_autocast._can_autocast(torch.float16)


def recorded(path: Path, which: tuple[int, ...], *, shared: bool) -> dict[int, list]:
    """Trains two models in one loop, or one twice recorded; returns what those chosen recorded."""
    torch.manual_seed(0)
    models = [Model(), Model()]
    watched = [models[0], models[0 if shared else 1]]
    options = {"forward_every": 2, "on_error": "raise"}
    recs = {i: dlsim.Recorder(watched[i], path / str(i), **options) for i in which}
    parameters = [one for model in models for one in model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    torch.manual_seed(1)
    for _ in range(4):
        optimizer.zero_grad()
        output = models[0](torch.randn(8, 6) * 500)
        loss = output.square().mean()
        if not shared:
            loss = loss + models[1](output.repeat(1, 2)).exp().mean()
        loss.backward()
        for rec in recs.values():
            rec.step(scale=1.0)
        optimizer.step()
    for rec in recs.values():
        rec.close()
    return {i: [load(path / str(i), step) for step in range(4)] for i in which}


def assert_equal(found: list, expected: list) -> None:
    for (tensors, metadata), (others, other_metadata) in zip(found, expected, strict=True):
        assert tensors.keys() == others.keys()
        assert all(torch.equal(tensors[name], others[name]) for name in tensors)
        assert metadata == other_metadata


@pytest.mark.parametrize("shared", [False, True])
def test_two_recorders_record_what_each_does_alone(tmp_path: Path, shared) -> None:
    both = recorded(tmp_path / "both", (0, 1), shared=shared)
    for i in (0, 1):
        alone = recorded(tmp_path / f"alone{i}", (i,), shared=shared)
        assert_equal(both[i], alone[i])
    # Nothing of theirs stays.
    assert not _python_dispatch._get_current_dispatch_mode_stack()
    assert not overrides._get_current_function_mode_stack()
    assert torch.autocast.__init__.__module__ == "torch.amp.autocast_mode"


def trained(path: Path, evaluates: int) -> list:
    """Trains while threads evaluate the model."""
    torch.manual_seed(0)
    model, stops = Model(), threading.Event()

    def evaluate() -> None:
        while not stops.is_set():
            with torch.no_grad():
                model(torch.full((8, 6), 1e6))

    threads = [threading.Thread(target=evaluate) for _ in range(evaluates)]
    with dlsim.Recorder(model, path, forward_every=1, on_error="raise") as rec:
        for thread in threads:
            thread.start()
        try:
            for step in range(8):
                model.zero_grad()
                x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
                model(x).square().mean().backward()
                rec.step(scale=1.0)
        finally:
            stops.set()
            for thread in threads:
                thread.join()
    return [load(path, step) for step in range(8)]


def test_another_thread_may_evaluate_the_model(tmp_path: Path) -> None:
    assert_equal(trained(tmp_path / "two", 2), trained(tmp_path / "none", 0))


@pytest.mark.parametrize("forward_elsewhere", [False, True])
def test_any_thread_may_train(tmp_path: Path, forward_elsewhere) -> None:
    model, outputs = small_model(), []

    def in_thread(run) -> None:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    def train() -> None:
        for _ in range(3):
            model.zero_grad()
            forward = lambda: outputs.append(model(torch.ones(4, 6)))  # noqa: E731
            in_thread(forward) if forward_elsewhere else forward()
            outputs[-1].square().mean().backward()
            rec.step(scale=1.0)

    with dlsim.Recorder(model, tmp_path, forward_every=1, on_error="raise") as rec:
        in_thread(train)
    assert all("0.act" in load(tmp_path, step)[0] for step in steps_in(tmp_path))
    assert steps_in(tmp_path) == [0, 1, 2]


def test_a_model_may_run_under_vmap(tmp_path: Path) -> None:
    model = nn.Linear(6, 6)
    with dlsim.Recorder(model, tmp_path, forward_every=1, on_error="raise") as rec:
        torch.vmap(lambda x: model(x).float() * 2)(torch.ones(4, 6)).square().mean().backward()
        rec.step(scale=1.0)
    tensors, _ = load(tmp_path, 0)
    assert torch.equal(tensors["weight.grad"], model.weight.grad)


def test_an_interrupt_in_a_recorder_blinds_no_other(tmp_path: Path) -> None:
    context = _tensors.in_recorder()
    context.__enter__()  # and never left
    model = nn.Sequential(nn.Linear(6, 6), nn.Softmax(-1))
    with dlsim.Recorder(model, tmp_path, forward_every=1, on_error="raise") as rec:
        model(torch.ones(4, 6)).exp().mean().backward()
        rec.step(scale=1.0)
    tensors, metadata = load(tmp_path, 0)
    assert "0.act" in tensors and (not HAS_FP16 or '"fails": ""' in metadata["shadow"])
