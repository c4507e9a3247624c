# SPDX-License-Identifier: Apache-2.0
"""What dlsim.closed_loop promises: a training under a policy, and how it compares with a replay."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import dlsim
from dlsim import closed_loop

STEPS = 40
SPIKES = {7: 30.0, 20: 300.0}


def batches(steps: int = STEPS):
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        x = torch.randn(16, 8, generator=generator)
        yield x, torch.sin(x.sum(1, keepdim=True)) * SPIKES.get(step, 1.0)


class NoOptimizer:
    """Learns nothing, not even from an infinite gradient."""

    def step(self) -> None:
        pass


def make(lr: float = 0.02):
    def begin():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=lr) if lr else NoOptimizer()
        return model, optimizer, lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean()

    return begin


# Paths that skip at the start and in between, grow, and reach limits.
POLICIES = [
    ("cerebras-2.10", {"steps_per_increase": 5}),
    ("cerebras-2.10", {"init_scale": 2.0**20, "max_loss_scale": 2.0**24, "steps_per_increase": 5}),
    ("cerebras-tf", {"increment_period": 5, "overflow_tolerance": 0.05}),
    ("torch", {"init_scale": 2.0**24, "growth_interval": 4}),
    ("torch", {"init_scale": 3e5, "growth_interval": 4, "backoff_factor": 0.7}),
    ("megatron", {"growth_interval": 5}),
    ("deepspeed", {"init_scale": 2**20, "scale_window": 6, "delayed_shift": 2}),
    ("fairseq", {"init_scale": 2**20, "scale_window": 6}),
    ("keras", {"dynamic_growth_steps": 5}),
    ("openseq2seq-logmax", {}),
    ("static", {"loss_scale": 1024}),
]
CASES = [(*case, "fp16") for case in POLICIES] + [
    ("cerebras-2.10", {"steps_per_increase": 5}, "cb16"),
    ("torch", {"init_scale": 2.0**24, "growth_interval": 4}, "cb16"),
    ("megatron", {"growth_interval": 5}, "cb16"),
]
SAME_KEYS = ("step", "scale", "next_scale", "finite", "skipped", "grad_norm")
# What a training does not tell of itself; a replay of its record does.
OF_REPLAY = {
    *("mean_harm", "worst_harm", "worst_harm_tensor", "noise", "layers", "forward", "values"),
    *("mean_channel_harm", "worst_channel_harm", "channels"),
}
COUNTS = ("elements", "zeros", "nonfinite", "underflow", "subnormal", "overflow")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    # Many tiny replays during other work: threads that wait for work would cost the most.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def number(value) -> float:
    return float(value)  # "inf" and "nan" are texts in JSON


def assert_same_path(predicted, observed) -> None:
    assert len(predicted["steps"]) == len(observed["steps"])
    for expected, found in zip(predicted["steps"], observed["steps"], strict=True):
        for key in SAME_KEYS:
            assert repr(number(expected[key])) == repr(number(found[key])), (expected["step"], key)
        assert [expected[key] for key in COUNTS] == [found[key] for key in COUNTS]


# -- live and replayed -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "settings", "format"),
    [*CASES, ("torch", {"init_scale": 2.0**120, "growth_interval": 1}, "bf16")],
)
def test_a_run_equals_the_replay_of_its_own_record(tmp_path, policy, settings, format):
    run = closed_loop.train_under(
        make(), batches(), format=format, policy=policy, settings=settings, record=tmp_path
    )
    predicted = closed_loop.predict(tmp_path, format=format, policy=policy, settings=settings)
    observed = run.data()
    power_of_two = all(math.frexp(step["scale"])[0] == 0.5 for step in run.steps)
    if power_of_two:
        assert_same_path(predicted, observed)
    else:  # the scale that was divided out is multiplied back: one float32 rounding more
        assert closed_loop.compare(predicted, run)["first_difference"] is None
    assert observed["params"] == predicted["params"]
    assert observed["finite_test"] == predicted["finite_test"]
    summary, expected = observed["summary"], predicted["summary"]
    for key in set(expected) - {*COUNTS, *OF_REPLAY, "nan", "inf", "activations", "hopeless_steps"}:
        assert number(summary[key] or 0) == pytest.approx(number(expected[key] or 0), rel=1e-6), key


@pytest.mark.parametrize(("policy", "settings", "format"), CASES)
def test_without_learning_a_float32_record_predicts_the_path(tmp_path, policy, settings, format):
    # Nothing feeds back: the trajectory is the same, and rounding is that of the replay.
    closed_loop.train_under(make(lr=0.0), batches(), format=None, policy="static", record=tmp_path)
    run = closed_loop.train_under(
        make(lr=0.0),
        batches(),
        format=format,
        policy=policy,
        settings=settings,
        emulation=None,
    )
    predicted = closed_loop.predict(tmp_path, format=format, policy=policy, settings=settings)
    row = closed_loop.compare(predicted, run)
    assert row["first_difference"] is None
    assert row["skipped_steps"][0] == row["skipped_steps"][1] == row["same_skips"]
    if all(math.frexp(step["scale"])[0] == 0.5 for step in run.steps):
        assert_same_path(predicted, run.data())


def test_with_learning_a_prediction_and_the_run_part(tmp_path):
    # A skipped spike changes what comes later: what docs/emulation.md warns of.
    settings = {"init_scale": 2.0**10, "growth_interval": 4}
    closed_loop.train_under(make(), batches(), format=None, policy="static", record=tmp_path)
    run = closed_loop.train_under(
        make(), batches(), format="fp16", policy="torch", settings=settings
    )
    predicted = closed_loop.predict(tmp_path, format="fp16", policy="torch", settings=settings)
    row = closed_loop.compare(predicted, run)
    assert row["first_difference"] is not None
    expected = [step["skipped"] for step in predicted["steps"]]
    found = [step["skipped"] for step in run.steps]
    assert expected != found


def test_micro_steps_are_those_of_the_replay(tmp_path):
    settings = {"init_scale": 2.0**18, "growth_interval": 3}
    run = closed_loop.train_under(
        make(),
        batches(),
        format="fp16",
        policy="torch",
        settings=settings,
        micro_steps=4,
        record=tmp_path,
    )
    assert len(run.steps) == STEPS / 4
    assert (tmp_path / "step-00000002.micro-03.safetensors").is_file()
    predicted = closed_loop.predict(tmp_path, format="fp16", policy="torch", settings=settings)
    assert_same_path(predicted, run.data())


def test_stochastic_rounding_draws_the_numbers_of_the_replay(tmp_path):
    model, optimizer, loss_of = make()()
    with closed_loop.EmulatedTraining(
        model,
        optimizer,
        format="fp16",
        policy="torch",
        settings={"init_scale": 2.0**4},
        rounding="sr",
        seed=5,
        record=tmp_path,
    ) as training:
        for batch in batches(5):
            training.step(loss_of(model, batch))
    predicted = closed_loop.predict(
        tmp_path,
        format="fp16",
        policy="torch",
        settings={"init_scale": 2.0**4},
        rounding="sr",
        seed=5,
    )
    assert_same_path(predicted, training.run.data())


# -- what a step does ------------------------------------------------------------------------------


def test_float32_training_is_plain_training():
    run = closed_loop.train_under(make(), batches(), format=None, policy="static")
    model, optimizer, loss_of = make()()
    losses = []
    for batch in batches():
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert run.losses == losses
    assert run.format == "float32"
    assert run.summary()["underflow"] == run.summary()["subnormal"] == 0


def test_a_skipped_step_leaves_model_and_optimizer_alone():
    model, optimizer, loss_of = make()()
    optimizer = torch.optim.Adam(model.parameters())
    x, y = next(batches())
    with closed_loop.EmulatedTraining(
        model, optimizer, format="fp16", policy="torch", settings={"init_scale": 2.0**40}
    ) as training:
        before = [p.detach().clone() for p in model.parameters()]
        step = training.step(loss_of(model, (x, y)))
    assert step["skipped"]
    assert not step["finite"]
    assert (step["scale"], step["next_scale"]) == (2.0**40, 2.0**39)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not optimizer.state


def test_applied_gradients_are_rounded_at_the_scale_and_unscaled():
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False)
    x = torch.randn(1, 3) * 1e-7
    seen = []
    with closed_loop.EmulatedTraining(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        format="fp16",
        policy="static",
        settings={"loss_scale": 1024},
        emulation=None,
        before_step=lambda: seen.append(model.weight.grad.clone()),
    ) as training:
        training.step(model(x).sum())
    assert torch.equal(seen[0], (x * 1024).half().float() / 1024)
    assert not torch.equal(seen[0], x.half().float())


def test_clipping_sees_unscaled_gradients():
    model, optimizer, loss_of = make()()
    norms = []

    def clip() -> None:
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))

    with closed_loop.EmulatedTraining(
        model,
        optimizer,
        format="bf16",
        policy="static",
        settings={"loss_scale": 4096},
        before_step=clip,
    ) as training:
        for batch in batches(3):
            training.step(loss_of(model, batch))
    assert norms == pytest.approx([step["grad_norm"] for step in training.run.steps], rel=1e-6)


@pytest.mark.parametrize(
    ("policy", "loss", "cause", "helps"),
    [
        ("torch", lambda w: (w * 1e30).sum(), "overflow", True),
        ("torch", lambda w: (w * math.inf).sum(), "input", False),
        ("cerebras-2.10", lambda w: (w * 2.0**64).sum(), "norm", False),
        ("fairseq", lambda w: (w * 2.0**63).sum(), "norm", True),
        ("apex-fp16-utils", lambda w: (w * 2.0**127).sum(), "sum", True),
        ("deepspeed", lambda w: (w * 2.0**63).sum(), "norm", True),
    ],
)
def test_the_cause_of_a_failed_step_is_told(tmp_path, policy, loss, cause, helps):
    format = "fp16" if cause == "overflow" else "bf16"
    settings = {"init_scale": 1.0} if policy != "cerebras-2.10" else {"init_scale": 2.0**-10}
    model = nn.Linear(4, 1, bias=False)
    nn.init.ones_(model.weight)
    training = closed_loop.EmulatedTraining(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        format=format,
        policy=policy,
        settings=settings,
        emulation=None,
        record=tmp_path,
        on_fatal="continue",
    )
    step = training.step(loss(model.weight))
    training.close()
    assert (step["finite"], step["cause"], step["lower_scale_helps"]) == (False, cause, helps)
    assert step["cause_tensor"] == "weight.grad"
    expected = closed_loop.predict(
        tmp_path, format=format, policy=policy, settings=settings, on_fatal="continue"
    )["steps"][0]
    assert (expected["finite"], expected["cause"]) == (False, cause)
    assert expected["lower_scale_helps"] == helps


def test_activation_gradients_are_counted_beside():
    run = closed_loop.train_under(
        make(), batches(3), format="fp16", policy="static", settings={"loss_scale": 2.0**-20}
    )
    summary = run.summary()
    assert summary["activations"]["underflow"] > 0
    assert {"0.act_grad", "3.act_grad"} < set(run.tensors)
    parameters = sum(p.numel() for p in make()()[0].parameters())
    assert summary["elements"] == 3 * parameters


def test_statistics_of_a_training_are_without_the_scale():
    model, optimizer, loss_of = make()()
    with closed_loop.EmulatedTraining(
        model, optimizer, format="cb16", policy="static", settings={"loss_scale": 2.0**10}
    ) as training:
        for batch in batches(2):
            training.step(loss_of(model, batch))
    counted = training.statistics()["3"]
    assert counted["output"].elements == 2 * 16
    assert counted["output.grad"].elements == 2 * 16
    assert counted["output.grad"].absmax < 1.0


# -- policies --------------------------------------------------------------------------------------


def test_every_policy_runs_or_says_why_not():
    refused = []
    for policy in dlsim.policy_names():
        try:
            run = closed_loop.train_under(make(), batches(4), format="fp16", policy=policy)
        except ValueError as error:
            assert "expected one that needs the outcome of a step only" in str(error)
            refused.append(policy)
        else:
            assert len(run.steps) == 4
    assert sorted(refused) == ["adaloss", "fairscale", "popart"]


def test_a_fatal_event_stops_training_as_the_original_would():
    settings = {"init_scale": 4, "min_scale": 1}

    def losses():
        return [(torch.full((1, 8), 1e30), torch.zeros(1, 1))] * 6

    run = closed_loop.train_under(
        make(), losses(), format="fp16", policy="deepspeed", settings=settings
    )
    assert run.stopped_at_step == 2
    assert len(run.steps) == 3
    assert run.events[-1]["fatal"]
    assert "already at minimum" in run.events[-1]["message"]
    run = closed_loop.train_under(
        make(),
        losses(),
        format="fp16",
        policy="deepspeed",
        settings=settings,
        on_fatal="continue",
    )
    assert len(run.steps) == 6
    model, optimizer, loss_of = make()()
    training = closed_loop.EmulatedTraining(
        model, optimizer, format="fp16", policy="deepspeed", settings=settings
    )
    with training, pytest.raises(closed_loop.TrainingStopped, match="already at minimum"):
        for batch in losses():
            training.step(loss_of(model, batch))
    with pytest.raises(closed_loop.TrainingStopped):
        training.step(loss_of(model, losses()[0]))


def test_training_ends_with_the_model_as_it_was():
    model, optimizer, _ = make()()
    names = list(model.state_dict())
    with pytest.raises(RuntimeError, match="stop"):
        with closed_loop.EmulatedTraining(model, optimizer, emulation={"weights": True}):
            raise RuntimeError("stop")
    assert list(model.state_dict()) == names
    assert not any(module._forward_hooks for module in model.modules())


def test_training_is_deterministic():
    runs = [
        closed_loop.train_under(make(), batches(), format="cb16", policy="torch").data()
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


# -- results ---------------------------------------------------------------------------------------


def test_a_run_has_the_keys_of_a_replay(tmp_path):
    run = closed_loop.train_under(
        make(), batches(), format="fp16", policy="megatron", record=tmp_path
    )
    predicted = closed_loop.predict(tmp_path, format="fp16", policy="megatron")
    observed = json.loads(json.dumps(run.data(), allow_nan=False))
    assert set(predicted) - OF_REPLAY == set(observed)
    assert set(predicted["summary"]) - OF_REPLAY == set(observed["summary"])
    for expected, found in zip(predicted["steps"], observed["steps"], strict=True):
        assert set(expected) - OF_REPLAY <= set(found)
        assert set(found) - set(expected) == {"loss"}
    gradients = [tensor for tensor in observed["tensors"] if tensor["role"] == "grad"]
    for expected, found in zip(predicted["tensors"], gradients, strict=True):
        assert set(expected) - OF_REPLAY == set(found)
        assert expected["name"] == found["name"]
        assert [expected[key] for key in COUNTS] == [found[key] for key in COUNTS]
        assert expected["first_overflow_step"] == found["first_overflow_step"]


def test_trainings_are_a_result_like_any_other(tmp_path):
    runs = [
        closed_loop.train_under(make(), batches(), format="fp16", policy=policy)
        for policy in ("torch", "megatron")
    ]
    result = closed_loop.result_of(*runs)
    steps = result.to_frame("steps")
    assert list(steps.columns[:3]) == list(
        dlsim.replay(trace_of_one(tmp_path), quiet=True).to_frame("steps").columns[:3]
    )
    assert len(steps) == 2 * STEPS
    assert steps[steps.policy == "megatron"].skipped.sum() == len(runs[1].skipped)
    result.save(tmp_path / "result.json")
    assert dlsim.read_result(tmp_path / "result.json").data == result.data
    assert closed_loop.result_of().data["runs"] == []


def trace_of_one(folder):
    closed_loop.train_under(
        make(), batches(1), format=None, policy="static", record=folder / "trace"
    )
    return folder / "trace"


def test_the_table_shows_predictions_beside_what_happened(tmp_path):
    settings = {"init_scale": 2.0**24, "growth_interval": 4}
    run = closed_loop.train_under(
        make(), batches(), format="fp16", policy="torch", settings=settings, record=tmp_path
    )
    predicted = closed_loop.predict(tmp_path, format="fp16", policy="torch", settings=settings)
    head, rule, row = closed_loop.comparison_table([("2^24", predicted, run)]).splitlines()
    assert head.count("|") == rule.count("|") == row.count("|")
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    skipped = len(run.skipped)
    assert cells[:4] == ["fp16", "2^24", f"{skipped} / {skipped}", str(skipped)]
    assert cells[6] == "none"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"policy": "torchh"}, ValueError, "torch"),
        ({"policy": 3}, TypeError, "policy: bad type"),
        ({"policy": "popart"}, ValueError, "uses a histogram"),
        ({"settings": {"no_such": 1}}, ValueError, "no_such"),
        ({"format": "fp17"}, ValueError, "fp17"),
        ({"micro_steps": 0}, ValueError, "micro_steps"),
        ({"on_fatal": "ignore"}, ValueError, "on_fatal"),
        ({"emulation": {"modules": "none*"}}, ValueError, "no module is chosen"),
        ({"policy": "cerebras-2.10", "settings": {"min_loss_scale": 1e-9}}, ValueError, "small"),
    ],
)
def test_bad_arguments_are_named(arguments, error, text):
    model, optimizer, _ = make()()
    with pytest.raises(error, match=text) as raised:
        closed_loop.EmulatedTraining(model, optimizer, **arguments)
    assert "\n" not in str(raised.value)
    assert not any(module._forward_hooks for module in model.modules())
