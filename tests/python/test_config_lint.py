# SPDX-License-Identifier: Apache-2.0
"""What the notes on a configuration say of 16 bits, against torch's own arithmetic."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from running import DLSIM

torch = pytest.importorskip("torch", minversion="2.4")  # 1.13 rounds factors to bf16 first

MODES: list[dict[str, bool]] = [{"foreach": False}, {"foreach": True}, {"fused": True}]
TITAN = '[job]\ndump_folder = "x"\n[training]\ndtype = "bfloat16"\n[optimizer]\n'


def notes_of(tmp_path: Path, text: str, name: str = "run.toml") -> list[str]:
    path = tmp_path / name
    path.write_text(text)
    command = [*DLSIM, "scaler", "--config", str(path), "--steps", "1", "--json", "-"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    notes: list[str] = json.loads(printed)["config"]["notes"]
    return notes


def only(notes: list[str], part: str) -> str:
    (note,) = [note for note in notes if part in note]
    return note


def significands(dtype: Any) -> Any:
    count = round(1 / torch.finfo(dtype).eps)
    return (1 + torch.arange(count, dtype=torch.float32) / count).to(dtype)


def adamw(values: Any, mode: dict[str, bool], **settings: Any) -> tuple[Any, Any]:
    """A parameter and its optimizer after one step with a gradient of zero."""
    parameter = torch.nn.Parameter(values.clone())
    optimizer = torch.optim.AdamW([parameter], **settings, **mode)
    parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer.step()
    except RuntimeError as error:
        pytest.skip(f"this torch has no such optimizer: {error}")
    return parameter, optimizer


@pytest.mark.parametrize("beta2", [0.999, 0.998, 0.997, 0.996])
def test_second_moments_that_never_decay(tmp_path: Path, beta2: float) -> None:
    notes = notes_of(tmp_path, f"{TITAN}lr = 1.0\nweight_decay = 0\nbeta2 = {beta2}\n")
    moment = significands(torch.bfloat16)
    stuck = int((moment * beta2 == moment).sum())
    if stuck == 0:
        assert not [note for note in notes if "moment" in note]
        return
    note = only(notes, "the second moment is bf16")
    said = re.search(r"(\d+) of 128 significands never decay", note)
    assert (int(said[1]) if said else len(moment)) == stuck
    assert said or "it never decays" in note
    better = re.search(r"at ([0-9.]+) all decay", note)
    assert better and not (moment * float(better[1]) == moment).any()


@pytest.mark.parametrize("mode", MODES)
def test_so_it_is_in_the_optimizer(mode: dict[str, bool]) -> None:
    moment = significands(torch.bfloat16)
    parameter, optimizer = adamw(moment, mode, lr=1e-3, betas=(0.9, 0.999))
    optimizer.state[parameter]["exp_avg_sq"].copy_(moment)
    optimizer.step()
    assert torch.equal(optimizer.state[parameter]["exp_avg_sq"], moment)


@pytest.mark.parametrize("lr", [1e-5, 2e-5, 3e-4, 2.0**-14])
def test_steps_that_move_no_weight(tmp_path: Path, lr: float) -> None:
    notes = notes_of(tmp_path, f"{TITAN}lr = {lr}\nbeta2 = 0.95\nweight_decay = 0\n")
    exponent = re.search(r"moves no weight above 2\^(-\d+)", only(notes, "moves no weight"))
    assert exponent
    limit = 2.0 ** int(exponent[1])
    weights = torch.cat([significands(torch.bfloat16) * 2.0**k for k in range(-20, 4)])
    still = (weights - lr == weights) & (weights + lr == weights)
    assert still[weights > limit].all()
    assert not still[weights <= limit].all()


@pytest.mark.parametrize("mode", MODES)
def test_weight_decay_alone(tmp_path: Path, mode: dict[str, bool]) -> None:
    settings = {"lr": 1e-5, "weight_decay": 0.1}
    text = TITAN + "".join(f"{key} = {value}\n" for key, value in settings.items())
    assert "1e-06) rounds back to w" in only(notes_of(tmp_path, text), "weight decay alone")
    weights = significands(torch.bfloat16)
    parameter, _ = adamw(weights, mode, **settings)
    assert torch.equal(parameter.detach(), weights)


def test_epsilon_in_fp16(tmp_path: Path) -> None:
    text = "per_device_train_batch_size: 1\nbf16: false\ndtype: float16\nlearning_rate: 1.0\n"
    assert "eps 1e-08 rounds to 0" in only(notes_of(tmp_path, text, "run.yaml"), "eps")
    assert torch.tensor(1e-8, dtype=torch.float16) == 0
    parameter, _ = adamw(torch.ones(4, dtype=torch.float16), {"foreach": False}, lr=1e-3)
    assert not torch.isfinite(parameter).any()


def test_masks_and_targets(tmp_path: Path) -> None:
    zoo = "trainer: {init: {precision: {fp16_type: float16}}}\nmodel: {mask_value: -1e9}\n"
    assert "-1e+09 is -inf" in only(notes_of(tmp_path, zoo, "run.yaml"), "mask_value")
    row = torch.full((4,), -1e9).to(torch.float16)
    assert torch.isneginf(row).all()
    assert torch.isnan(torch.softmax(row.float(), 0)).all()
    text = "per_device_train_batch_size: 1\nbf16: true\nlabel_smoothing_factor: 0.001\n"
    assert "1 - 0.001 rounds to 1" in only(notes_of(tmp_path, text, "run.yaml"), "targets")
    assert torch.tensor(1 - 0.001, dtype=torch.bfloat16) == 1
