# SPDX-License-Identifier: Apache-2.0
"""Steps are counted and written while the training goes on, as they were handed over."""

import threading
from pathlib import Path

import pytest
import torch
from recording import load, small_model, steps_in, train

import dlsim
from dlsim.recorder._sinks import TraceSink


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


@pytest.mark.parametrize("name", ["run", "run.dlprof"])
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
    assert {step["step"] for step in dlsim.info(tmp_path / name).data["steps"]} == {0, 1}
