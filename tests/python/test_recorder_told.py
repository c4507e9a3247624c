# SPDX-License-Identifier: Apache-2.0
"""What recorded steps tell of those that are missing, and of the run that was recorded."""

from pathlib import Path

import pytest
import torch
from recording import load, small_model, steps_in
from torch import nn

import dlsim


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"),
    reason="needs PyTorch 2.1 or later",
)
def test_steps_tell_of_those_that_were_refused(tmp_path: Path) -> None:
    model = small_model()  # seeds, too
    with dlsim.Recorder(model, tmp_path / "run") as rec:
        for step in range(6):
            model.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            if step in (0, 2, 3):
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            rec.step(scale=1.0)
    assert rec.report().refused == 3
    told = [load(tmp_path / "run", step)[1] for step in steps_in(tmp_path / "run")]
    assert [one.get("refused") for one in told] == ["1", "2", None]
    assert [one.get("refused_first", "")[:7] for one in told] == ["step 0:", "step 2:", ""]


@pytest.mark.parametrize("forward_every", [None, 1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [True, False])
def test_steps_tell_in_what_they_were_computed(tmp_path, forward_every, dtype, autocast) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2))
    x = torch.ones(4, 6)
    if dtype == torch.float16 and not hasattr(torch.amp, "GradScaler"):
        pytest.skip("needs PyTorch 2.3 or later")
    if not autocast:
        model, x = model.to(dtype), x.to(dtype)
    with dlsim.Recorder(model, tmp_path, forward_every=forward_every, on_error="raise") as rec:
        with torch.autocast("cpu", dtype, enabled=autocast):
            output = model(x)
        output.float().square().mean().backward()
        rec.step(scale=1.0)
        with torch.autocast("cpu", dtype), torch.no_grad():
            small_model()(torch.ones(4, 6))  # no part of the training
    assert load(tmp_path, 0)[1]["computed_in"] == str(dtype).removeprefix("torch.")
    model.float().zero_grad()
    with dlsim.Recorder(model, tmp_path, existing="replace", on_error="raise") as rec:
        model(torch.ones(4, 6)).square().mean().backward()
        rec.step(scale=1.0)
    assert "computed_in" not in load(tmp_path, 0)[1]


def test_the_verdict_repeats_it(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "run.profile") as rec:
        for step in range(4):
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                output = model(torch.randn(4, 6))
            output.float().square().mean().backward()
            rec.step(scale=float("nan") if step == 1 else 1.0)
    verdict = dlsim.replay(tmp_path / "run.profile", formats=["fp16"]).verdict
    assert verdict.refused.steps == 1 and verdict.refused.of == 4
    assert verdict.computed_in == {"bfloat16": 3}
    assert "1 of 4 steps was refused: step 1: " in verdict.lines[1]
    assert "computed in bfloat16: what was rounded away" in verdict.lines[1]
