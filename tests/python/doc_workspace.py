# SPDX-License-Identifier: Apache-2.0
"""The folder in which the blocks of the documentation run: what a reader would have there."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import dlsim

_DATA = Path(__file__).parents[1] / "data"
_PROFILES = ("a.profile", "before.profile", "after.profile")
_SAME_RUNS = ("before", "after", "seed-1", "seed-2", "resumed", "my-model")
_FILES = {
    "params.yaml": "config/model_zoo_gpt3.yaml",
    "ds.json": "config/deepspeed_zero3.json",
    "ds_config.json": "config/deepspeed_zero3.json",
    "train.log": "logs/deepspeed-zero.log",
    "train.log.1": "logs/deepspeed-zero.log",
    "scales.csv": "logs/scale.csv",
}
_GRID = """format = ["fp16", "cb16"]
policy = "torch"
[vary]
init_scale = "2^0..2^4"
"""


def make_workspace(folder: Path) -> None:
    """Lays out bundled traces and files under the names that pages use."""
    (folder / "tests").symlink_to(_DATA.parent)
    digits = _DATA / "traces/cnn-digits"
    shutil.copytree(digits, folder / "runs/a")
    for name in _SAME_RUNS:
        (folder / "runs" / name).symlink_to(digits)
    for name, source in _FILES.items():
        shutil.copyfile(_DATA / source, folder / name)
    (folder / "grid.toml").write_text(_GRID)
    (folder / "overflows.txt").write_text("0\n1\n2000\n")
    np.save(folder / "g.npy", np.linspace(-1, 1, 1000, dtype=np.float32))
    _bf16_twin(_DATA / "traces/lm-trouble-cut", folder / "runs")
    if records_probes():
        _probe(folder / "runs/probe")
    subprocess.run(
        ["dlsim", "profile", digits, "-o", "a.profile", "--quiet"], check=True, cwd=folder
    )
    for name in _PROFILES[1:]:
        shutil.copytree(folder / "a.profile", folder / name)


def _bf16_twin(trace: Path, runs: Path) -> None:
    """Makes runs/float32 of a trace, and runs/bf16: rounded from step 168 on, without the last."""
    shutil.copytree(trace, runs / "float32")
    shutil.copytree(trace, runs / "bf16")
    (runs / "bf16/step-00000377.safetensors").unlink()
    (runs / "bf16/trace.json").unlink()  # lists it
    for file in sorted((runs / "bf16").glob("step-*.safetensors")):
        if int(file.stem.split("-")[1]) >= 168:
            tensors = {name: t.bfloat16().float() for name, t in load_file(file).items()}
            save_file(tensors, file)


def records_probes() -> bool:
    """Returns whether this PyTorch is new enough for dlsim.ProbeRecorder."""
    return tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)


def _probe(path: Path) -> None:
    """Follows a fine-tuning whose weights bf16 would leave where they are."""
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    with dlsim.ProbeRecorder(model, path):
        for _ in range(40):
            optimizer.zero_grad()
            model(torch.ones(1, 64)).square().mean().backward()
            optimizer.step()


def training_names() -> dict[str, Any]:
    """Returns what Python blocks use: a model, batches, a scaler and a step of training."""
    torch.manual_seed(6)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
    data = [(inputs, inputs.sum(1, keepdim=True)) for inputs in torch.randn(4, 8, 64)]
    loss_of = torch.nn.functional.mse_loss
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of(model(data[0][0]), data[0][1]).backward()

    def train_step(batch: Any) -> Any:
        loss = loss_of(model(batch[0]), batch[1])
        model.zero_grad()
        (loss * 1024.0).backward()
        return loss

    def train_one_step(_: Any, recorder: Any) -> None:
        recorder.step(loss=train_step(data[0]), scale=1024.0)

    return {
        "batches": data,
        "data": data,
        "loader": [data[:2], data[2:]],
        "loss_of": loss_of,
        "model": model,
        "optimizer": optimizer,
        "scale": 1024.0,
        "scaler": dlsim.amp.GradScaler("dynamic"),
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10),
        "torch": torch,
        "train_one_step": train_one_step,
        "train_step": train_step,
    }
