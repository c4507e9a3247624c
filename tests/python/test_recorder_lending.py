# SPDX-License-Identifier: Apache-2.0
"""Recording without a copy: what the training changes meanwhile is noticed, and never written."""

import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from bundled_traces import files_of
from recording import load, small_model, steps_in
from torch import nn

import dlsim
from dlsim.recorder._sinks import Part, TraceSink

Change = Callable[[nn.Module], object]


def _train(model: nn.Module, rec: dlsim.Recorder, steps: int, change: Change | None = None) -> None:
    """Trains, changing the gradients of step 1 after it was recorded."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        before = {name: p.grad.clone() for name, p in model.named_parameters()}
        rec.step(loss=loss, scale=1.0)
        if step == 1 and change is not None:
            change(model)
        for name, parameter in model.named_parameters():  # the same training with every change
            parameter.grad = before[name]
        optimizer.step()


def _recorded(
    path: Path, steps: int = 4, change: Change | None = None, **options
) -> dlsim.Recorder:
    model = small_model()
    with dlsim.Recorder(model, path, **options) as rec:
        _train(model, rec, steps, change)
    return rec


def _steps(path: Path) -> dict[int, object]:
    """Returns all that was recorded of each step; of a profile, counts."""
    if path.suffix == ".profile":
        return {step["step"]: step for step in dlsim.info(path).data["steps"]}
    found = {step: load(path, step) for step in steps_in(path)}
    return {
        step: (
            {
                name: tensor.view(-1).view(torch.int8).numpy().tobytes()
                for name, tensor in tensors.items()
            },
            metadata,
        )
        for step, (tensors, metadata) in found.items()
    }


@pytest.fixture
def reading(monkeypatch) -> Iterator[threading.Event]:
    """Steps of a trace are read when this is set."""
    go = threading.Event()
    add = TraceSink.add

    def slow(self: TraceSink, step: int, part: Part) -> None:
        assert go.wait(60)
        add(self, step, part)

    monkeypatch.setattr(TraceSink, "add", slow)
    yield go
    go.set()


@pytest.mark.parametrize("name", ["run", "run.profile"])
@pytest.mark.parametrize(
    "options",
    [{}, {"every": 2}, {"dtype": "bfloat16"}, {"sample": 7}, {"on_error": "raise"}],
    ids=str,
)
def test_bytes_are_those_of_copies(tmp_path: Path, name: str, options: dict) -> None:
    found = []
    for copy in (True, False):
        path = tmp_path / str(copy) / name
        rec = _recorded(path, copy=copy, **options)
        assert (rec.errors, rec.report().steps) == (0, 4 // options.get("every", 1))
        # The header of a safetensors file has its metadata in any order.
        found.append(files_of(path) if name.endswith(".profile") else _steps(path))
    assert found[0] == found[1]


def _accumulate(model: nn.Module) -> None:
    model(torch.ones(1, 6)).sum().backward()


def _divide(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad /= 2


CHANGES: list[Change] = [
    lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
    lambda model: torch.optim.SGD(model.parameters(), lr=0.1).zero_grad(set_to_none=False),
    _accumulate,
    _divide,
]


@pytest.mark.parametrize("name", ["run", "run.profile"])
@pytest.mark.parametrize("change", CHANGES, ids=["clip", "zero", "accumulate", "divide"])
def test_a_change_loses_its_step_and_copies_the_rest(
    tmp_path: Path, name: str, change: Change
) -> None:
    path, expected = tmp_path / name, tmp_path / "copied" / name
    rec = _recorded(path, change=change, copy=False)
    assert rec.errors == 1
    assert rec.report().messages == [
        "step 1: 0.weight.grad: was changed in place after the step was recorded, as clipping and "
        "zero_grad(set_to_none=False) do, expected copy=True, which is so from now on"
    ]
    _recorded(expected, change=change)
    copied = _steps(expected)
    assert list(copied) == [0, 1, 2, 3]
    del copied[1]
    assert _steps(path) == copied


def test_later_changes_find_copies(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "run", copy=False) as rec:
        for _ in range(5):
            model.zero_grad(set_to_none=False)
            model(torch.ones(1, 6)).sum().backward()
            rec.step(scale=1.0)
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    assert rec.errors == 1 and steps_in(tmp_path / "run") == [1, 2, 3, 4]


def test_a_change_before_the_reading_is_not_written(tmp_path: Path, reading) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, copy=False) as rec:
        model(torch.ones(1, 6)).sum().backward()
        rec.step(scale=1.0)
        _divide(model)
        reading.set()
        assert rec.errors == 1
    assert steps_in(tmp_path) == []


def _mul_unseen(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad.data.mul_(3)


@pytest.mark.parametrize("case", ["scaled", "separate", "view", "gradient_of", "transposed"])
def test_what_others_may_change_unseen_is_copied(tmp_path: Path, reading, case: str) -> None:
    model = nn.Linear(6, 2, bias=False)
    options: dict = {"scaled": {}, "separate": {"distributed": "separate", "rank": 0, "ranks": 2}}
    options["gradient_of"] = {"gradient_of": lambda parameter: parameter.grad}
    with dlsim.Recorder(model, tmp_path, copy=False, **options.get(case, {})) as rec:
        model(torch.ones(1, 6)).sum().backward()
        if case == "view":
            model.weight.grad = torch.ones(24)[:12].view(2, 6)
        if case == "transposed":
            model.weight.grad = torch.ones(6, 2).t()
        rec.step(scale=2.0 if case == "scaled" else 1.0)
        _mul_unseen(model)
        reading.set()
        assert rec.errors == 0
    suffix = ".rank-00000" if case == "separate" else ""
    assert torch.equal(load(tmp_path, 0, suffix)[0]["weight.grad"], torch.ones(2, 6))


def test_memory_that_is_given_away_is_not_read(tmp_path: Path) -> None:
    model, go = small_model(), threading.Event()
    with dlsim.Recorder(model, tmp_path, copy=False, activations=None) as rec:
        model(torch.ones(1, 6)).sum().backward()
        add = rec._steps.add

        def late(step: int, part: Part) -> None:
            rec._steps._thread.submit(go.wait, 60)
            add(step, part)

        rec._steps.add = late
        rec.step(scale=1.0)
        gradient = model[2].weight.grad
        getattr(gradient, "untyped_storage", gradient.storage)().resize_(0)
        go.set()
        assert rec.errors == 1
    assert rec.report().messages[0].startswith("step 0: 2.weight.grad: its memory was given away")
    assert steps_in(tmp_path) == []


def test_nothing_is_held_once_it_was_read(tmp_path: Path, monkeypatch) -> None:
    add, tensors, loans = TraceSink.add, [], []

    def noting(self: TraceSink, step: int, part: Part) -> None:
        add(self, step, part)
        tensors.extend(map(weakref.ref, part.tensors.values()))
        loans.extend(part.loans)

    monkeypatch.setattr(TraceSink, "add", noting)
    model = small_model()
    with dlsim.Recorder(model, tmp_path, copy=False, activations=None) as rec:
        model(torch.ones(1, 6)).sum().backward()
        rec.step(scale=1.0)
        rec._steps._thread.submit(int).result()
        assert len(tensors) == len(loans) == 4
        assert [tensor() for tensor in tensors] == [None] * 4
        assert sum(loan._counter.numel() for loan in loans) == 0
        assert all(loan._counter.data_ptr() == 0 for loan in loans)


def test_a_step_is_complete_at_the_next_call(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, copy=False, every=100) as rec:
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            model(torch.ones(1, 6)).sum().backward()
            rec.step(scale=1.0)
            rec._steps._thread.submit(int).result()  # all before is done
        assert steps_in(tmp_path) == [0]


@pytest.mark.parametrize("name", ["run", "run.profile"])
def test_a_failing_call_keeps_the_step_before(tmp_path: Path, name: str) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / name, copy=False) as rec:
        model(torch.ones(1, 6)).sum().backward()
        rec.step(scale=1.0)
        rec.step(scale=1.0, step=0)
    assert rec.report().messages == ["step 0: steps must ascend, expected more than 0"]
    assert [step["step"] for step in dlsim.info(tmp_path / name).data["steps"]] == [0]


@pytest.mark.parametrize("name", ["run", "run.profile"])
def test_a_program_that_closes_nothing_loses_nothing(tmp_path: Path, name: str) -> None:
    program = (
        "import sys, torch, dlsim\n"
        "model = torch.nn.Linear(3, 2)\n"
        "rec = dlsim.Recorder(model, sys.argv[1], copy=False)\n"
        "for _ in range(3):\n"
        "    model.zero_grad(set_to_none=True)\n"
        "    model(torch.ones(2, 3)).sum().backward()\n"
        "    rec.step(scale=1.0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "recorder" not in done.stderr
    assert [step["step"] for step in dlsim.info(tmp_path / name).data["steps"]] == [0, 1, 2]
