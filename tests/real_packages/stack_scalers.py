# SPDX-License-Identifier: Apache-2.0
"""The scalers of stacks on PyTorch, loaded without the packages around them: no GPU is needed."""

from __future__ import annotations

import random
import types
import typing
import warnings
from collections.abc import Callable
from typing import Any

import torch
from harness import (
    BACKOFFS,
    GROWTHS,
    SCALES,
    WINDOWS,
    Checker,
    Params,
    Run,
    draw,
    drive_steps,
    refusing,
)
from sources import class_alone, file_of, load, stub, version_of

FACTORS = {"growth_factor": [*GROWTHS, 1.0], "backoff_factor": [*BACKOFFS, 1.0, 0.0]}


def drive_update(
    make: Callable[[Params], Any],
    scale: Callable[[Any], Any],
    state: Callable[[Any], Params],
    update: Callable[[Any, bool], Any] = lambda scaler, overflow: scaler.update(overflow),
) -> Callable[[Params, int, list[int]], Run]:
    """Drives a scaler whose owner calls update(overflow)."""

    def drive(params: Params, steps: int, overflows: list[int]) -> Run:
        scaler = refusing(lambda: make(params), AssertionError, ZeroDivisionError)

        def step(overflow: bool) -> bool:
            update(scaler, overflow)
            return overflow

        run = drive_steps(steps, overflows, lambda: scale(scaler), step)
        run.state = state(scaler)
        return run

    return drive


class NoCuda:
    """torch for code that makes its tensors on a GPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def tensor(data: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
        return torch.tensor(data, dtype=dtype)


def megatron(checker: Checker) -> None:
    module = load("megatron/core/optimizer/grad_scaler.py", "megatron_scaler")
    module.torch = NoCuda()
    defaults = {
        "initial_scale": 2.0**32,
        "min_scale": 1.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 1000,
        "hysteresis": 2,
    }

    def params(rng: random.Random) -> Params:
        return draw(
            rng,
            initial_scale=[*SCALES, 0.0, 2.0**128],
            min_scale=[1.0, 0.25, 1e-4, 128.0, 0.0, 2.0**-149, 1e-50],
            growth_interval=[*WINDOWS, 0],
            hysteresis=[1, 2, 3, 5, 0],
            **FACTORS,
        )

    drive = drive_update(
        lambda given: module.DynamicGradScaler(**{**defaults, **given}),
        lambda scaler: scaler.scale.item(),
        lambda scaler: {
            "growth_tracker": scaler._growth_tracker,
            "hysteresis_tracker": scaler._hysteresis_tracker,
        },
    )
    version = version_of("megatron-core") or ""
    # Its assertions have no message.
    checker.check("megatron DynamicGradScaler", version, "megatron", params, drive, messages=False)


def colossalai(checker: Checker) -> None:
    for name in ("colossalai", "colossalai.amp", "colossalai.amp.naive_amp"):
        stub(name)
    device = types.SimpleNamespace(get_current_device=lambda: "cpu", device_count=lambda: 0)
    stub("colossalai.accelerator", get_accelerator=lambda: device)
    stub("colossalai.logging", get_dist_logger=lambda: None)
    package = "colossalai.amp.naive_amp.grad_scaler"
    stub(package)
    folder = package.replace(".", "/")
    load(f"{folder}/base_grad_scaler.py", f"{package}.base_grad_scaler")
    module = load(f"{folder}/dynamic_grad_scaler.py", f"{package}.dynamic_grad_scaler")

    def params(rng: random.Random) -> Params:
        return draw(
            rng,
            initial_scale=[*SCALES, 0.0],
            min_scale=[None, 1.0, 0.25, 1e-4, 128.0, 0.0, -1.0, 1e-50],
            max_scale=[None, 2.0**32, 2.0**20, 0.0, -1.0, 3e38],
            growth_interval=[*WINDOWS, 0, -1],
            hysteresis=[1, 2, 3, 5, 0, -1],
            **FACTORS,
        )

    drive = drive_update(
        lambda given: module.DynamicGradScaler(**given),
        lambda scaler: scaler.scale.item(),
        lambda scaler: {
            "growth_step": scaler._growth_step,
            "hysteresis_step": scaler._hysteresis_step,
        },
    )
    # The first assertion has no message.
    version = version_of("colossalai") or ""
    checker.check(
        "colossalai DynamicGradScaler", version, "colossalai", params, drive, messages=False
    )


def fairscale(checker: Checker) -> None:
    module = load("fairscale/optim/layerwise_gradient_scaler.py", "fairscale_layerwise")

    def params(rng: random.Random) -> Params:
        return draw(
            rng,
            init_scale=SCALES,
            growth_interval=[*WINDOWS, 0],
            min_scale=[1.0, 0.25, 2.0**-126, 2.0**20, 0.0],
            max_scale=[2.0**20, 2.0**32, 1.0],
            **FACTORS,
        )

    def make(given: Params) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False))
        rest = {name: value for name, value in given.items() if name != "init_scale"}
        scales = {"0": given.get("init_scale", 2.0**10)}
        scaler = module.LayerwiseGradientScaler(model, scales, **rest)
        scaler.weight = model[0].weight
        return scaler

    def update(scaler: Any, overflow: bool) -> None:
        scaler.weight.grad = torch.full((1, 1), float("nan") if overflow else 1.0)
        scaler.step(types.SimpleNamespace(step=lambda: None))

    drive = drive_update(
        make,
        lambda scaler: scaler.get_layer_info()[0].scaling_factor,
        lambda scaler: {"growth_tracker": scaler.get_layer_info()[0].growth_tracker},
        update,
    )
    version = version_of("fairscale") or ""
    checker.check("fairscale LayerwiseGradientScaler", version, "fairscale", params, drive)


def bmtrain(checker: Checker) -> None:
    stream = types.SimpleNamespace(wait_stream=lambda other: None)
    state = {"overflow": False}

    def check_overflow(groups: Any) -> None:
        if state["overflow"]:
            raise OverflowError

    cuda = types.SimpleNamespace(current_stream=lambda: stream)
    torch_of_it = types.SimpleNamespace(
        no_grad=torch.no_grad, Tensor=torch.Tensor, optim=torch.optim, cuda=cuda
    )
    space = {
        **vars(typing),
        "torch": torch_of_it,
        "config": {"world_size": 1, "zero_size": 1, "load_stream": stream},
        "check_overflow": check_overflow,
        "grad_rescale": lambda groups, scale: None,
        "print_rank": lambda text: None,
        "WarmupLRScheduler": object,
    }
    manager = class_alone("bmtrain/optim/optim_manager.py", "OptimManager", space)

    def make(given: Params) -> Any:
        scaler = manager(**{"loss_scale": 1024, **given})
        nothing = lambda: None  # noqa: E731
        scaler.add_optimizer(
            types.SimpleNamespace(param_groups=[], step=nothing, zero_grad=lambda **kwargs: None)
        )
        return scaler

    def update(scaler: Any, overflow: bool) -> None:
        state["overflow"] = overflow
        scaler.scale_loss(1.0)
        scaler.step()

    def params(rng: random.Random) -> Params:
        return draw(
            rng,
            loss_scale=[1024, 3, 32768, 1.0, 0.1, 2**1000, 2.0**1000],
            loss_scale_factor=[2, 2, 3, 1.1, 0.5, 1, 0],
            loss_scale_steps=[*WINDOWS, 1024, 0, -1],
            min_loss_scale=[1, 0.1, 7, 2**20],
            max_loss_scale=[2**16, 1000.0, 1, float("inf")],
        )

    names = ("steps_since_last_scale",)
    drive = drive_update(
        make,
        lambda scaler: scaler.loss_scale,
        lambda scaler: {name: getattr(scaler, name) for name in names},
        update,
    )
    version = version_of("bmtrain") or ""
    checker.check("bmtrain OptimManager", version, "bmtrain", params, drive)


STACKS = {
    "megatron/core/optimizer/grad_scaler.py": megatron,
    "colossalai/amp/naive_amp/grad_scaler/dynamic_grad_scaler.py": colossalai,
    "fairscale/optim/layerwise_gradient_scaler.py": fairscale,
    "bmtrain/optim/optim_manager.py": bmtrain,
}


def check_found(stacks: dict[str, Callable[[Checker], None]]) -> None:
    """Runs the checks of the packages that are installed."""
    torch.set_num_threads(1)
    checker = Checker()
    for path, check in stacks.items():
        try:
            file_of(path)
        except FileNotFoundError:
            continue
        check(checker)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    check_found(STACKS)
