# SPDX-License-Identifier: Apache-2.0
"""Steps are counted and written while the training goes on, as they were handed over."""

import sys
import threading
from pathlib import Path

import pytest
import torch
from recording import load, small_model, steps_in, train

import dlsim
from dlsim.recorder._output import TraceSink


def test_the_training_goes_on_while_a_step_is_written(tmp_path: Path, monkeypatch) -> None:
    written, returned = threading.Event(), threading.Event()
    add = TraceSink.add

    def slow(self: TraceSink, step: int, part) -> None:
        assert returned.wait(60)
        add(self, step, part)
        written.set()

    monkeypatch.setattr(TraceSink, "add", slow)
    model = small_model()
    with dlsim.Recorder(model, tmp_path, activations=None) as rec:
        (gradients,) = train(model, rec)
        for parameter in model.parameters():  # as unscaling and clipping do
            parameter.grad.zero_()
        assert not written.is_set()
        returned.set()
    assert rec.report().steps == 1 and rec.errors == 0
    found, _ = load(tmp_path, 0)
    for name, gradient in gradients.items():
        assert torch.equal(found[f"{name}.grad"], gradient)


def test_an_error_of_the_thread_is_counted_and_loses_one_step(tmp_path: Path, monkeypatch) -> None:
    add = TraceSink.add

    def failing(self: TraceSink, step: int, part) -> None:
        if step == 1:
            raise OSError("no space left")
        add(self, step, part)

    monkeypatch.setattr(TraceSink, "add", failing)
    model = small_model()
    with dlsim.Recorder(model, tmp_path) as rec:
        train(model, rec, steps=3)
        assert rec.errors == 1
    assert rec.report().messages == ["step 1: no space left"]
    assert rec.report().steps == 2 and steps_in(tmp_path) == [0, 2]
    with (
        dlsim.Recorder(model, tmp_path / "other", on_error="raise") as rec,
        pytest.raises(OSError, match="no space left"),
    ):
        train(model, rec, steps=3)


@pytest.mark.parametrize("name", ["run", "run.profile"])
def test_accumulated_micro_steps_stay_as_they_were(tmp_path: Path, name) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / name, micro_steps=True, on_error="raise") as rec:
        for _ in range(2):
            model.zero_grad()
            for _ in range(3):
                model(torch.randn(4, 6)).square().mean().backward()
                rec.micro_step(scale=1.0)
            rec.step()
    assert rec.report().steps == 2
    assert {step["step"] for step in dlsim.info(tmp_path / name)["steps"]} == {0, 1}


_INTERRUPTED = ("dlsim/recorder/", "threading.py", "concurrent/futures/")


def _interrupt_after(events: int) -> None:
    """Raises KeyboardInterrupt in this thread, as Ctrl-C does, at one of the places it may come."""
    left = events

    def trace(frame, _event, _argument):
        nonlocal left
        if not any(place in frame.f_code.co_filename for place in _INTERRUPTED):
            return None
        left -= 1
        if left <= 0:
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)


@pytest.mark.parametrize("name", ["run", "run.profile"])
def test_an_interrupt_at_any_place_neither_hangs_nor_loses_a_step_before(
    tmp_path: Path, name
) -> None:
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    open_it = dlsim.open_profile if name.endswith(".profile") else dlsim.open_trace
    for number, events in enumerate(range(1, 100_000, 23)):
        path, interrupted = tmp_path / str(number) / name, False
        rec = dlsim.Recorder(model, path, activations=None)
        rec.step(scale=1.0)
        try:
            _interrupt_after(events)
            rec.step(scale=1.0)
            rec.close()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sys.settrace(None)
        rec.close()
        assert rec.report().messages == []
        steps = list(open_it(path).steps)
        assert steps in ([0], [0, 1])
        assert 0 <= len(steps) - rec.report().steps <= 1  # one is on the disk and not counted
        if not interrupted:
            break
    assert number > 10


def test_a_recorder_goes_on_after_an_interrupt(tmp_path: Path, monkeypatch) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "run.profile", watch=print) as rec:
        train(model, rec)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):

            def interrupted(*_) -> None:
                raise KeyboardInterrupt

            patched.setattr(rec._watching, "add", interrupted)
            train(model, rec)
        train(model, rec, steps=2)
    assert rec.errors == 0 and rec.report().steps == 3
    profile = dlsim.open_profile(tmp_path / "run.profile")
    assert tuple(profile.steps) == (0, 1, 2)


def test_calls_of_two_threads_at_once_are_an_error(tmp_path: Path) -> None:
    model, inside, go = small_model(), threading.Event(), threading.Event()
    model(torch.ones(2, 6)).sum().backward()

    def slow(parameter):
        inside.set()
        assert go.wait(60)
        return parameter.grad

    with dlsim.Recorder(model, tmp_path, gradient_of=slow, activations=None) as rec:
        first = threading.Thread(target=rec.step, kwargs={"scale": 1.0})
        first.start()
        assert inside.wait(60)
        rec.step(scale=1.0)
        go.set()
        first.join()
        rec.step(scale=1.0)  # one after the other is no error
    assert rec.errors == 1 and rec.report().steps == 2
    assert "another thread is in a call of this recorder" in rec.report().messages[0]
