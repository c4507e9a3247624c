# SPDX-License-Identifier: Apache-2.0
"""Copies leave a recording alone: forked processes, as workers of a DataLoader, and models."""

import copy
import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import dlsim


def _step(model: torch.nn.Module, rec: dlsim.Recorder) -> None:
    model.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    rec.step(scale=1.0)


@pytest.mark.parametrize("name", ["run", "run.profile"])
@pytest.mark.parametrize("child", ["end", "step"])
def test_a_forked_process_neither_closes_nor_records(tmp_path: Path, name: str, child: str) -> None:
    model = torch.nn.Linear(3, 2)
    with dlsim.Recorder(model, tmp_path / name, activations="*") as rec:
        _step(model, rec)
        assert rec.errors == 0  # waits until the step is written
        before = sorted(path.name for path in tmp_path.rglob("*"))
        process = os.fork()
        if process == 0:
            if child == "step":
                _step(model, rec)
                os._exit(0 if rec.errors == 0 else 1)
            import atexit

            atexit._run_exitfuncs()  # what the end of a process does
            os._exit(0)
        assert os.waitpid(process, 0)[1] == 0
        assert sorted(path.name for path in tmp_path.rglob("*")) == before
        _step(model, rec)
    assert (rec.errors, rec.report().steps) == (0, 2)
    opened = dlsim.open_profile if name.endswith(".profile") else dlsim.open_trace
    assert tuple(opened(tmp_path / name).steps) == (0, 1)


def test_copies_and_pickles_of_the_model_are_not_recorded(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    with dlsim.Recorder(model, tmp_path / "run", activations="*") as rec:
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
            other(torch.ones(2, 3)).sum().backward()
        _step(model, rec)
    with dlsim.Recorder(model, tmp_path / "alone", activations="*") as rec:
        _step(model, rec)
    run, alone = (dlsim.open_trace(tmp_path / name)[0].tensors for name in ("run", "alone"))
    assert list(run) == list(alone)
    for name in run:
        np.testing.assert_array_equal(run[name], alone[name])
