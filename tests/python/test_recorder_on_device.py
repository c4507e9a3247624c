# SPDX-License-Identifier: Apache-2.0
"""Gradients that are counted where they are.

No device is needed: memory of the host stands for a device's, and PyTorch counts it.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bundled_traces import files_of
from recording import small_model, train
from torch import nn

import dlsim
from dlsim.recorder import Watch, _output, _tensors

HOST = -1  # as a device


@pytest.fixture
def waits(monkeypatch) -> list[int]:
    """Takes tensors for those of a device; returns the devices that were waited for."""
    waited: list[int] = []
    for module in (_tensors, _output):
        monkeypatch.setattr(module, "device_of", lambda tensor: HOST)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    return waited


def _profile(
    path: Path, train: Callable[[nn.Module, dlsim.Recorder], object], **options
) -> dict[str, bytes]:
    model = small_model()
    with dlsim.Recorder(model, path, on_error="raise", **options) as rec:
        train(model, rec)
    return files_of(path)


@pytest.fixture
def same(tmp_path, waits, monkeypatch) -> Callable[..., None]:
    """Fails unless a profile that is counted on the device is that of copies."""

    def check(train: Callable[[nn.Module, dlsim.Recorder], object], **options) -> None:
        counted = _profile(tmp_path / "device.profile", train, on_device=True, **options)
        assert waits and set(waits) == {HOST}
        monkeypatch.undo()
        assert counted == _profile(tmp_path / "host.profile", train, **options)

    return check


@pytest.mark.parametrize("options", [{}, {"also": [3, 2e15]}])
def test_profile_is_that_of_copies(same, options) -> None:
    same(lambda model, rec: train(model, rec, steps=3), **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_activations_and_other_types_are_counted_too(same, dtype) -> None:
    def train_others(model: nn.Module, rec: dlsim.Recorder) -> None:
        model.to(dtype)
        model[0].bias.requires_grad_(False)
        model(torch.ones(4, 6, dtype=dtype)).sum().backward()
        rec.step(scale=1.0)

    same(train_others)


def test_micro_steps_are_counted_one_by_one(same) -> None:
    def accumulate(model: nn.Module, rec: dlsim.Recorder) -> None:
        for factor in (1.0, 2.0**-20, 3.0):
            (model(torch.ones(4, 6)).sum() * factor).backward()
            rec.micro_step(scale=2.0)
        rec.step()

    same(accumulate, micro_steps=True)


def test_gradients_may_change_as_soon_as_step_returns(tmp_path, waits) -> None:
    def record(path: Path, *, changes: bool) -> dict[str, bytes]:
        def steps(model: nn.Module, rec: dlsim.Recorder) -> None:
            for step in range(20):
                model.zero_grad()
                model(torch.full((4, 6), 1.0 + step)).sum().backward()
                rec.step(scale=1.0)
                for parameter in model.parameters() if changes else ():
                    parameter.grad.fill_(float("nan"))

        return _profile(path, steps, on_device=True, every=1)

    changed = record(tmp_path / "changed.profile", changes=True)
    assert changed == record(tmp_path / "kept.profile", changes=False)


def test_a_gradient_in_another_order_is_counted(same) -> None:
    def transposed(model: nn.Module, rec: dlsim.Recorder) -> None:
        model[0].weight.grad = torch.arange(48.0).reshape(6, 8).t()
        rec.step(scale=1.0)

    same(transposed, gradients="0.weight", activations=None)


def test_a_watch_sees_the_same_figures(tmp_path, waits, monkeypatch) -> None:
    figures: list[dict] = []

    def show(step: int, found: dict) -> None:
        figures.append({"step": step, **found})

    for name, on_device in (("a", True), ("b", False)):
        model = small_model()
        path = tmp_path / f"{name}.profile"
        watch = Watch(show, every=1)
        options = {"on_device": on_device, "watch": watch, "on_error": "raise"}
        with dlsim.Recorder(model, path, **options) as rec:
            train(model, rec, steps=2)
        monkeypatch.undo()  # the second one copies
    assert len(figures) == 4
    assert figures[:2] == figures[2:]


def test_a_trace_needs_the_gradients(tmp_path, waits) -> None:
    with pytest.raises(dlsim.UsageError, match="on_device: a trace needs the gradients"):
        dlsim.Recorder(small_model(), tmp_path / "run", on_device=True)
    assert not (tmp_path / "run").exists()


def test_scaled_formats_are_measured_on_the_host(tmp_path, waits) -> None:
    with pytest.raises(dlsim.UsageError, match="on_device: mxfp8 is measured in the host's memory"):
        dlsim.Recorder(small_model(), tmp_path / "a.profile", on_device=True, also="mxfp8")
