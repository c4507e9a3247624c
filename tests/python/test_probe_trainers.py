# SPDX-License-Identifier: Apache-2.0
"""Probes within trainers hold what their optimizers read: clipped, and where none was skipped."""

from pathlib import Path

import numpy as np
import pytest
import torch
from recording import small_model

import dlsim

pytestmark = pytest.mark.filterwarnings("ignore")
OPTIONS = {"probe": True, "on_error": "raise"}


class Looking(torch.optim.SGD):
    """Keeps what it reads."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.05)
        self.model = model
        self.read: list[dict[str, np.ndarray]] = []

    def step(self, closure=None):
        loss = None if closure is None else torch.enable_grad()(closure)()
        named = self.model.named_parameters()
        self.read.append({name: p.grad.flatten().numpy().copy() for name, p in named})
        super().step()
        return loss


def check(path: Path, optimizer: Looking) -> dlsim.Probe:
    probe = dlsim.open_probe(path)
    assert len(probe) == len(optimizer.read) == 3
    for step, read in zip(probe, optimizer.read, strict=True):
        assert list(step.gradients) == list(probe.tensors)
        for name, elements in step.gradients.items():
            np.testing.assert_array_equal(elements, read[name][probe.tensors[name].indices])
    return probe


def batches() -> list[torch.Tensor]:
    return list(torch.randn(6, 4, 6, generator=torch.Generator().manual_seed(7)))


def test_accelerate(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate and PyTorch 2")
    # Processes share both; a test before may have set another accumulation.
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    own = small_model()
    inner = Looking(own)
    model, optimizer = accelerator.prepare(own, inner)
    with dlsim.integrations.AccelerateRecorder(accelerator, model, tmp_path / "run", **OPTIONS):
        for batch in batches():
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean() * 100)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.01)
                optimizer.step()
                optimizer.zero_grad()
    probe = check(tmp_path / "run" / "probe.dlprobe", inner)
    assert [step.number for step in probe] == [0, 1, 2]
    assert all(step.clip is not None and step.clip < 1 for step in probe)


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="needs lightning and PyTorch 2")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.own = small_model()

        def training_step(self, batch, _):
            return self.own(batch).square().mean() * 100

        def configure_optimizers(self):
            self.looking = Looking(self)
            return self.looking

    module = Module()
    recorder = dlsim.integrations.LightningRecorder(tmp_path / "run", **OPTIONS)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        accumulate_grad_batches=2,
        gradient_clip_val=0.01,
        callbacks=[recorder],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.stack(batches()), batch_size=None))
    probe = check(tmp_path / "run" / "probe.dlprobe", module.looking)
    assert [step.number for step in probe] == [0, 1, 2]
    assert all(step.clip is not None and step.clip < 1 for step in probe)


def test_hugging_face(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers and PyTorch 2")
    pytest.importorskip("accelerate", reason="needs accelerate, which Trainer needs")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    rows = torch.randint(0, 16, (12, 8))
    optimizer = Looking(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    arguments = transformers.TrainingArguments(
        tmp_path / "trainer",
        max_steps=3,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=2,
        max_grad_norm=0.01,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        optimizers=(optimizer, schedule),
    )
    path = tmp_path / "run.dlprof"
    trainer.add_callback(dlsim.integrations.HuggingFaceRecorder(trainer, path, **OPTIONS))
    trainer.train()
    probe = check(tmp_path / "run.dlprobe", optimizer)
    rates = [next(iter(step.groups.values())).values["lr"] for step in probe]
    assert rates == pytest.approx([0.05, 0.025, 0.05 / 3])
    assert all(step.clip is not None and step.clip < 1 for step in probe)
