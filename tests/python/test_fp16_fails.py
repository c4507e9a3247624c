# SPDX-License-Identifier: Apache-2.0
"""docs/fp16-fails.md: its cures train in real fp16, and PyTorch says what it quotes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("markdown_it", reason="needs markdown-it-py")

from doc_blocks import Page, blocks_of  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs/fp16-fails.md"

pytestmark = pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="an older PyTorch, without fp16 on the CPU"
)


def test_blocks_run_and_print_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    page = Page(tmp_path, {})
    for block in blocks_of(PAGE):
        page.run(block)


INPUTS = torch.ones(2, 4)


def parts(dtype: torch.dtype = torch.float32) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(4, 1).to(dtype)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def scaled_backward(scaler: torch.amp.GradScaler, model: torch.nn.Module) -> None:
    dtype = next(model.parameters()).dtype
    scaler.scale(model(INPUTS.to(dtype)).sum()).backward()


def no_gradient(scaler: torch.amp.GradScaler) -> None:
    model, _ = parts()
    _, optimizer = parts()  # of another model
    scaled_backward(scaler, model)
    scaler.step(optimizer)


def gradients_cleared(scaler: torch.amp.GradScaler) -> None:
    model, optimizer = parts()
    scaled_backward(scaler, model)
    optimizer.zero_grad()
    scaler.step(optimizer)


def half_weights(scaler: torch.amp.GradScaler) -> None:
    model, optimizer = parts(torch.float16)
    scaled_backward(scaler, model)
    scaler.step(optimizer)


def unscaled_twice(scaler: torch.amp.GradScaler) -> None:
    model, optimizer = parts()
    for _ in range(2):
        scaled_backward(scaler, model)
        scaler.unscale_(optimizer)


def masked(_: torch.amp.GradScaler) -> None:
    torch.zeros(2, dtype=torch.float16).masked_fill(torch.tensor([True, False]), -1e9)


@pytest.mark.parametrize(
    "cause", [no_gradient, gradients_cleared, half_weights, unscaled_twice, masked]
)
def test_pytorch_raises_what_the_page_quotes(
    cause: Callable[[torch.amp.GradScaler], None],
) -> None:
    with pytest.raises((AssertionError, ValueError, RuntimeError)) as raised:
        cause(torch.amp.GradScaler("cpu"))
    assert f"| `{raised.value}` |" in PAGE.read_text()


def test_pytorch_warns_what_the_page_quotes() -> None:
    """To the schedule, a skipped first step is as one that was not called."""
    model, optimizer = parts()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38)
    scaled_backward(scaler, model)
    scaler.step(optimizer)
    scaler.update()
    with pytest.warns(UserWarning, match="Detected call of") as warned:
        schedule.step()
    quoted = re.search(r"\| ``(Detected call .*?)`` \|", PAGE.read_text())
    assert quoted and str(warned[0].message).startswith(quoted[1])
