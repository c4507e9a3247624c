# SPDX-License-Identifier: Apache-2.0
"""A training under dlsim.amp.GradScaler, recorded, replays to what that scaler did."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from running import DLSIM
from torch import nn

import dlsim
from dlsim import amp

STEPS = 60
FORMATS = {"float16": "fp16", "bfloat16": "bf16", "cbfloat16": "cb16"}


def train(path: Path, half_dtype: str) -> tuple[list[tuple[float, float, bool, float]], int]:
    """Returns scale, next scale, whether skipped and norm of each step; and the skipped steps."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = amp.GradScaler("dynamic", steps_per_increase=5, half_dtype=half_dtype)
    seen = []
    with dlsim.Recorder(model, path, every=1, scaler=scaler, on_error="raise") as rec:
        for step in range(STEPS):
            optimizer.zero_grad()
            spike = 1e25 if step % 25 == 24 else 1e4 if step % 10 == 9 else 1.0
            loss = (model(torch.randn(16, 12)) * spike).square().mean()
            scale = float(scaler.get_scale())
            scaler.scale(loss).backward()
            rec.step(loss=loss)  # before unscale_: the gradients carry the scale
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            norm, finite = float(scaler.global_norm), bool(scaler.isfinite)
            scaler.update()
            seen.append((scale, float(scaler.get_scale()), not finite, norm))
    return seen, int(scaler.get_num_skipped_steps())


@pytest.mark.parametrize("output", ["trace", "run.profile"])
@pytest.mark.parametrize("half_dtype", FORMATS)
def test_replay_of_a_recording_repeats_the_scaler(tmp_path: Path, half_dtype, output) -> None:
    seen, skipped_steps = train(tmp_path / output, half_dtype)
    done = subprocess.run(
        [
            *(*DLSIM, "replay", tmp_path / output, "--format", FORMATS[half_dtype]),
            *("--policy", "cerebras-2.10", "--set", "steps_per_increase=5"),
            *("--quiet", "--json", "-"),
            # Clipping looks at the values, and at the norm of what is converted.
            *(["--max-gradient-norm=1e30"] if output == "trace" else []),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    (run,) = json.loads(done.stdout)["runs"]
    replayed = [(step["scale"], step["next_scale"], step["skipped"]) for step in run["steps"]]
    assert replayed == [step[:3] for step in seen]
    assert run["summary"]["skipped_steps"] == skipped_steps > 0
    for step, (*_, skipped, norm) in zip(run["steps"], seen, strict=True):
        if not skipped and output == "trace":
            assert step["converted_grad_norm"] == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("call", ["unscale_", "step"])
@pytest.mark.parametrize("loss_scale", ["dynamic", 8.0])
def test_gradients_without_the_scale_are_not_recorded_with_it(tmp_path, call, loss_scale):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = amp.GradScaler(loss_scale)
    with dlsim.Recorder(model, tmp_path / "run", scaler=scaler) as rec:
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 3)).mean()).backward()
            if step == 1:
                getattr(scaler, call)(optimizer)
            rec.step()
            if step != 1 or call == "unscale_":
                scaler.step(optimizer)
            scaler.update()
    assert rec.errors == 1 and "unscale_() or step()" in rec.report().messages[0]
    assert dlsim.open_trace(tmp_path / "run").steps == (0, 2)
