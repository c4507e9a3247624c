# SPDX-License-Identifier: Apache-2.0
"""A process that was forked, such as a worker of a DataLoader, leaves the recording alone."""

import os
from pathlib import Path

import pytest
import torch

import dlsim


def _step(model: torch.nn.Module, rec: dlsim.Recorder) -> None:
    model.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    rec.step(scale=1.0)


@pytest.mark.parametrize("name", ["run", "run.dlprof"])
@pytest.mark.parametrize("child", ["end", "step"])
def test_a_forked_process_neither_closes_nor_records(tmp_path: Path, name: str, child: str) -> None:
    model = torch.nn.Linear(3, 2)
    with dlsim.Recorder(model, tmp_path / name, activations="*") as rec:
        _step(model, rec)
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
    opened = dlsim.open_profile if name.endswith(".dlprof") else dlsim.open_trace
    assert tuple(opened(tmp_path / name).steps) == (0, 1)
