# SPDX-License-Identifier: Apache-2.0
"""Callbacks of trainers record what dlsim.Recorder does in a user's own loop."""

import json
from pathlib import Path

import pytest
import torch
from recording import load, steps_in

import dlsim

transformers = pytest.importorskip("transformers", reason="needs transformers and PyTorch 2")
pytest.importorskip("accelerate", reason="needs accelerate, which Trainer needs")
pytestmark = pytest.mark.filterwarnings("ignore")


class PlainTrainer(transformers.Trainer):
    """Records by hand after the last backward of each optimizer step, too."""

    plain: dlsim.Recorder
    backwards = 0

    def training_step(self, *args, **options):
        loss = super().training_step(*args, **options)
        self.backwards += 1
        if self.backwards % self.args.gradient_accumulation_steps == 0:
            scaler = self.accelerator.scaler
            self.plain.step(scale=1.0 if scaler is None else scaler.get_scale())
        return loss


class Clipped(transformers.TrainerCallback):
    """Looks at the gradients at the event that seems to be the one to record at."""

    norms: list[float]

    def on_pre_optimizer_step(self, args, state, control, model=None, **_) -> None:
        self.norms.append(norm([p.grad for p in model.parameters()]))


def norm(tensors) -> float:
    return float(sum(tensor.double().square().sum() for tensor in tensors)) ** 0.5


def trainer(folder: Path, max_grad_norm: float) -> PlainTrainer:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    tokens = torch.randint(0, 16, (12, 8))
    args = transformers.TrainingArguments(
        folder / "trainer",
        max_steps=3,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=2,
        max_grad_norm=max_grad_norm,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    data = [{"input_ids": row, "labels": row} for row in tokens]
    return PlainTrainer(transformers.GPT2LMHeadModel(config), args, train_dataset=data)


def test_hugging_face_ends_a_training_on_an_alert(tmp_path: Path, caplog) -> None:
    own = trainer(tmp_path, 0.01)
    own.plain = dlsim.Recorder(own.model, None)
    watch = dlsim.recorder.Watch(every=1, alerts={"scale==1": "stop"})
    own.add_callback(dlsim.integrations.HuggingFaceRecorder(own, tmp_path / "run", watch=watch))
    own.train()
    assert own.state.global_step == 1 and steps_in(tmp_path / "run") == [0]
    assert "step 0: scale is 1.0, alert scale==1" in caplog.text
    assert "clip_grad_norm_" not in vars(own.accelerator)


@pytest.mark.parametrize("scale", [None, 1024.0])
@pytest.mark.parametrize("max_grad_norm", [0.01, 0.0])
def test_hugging_face_gradients_are_those_before_clipping(
    tmp_path: Path, scale, max_grad_norm
) -> None:
    own = trainer(tmp_path, max_grad_norm)
    if scale is not None:
        own.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    clipped = Clipped()
    clipped.norms = []
    options = {"activations": None, "on_error": "raise"}
    own.plain = dlsim.Recorder(own.model, tmp_path / "plain", **options)
    callback = dlsim.integrations.HuggingFaceRecorder(own, tmp_path / "run", **options)
    callback.describe(data="noise")
    own.add_callback(callback)
    own.add_callback(clipped)
    own.train()
    own.plain.close()

    assert dlsim.open_trace(tmp_path / "run").description["data"] == "noise"
    assert steps_in(tmp_path / "run") == [0, 1, 2] and callback.recorder.errors == 0
    for step in range(3):
        tensors, metadata = load(tmp_path / "run", step)
        expected, described = load(tmp_path / "plain", step)
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name], expected[name]) for name in tensors)
        assert float(metadata["grad_scale"]) == (scale or 1.0) == float(described["grad_scale"])
        assert (norm(tensors.values()) > 2 * clipped.norms[step]) == (max_grad_norm > 0)
    assert "clip_grad_norm_" not in vars(own.accelerator)


def test_hugging_face_losses_are_no_activations(tmp_path: Path) -> None:
    own = trainer(tmp_path, 0.0)
    own.plain = dlsim.Recorder(own.model, None)
    own.add_callback(dlsim.integrations.HuggingFaceRecorder(own, tmp_path / "run"))
    own.train()
    own.plain.close()
    found, metadata = load(tmp_path / "run", 0)
    assert "lm_head.act_grad" in found
    fp16 = json.loads(metadata["shadow"])["fp16"]
    assert fp16["fails"] == "" and fp16["loss"] is not None  # run again with its loss
    assert all(tensor.dim() > 0 for name, tensor in found.items() if name.endswith(".act_grad"))


def test_hugging_face_steps_have_loss_and_learning_rate(tmp_path: Path) -> None:
    own = trainer(tmp_path, 1.0)
    own.plain = dlsim.Recorder(own.model, None)
    own.args.logging_steps = 1
    own.add_callback(dlsim.integrations.HuggingFaceRecorder(own, tmp_path / "run"))
    own.train()
    own.plain.close()
    logged = [entry for entry in own.state.log_history if "learning_rate" in entry]
    for step, entry in enumerate(logged):
        _, metadata = load(tmp_path / "run", step)
        assert float(metadata["loss"]) == pytest.approx(entry["loss"], abs=1e-3)
        assert float(metadata["lr"]) == pytest.approx(entry["learning_rate"])
    assert len(logged) == 3 and "backward" not in vars(own.accelerator)


@pytest.mark.parametrize("output", ["run", "run.profile"])
def test_what_exists_already_is_refused_before_the_training(tmp_path: Path, output) -> None:
    own = trainer(tmp_path, 1.0)
    own.plain = dlsim.Recorder(own.model, None)
    make = dlsim.integrations.HuggingFaceRecorder
    own.add_callback(make(own, tmp_path / output))
    own.train()
    own.plain.close()
    with pytest.raises(dlsim.UsageError, match=r"already, .* existing='replace', as for a cell"):
        make(own, tmp_path / output)
    for existing in ("replace", "continue"):
        make(own, tmp_path / output, existing=existing)
    make(own, None)
