# SPDX-License-Identifier: Apache-2.0
"""Stacks that extend torch's GradScaler, loaded without the packages around them."""

from __future__ import annotations

import random
import types
import warnings
from typing import Any

import torch
from harness import BACKOFFS, GROWTHS, SCALES, WINDOWS, Checker, Params, draw
from sources import class_alone, load, stub, version_of
from stack_scalers import check_found, drive_update
from torch_scalers import drive_scaler


def torch_params(rng: random.Random) -> Params:
    return draw(
        rng,
        init_scale=SCALES,
        growth_factor=GROWTHS,
        backoff_factor=BACKOFFS,
        growth_interval=[*WINDOWS, 0, -1],
    )


def composer(checker: Checker) -> None:
    for name in ("composer", "composer.trainer"):
        stub(name)
    dist = types.SimpleNamespace(
        all_gather_object=lambda value: [value], all_reduce=lambda *args, **kwargs: None
    )
    stub("composer.utils", dist=dist)
    module = load("composer/trainer/_scaler.py", "composer.trainer._scaler")

    def advance(scaler: Any, optimizer: Any) -> None:
        def closure(**kwargs: Any) -> float:
            optimizer.set_gradient(optimizer.overflow)
            return 1.0

        scaler.step(optimizer, closure=closure)
        scaler.update()

    drive = drive_scaler(lambda given: module.ClosureGradScaler("cpu", **given), advance)
    version = version_of("mosaicml") or ""
    checker.check("composer ClosureGradScaler", version, "torch", torch_params, drive)


def fairseq2(checker: Checker) -> None:
    stub("fairseq2")
    stub("fairseq2.device", Device=object)
    stub("fairseq2.error", InternalError=Exception, StateDictError=Exception)
    stub("fairseq2.gang", Gangs=object)
    stub("fairseq2.typing", Stateful=type("Stateful", (), {}))
    module = load("fairseq2/optim/fp16_loss_scaler.py", "fairseq2_scaler")
    module._InternalGradScaler = lambda **kwargs: torch.amp.GradScaler("cpu", **kwargs)
    one = types.SimpleNamespace(size=1)
    gangs = types.SimpleNamespace(root=one, rdp=one)

    class MinimumLossScaleReachedError(Exception):
        """The trainer's."""

    def advance(scaler: Any, optimizer: Any) -> None:
        if scaler.run_optimizer_step(optimizer).exploded:
            raise MinimumLossScaleReachedError("Loss is scaled down to minimum.")

    def params(rng: random.Random) -> Params:
        return draw(
            rng,
            init_scale=[*SCALES, 128.0, 1.6e-5, 2.0**128],
            scale_factor=[2.0, 4.0, 1.1, 3.0, 1.0, 0.0],
            scale_window=[*WINDOWS, 0, -1],
            min_scale=[1e-4, 1.0, 0.0, 1e-5, 2.0**20],
        )

    drive = drive_scaler(
        lambda given: module.StandardFloat16LossScaler(gangs, **given),
        advance,
        lambda scaler: scaler._grad_scaler,
    )
    version = version_of("fairseq2") or ""
    checker.check(
        "fairseq2 StandardFloat16LossScaler", version, "fairseq2", params, drive, messages=False
    )


def torch_npu(checker: Checker) -> None:
    space = {"torch": torch, "print": lambda text: None}
    path = "torch_npu/npu/amp/grad_scaler.py"
    update_scale = class_alone(path, "GradScaler", space, "_npu_update_scale")

    def make(given: Params) -> Any:
        return types.SimpleNamespace(
            _scale=torch.full((), given.get("init_scale", 65536.0)),
            _growth_tracker=torch.zeros((), dtype=torch.int32),
            _growth_factor=given.get("growth_factor", 2.0),
            _backoff_factor=given.get("backoff_factor", 0.5),
            _growth_interval=given.get("growth_interval", 2000),
        )

    def update(scaler: Any, overflow: bool) -> None:
        scaler._has_overflow = overflow
        update_scale(scaler)

    def reason_of(params: Params, why: str) -> str | None:
        factors = [params.get("growth_factor", 2.0), params.get("backoff_factor", 0.5)]
        exact = all(float(torch.tensor(factor)) == factor for factor in factors)
        return None if exact else "its factors are float32"

    drive = drive_update(
        make,
        lambda scaler: scaler._scale.item(),
        lambda scaler: {"growth_tracker": scaler._growth_tracker.item()},
        update,
    )
    version = version_of("torch_npu") or ""
    checker.check(
        "torch_npu GradScaler", version, "torch", torch_params, drive, reason_of=reason_of
    )


STACKS = {
    "composer/trainer/_scaler.py": composer,
    "fairseq2/optim/fp16_loss_scaler.py": fairseq2,
    "torch_npu/npu/amp/grad_scaler.py": torch_npu,
}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    check_found(STACKS)
