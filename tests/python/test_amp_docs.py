# SPDX-License-Identifier: Apache-2.0
"""The code of docs/amp.md runs from top to bottom and trains."""

import re
from pathlib import Path

import torch

from dlsim import amp

_PAGE = Path(__file__).parents[2] / "docs" / "amp.md"


def test_code_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(6)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    batches = [(inputs, inputs.sum(1, keepdim=True)) for inputs in torch.randn(20, 8, 4)]
    names = {
        "torch": torch,
        "model": model,
        "batches": batches,
        "micro_batches": iter(batches * 2),
        "loss_fn": torch.nn.functional.mse_loss,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05),
    }
    blocks = re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 8
    losses = []
    try:
        for block in blocks:
            exec(block, names)
            losses.append(float(torch.nn.functional.mse_loss(model(batches[0][0]), batches[0][1])))
    finally:
        amp.set_half_dtype("float16")
    assert losses[-1] < 0.1 * losses[0]
    assert names["grad_scaler"].half_dtype == "cbfloat16"
    assert int(names["grad_scaler"].state_dict()["steps_since_rescale"]) > 30
