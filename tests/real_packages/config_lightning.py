# SPDX-License-Identifier: Apache-2.0
"""Lightning's trainer in YAML: precision, GradScaler and clipping of a real Trainer."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import warnings
from typing import Any

import torch
import yaml
from configs import ConfigChecker, Resolved, maybe

PRECISIONS = ["16-mixed", 16, "16", "bf16-mixed", "bf16", "16-true", "bf16-true", 32, "32-true"]
ODD = [None, 64, "fp16", "16-Mixed", 8, "mixed"]


def pretend_a_device() -> None:
    """One CUDA device, as a Trainer for GPUs wants."""
    from torch.cuda.amp import common

    common.amp_definitely_not_available = lambda: False
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    import lightning.fabric.accelerators.cuda as fabric
    from lightning.pytorch.accelerators import cuda

    for module in (fabric, cuda):
        module.num_cuda_devices = lambda: 1
        module.is_cuda_available = lambda: True
    fabric._get_all_visible_cuda_devices = lambda: [0]


def make(rng: random.Random) -> tuple[str, Any]:
    trainer: dict[str, Any] = {"max_epochs": 3, "accelerator": "cuda", "devices": 1}
    maybe(rng, trainer, "precision", [*PRECISIONS, *ODD], 0.9)
    maybe(rng, trainer, "gradient_clip_val", [0.5, 1.0, 1, 0, None, -1.0], 0.6)
    maybe(rng, trainer, "gradient_clip_algorithm", ["norm", "value", None, "bad"], 0.4)
    maybe(rng, trainer, "accumulate_grad_batches", [1, 2, 4, "4", 0], 0.4)
    maybe(rng, trainer, "amp_backend", ["native", "apex"], 0.08)
    return yaml.safe_dump({"seed_everything": 1, "trainer": trainer}, sort_keys=False), trainer


def resolve(settings: Any, path: str) -> Resolved:
    import lightning.pytorch as pl

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        trainer = pl.Trainer(**settings, **quiet, enable_model_summary=False)
    plugin = trainer.strategy.precision_plugin
    scaler = getattr(plugin, "scaler", None)
    name = str(plugin.precision)
    clip = trainer.gradient_clip_val
    by_value = str(trainer.gradient_clip_algorithm or "norm").lower().endswith("value")
    names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
    return {
        "format": "fp16" if name.startswith("16") else "bf16" if name.startswith("bf16") else None,
        "policy": "torch" if scaler is not None else "static",
        "params": {n: getattr(scaler, f"_{n}") for n in names} if scaler is not None else {},
        "clip": clip if clip and clip > 0 and not by_value else None,
        "clip_value": clip if clip and clip > 0 and by_value else None,
        "accumulation": trainer.accumulate_grad_batches,
    }


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    pretend_a_device()
    import lightning.pytorch as pl

    old = "Lightning 1 has it"
    reasons = {"amp_backend": old, "Precision 'fp16'": old}
    checker = ConfigChecker()
    checker.check("lightning Trainer", pl.__version__, make, resolve, ".yaml", reasons=reasons)


if __name__ == "__main__":
    main()
