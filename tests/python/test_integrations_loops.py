# SPDX-License-Identifier: Apache-2.0
"""Lightning and Accelerate record what dlsim.Recorder does in a plain loop."""

import json
from pathlib import Path

import pytest
import torch
from recording import load, small_model, steps_in

import dlsim

lightning = pytest.importorskip("lightning.pytorch", reason="needs lightning and PyTorch 2")
accelerate = pytest.importorskip("accelerate", reason="needs accelerate and PyTorch 2")
pytestmark = pytest.mark.filterwarnings("ignore")

OPTIONS = {"on_error": "raise"}
CLIP = 0.01


def batches() -> list[torch.Tensor]:
    """Five, so that with two for a step the last step has but one."""
    return list(torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(7)))


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean() * 100


def scaler_of(scale: float | None):
    return None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)


def record_plainly(path: Path, scale: float | None, epochs: int = 1, **options) -> list[float]:
    """Trains with two batches for a step, clipped; returns the scale of each step."""
    model, scaler = small_model(), scaler_of(scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scales, losses = [], []
    with dlsim.Recorder(model, path, **OPTIONS, **options) as rec:
        for _ in range(epochs):
            for group in (batches()[:2], batches()[2:4], batches()[4:]):
                optimizer.zero_grad()
                for batch in group:
                    loss = loss_of(model, batch) / 2
                    (loss if scaler is None else scaler.scale(loss)).backward()
                    losses.append(float(loss))
                scales.append(1.0 if scaler is None else scaler.get_scale())
                rec.step(scale=scales[-1], loss=sum(losses), lr=0.1)
                losses.clear()
                if scaler is not None:
                    scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                if scaler is None:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update()
    return scales


def same_traces(path: Path, plain: Path, scales: list[float], prefix: str = "") -> None:
    assert steps_in(path) == steps_in(plain) == list(range(len(scales)))
    for step, scale in enumerate(scales):
        tensors, metadata = load(path, step)
        expected, described = load(plain, step)
        renamed = {prefix + name: tensor for name, tensor in expected.items()}
        assert tensors.keys() == renamed.keys()
        assert all(same_bits(tensors[name], renamed[name]) for name in tensors)
        assert float(metadata["grad_scale"]) == float(described["grad_scale"]) == scale
        assert metadata["lr"] == described["lr"] == "0.1"
        if "loss" in metadata or scale < 2.0**100:  # one that the scale makes infinite is not known
            assert float(metadata["loss"]) == pytest.approx(float(described["loss"]), rel=1e-5)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.view(torch.int32), other.view(torch.int32))


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = small_model()

    def training_step(self, batch, _):
        return loss_of(self.model, batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.1)


class ByHand(Module):
    automatic_optimization = False


class Scaled(lightning.plugins.Precision):
    """Lightning's precision plugin with a GradScaler, without autocast, as the plain loop."""

    def __new__(cls, scaler):
        plugin = lightning.plugins.MixedPrecision("16-mixed", "cpu", scaler)
        plugin.autocast_context_manager = lambda: torch.autocast("cpu", enabled=False)
        return plugin


def trainer(folder: Path, recorder, scale: float | None = None, epochs: int = 1):
    scaler = scaler_of(scale)
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=CLIP,
        callbacks=[recorder],
        plugins=[] if scaler is None else [Scaled(scaler)],
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def fit(running, module) -> None:
    running.fit(module, torch.utils.data.DataLoader(batches(), batch_size=None))


def assert_run_again(path: Path, step: int) -> None:
    """Asserts that a step was run again in fp16 with its loss."""
    fp16 = json.loads(load(path, step)[1]["shadow"])["fp16"]
    assert fp16["fails"] == "" and fp16["loss"] is not None


# The last one overflows, so that steps are skipped and the scale falls.
SCALES = [None, 1024.0, 2.0**127]


@pytest.mark.parametrize("scale", SCALES)
def test_lightning_gradients_are_those_before_unscaling_and_clipping(tmp_path: Path, scale) -> None:
    recorder = dlsim.integrations.LightningRecorder(tmp_path / "run", **OPTIONS)
    recorder.describe(data="noise")
    fit(trainer(tmp_path, recorder, scale, epochs=2), Module())
    assert dlsim.open_trace(tmp_path / "run").description["data"] == "noise"
    scales = record_plainly(tmp_path / "plain", scale, epochs=2)
    assert recorder.recorder.errors == 0 and not recorder.recorder.report().left_out
    same_traces(tmp_path / "run", tmp_path / "plain", scales, prefix="model.")
    assert (len(set(scales)) > 1) == (scale == SCALES[-1])


def test_lightning_numbers_go_on_after_a_checkpoint(tmp_path: Path) -> None:
    first = trainer(tmp_path, dlsim.integrations.LightningRecorder(tmp_path / "one"))
    fit(first, Module())
    first.save_checkpoint(tmp_path / "saved.ckpt")
    second = trainer(tmp_path, dlsim.integrations.LightningRecorder(tmp_path / "two"), epochs=2)
    loader = torch.utils.data.DataLoader(batches(), batch_size=None)
    second.fit(Module(), loader, ckpt_path=tmp_path / "saved.ckpt")
    assert steps_in(tmp_path / "one") == [0, 1, 2] and steps_in(tmp_path / "two") == [3, 4, 5]
    assert_run_again(tmp_path / "two", 3)


def test_lightning_ends_a_training_on_an_alert(tmp_path: Path, caplog) -> None:
    watch = dlsim.recorder.Watch(every=1, alerts={"skipped_steps>=2": "stop"})
    recorder = dlsim.integrations.LightningRecorder(tmp_path / "run", watch=watch)
    running = trainer(tmp_path, recorder, 2.0**127, epochs=9)
    fit(running, Module())
    assert running.global_step == 3 and steps_in(tmp_path / "run") == [0, 1, 2]
    assert "step 2: skipped_steps is 2, alert skipped_steps>=2" in caplog.text


def test_lightning_refuses_what_exists_already_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "run.profile").mkdir()
    (tmp_path / "run.profile/profile.json").touch()
    with pytest.raises(
        dlsim.UsageError, match=r"run\.profile: exists already, .*existing='replace'"
    ):
        dlsim.integrations.LightningRecorder(tmp_path / "run.profile")


def test_lightning_refuses_manual_optimization(tmp_path: Path) -> None:
    running = trainer(tmp_path, dlsim.integrations.LightningRecorder(tmp_path / "run"))
    running.accumulate_grad_batches, running.gradient_clip_val = 1, None
    with pytest.raises(dlsim.UsageError, match=r"optimizes by itself, expected calls of dlsim.Rec"):
        fit(running, ByHand())


@pytest.mark.parametrize("scale", SCALES)
def test_accelerate_gradients_are_those_before_unscaling_and_clipping(
    tmp_path: Path, scale
) -> None:
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=2, step_scheduler_with_optimizer=False
    )
    accelerator.scaler = scaler_of(scale)
    module = small_model()
    data = torch.utils.data.DataLoader(batches(), batch_size=None)
    model, optimizer, data = accelerator.prepare(
        module, torch.optim.SGD(module.parameters(), lr=0.1), data
    )
    with dlsim.integrations.AccelerateRecorder(
        accelerator, model, tmp_path / "run", **OPTIONS
    ) as recorder:
        for batch in data:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                if accelerator.sync_gradients:
                    if accelerator.scaler is not None:
                        accelerator.scaler.unscale_(optimizer.optimizer)
                    accelerator.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()
    scales = record_plainly(tmp_path / "plain", scale)
    assert recorder.errors == 0
    if scale != SCALES[-1]:  # at which the loss is infinite
        assert_run_again(tmp_path / "run", 0)
    same_traces(tmp_path / "run", tmp_path / "plain", scales)
    assert "backward" not in vars(accelerator) and "step" not in vars(optimizer)


def test_accelerate_counts_sums_that_the_loop_makes_by_itself(tmp_path: Path) -> None:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=1)
    accelerator.scaler = None
    module = small_model()
    model, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
    with dlsim.integrations.AccelerateRecorder(accelerator, model, tmp_path / "run") as recorder:
        for batch in batches()[:2]:
            accelerator.backward(loss_of(model, batch))
        optimizer.step()
    assert recorder.errors == 1
    assert "backward was called twice for one optimizer.step" in recorder.report().messages[0]
