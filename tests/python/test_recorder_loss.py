# SPDX-License-Identifier: Apache-2.0
"""A loss that a module returns is no activation: its gradient is the loss scale."""

from pathlib import Path

import pytest
import torch
from recording import load
from torch import nn

import dlsim

X, Y = torch.ones(4, 3), torch.zeros(4, dtype=torch.long)


class ReturnsLoss(nn.Module):
    """Returns its loss in one of the ways that are usual."""

    def __init__(self, output) -> None:
        super().__init__()
        self.fc, self.output = nn.Linear(3, 5), output

    def forward(self, x, y):
        logits = self.fc(x) / 8
        return self.output(logits, nn.functional.cross_entropy(logits, y))


class WithLossModule(nn.Module):
    """Returns what a module of a loss returns."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.criterion = nn.Linear(3, 5), nn.CrossEntropyLoss()

    def forward(self, x, y):
        return self.criterion(self.fc(x), y)


class Inside(nn.Module):
    """Has a model that returns its loss as a part."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = ReturnsLoss(lambda logits, loss: (logits, loss))

    def forward(self, x, y):
        return self.inner(x, y)[1] * 3


@pytest.mark.parametrize(
    ("model", "loss_of", "names"),
    [
        (ReturnsLoss(lambda _, loss: loss), lambda out: out, {"fc"}),
        (ReturnsLoss(lambda _, loss: loss.reshape(1)), lambda out: out, {"fc"}),
        (ReturnsLoss(lambda *both: both), lambda out: out[1], {"fc", "(root)"}),
        (
            ReturnsLoss(lambda logits, loss: {"loss": loss, "logits": logits}),
            lambda out: out["loss"],
            {"fc", "(root).out1"},
        ),
        (WithLossModule(), lambda out: out, {"fc"}),
        (Inside(), lambda out: out, {"inner.fc", "inner"}),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 65536.0])
def test_the_loss_is_no_activation(tmp_path: Path, model, loss_of, names, scale) -> None:
    with dlsim.Recorder(model, tmp_path / "run", on_error="raise") as rec:
        for _ in range(2):
            model.zero_grad()
            (loss_of(model(X, Y)) / 4 * scale).backward()
            rec.step(scale=scale)
    for step in range(2):
        found = {name for name in load(tmp_path / "run", step)[0] if name.endswith(".act_grad")}
        assert found <= {f"{name}.act_grad" for name in names}
        assert any(name.endswith("fc.act_grad") for name in found)
    assert not rec.report().left_out


def test_the_loss_does_not_end_the_window(tmp_path: Path) -> None:
    model = ReturnsLoss(lambda _, loss: loss)
    highs = []
    for name, options in (("with", {}), ("without", {"activations": "!(root)"})):
        with dlsim.Recorder(model, tmp_path / name, on_error="raise", **options) as rec:
            model.zero_grad()
            model(X, Y).backward()
            rec.step(scale=1.0)
        verdict = dlsim.replay(tmp_path / name, formats="fp16")["verdict"]["formats"][0]
        highs.append(verdict["steps"][0][2])
    assert highs[0] == highs[1] > 2.0**15


def test_outputs_of_one_element_with_dimensions_are_activations(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 1))
    with dlsim.Recorder(model, tmp_path / "run", on_error="raise") as rec:
        model(torch.ones(1, 3)).sum().backward()
        rec.step(scale=1.0)
    found = load(tmp_path / "run", 0)[0]
    assert found["0.act_grad"].shape == found["1.act_grad"].shape == (1, 1)


def test_the_loss_of_each_of_several_models_is_left_out(tmp_path: Path) -> None:
    models = {name: ReturnsLoss(lambda _, loss: loss.reshape(1)) for name in "ab"}
    with dlsim.Recorder(models, tmp_path / "run", on_error="raise") as rec:
        sum(model(X, Y) for model in models.values()).backward()
        rec.step(scale=1.0)
    found = {name for name in load(tmp_path / "run", 0)[0] if name.endswith(".act_grad")}
    assert found == {"a.fc.act_grad", "b.fc.act_grad"}
