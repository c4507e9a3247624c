# SPDX-License-Identifier: Apache-2.0
"""dlsim.updates against torch.optim on a CUDA device, bit for bit.

What it left there after 20 updates of 192 elements was kept: by PyTorch 2.11 on an NVIDIA H100, in
tests/data/updates/h100.npz, with the first weights and the gradients.
"""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import dlsim

KEPT = Path(__file__).parents[1] / "data/updates/h100.npz"
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {"lr": 1e-3, "weight_decay": 0.1, "eps": 1e-4}),
    "adamw_default": ("AdamW", {"lr": 3e-4}),
    "amsgrad": ("AdamW", {"lr": 1e-3, "amsgrad": True, "eps": 1e-4}),
    "adam": ("Adam", {"lr": 1e-4, "betas": (0.8, 0.99), "eps": 1e-4}),
    "adam_l2": ("Adam", {"lr": 1e-2, "weight_decay": 0.01, "eps": 1e-4}),
    "sgd": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.03, "momentum": 0.9, "weight_decay": 1e-3}),
    "damped": ("SGD", {"lr": 0.03, "momentum": 0.9, "dampening": 0.1}),
    "nesterov": ("SGD", {"lr": 0.03, "momentum": 0.9, "nesterov": True}),
}
MOMENTS = {"exp_avg": "first", "momentum_buffer": "first", "exp_avg_sq": "second"}


@pytest.fixture(scope="module")
def kept() -> dict[str, np.ndarray]:
    with np.load(KEPT) as file:
        return dict(file)


class Followed(torch.nn.Module):
    """A parameter whose gradient is what the caller passes."""

    def __init__(self, start: np.ndarray) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.from_numpy(start.copy()))

    def forward(self, gradient: Any) -> Any:
        return (self.w * gradient).sum()


@pytest.fixture(scope="module")
def probes(
    kept: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The float32 trainings, recorded on the CPU."""
    found = {}
    for name, (kind, settings) in OPTIMIZERS.items():
        model = Followed(kept["start"])
        optimizer = getattr(torch.optim, kind)(model.parameters(), **settings)
        found[name] = tmp_path_factory.mktemp("probes") / f"{name}.dlprobe"
        with dlsim.ProbeRecorder(model, found[name]):
            for gradient in torch.from_numpy(kept["gradients"]):
                optimizer.zero_grad()
                model(gradient).backward()
                optimizer.step()
    return found


def values_of(kept: np.ndarray) -> np.ndarray:
    if kept.dtype == np.uint16:  # bf16
        return (kept.astype(np.uint32) << 16).view(np.float32)
    return kept.astype(np.float32)


# The reference of all is in float32, and computed as foreach does.
KERNELS = [("bf16", "foreach"), ("bf16", "fused"), ("fp16", "foreach"), ("fp16", "fused")]
KERNELS.append(("fp32", "foreach"))


@pytest.mark.parametrize("how", KERNELS, ids="-".join)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_moments_are_those_of_the_device(
    name: str,
    how: tuple[str, str],
    kept: dict[str, np.ndarray],
    probes: dict[str, Path],
    tmp_path: Path,
) -> None:
    dtype, kernel = how
    elements = tmp_path / "elements.csv"
    options = {"weights": dtype, "states": dtype, "gradients": dtype, "kernel": kernel}
    result = dlsim.updates(probes[name], elements=elements, arithmetic="cuda", **options)
    with elements.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["run"] == result.data["runs"][0]["name"]]
    assert len(rows) == kept["start"].size
    for state, column in {"w": "weight", **MOMENTS}.items():
        key = f"{name}/{dtype}/{kernel}/{state}"
        if key in kept:
            got = np.array([row[column] or "nan" for row in rows], dtype=np.float32)
            np.testing.assert_array_equal(got, values_of(kept[key]), err_msg=key)


def test_the_recorder_says_where_parameters_are() -> None:
    from dlsim.recorder._optimizer_state import settings_of

    for is_cuda, expected in ((True, {"cuda": 1.0, "lr": 0.5}), (False, {"lr": 0.5})):
        parameter = SimpleNamespace(is_cuda=is_cuda)
        assert settings_of(object(), {"params": [parameter], "lr": 0.5}) == ("object", expected)


def test_by_default_the_arithmetic_is_that_of_the_recording(
    kept: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from dlsim.recorder import _probe

    def settings_on_cuda(optimizer: Any, group: Any) -> Any:
        name, values = settings_of(optimizer, group)
        return name, {**values, "cuda": 1.0}

    settings_of = _probe.settings_of
    monkeypatch.setattr(_probe, "settings_of", settings_on_cuda)
    model = Followed(kept["start"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = tmp_path / "run.dlprobe"
    with dlsim.ProbeRecorder(model, probe):
        model(torch.from_numpy(kept["gradients"][0])).backward()
        optimizer.step()
    ends = {}
    for arithmetic in (None, "cuda", "cpu"):
        elements = tmp_path / f"{arithmetic}.csv"
        how = {} if arithmetic is None else {"arithmetic": arithmetic}
        dlsim.updates(probe, weights="bf16", elements=elements, **how)
        ends[arithmetic] = elements.read_text()
    assert ends[None] == ends["cuda"] != ends["cpu"]
