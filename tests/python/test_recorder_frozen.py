# SPDX-License-Identifier: Apache-2.0
"""Parameters are recorded while they are trained: frozen first, later, or for a while."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dlsim

FROZEN = [(), ("0.",), ("0.", "1."), ("1.",), ()]


@pytest.mark.parametrize("micro_steps", [False, True])
@pytest.mark.parametrize("order", [1, -1])
def test_parameters_are_recorded_while_they_train(
    tmp_path: Path, order: int, micro_steps: bool
) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(3)))

    def freeze(prefixes: tuple[str, ...]) -> None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith(prefixes or "-"))
            parameter.grad = None

    frozen = [("0.",), *FROZEN][::order]
    freeze(frozen[0])
    options = {"activations": None, "micro_steps": micro_steps}
    with dlsim.Recorder(model, tmp_path / "run", **options) as rec:
        for i in range(len(frozen)):
            model(torch.ones(2, 3)).sum().backward()
            if micro_steps:
                rec.micro_step(scale=1.0)
            freeze_next = frozen[min(i + 1, len(frozen) - 1)]
            if micro_steps:
                freeze(freeze_next)  # hooks are added when a step begins
                rec.step()
            else:
                rec.step(scale=1.0)
                freeze(freeze_next)
    assert rec.errors == 0 and not rec.report().left_out
    for step, prefixes in zip(dlsim.open_trace(tmp_path / "run"), frozen, strict=True):
        trained = {f"{i}.{kind}.grad" for i in range(3) for kind in ("weight", "bias")}
        assert set(step.tensors) == {
            name for name in trained if not name.startswith(prefixes or "-")
        }


def test_a_model_without_anything_to_train_is_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(dlsim.UsageError, match="nothing matches"):
        dlsim.Recorder(model, tmp_path / "run", activations=None)


def test_activations_of_a_model_without_anything_to_train_are_recorded(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2).requires_grad_(False)
    with dlsim.Recorder(model, tmp_path / "run", on_error="raise") as rec:
        model(torch.ones(1, 2, requires_grad=True)).sum().backward()
        rec.step(scale=1.0)
    assert list(dlsim.open_trace(tmp_path / "run")[0].tensors) == ["(root).act_grad"]
