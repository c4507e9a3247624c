# SPDX-License-Identifier: Apache-2.0
"""A step that is recorded too late is an error, and one at its right place never is."""

from pathlib import Path

import pytest
import torch
from recording import load, small_model, steps_in
from torch import nn

import dlsim
from dlsim import amp

pytestmark = pytest.mark.skipif(
    not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"), reason="needs PyTorch 2.1"
)


def x() -> torch.Tensor:
    return torch.randn(4, 6)


def scaler_of(kind: str):
    if kind == "torch":
        return torch.amp.GradScaler("cpu", init_scale=1024.0)
    return amp.GradScaler("dynamic") if kind == "dlsim" else None


def backward(loss, scaler) -> None:
    (loss if scaler is None else scaler.scale(loss)).backward()


def advance(optimizer, scaler) -> None:
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


def clip(model, _) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def step(_, optimizer) -> None:
    optimizer.step()


def clear(_, optimizer) -> None:
    optimizer.zero_grad(set_to_none=True)


def zero(_, optimizer) -> None:
    optimizer.zero_grad(set_to_none=False)


@pytest.mark.parametrize(
    ("before", "problem"),
    [
        ([step], "an optimizer has stepped"),
        ([clip, step], "an optimizer has stepped"),
        ([step, clear], "an optimizer has stepped"),
        ([step, zero], "an optimizer has stepped"),
        ([clear], "cleared after backward"),
        ([zero], "cleared after backward"),
        ([clip], ".grad: was multiplied by"),
    ],
)
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("activations", ["*", None])
def test_a_late_step_is_an_error(tmp_path: Path, before, problem, make, activations) -> None:
    model = small_model()
    optimizer = make(model.parameters(), lr=0.01)
    with dlsim.Recorder(model, tmp_path / "run", activations=activations) as rec:
        for number in range(3):
            optimizer.zero_grad()
            model(x()).square().mean().backward()
            for action in before if number == 1 else ():
                action(model, optimizer)
            rec.step(scale=1.0)
            optimizer.step()
    assert rec.errors == 1 and steps_in(tmp_path / "run") == [0, 2]
    assert problem in rec.report().messages[0]
    assert "expected Recorder.step right after backward()" in rec.report().messages[0]


@pytest.mark.parametrize("kind", ["torch", "dlsim"])
@pytest.mark.parametrize("clear_last", [False, True])
@pytest.mark.parametrize("skipped", [False, True])
def test_the_end_of_a_loop_with_a_scaler_is_too_late(tmp_path, kind, clear_last, skipped) -> None:
    model, scaler = small_model(), scaler_of(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = vars(scaler).get("update")
    with dlsim.Recorder(model, tmp_path / "run", scaler=scaler) as rec:
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(x()).square().mean() * (float("inf") if skipped else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if clear_last:
                optimizer.zero_grad()
            rec.step()
    assert rec.errors == 3 and rec.report().steps == 0
    assert "an optimizer has stepped" in rec.report().messages[0]
    assert vars(scaler).get("update") is before


@pytest.mark.parametrize("kind", ["none", "torch", "dlsim"])
@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("activations", ["*", None])
def test_the_right_place_is_no_error(tmp_path, kind, batches, to_none, activations) -> None:
    model, scaler = small_model(), scaler_of(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    options = {"on_error": "raise", "activations": activations, "scaler": scaler, "every": 2}
    with dlsim.Recorder(model, tmp_path / "run", **options) as rec:
        for _ in range(6):
            for _ in range(batches):
                backward(model(x()).square().mean() / batches, scaler)
            rec.step(scale=1.0 if scaler is None else None)
            if scaler is not None:
                scaler.unscale_(optimizer)
            clip(model, None)
            advance(optimizer, scaler)
            optimizer.zero_grad(set_to_none=to_none)
    assert steps_in(tmp_path / "run") == [0, 2, 4]


@pytest.mark.parametrize("kind", ["torch", "dlsim"])
def test_unscaled_gradients_with_a_stated_scale_are_no_error(tmp_path: Path, kind) -> None:
    model, scaler = small_model(), scaler_of(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with dlsim.Recorder(model, tmp_path, scaler=scaler, on_error="raise") as rec:
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(model(x()).square().mean()).backward()
            scaler.unscale_(optimizer)
            rec.step(scale=1.0)
            scaler.step(optimizer)
            scaler.update()


@pytest.mark.parametrize("kind", ["none", "torch"])
def test_optimizers_that_take_turns_are_no_error(tmp_path: Path, kind) -> None:
    parts, scaler = {"actor": small_model(), "critic": small_model()}, scaler_of(kind)
    optimizers = [torch.optim.Adam(part.parameters(), lr=0.01) for part in parts.values()]
    with dlsim.Recorder(parts, tmp_path / "run", on_error="raise") as rec:
        for _ in range(3):
            for part, optimizer in zip(parts.values(), optimizers, strict=True):
                optimizer.zero_grad()
                backward(part(x()).square().mean(), scaler)
                rec.step(scale=1.0 if scaler is None else scaler.get_scale())
                advance(optimizer, scaler)
    assert steps_in(tmp_path / "run") == list(range(6))


def test_a_step_for_two_optimizers_in_turn_is_no_error(tmp_path: Path) -> None:
    parts = nn.ModuleList([small_model(), small_model()])
    one, other = (torch.optim.Adam(part.parameters(), lr=0.01) for part in parts)
    with dlsim.Recorder(parts, tmp_path / "run", on_error="raise") as rec:
        for _ in range(3):
            one.zero_grad()
            parts[0](x()).square().mean().backward()
            one.step()
            other.zero_grad()
            parts[1](parts[0](x())[:, :1].expand(4, 6)).square().mean().backward()
            rec.step(scale=1.0)
            other.step()


def test_a_training_of_another_model_is_no_error(tmp_path: Path) -> None:
    model, teacher = small_model(), small_model()
    own, others = (torch.optim.SGD(one.parameters(), lr=0.01) for one in (model, teacher))
    with dlsim.Recorder(model, tmp_path / "run", on_error="raise") as rec:
        for _ in range(2):
            own.zero_grad()
            others.zero_grad()
            (model(x()) - teacher(x())).square().mean().backward()
            others.step()
            rec.step(scale=1.0)
            own.step()


def test_lbfgs_records_in_its_closure(tmp_path: Path) -> None:
    model, data = small_model(), x()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    with dlsim.Recorder(model, tmp_path / "run", on_error="raise") as rec:

        def closure():
            optimizer.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            rec.step(scale=1.0)
            return loss

        for _ in range(2):
            optimizer.step(closure)
    assert rec.report().steps > 2


def test_parameters_that_take_no_part_are_no_error(tmp_path: Path) -> None:
    model = nn.ModuleList([small_model(), small_model()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with dlsim.Recorder(model, tmp_path / "run", on_error="raise") as rec:
        for number in range(6):
            optimizer.zero_grad(set_to_none=False)
            model[number % 2](x()).square().mean().backward()
            rec.step(scale=1.0)
            optimizer.step()


def rounded(gradient) -> None:
    gradient.copy_(gradient.half())


@pytest.mark.parametrize(
    "change", [rounded, lambda g: g.div_(1024), lambda g: g[0].zero_(), lambda g: g.mul_(1)]
)
@pytest.mark.parametrize("scale", [1.0, 4096.0])
def test_changes_that_are_no_clipping_are_no_error(tmp_path: Path, change, scale) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "run", on_error="raise") as rec:
        for _ in range(2):
            model.zero_grad()
            (model(x()).square().mean() * 1024).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    change(parameter.grad)
            rec.step(scale=scale)


def test_a_norm_that_is_not_clipped_is_no_error(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "run", on_error="raise") as rec:
        model(x()).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        rec.step(scale=1.0)


@pytest.mark.parametrize("to_none", [True, False])
def test_a_step_for_each_micro_batch_is_an_error(tmp_path: Path, to_none) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with dlsim.Recorder(model, tmp_path / "run") as rec:
        for number in range(6):
            model(x()).square().mean().backward()
            rec.step(scale=1.0)
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=to_none)
    assert rec.errors == 4 and steps_in(tmp_path / "run") == [0, 3]
    assert "were added to older ones" in rec.report().messages[0]


def test_gradients_that_are_cleared_without_a_new_version_are_no_error(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "run", on_error="raise") as rec:
        for _ in range(3):
            model(x()).square().mean().backward()
            rec.step(scale=1.0)
            for parameter in model.parameters():
                parameter.data.sub_(0.1 * parameter.grad.data)
                parameter.grad.data.zero_()
    assert steps_in(tmp_path / "run") == [0, 1, 2]


def test_a_training_that_never_clears_gradients_is_recorded_as_it_is(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with dlsim.Recorder(model, tmp_path / "run", on_error="raise") as rec:
        for _ in range(3):
            model(x()).square().mean().backward()
            rec.step(scale=1.0)
            optimizer.step()
    assert steps_in(tmp_path / "run") == [0, 1, 2] and not rec.report().left_out


@pytest.mark.parametrize("passed", [True, False])
@pytest.mark.parametrize(
    ("unscales", "scale", "problem"),
    [
        (True, 1024.0, "was divided by 1024 after backward"),
        (False, 1.0, None),
        (False, 512.0, None),
        (True, 1.0, ""),
        (False, 1024.0, ""),
    ],
)
def test_a_scale_that_gradients_do_not_carry_is_an_error(
    tmp_path: Path, passed, unscales, scale, problem
) -> None:
    model, scaler = small_model(), scaler_of("torch")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with dlsim.Recorder(model, tmp_path / "run", scaler=scaler if passed else None) as rec:
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(x()).square().mean()).backward()
            if unscales:
                scaler.unscale_(optimizer)
            rec.step(scale=scale)
            scaler.step(optimizer)
            scaler.update()
    if problem is None and passed:
        problem = f"the scaler has unscaled no gradients yet, expected none or 1024, got {scale:g}"
    elif problem is None:  # noticed when the optimizer steps; then its scaler is known
        problem = f"recorded with scale={scale:g}, but then the gradients were divided by 1024"
        assert f"expected 1024, got {scale:g}" in rec.report().messages[1]
    assert problem in "".join(rec.report().messages)
    assert (rec.errors, steps_in(tmp_path / "run")) == ((3, []) if problem else (0, [0, 1, 2]))


@pytest.mark.parametrize("kind", ["none", "torch"])
def test_networks_in_turn_have_the_gradients_of_their_own_step(tmp_path: Path, kind) -> None:
    parts, scaler = {"critic": small_model(), "actor": small_model()}, scaler_of(kind)
    parts["actor"][-1] = nn.Linear(parts["actor"][-1].in_features, 6)
    optimizers = {name: torch.optim.Adam(one.parameters()) for name, one in parts.items()}
    with dlsim.Recorder(parts, tmp_path / "run", scaler=scaler, on_error="raise") as rec:
        for _ in range(2):
            for name, values in (("critic", x()), ("actor", parts["actor"](x()))):
                optimizers[name].zero_grad()
                backward(parts["critic"](values).square().mean(), scaler)
                rec.step(scale=None if scaler else 1.0)
                if scaler is None or name == "actor":
                    advance(optimizers[name], scaler)
                else:
                    scaler.step(optimizers[name])
    for number, step in enumerate(dlsim.open_trace(tmp_path / "run")):
        owners = {name.split(".")[0] for name in step.tensors if name.endswith(".grad")}
        assert owners == {("critic", "actor")[number % 2]}
    assert "was added to that of an earlier step" in rec.report().left_out["critic.0.weight.grad"]


def test_gradients_that_no_optimizer_clears_are_left_out(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model[-1].parameters(), lr=0.01)
    with dlsim.Recorder(model, tmp_path / "run", on_error="raise") as rec:
        for _ in range(3):
            optimizer.zero_grad()
            model(x()).square().mean().backward()
            rec.step(scale=1.0)
            optimizer.step()
    assert set(rec.report().left_out) == {"0.weight.grad", "0.bias.grad"}


@pytest.mark.parametrize("kind", ["none", "torch"])
def test_a_step_has_nothing_of_those_that_were_not_recorded(tmp_path: Path, kind) -> None:
    model, scaler = small_model(), scaler_of(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with dlsim.Recorder(model, tmp_path / "run", scaler=scaler, on_error="raise") as rec:
        for number in range(4):
            optimizer.zero_grad()
            backward(model(x()).square().mean(), scaler)
            if number % 2:
                rec.step(scale=None if scaler else 1.0)
            advance(optimizer, scaler)
    assert not any(".call1" in tensor.name for tensor in rec.report().tensors)


def test_nothing_of_the_recorder_stays(tmp_path: Path) -> None:
    from torch.optim import optimizer as module

    model = small_model()
    hooks = len(module._global_optimizer_post_hooks)
    with dlsim.Recorder(model, tmp_path / "run"):
        assert len(module._global_optimizer_post_hooks) == hooks + 1
    assert len(module._global_optimizer_post_hooks) == hooks
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


@pytest.mark.parametrize(
    ("real", "stated", "errors"),
    # A scale may be that of the learning rate, and numbers of batches divide, too.
    [(1024.0, 1.0, 3), (2.0**20, 16.0, 3), (1024.0, 1024.0, 0), (1.0, 1024.0, 0), (4.0, 1.0, 0)],
)
def test_a_scale_that_is_divided_out_by_hand_is_compared(
    tmp_path: Path, real, stated, errors
) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with dlsim.Recorder(model, tmp_path / "run") as rec:
        for _ in range(3):
            optimizer.zero_grad()
            (model(x()).square().mean() * real).backward()
            rec.step(scale=stated)
            for parameter in model.parameters():
                parameter.grad.div_(real)
            optimizer.step()
    assert rec.errors == rec.report().refused == errors
    assert len(steps_in(tmp_path / "run")) == rec.report().steps == 3 - errors


def test_a_step_after_one_with_a_wrong_scale_tells_of_it(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with dlsim.Recorder(model, tmp_path / "run") as rec:
        for step in range(4):
            optimizer.zero_grad()
            (model(x()).square().mean() * 1024).backward()
            rec.step(scale=1 if step in (1, 2) else 1024)
            for parameter in model.parameters():
                parameter.grad.div_(1024)
            optimizer.step()
    told = {step: load(tmp_path / "run", step)[1] for step in steps_in(tmp_path / "run")}
    assert list(told) == [0, 3] and "refused" not in told[0] and told[3]["refused"] == "2"
    assert told[3]["refused_first"].startswith("step 1: recorded with scale=1, but then")


def test_a_scaler_that_scales_nothing_is_an_error(tmp_path: Path) -> None:
    model, scaler = small_model(), scaler_of("torch")
    with dlsim.Recorder(model, tmp_path / "run", scaler=scaler) as rec:
        for _ in range(2):
            model.zero_grad()
            model(x()).square().mean().backward()
            rec.step()
    assert rec.errors == 2 and steps_in(tmp_path / "run") == []
    assert "scaler: has scaled no loss" in rec.report().messages[0]
    model.zero_grad()
    off = torch.amp.GradScaler("cpu", enabled=False)
    with dlsim.Recorder(model, tmp_path / "off", scaler=off, on_error="raise") as rec:
        model(x()).square().mean().backward()
        rec.step()


@pytest.mark.parametrize("forward_every", [None, 1])
def test_clipping_is_noticed_in_each_step(tmp_path: Path, forward_every) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "run", forward_every=forward_every) as rec:
        for _ in range(2):
            model.zero_grad()
            model(x()).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            rec.step(scale=1.0)
    assert rec.errors == 2 and "as clipping does" in rec.report().messages[1]


def test_two_steps_for_one_backward_pass_are_an_error(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with dlsim.Recorder(model, tmp_path / "run") as rec:
        for _ in range(2):
            optimizer.zero_grad()
            model(x()).square().mean().backward()
            rec.step(scale=1.0)
            rec.step(scale=1.0)
            optimizer.step()
    assert rec.errors == 2 and steps_in(tmp_path / "run") == [0, 2]
    assert "no backward pass since the step before" in rec.report().messages[0]


def test_a_gradient_that_no_backward_pass_makes_is_one(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "run", on_error="raise") as rec:
        for step in range(3):
            for parameter in model.parameters():
                if step == 1:
                    parameter.grad.fill_(2.0)
                else:
                    parameter.grad = torch.ones_like(parameter)
            rec.step(scale=1.0)
    assert steps_in(tmp_path / "run") == [0, 1, 2]
