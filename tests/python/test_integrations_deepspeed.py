# SPDX-License-Identifier: Apache-2.0
"""The recipe for DeepSpeed records what dlsim.Recorder does in a plain loop."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from recording import load, small_model, steps_in

import dlsim

if importlib.util.find_spec("deepspeed") is None:
    pytest.skip("needs deepspeed and PyTorch 2", allow_module_level=True)


def record_plainly(path: Path) -> None:
    """Trains with two batches for a step, clipped as DeepSpeed clips."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = torch.randn(6, 4, 6, generator=torch.Generator().manual_seed(7))
    with dlsim.Recorder(model, path, on_error="raise", activations=None) as rec:
        for pair in batches.split(2):
            optimizer.zero_grad()
            for batch in pair:
                (model(batch).square().mean() * 100 / 2).backward()
            rec.step(scale=1.0)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_each_stage_of_zero_records_what_backward_leaves(tmp_path: Path, stage: int) -> None:
    record_plainly(tmp_path / "plain")
    script = Path(__file__).with_name("deepspeed_run.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path / "run", str(stage)],
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert steps_in(tmp_path / "run") == steps_in(tmp_path / "plain") == [0, 1, 2]
    found, plain = (load(tmp_path / name, 0)[0] for name in ("run", "plain"))
    assert found.keys() == plain.keys()
    for name, tensor in plain.items():
        assert torch.equal(found[name], tensor), name
    for step in (1, 2):  # after steps whose clipping divides in another order
        plain, _ = load(tmp_path / "plain", step)
        for name, tensor in load(tmp_path / "run", step)[0].items():
            torch.testing.assert_close(tensor, plain[name], rtol=1e-5, atol=1e-7)
