# SPDX-License-Identifier: Apache-2.0
"""Probes hold what optimizers read: elements of gradients, and what they were told."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from probed import Seen, batch, check, loss_of, train
from recording import small_model
from torch import nn

import dlsim


def test_a_plain_loop_needs_nothing_but_the_block(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.9))
    seen = Seen(model)
    path = tmp_path / "run.dlprobe"
    with dlsim.ProbeRecorder(model, path, on_error="raise") as rec:
        train(model, optimizer, seen)
        assert rec.report().steps == 5
    probe = dlsim.open_probe(path)
    check(probe, seen)
    assert [step.number for step in probe] == [0, 1, 2, 3, 4]
    assert list(probe.tensors) == [name for name, _ in model.named_parameters()]
    group = probe[0].groups["0.weight"]
    assert group.optimizer == "adamw"
    assert group.values["lr"] == 0.01 and group.values["weight_decay"] == 0.01
    assert group.values["beta1"] == 0.8 and group.values["beta2"] == 0.9
    assert group.values["eps"] == 1e-8 and group.values["amsgrad"] == 0
    assert probe.description["model"] == "Sequential" and probe.elements == 4096
    assert rec.report().bytes == path.stat().st_size
    assert repr(probe).endswith("5 updates>")


def test_large_parameters_are_followed_in_part(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 300), nn.ReLU(), nn.Linear(300, 70))
    model[2].weight.data = model[2].weight.data.T.contiguous().T  # rows and columns change places
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen = Seen(model)
    with dlsim.ProbeRecorder(model, tmp_path / "a.dlprobe", elements=64, on_error="raise"):
        train(model, optimizer, seen)
    probe = dlsim.open_probe(tmp_path / "a.dlprobe")
    check(probe, seen)
    assert [tensor.count for tensor in probe.tensors.values()] == [64, 64, 64, 64]
    assert probe.tensors["0.weight"].indices.max() < 1800


@pytest.mark.parametrize("micro_steps", [False, True])
def test_the_recorder_writes_one_beside_its_trace(tmp_path: Path, micro_steps: bool) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    seen = Seen(model)
    options = {"micro_steps": micro_steps, "first_step": 7, "on_error": "raise", "probe": True}
    with dlsim.Recorder(model, tmp_path / "run", **options) as rec:
        for step in range(4):
            optimizer.zero_grad()
            for half in range(2):
                (loss_of(model, 2 * step + half) * 8).backward()
                if micro_steps:
                    rec.micro_step(scale=8.0)
            rec.step(**({} if micro_steps else {"scale": 8.0}))
            for parameter in model.parameters():
                parameter.grad /= 8
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            seen.look()
            optimizer.step()
            schedule.step()
    probe = dlsim.open_probe(tmp_path / "run" / "probe.dlprobe")
    check(probe, seen)
    assert [step.number for step in probe] == [7, 8, 9, 10]
    assert [step.groups["0.bias"].values["lr"] for step in probe] == [0.5, 0.5, 0.25, 0.25]
    assert dlsim.open_trace(tmp_path / "run").steps == (7, 8, 9, 10)
    clips = [step.clip for step in probe]
    assert clips == [None] * 4 if micro_steps else all(0 < clip < 1 for clip in clips)


def test_clipping_is_distinguished_from_none(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    norms = []
    with dlsim.Recorder(model, tmp_path / "a.dlprof", probe=8, on_error="raise") as rec:
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            rec.step(scale=1.0)
            if step % 2 == 0:
                norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.01)))
            elif step == 3:
                nn.utils.clip_grad_value_(model.parameters(), 1e-3)
            optimizer.step()
    clips = [step.clip for step in dlsim.open_probe(tmp_path / "a.dlprobe")]
    assert clips[0] == pytest.approx(0.01 / norms[0], rel=1e-4)
    assert clips[1] == 1.0
    assert clips[2] == pytest.approx(0.01 / norms[1], rel=1e-4)
    assert clips[3] is None


def test_skipped_steps_are_no_updates(tmp_path: Path) -> None:
    if not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"):
        pytest.skip("needs a GradScaler for the CPU")
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    seen, skipped = Seen(model), []
    with dlsim.Recorder(model, tmp_path / "run", scaler=scaler, probe=16, on_error="raise") as rec:
        for step in range(6):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, step)).backward()
            if step in (1, 4):
                model[0].weight.grad[0, 0] = math.inf
            rec.step()
            scaler.unscale_(optimizer)
            skipped.append(step in (1, 4))
            if not skipped[-1]:
                seen.look()
            scaler.step(optimizer)
            scaler.update()
    probe = dlsim.open_probe(tmp_path / "run" / "probe.dlprobe")
    check(probe, seen)
    assert [step.number for step in probe] == [0, 2, 3, 5]


def test_an_optimizer_that_unscales_by_itself(tmp_path: Path) -> None:
    if not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"):
        pytest.skip("needs a GradScaler for the CPU")
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    seen = Seen(model)
    with dlsim.ProbeRecorder(model, tmp_path / "a.dlprobe", on_error="raise"):
        for step in range(5):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, step)).backward()
            scale = scaler.get_scale()
            if step == 2:
                model[0].weight.grad[0, 0] = math.inf
            else:
                seen.look()
                for gradient in seen.gradients[-1].values():
                    gradient.div_(scale)
            scaler.step(optimizer)
            scaler.update()
    check(dlsim.open_probe(tmp_path / "a.dlprobe"), seen)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_in_16_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    model = nn.Linear(6, 8)
    seen = Seen(model)
    model.bias.data = model.bias.data.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with dlsim.ProbeRecorder(model, tmp_path / "a.dlprobe", on_error="raise"):
        for step in range(3):
            optimizer.zero_grad()
            (batch(step) @ model.weight.T + model.bias.float()).square().sum().backward()
            seen.look()
            optimizer.step()
    probe = dlsim.open_probe(tmp_path / "a.dlprobe")
    check(probe, seen)
    assert probe.tensors["bias"].dtype == ("BF16" if dtype == torch.bfloat16 else "F16")
    assert probe.tensors["weight"].dtype == "F32"


def test_a_parameter_that_shrinks_is_an_error(tmp_path: Path) -> None:
    model = nn.Linear(6, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with dlsim.ProbeRecorder(model, tmp_path / "a.dlprobe", elements=64) as rec:
        train(model, optimizer, Seen(model), range(2))
        for parameter in model.parameters():
            parameter.data, parameter.grad = parameter.data[:2].clone(), None
        train(model, optimizer, Seen(model), range(2))
    assert rec.report().errors == 2 and len(dlsim.open_probe(tmp_path / "a.dlprobe")) == 2


def test_groups_frozen_parameters_and_gradients_that_are_missing(tmp_path: Path) -> None:
    model = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)])
    model[1].requires_grad_(requires_grad=False)
    model[3].double()
    groups = [{"params": model[0].parameters(), "lr": 1.0}, {"params": model[2].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.25, momentum=0.5, nesterov=True)
    seen = Seen(model)
    with dlsim.ProbeRecorder(model, tmp_path / "a.dlprobe", on_error="raise") as rec:
        for step in range(4):
            optimizer.zero_grad(set_to_none=True)
            x = model[1](model[0](batch(step)))
            (model[2](x) if step % 2 else x).sum().backward()
            seen.look()
            optimizer.step()
    probe = dlsim.open_probe(tmp_path / "a.dlprobe")
    check(probe, seen)
    assert list(probe.tensors) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert "2.weight" not in probe[0].gradients and "2.weight" in probe[1].gradients
    assert probe[1].groups["0.weight"].values["lr"] == 1.0
    assert probe[1].groups["2.bias"].values["lr"] == 0.25
    assert probe[1].groups["2.bias"].values["nesterov"] == 1
    assert "float64" in rec.report().left_out["3.weight (probe)"]


def test_several_optimizers_make_one_update_of_a_step(tmp_path: Path) -> None:
    model = nn.ModuleDict({"g": nn.Linear(6, 6), "d": nn.Linear(6, 6)})
    first = torch.optim.AdamW(model["g"].parameters(), lr=0.01)
    second = torch.optim.SGD(model["d"].parameters(), lr=0.1)
    gradients = []
    with dlsim.ProbeRecorder(model, tmp_path / "a.dlprobe", on_error="raise") as rec:
        for step in range(4):
            rec.step(step)
            for optimizer in (first, second):
                optimizer.zero_grad()
            model["d"](model["g"](batch(step))).square().sum().backward()
            gradients.append({n: p.grad.clone() for n, p in model.named_parameters()})
            first.step()
            if step != 2:
                second.step()
    probe = dlsim.open_probe(tmp_path / "a.dlprobe")
    found = [(one.number, list(one.gradients)) for one in probe]
    g, d = ["g.weight", "g.bias"], ["d.weight", "d.bias"]
    # The second optimizer was not known when the first one had made the first update.
    assert found == [(0, g), (0, d), (1, g + d), (2, g), (3, g + d)]
    for one in probe:
        for name, elements in one.gradients.items():
            np.testing.assert_array_equal(elements, gradients[one.number][name].flatten())
    assert {one.optimizer for one in probe[2].groups.values()} == {"adamw", "sgd"}


def test_closures(tmp_path: Path) -> None:
    model = small_model()
    seen = Seen(model)

    def closure_of(optimizer, step):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            seen.look()
            return loss

        return closure

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with dlsim.ProbeRecorder(model, tmp_path / "a.dlprobe", on_error="raise"):
        for step in range(2):
            optimizer.step(closure_of(optimizer, step))
            optimizer.step(closure=closure_of(optimizer, step + 2))
    check(dlsim.open_probe(tmp_path / "a.dlprobe"), seen)
    lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.01)
    with dlsim.ProbeRecorder(model, tmp_path / "b.dlprobe", on_error="raise") as rec:
        lbfgs.step(closure_of(lbfgs, 0))
    assert "several times" in rec.report().left_out["LBFGS (probe)"]
    assert not (tmp_path / "b.dlprobe").exists()


def test_an_optimizer_that_was_at_work_before_tells_its_state(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, Seen(model), range(3))
    state = {k: v.clone() for k, v in optimizer.state[model[0].weight].items()}
    with dlsim.ProbeRecorder(model, tmp_path / "a.dlprobe", on_error="raise"):
        train(model, optimizer, Seen(model), range(3))
    probe = dlsim.open_probe(tmp_path / "a.dlprobe")
    kept = probe.values().states["0.weight"]
    assert kept.updates == 3 and sorted(kept.values) == ["exp_avg", "exp_avg_sq"]
    for name in kept.values:
        np.testing.assert_array_equal(kept.values[name], state[name].flatten())
    assert probe.values(1) is None


def test_values_come_again_after_ten_updates_and_every_hundred(tmp_path: Path) -> None:
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = Seen(model)
    with dlsim.ProbeRecorder(model, tmp_path / "a.dlprobe", on_error="raise"):
        train(model, optimizer, seen, range(205))
    probe = dlsim.open_probe(tmp_path / "a.dlprobe")
    assert [i for i in range(206) if probe.values(i) is not None] == [0, 10, 100, 200]
    for i in (10, 100, 200):
        values = probe.values(i)
        assert values is not None and not values.states
        np.testing.assert_array_equal(values.values["bias"], seen.values[i]["bias"])


def test_values_come_again_soon_after_a_new_optimizer(tmp_path: Path) -> None:
    model = nn.Linear(6, 2)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(2)]
    with dlsim.ProbeRecorder(model, tmp_path / "a.dlprobe", on_error="raise"):
        for optimizer in optimizers:
            train(model, optimizer, Seen(model), range(13))
    probe = dlsim.open_probe(tmp_path / "a.dlprobe")
    assert [i for i in range(27) if probe.values(i) is not None] == [0, 10, 13, 23]


def test_an_optimizer_that_calls_its_base(tmp_path: Path) -> None:
    class Signs(torch.optim.SGD):
        """Changes gradients before its base reads them."""

        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.sign_()
            seen.look()
            return super().step(closure)

    model = small_model()
    torch.optim.SGD(model.parameters(), lr=0.1)  # from now on hooks run in the base, too
    optimizer, seen = Signs(model.parameters(), lr=0.1), Seen(model)
    with dlsim.ProbeRecorder(model, tmp_path / "a.dlprobe", on_error="raise"):
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
    probe = dlsim.open_probe(tmp_path / "a.dlprobe")
    assert len(probe) == 3
    if hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):  # PyTorch 2.1
        check(probe, seen)
