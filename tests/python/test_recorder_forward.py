# SPDX-License-Identifier: Apache-2.0
"""The forward pass is recorded as it was computed, and the training goes on as without it."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
from recording import load, small_model, steps_in, train
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import dlsim
from dlsim.recorder import _sources

ACTS = {"0.act", "1.act", "2.act"}
VALUES = {f"{i}.{kind}.value" for i in (0, 2) for kind in ("weight", "bias")}


def forward_names(path: Path, step: int, suffix: str = "") -> set[str]:
    return {name for name in load(path, step, suffix)[0] if name.endswith((".act", ".value"))}


def plain(path: Path, model: nn.Module, **options) -> dlsim.Recorder:
    """Returns a recorder of outputs and parameters at all steps, which runs none again."""
    return dlsim.Recorder(model, path, **{"forward_every": 1, "shadow": None, **options})


def test_outputs_and_parameters_are_recorded_bit_for_bit(tmp_path: Path) -> None:
    model = small_model()
    with plain(tmp_path, model, on_error="raise") as rec:
        x = torch.randn(4, 6)
        model(x).square().mean().mul(8).backward()
        rec.step(scale=8.0)
        values = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    tensors, _ = load(tmp_path, 0)
    assert {name for name in tensors if not name.endswith("grad")} == ACTS | VALUES
    model.load_state_dict(values)
    assert all(torch.equal(tensors[f"{name}.value"], one) for name, one in values.items())
    first = model[0](x)
    assert torch.equal(tensors["0.act"], first)  # as it was before ReLU changed it in place
    assert torch.equal(tensors["1.act"], first.relu())
    assert torch.equal(tensors["2.act"], model[2](first.relu()))


def test_steps_are_multiples_and_by_default_none_of_a_trace(tmp_path: Path) -> None:
    for name, options in (("two", {"forward_every": 2, "shadow": None}), ("none", {})):
        model = small_model()
        with dlsim.Recorder(model, tmp_path / name, **options) as rec:
            train(model, rec, 5)
        assert rec.errors == 0
        found = [step for step in steps_in(tmp_path / name) if forward_names(tmp_path / name, step)]
        assert found == ([0, 2, 4] if options else [])


def test_steps_of_a_profile_begin_with_powers_of_two() -> None:
    from dlsim.recorder._selection import forward_steps

    steps = forward_steps(None, profile=True)
    found = [step for step in range(201) if steps.includes(step)]
    assert found == [0, 1, 2, 4, 8, 16, 32, 50, 100, 150, 200]
    assert not forward_steps(0, profile=True).any
    with pytest.raises(dlsim.UsageError, match="forward_every"):
        forward_steps(-1, profile=True)


def test_nothing_stays_in_the_model_and_its_results_are_the_same(tmp_path: Path) -> None:
    states = []
    for options in ({"forward_every": 0}, {"forward_every": 2}, {"forward_every": 1}):
        model = small_model()
        with dlsim.Recorder(model, tmp_path / str(len(states)), **options) as rec:
            train(model, rec, 4)
            assert bool(model[0]._forward_pre_hooks) == (options["forward_every"] > 0)
            pickle.loads(pickle.dumps(model))(torch.ones(1, 6))
        assert rec.errors == 0
        assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
        assert not torch.overrides._get_current_function_mode_stack()
        states.append(model.state_dict())
    assert all(torch.equal(one[name], states[0][name]) for one in states for name in one)


def test_infinite_values_are_kept(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.mask = nn.Linear(3, 3), nn.Identity()

        def forward(self, x):
            masked = self.inner(x).masked_fill(torch.eye(3, dtype=torch.bool), -torch.inf)
            return self.mask(masked).softmax(-1)

    model = Masked()
    with plain(tmp_path, model) as rec:
        model(torch.ones(3, 3)).square().sum().backward()
        rec.step(scale=1.0)
    assert load(tmp_path, 0)[0]["mask.act"].isinf().sum() == 3


def test_evaluation_is_not_recorded(tmp_path: Path) -> None:
    model = small_model()
    with plain(tmp_path, model) as rec:
        with torch.no_grad():
            model(torch.full((4, 6), 100.0))
        model(torch.ones(4, 6)).mean().backward()
        model(torch.full((4, 6), 100.0))  # after backward
        rec.step(scale=1.0)
    tensors, _ = load(tmp_path, 0)
    assert ACTS <= tensors.keys() and not any("call1" in name for name in tensors)
    assert torch.equal(tensors["0.act"], model[0](torch.ones(4, 6)))


class Twice(nn.Module):
    """Calls a part twice, and returns nested outputs, a loss among them."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(3, 3)

    def forward(self, x):
        first = self.part(x)
        second = self.part(first)
        return {"loss": second.square().mean(), "both": (second, first * 2)}


def test_calls_and_outputs_are_numbered_and_no_loss_is_recorded(tmp_path: Path) -> None:
    model = Twice()
    with plain(tmp_path, model) as rec:
        model(torch.ones(2, 3))["loss"].backward()
        rec.step(scale=1.0)
    tensors, _ = load(tmp_path, 0)
    acts = {name for name in tensors if name.endswith(".act")}
    assert acts == {"part.act", "part.call1.act", "(root).out2.act"}


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_recorded_once(tmp_path: Path, reentrant) -> None:
    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.parts = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh())
            self.last = nn.Linear(3, 1)

        def forward(self, x):
            return self.last(checkpoint(self.parts, self.first(x), use_reentrant=reentrant))

    model = Saving()
    with plain(tmp_path, model, on_error="raise") as rec:
        for _ in range(2):
            model.zero_grad()
            model(torch.ones(2, 3)).mean().backward()
            rec.step(scale=1.0)
    for step in range(2):
        acts = {name for name in load(tmp_path, step)[0] if name.endswith(".act")}
        assert acts == {"first.act", "parts.0.act", "parts.1.act", "last.act"}


def test_checkpoint_sequential_is_recorded_once(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    with plain(tmp_path, model) as rec:
        x = torch.ones(2, 3, requires_grad=True)
        checkpoint_sequential(model, 2, x, **_explicit()).mean().backward()
        rec.step(scale=1.0)
    acts = {name for name in load(tmp_path, 0)[0] if name.endswith(".act")}
    assert "3.act" in acts and not any("call" in name for name in acts)


def _explicit() -> dict[str, bool]:
    import inspect

    known = inspect.signature(checkpoint_sequential).parameters
    return {"use_reentrant": False} if "use_reentrant" in known else {}


@pytest.mark.parametrize("micro_steps", [False, True])
def test_of_accumulated_batches_the_first_is_recorded(tmp_path: Path, micro_steps) -> None:
    model = small_model()
    with plain(tmp_path, model, micro_steps=micro_steps) as rec:
        for batch in range(3):
            model(torch.full((4, 6), float(batch))).mean().backward()
            if micro_steps:
                rec.micro_step(scale=1.0)
        rec.step(**({} if micro_steps else {"scale": 1.0}))
    assert rec.errors == 0
    suffixes = [f".micro-{i:02d}" for i in range(3)] if micro_steps else [""]
    found = [forward_names(tmp_path, 0, suffix) for suffix in suffixes]
    assert found == [ACTS | VALUES, *([set()] * (len(suffixes) - 1))]
    first = load(tmp_path, 0, suffixes[0])[0]["0.act"]
    assert torch.equal(first, model[0](torch.zeros(4, 6)))


def test_much_memory_is_put_aside(tmp_path: Path, monkeypatch) -> None:
    found = []
    for limit in (0, 1 << 40):
        monkeypatch.setattr(_sources, "SPILLED_FROM", limit)
        model = small_model()
        path = tmp_path / str(limit)
        with dlsim.Recorder(model, path, forward_every=1) as rec:
            train(model, rec, 2)
        assert rec.errors == 0 and rec.report().steps == 2
        found.append(load(path, 1)[0])
    assert found[0].keys() == found[1].keys() >= ACTS | VALUES
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_frozen_parameters_have_values(tmp_path: Path) -> None:
    model = small_model()
    model[0].weight.requires_grad_(False)
    with plain(tmp_path, model) as rec:
        train_frozen = model(torch.ones(4, 6)).mean()
        train_frozen.backward()
        rec.step(scale=1.0)
    tensors, _ = load(tmp_path, 0)
    assert "0.weight.value" in tensors and "0.weight.grad" not in tensors


def test_gradients_are_needed_all_the_same(tmp_path: Path) -> None:
    model = small_model()
    with plain(tmp_path, model) as rec:
        model(torch.ones(4, 6))
        rec.step(scale=1.0)
    assert rec.errors == 1 and "no gradients" in rec.report().messages[0]
    assert steps_in(tmp_path) == []


def test_an_exception_in_forward_leaves_nothing_behind(tmp_path: Path) -> None:
    model = small_model()
    with plain(tmp_path, model) as rec:
        with pytest.raises(RuntimeError):
            model(torch.ones(4, 7))
        model(torch.ones(4, 6)).mean().backward()
        rec.step(scale=1.0)
    assert rec.errors == 0 and ACTS <= forward_names(tmp_path, 0)


def test_a_profile_has_the_forward_pass_by_default(tmp_path: Path) -> None:
    model = small_model()
    path = tmp_path / "run.profile"
    with dlsim.Recorder(model, path) as rec:
        train(model, rec, 3)  # the last is one of them
        found = {tensor.name for tensor in rec.report().tensors}
        train(model, rec, 1)
        without = {tensor.name for tensor in rec.report().tensors}
    assert rec.errors == 0
    assert found >= without | ACTS | VALUES and not without & (ACTS | VALUES)


def test_others_modes_are_left_in_their_order(tmp_path: Path) -> None:
    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    model = small_model()
    with dlsim.Recorder(model, tmp_path, forward_every=1) as rec:
        for _ in range(2):
            with Counting():
                loss = functional.mse_loss(model(torch.ones(4, 6)), torch.zeros(4, 2))
            with Counting():
                loss.backward()
                rec.step(scale=1.0)
            model.zero_grad()
        loss = model(torch.ones(4, 6)).mean()
        with Counting():
            loss.backward()
            rec.step(scale=1.0)
    assert rec.errors == 0 and steps_in(tmp_path) == [0, 1, 2]
    assert not torch.overrides._get_current_function_mode_stack()


@pytest.mark.parametrize("limit", [1 << 30, 1])
@pytest.mark.parametrize("name", ["run", "run.profile"])
def test_the_first_that_overflows_is_the_first_that_was_computed(
    tmp_path: Path, monkeypatch, name: str, limit: int
) -> None:
    class Stream(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.z, self.m, self.a = (nn.Linear(2, 2, bias=False) for _ in range(3))
            for layer in (self.z, self.m, self.a):
                nn.init.constant_(layer.weight, 300)

        def forward(self, x):
            return self.a(self.m(self.z(x))).sum(-1) / 1e9

    monkeypatch.setattr(_sources, "SPILLED_FROM", limit)
    model = Stream()
    with dlsim.Recorder(model, tmp_path / name, forward_every=1, on_error="raise") as rec:
        model(torch.ones(3, 2)).mean().backward()
        rec.step(scale=1.0)
    (fp16,) = dlsim.replay(tmp_path / name, formats=["fp16"])["verdict"]["formats"]
    found = [one["tensor"] for one in fp16["forward"]["overflowing"]]
    assert found == ["m.act", "a.act"]
    assert fp16["forward"]["first"]["tensor"] == "m.act"
