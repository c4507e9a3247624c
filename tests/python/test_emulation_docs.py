# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/emulation.md run as they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import dlsim

PAGE = Path(__file__).parents[2] / "docs" / "emulation.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential()
        self.encoder.add_module("fc1", nn.Linear(4, 4))
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.encoder(x)))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.splitlines()[0])
def test_the_program_runs_and_trains(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = Model()
    before = model.head.weight.detach().clone()
    given = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "scaler": dlsim.amp.GradScaler("dynamic", half_dtype="cbfloat16"),
        "loss_fn": nn.functional.mse_loss,
        "batches": [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(3)],
    }
    exec(compile(program, str(PAGE), "exec"), given)
    assert capsys.readouterr().out.strip()
    assert not torch.equal(model.head.weight, before)


def test_there_are_programs():
    assert len(PROGRAMS) == 2
