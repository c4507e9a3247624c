# SPDX-License-Identifier: Apache-2.0
"""torch.amp.GradScaler and FSDP's ShardedGradScaler on the CPU, and DeepSpeed's scalers."""

from __future__ import annotations

import contextlib
import logging
import random
import tempfile
import types
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


class Counting(torch.optim.SGD):
    """An optimizer of one parameter that counts its steps."""

    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.ones(1))
        super().__init__([self.weight], lr=0.0)
        self.steps = 0
        self.overflow = False

    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure else 0.0
        self.steps += loss is not None
        return loss

    def set_gradient(self, overflow: bool) -> None:
        self.overflow = overflow
        self.weight.grad = torch.tensor([float("inf") if overflow else 1.0])


def drive_scaler(
    make: Callable[[Params], Any],
    advance: Callable[[Any, Counting], Any] | None = None,
    scaler_of: Callable[[Any], Any] = lambda scaler: scaler,
) -> Callable[[Params, int, list[int]], Run]:
    """Drives an object with a GradScaler inside as a training loop does."""

    def drive(params: Params, steps: int, overflows: list[int]) -> Run:
        optimizer = Counting()
        scaler = refusing(lambda: make(params), AssertionError, ZeroDivisionError)
        inner = scaler_of(scaler)
        # The scale is made by the first call.
        refusing(lambda: inner.scale(torch.ones(1)), RuntimeError)

        def step(overflow: bool) -> bool:
            before = optimizer.steps
            inner.scale(torch.ones(1))
            optimizer.set_gradient(overflow)
            if advance:
                advance(scaler, optimizer)
            else:
                inner.step(optimizer)
                inner.update()
            return optimizer.steps == before

        run = drive_steps(steps, overflows, inner.get_scale, step)
        if inner.is_enabled():
            run.state = {"growth_tracker": inner._get_growth_tracker()}
        return run

    return drive


def torch_params(rng: random.Random) -> Params:
    return draw(
        rng,
        init_scale=[*SCALES, 2.0**128, 3.4028235e38, 0.0],
        growth_factor=[*GROWTHS, 1.0],
        backoff_factor=[*BACKOFFS, 1.0, 0.0, -0.5],
        growth_interval=[*WINDOWS, 0, -1],
        enabled=[True, True, True, False],
    )


def sharded_params(rng: random.Random) -> Params:
    """What ColossalAI's rule takes too."""
    return draw(
        rng,
        init_scale=SCALES,
        growth_factor=GROWTHS,
        backoff_factor=BACKOFFS,
        growth_interval=WINDOWS,
    )


def check_torch(checker: Checker) -> None:
    version = str(torch.__version__)
    make = lambda params: torch.amp.GradScaler("cpu", **params)  # noqa: E731
    checker.check("torch.amp.GradScaler", version, "torch", torch_params, drive_scaler(make))
    import torch.distributed as dist
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        drive = drive_scaler(
            lambda params: ShardedGradScaler("cpu", process_group=dist.group.WORLD, **params)
        )

        def without_state(params: Params, steps: int, overflows: list[int]) -> Run:
            run = drive(params, steps, overflows)
            run.state = {"growth_step": run.state["growth_tracker"]}
            return run

        checker.check(
            "ShardedGradScaler(cpu)",
            version,
            "colossalai",
            sharded_params,
            without_state,
            rename={"init_scale": "initial_scale"},
            settings={"hysteresis": 1, "growth_interval": 2000},
        )
        dist.destroy_process_group()


INTEGERS = [2**16, 2**32, 2**4, 1, 3, 7, 2**30, 2**64]
FLOATS = [65536.0, 0.125, 12345.678, 2.0**128]
MINIMA = [1, 1, 0.25, 0, 2, 128, 1e-4]


def dynamic_params(rng: random.Random) -> Params:
    return draw(
        rng,
        init_scale=[*INTEGERS, *FLOATS],
        scale_window=[*WINDOWS, 1000, 0],
        min_scale=MINIMA,
        delayed_shift=[1, 2, 3, 5, 0, -1],
        consecutive_hysteresis=[True, False],
        raise_error_at_min_scale=[True, True, False],
    )


def plain_params(rng: random.Random) -> Params:
    if rng.random() < 0.1:
        return {"loss_scale": rng.choice([128, 1, 0.5, 1024.0])}
    return draw(
        rng,
        init_scale=[*INTEGERS, *FLOATS, 2.0**1020, 2**1020],
        scale_window=[*WINDOWS, 1000, 0],
        min_scale=MINIMA,
    )


def check_deepspeed(checker: Checker) -> None:
    import deepspeed
    import deepspeed.runtime.fp16.loss_scaler as module

    module.dist = types.SimpleNamespace(get_rank=lambda: 0)
    defaults = {
        "init_scale": 2**32,
        "scale_window": 1000,
        "min_scale": 1,
        "delayed_shift": 1,
        "consecutive_hysteresis": False,
    }

    def drive(params: Params, steps: int, overflows: list[int]) -> Run:
        scaler = module.CreateLossScaler(torch.half, 1.0, True, {**defaults, **params})

        def step(overflow: bool) -> bool:
            scaler.update_scale(overflow)
            return overflow

        run = drive_steps(steps, overflows, lambda: scaler.loss_scale, step)
        names = ("cur_iter", "last_overflow_iter", "cur_hysteresis")
        run.state = {name: getattr(scaler, name) for name in names}
        return run

    version = deepspeed.__version__
    checker.check("deepspeed DynamicLossScaler", version, "deepspeed", dynamic_params, drive)
    check_optimizers(checker, module, version)


def check_optimizers(checker: Checker, module: Any, version: str) -> None:
    """FP16_Optimizer of DeepSpeed, which has a rule of its own."""
    from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

    for optimizer, profile in ((FP16_Optimizer, "fused"), (FP16_UnfusedOptimizer, "unfused")):

        def drive(
            params: Params,
            steps: int,
            overflows: list[int],
            of: Any = optimizer,
            kind: str = profile,
        ) -> Run:
            arguments = {"init_scale": 2**16, "scale_window": 1000, "min_scale": 1, **params}
            config = module.LossScaleConfig(
                torch.float16,
                "loss_scale" not in params,
                params.get("loss_scale", 0),
                arguments,
                profile=module.LossScaleProfile(kind),
            )
            owner = types.SimpleNamespace(loss_scale_config=config, verbose=False)

            def step(overflow: bool) -> bool:
                of._update_scale(owner, overflow)
                return overflow

            run = drive_steps(steps, overflows, lambda: config.cur_scale, step)
            if config.dynamic_loss_scale:
                run.state = {n: getattr(config, n) for n in ("cur_iter", "last_overflow_iter")}
            return run

        name = f"deepspeed {optimizer.__name__}"
        checker.check(name, version, "deepspeed-fp16-optimizer", plain_params, drive)


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    checker = Checker()
    check_torch(checker)
    with contextlib.suppress(ImportError):
        check_deepspeed(checker)


if __name__ == "__main__":
    main()
