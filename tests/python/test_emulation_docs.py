# SPDX-License-Identifier: Apache-2.0
"""The program of docs/emulation.md runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn

import dlsim

PAGE = Path(__file__).parents[2] / "docs" / "emulation.md"
(PROGRAM,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential()
        self.encoder.add_module("fc1", nn.Linear(4, 4))
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.encoder(x)))


def test_the_program_runs_and_trains(capsys):
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
    exec(compile(PROGRAM, str(PAGE), "exec"), given)
    assert capsys.readouterr().out.strip()
    assert not torch.equal(model.head.weight, before)
