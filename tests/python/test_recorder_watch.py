# SPDX-License-Identifier: Apache-2.0
"""A recorder tells of a training while it runs, and raises alarm."""

import copy
import logging
import pickle
from pathlib import Path

import pytest
import torch
from recording import load, small_model, steps_in, train

import dlsim
from dlsim import amp
from dlsim.recorder import AlertStop, SkippedSteps, Watch

torch_scaler = getattr(torch.amp, "GradScaler", None)


class Shown:
    """Takes figures as a callable does."""

    def __init__(self) -> None:
        self.calls: dict[int, dict] = {}

    def __call__(self, step: int, figures: dict) -> None:
        self.calls[step] = figures


def watched(path: Path, watch, steps: int = 1, **options) -> dlsim.Recorder:
    model = small_model()
    with dlsim.Recorder(model, path, watch=watch, on_error="raise", **options) as rec:
        train(model, rec, steps)
    return rec


@pytest.mark.parametrize("format", ["fp16", "cb16", "fp8-e4m3"])
def test_figures_are_those_of_a_replay_of_the_profile(tmp_path: Path, format) -> None:
    shown = Shown()
    path = tmp_path / "run.profile"
    watched(path, Watch(shown, every=2, format=format), 5)
    assert list(shown.calls) == [0, 2, 4]
    options = {"formats": format, "policies": "static", "settings": {"loss_scale": 8}}
    result = dlsim.replay(path, **options)
    windows = {step: window for step, *window in result["verdict"]["formats"][0]["steps"]}
    for step, figures in shown.calls.items():
        expected = result["runs"][0]["steps"][step]
        for name, value in expected.items():
            if type(value) in (int, float) and name not in ("step", "next_scale"):
                assert figures[name] == value, name
        assert figures["activations.mean_harm"] == expected["activations"]["mean_harm"]
        assert [figures["window_low"], figures["window_high"]] == windows[step]


def test_figures_of_micro_steps_are_those_of_a_replay(tmp_path: Path) -> None:
    shown, model = Shown(), small_model()
    options = {"micro_steps": True, "watch": shown, "on_error": "raise"}
    path = tmp_path / "run.profile"
    with dlsim.Recorder(model, path, **options) as rec:
        for _ in range(2):
            (model(torch.ones(4, 6)).square().mean() * 8).backward()
            rec.micro_step(scale=8)
        rec.step()
    settings = {"settings": {"loss_scale": 8}}
    expected = dlsim.replay(path, formats="fp16", policies="static", **settings)
    (step,) = expected["runs"][0]["steps"]
    assert shown.calls[0]["mean_harm"] == step["mean_harm"] > 0
    assert shown.calls[0]["grad_norm"] is None  # tables do not tell that of the sum


def test_dead_layers_are_counted(tmp_path: Path) -> None:
    shown, model = Shown(), small_model()
    torch.nn.init.constant_(model[0].bias, -1e9)  # no input passes the ReLU
    with dlsim.Recorder(model, tmp_path / "run", watch=shown, activations=None) as rec:
        train(model, rec)
    assert shown.calls[0]["dead_tensors"] == 3  # both parameters of it, and the weight behind it
    assert shown.calls[0]["zeros"] > 0


def test_figures_go_to_several_places_and_failures_of_one_are_counted(tmp_path: Path) -> None:
    shown, model = Shown(), small_model()

    def fails(step: int, figures: dict) -> None:
        raise OSError("no network")

    with dlsim.Recorder(model, tmp_path / "run", watch=[fails, shown]) as rec:
        train(model, rec, 2)
    assert list(shown.calls) == [0] and rec.errors == 1
    assert rec.report().messages == ["watch of step 0: no network"]
    assert steps_in(tmp_path / "run") == [0, 1]


def test_a_watch_that_fails_loses_no_step(tmp_path: Path, monkeypatch) -> None:
    shown, model = Shown(), small_model()
    with dlsim.Recorder(model, tmp_path / "run", watch=Watch(shown, every=1)) as rec:
        monkeypatch.setattr("dlsim.recorder._watch.counted_parts", lambda part: 1 // 0)
        train(model, rec)
        monkeypatch.undo()
        train(model, rec)
    assert steps_in(tmp_path / "run") == [0, 1] and list(shown.calls) == [1]
    assert rec.errors == 1 and "watch of step 0: " in rec.report().messages[0]


def test_tensorboard_gets_scalars(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    writer = tensorboard.SummaryWriter(tmp_path / "logs")
    shown = Shown()
    watched(tmp_path / "run", Watch([writer, shown], every=1), 3)
    writer.close()
    events = reading.EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    for name in ("mean_harm", "window_high", "scale"):
        found = {event.step: event.value for event in events.Scalars(f"dlsim/{name}")}
        assert found == {
            step: torch.tensor(figures[name]).item() for step, figures in shown.calls.items()
        }
    assert "dlsim/skipped_steps" not in events.Tags()["scalars"]  # nobody knows


def test_weights_and_biases_get_a_row_with_the_step(tmp_path: Path) -> None:
    class Run:
        rows: list[dict]
        axes: list[tuple]

        def log(self, row: dict) -> None:
            self.rows.append(row)

        def define_metric(self, name: str, step_metric: str) -> None:
            self.axes.append((name, step_metric))

    run = Run()
    run.rows, run.axes = [], []
    watched(tmp_path / "run", Watch(run, every=1), 2)
    assert run.axes == [("dlsim/*", "dlsim/step")]
    assert [row["dlsim/step"] for row in run.rows] == [0, 1]
    assert all(row["dlsim/scale"] == 8 and None not in row.values() for row in run.rows)


def test_an_alert_stops_the_training_with_what_was_recorded(tmp_path: Path) -> None:
    watch = Watch(every=1, alerts={"scale <= 2^3": "stop"})
    model = small_model()
    with pytest.raises(AlertStop, match=r"step 0: scale is 8.0, alert scale <= 2\^3"):
        with dlsim.Recorder(model, tmp_path / "run", watch=watch) as rec:
            train(model, rec, 3)
    assert steps_in(tmp_path / "run") == [0] and rec.errors == 0


def test_an_alert_calls_when_it_becomes_true_and_once_more_when_it_was_false(
    tmp_path: Path, caplog
) -> None:
    called = []
    alerts = {"scale>4": lambda step, _: called.append(step), "scale>=8": "warn"}
    model = small_model()
    watch = Watch(every=1, alerts=alerts)
    with dlsim.Recorder(model, tmp_path / "run", watch=watch) as rec, caplog.at_level("WARNING"):
        for scale in (4, 8, 8, 2, 8):
            model.zero_grad()
            (model(torch.ones(4, 6)).mean() * scale).backward()
            rec.step(scale=scale)
    assert called == [1, 4]
    assert [record.message for record in caplog.records] == [
        "dlsim recorder: step 1: scale is 8.0, alert scale>=8",
        "dlsim recorder: step 4: scale is 8.0, alert scale>=8",
    ]


@pytest.mark.parametrize(
    ("watch", "error", "message"),
    [
        (3, TypeError, "watch: expected a SummaryWriter, a run of W&B or a callable, got int"),
        ({"every": 0}, dlsim.UsageError, "watch.every: out of range"),
        ({"alerts": {"mean_harm": "warn"}}, dlsim.UsageError, "not an expectation"),
        ({"alerts": {"harm>1": "warn"}}, dlsim.UsageError, "unknown figure, .*mean_harm.*'harm'"),
        ({"alerts": {"scale>inf": "warn"}}, dlsim.UsageError, "not a number, .* 'inf'"),
        ({"alerts": {"scale>1": "halt"}}, dlsim.UsageError, "expected 'warn', 'stop' or"),
        ({"format": "fp17"}, dlsim.UsageError, "fp17"),
    ],
)
def test_a_wrong_watch_is_refused_before_the_training(tmp_path, watch, error, message) -> None:
    with pytest.raises(error, match=message):
        watched(tmp_path / "run", Watch(**watch) if isinstance(watch, dict) else watch)


def loop(path: Path, scaler, **options) -> list[bool]:
    """Six steps, of which 1 and 4 overflow; returns which were skipped."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    skipped = SkippedSteps(scaler)
    seen = []
    with dlsim.Recorder(model, path, scaler=scaler, **options) as rec:
        for step in range(6):
            optimizer.zero_grad()
            inputs = torch.full((4, 6), float("inf") if step in (1, 4) else 1.0)
            scaler.scale(model(inputs).square().mean()).backward()
            rec.step()
            scaler.step(optimizer)
            scaler.update()
            seen.append(skipped.step_was_skipped)
    assert (skipped.count, skipped.longest_run, skipped.run) == (2, 1, 0)
    skipped.close()
    assert "update" not in vars(scaler)
    return seen


SCALERS = [lambda: amp.GradScaler("dynamic")]
if torch_scaler is not None:
    SCALERS.append(lambda: torch_scaler("cpu"))


@pytest.mark.parametrize("make", SCALERS)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_of_a_scaler_are_not_looked_at(make, copied) -> None:
    scaler = make()
    skipped = SkippedSteps(scaler)
    other, before = copied(scaler), float(scaler.get_scale())
    parameter = torch.nn.Parameter(torch.ones(1))
    other.scale(parameter * float("inf")).sum().backward()
    other.step(torch.optim.SGD([parameter], lr=0.1))
    other.update()
    assert float(other.get_scale()) < before == float(scaler.get_scale())
    assert not skipped.step_was_skipped and skipped.count == 0


@pytest.mark.parametrize("make", SCALERS)
def test_skipped_steps_are_counted(tmp_path, make, caplog) -> None:
    shown = Shown()
    watch = Watch(shown, every=1, alerts={"skipped_steps>=2": "warn"})
    with caplog.at_level(logging.WARNING):
        seen = loop(tmp_path / "run", make(), watch=watch)
    assert seen == [False, True, False, False, True, False]
    assert [figures["skipped_steps"] for figures in shown.calls.values()] == [0, 0, 1, 1, 1, 2]
    assert caplog.messages == ["dlsim recorder: step 5: skipped_steps is 2, alert skipped_steps>=2"]


def test_skips_are_counted_of_a_scaler_that_tells() -> None:
    with pytest.raises(dlsim.UsageError, match="scaler: does not report skipped steps"):
        SkippedSteps(dlsim.LossScaler("torch"))


def test_gradients_may_be_elsewhere(tmp_path: Path) -> None:
    """As Megatron keeps them in main_grad, and DeepSpeed behind a function."""
    model = small_model()
    for parameter in model.parameters():
        parameter.main_grad = torch.full_like(parameter, 3.0)
    model[2].bias.main_grad = None
    options = {"gradient_of": lambda parameter: parameter.main_grad, "activations": None}
    with dlsim.Recorder(model, tmp_path / "run", **options) as rec:
        rec.step(scale=1.0)
    tensors, _ = load(tmp_path / "run", 0)
    assert sorted(tensors) == ["0.bias.grad", "0.weight.grad", "2.weight.grad"]
    assert (tensors["0.weight.grad"] == 3.0).all() and rec.errors == 0
    assert rec.report().left_out == {"2.bias.grad": "has no gradient in step 0"}
    with pytest.raises(dlsim.UsageError, match="gradient_of: not with micro_steps"):
        dlsim.Recorder(model, tmp_path / "two", micro_steps=True, gradient_of=id)
