# SPDX-License-Identifier: Apache-2.0
"""What `dlsim tune` prints to paste runs under the packages that it is for."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dlsim

torch = pytest.importorskip("torch")

TRACE = Path(__file__).parents[1] / "data/traces/cnn-digits"
SCALE, INTERVAL = 2.0**14, 2000


def paste(stack: str, format_name: str, replaced: tuple[str, str] = ("", ""), **names: Any) -> Any:
    """Runs a block with these names defined; returns all names that it leaves."""
    block = dlsim.tune(TRACE, formats=format_name, emit=stack, quiet=True).report
    assert replaced[0] in block
    exec(block.replace(*replaced), names)
    return names


@pytest.fixture
def _accelerate() -> Iterator[None]:
    state = pytest.importorskip("accelerate.state")
    state.AcceleratorState._reset_state(True)
    yield
    state.AcceleratorState._reset_state(True)


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="an older PyTorch")
def test_torch_makes_the_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(2, 1)
    pasted = paste("torch", "fp16", model=model)
    scaler = pasted["scaler"]
    assert isinstance(scaler, torch.amp.GradScaler) and scaler.is_enabled()
    assert (scaler.get_scale(), scaler.get_growth_interval()) == (SCALE, INTERVAL)
    for _ in range(2):
        with pasted["autocast"]:
            assert model(torch.ones(1, 2)).dtype == torch.float16
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.amp.autocast_mode, "is_autocast_available", lambda _: True)
    on_gpu = [SimpleNamespace(device=SimpleNamespace(type="cuda"))]
    pasted = paste("torch", "fp16", model=SimpleNamespace(parameters=lambda: iter(on_gpu)))
    assert pasted["scaler"]._device == pasted["autocast"].device == "cuda"


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="an older PyTorch")
def test_torch_needs_none_in_bfloat16() -> None:
    model = torch.nn.Linear(2, 1)
    pasted = paste("torch", "bf16", model=model)
    with pasted["autocast"]:
        assert model(torch.ones(1, 2)).dtype == torch.bfloat16
    assert "scaler" not in pasted


@pytest.mark.usefixtures("_accelerate")
def test_accelerate_makes_the_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = paste("accelerate", "fp16")["accelerator"]
    assert accelerator.mixed_precision == "fp16"
    handler = accelerator.scaler_handler
    assert (handler.init_scale, handler.growth_interval) == (SCALE, INTERVAL)
    # Without a GPU Accelerate makes no scaler; this is how it does with one.
    modeling = pytest.importorskip("accelerate.utils.modeling")
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    assert modeling.get_grad_scaler(None, **handler.to_kwargs()).get_scale() == SCALE


@pytest.mark.usefixtures("_accelerate")
def test_accelerate_trains_in_bfloat16_without_one() -> None:
    accelerator = paste("accelerate", "bf16")["accelerator"]
    assert accelerator.mixed_precision == "bf16" and accelerator.scaler is None


@pytest.mark.usefixtures("_accelerate")
def test_the_trainer_trains_with_the_scaler(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x: Any) -> dict[str, Any]:
            return {"loss": self.layer(x).square().mean()}

    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, max_steps=3, report_to=[], save_strategy="no"
    )
    rows = [{"x": torch.ones(2)}] * 30
    trainer = transformers.Trainer(model=Model(), args=arguments, train_dataset=rows)
    paste("trainer", "fp16", trainer=trainer)
    trainer.train()
    state = trainer.accelerator.scaler.state_dict()
    assert (state["scale"], state["growth_interval"]) == (SCALE, INTERVAL)
    assert state["_growth_tracker"] == 3  # it saw each step
    assert paste("trainer", "bf16", ("bf16=True", "bf16=True, use_cpu=True"))["arguments"].bf16


def test_lightning_trains_with_the_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    from lightning.pytorch.plugins import MixedPrecision

    # Without a GPU the scaler would turn itself off.
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    pasted = paste("lightning", "fp16")
    plugin = pasted["trainer"].precision_plugin
    assert isinstance(plugin, MixedPrecision) and plugin.precision == "16-mixed"
    assert plugin.scaler is pasted["scaler"]
    assert (plugin.scaler.get_scale(), plugin.scaler.get_growth_interval()) == (SCALE, INTERVAL)
    assert paste("lightning", "bf16")["trainer"].precision == "bf16-mixed"
