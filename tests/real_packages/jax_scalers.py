# SPDX-License-Identifier: Apache-2.0
"""Scalers on JAX: flax, jmp and mpx, eager and under jit, and Keras on JAX."""

from __future__ import annotations

import importlib.util
import os
import random
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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
    hex_of,
    refusing,
)
from sources import version_of

NORMAL = [scale for scale in SCALES if scale >= 2.0**-126]
FLUSHES = {"subnormal": "XLA flushes subnormal numbers to zero on the CPU"}


def flax_params(rng: random.Random) -> Params:
    return draw(
        rng,
        scale=NORMAL,
        growth_factor=GROWTHS,
        backoff_factor=[*BACKOFFS, 1.5, 0.0],
        growth_interval=[*WINDOWS, 0, -1],
        minimum_scale=[None, 1.0, 0.25, 2.0**-126, 2.0**20, 0.0],
    )


def flax_drive(jit: bool) -> Callable[[Params, int, list[int]], Run]:
    from flax.training.dynamic_scale import DynamicScale

    def advance(scaler: Any, factor: Any) -> Any:
        return scaler.value_and_grad(lambda w: jnp.sum(w * factor))(jnp.ones(1, jnp.float32))[:2]

    if jit:
        advance = jax.jit(advance)

    def drive(params: Params, steps: int, overflows: list[int]) -> Run:
        start = {"scale": jnp.float32(params["scale"])} if "scale" in params else {}
        scaler = DynamicScale(**{**params, **start})
        run, bad = Run(init=hex_of(scaler.scale)), set(overflows)
        for i in range(steps):
            # At a scale of 0 no gradient is finite.
            run.cut = not 2.0**-126 <= float(scaler.scale) <= 2.0**126
            if run.cut:
                return run
            factor = jnp.full(1, jnp.nan) if i in bad else jnp.ones(1) / scaler.scale
            scaler, finite = advance(scaler, factor)
            run.scales.append(hex_of(scaler.scale))
            if not bool(finite):
                run.skipped.append(i)
        run.state = {"fin_steps": int(scaler.fin_steps)}
        return run

    return drive


def drive_adjust(
    make: Callable[[Params], Any],
    scale: Callable[[Any], Any],
    state: Callable[[Any], Params],
    jit: bool,
) -> Callable[[Params, int, list[int]], Run]:
    """Drives jmp's class and those like it."""

    def adjust(scaler: Any, finite: Any) -> Any:
        return scaler.adjust(finite)

    advance = jax.jit(adjust) if jit else adjust

    def drive(params: Params, steps: int, overflows: list[int]) -> Run:
        box = [make(params)]

        def step(overflow: bool) -> bool:
            box[0] = advance(box[0], jnp.array(not overflow))
            return overflow

        run = drive_steps(steps, overflows, lambda: scale(box[0]), step)
        run.state = state(box[0])
        return run

    return drive


def jmp_params(rng: random.Random) -> Params:
    return draw(
        rng,
        loss_scale=[*SCALES, 0.0],
        period=WINDOWS,
        factor=[2, 3, 4, 10, 7, 1.5],
        min_loss_scale=[1.0, 0.25, 2.0**-126, 128.0, 0.0],
    )


def jmp_of(params: Params) -> Any:
    from jmp import DynamicLossScale

    values = {"loss_scale": 2.0**15, **params}
    for name in ("loss_scale", "min_loss_scale"):
        if name in values:
            values[name] = jnp.float32(values[name])
    return DynamicLossScale(**values)


def without_floor(rng: random.Random) -> Params:
    """Under jit the object forgets its floor, as docs/policies says."""
    return {name: value for name, value in jmp_params(rng).items() if name != "min_loss_scale"}


def reciprocal(params: Params, why: str) -> str | None:
    exact = params.get("factor", 2) in (2, 4)
    return None if exact else "under jit XLA multiplies by the reciprocal of the factor"


def check_jmp(checker: Checker) -> None:
    version = version_of("jmp") or ""
    arguments = (lambda s: s.loss_scale, lambda s: {"counter": int(s.counter)})
    eager, jitted = (drive_adjust(jmp_of, *arguments, jit=jit) for jit in (False, True))
    name = "jmp DynamicLossScale"
    checker.check(name, version, "jmp", jmp_params, eager, reasons=FLUSHES)
    checker.check(
        f"{name} jit", version, "jmp", without_floor, jitted, reasons=FLUSHES, reason_of=reciprocal
    )


def check_mpx(checker: Checker) -> None:
    from mpx import DynamicLossScaling

    def make(params: Params) -> Any:
        start = jnp.float32(params.get("initial_scale", 2.0**15))
        period = params.get("growth_interval", 2000)
        floor = jnp.float32(params.get("min_scale", 1.0))
        return DynamicLossScaling(start, floor, factor=2, period=period)

    def params(rng: random.Random) -> Params:
        return draw(
            rng,
            initial_scale=[1.0, 3.0, 128.0, 65504.0],
            growth_interval=WINDOWS,
            min_scale=[1.0, 0.25],
        )

    drive = drive_adjust(
        make, lambda s: s.loss_scaling, lambda s: {"growth_step": int(s.counter)}, jit=True
    )
    settings = {
        "initial_scale": 2.0**15,
        "hysteresis": 1,
        "growth_interval": 2000,
        "min_scale": 1.0,
        "max_scale": 65504.0,
    }
    version = version_of("mixed-precision-for-jax") or ""
    checker.check("mpx DynamicLossScaling", version, "colossalai", params, drive, settings=settings)


def keras_drive(params: Params, steps: int, overflows: list[int]) -> Run:
    import keras

    weight = keras.Variable(np.ones(1, np.float32))
    inner = keras.optimizers.SGD(1.0)
    optimizer = refusing(lambda: keras.optimizers.LossScaleOptimizer(inner, **params), ValueError)
    optimizer.build([weight])
    apply = jax.jit(optimizer.stateless_apply)

    def step(overflow: bool) -> bool:
        before = int(optimizer.iterations.value)
        weight.assign(np.ones(1, np.float32))
        gradient = np.full(1, np.inf if overflow else 1e30, np.float32)
        values = [variable.value for variable in optimizer.variables]
        weights, values = apply(values, [gradient], [weight.value])
        for variable, value in zip(
            [*optimizer.variables, weight], [*values, *weights], strict=True
        ):
            variable.assign(value)
        return int(optimizer.iterations.value) == before

    run = drive_steps(steps, overflows, lambda: optimizer.dynamic_scale.value, step)
    run.state = {"step_counter": int(optimizer.step_counter.value)}
    return run


def keras_params(rng: random.Random) -> Params:
    return draw(
        rng,
        initial_scale=[*NORMAL, 0.0],
        dynamic_growth_steps=[*WINDOWS, 0, -1],
        dynamic=[True, True, True, False],
    )


def main() -> None:
    warnings.filterwarnings("ignore")
    checker = Checker()
    found = {name for name in ("flax", "jmp", "mpx", "keras") if importlib.util.find_spec(name)}
    if "flax" in found:
        for name, jit in (("flax DynamicScale", False), ("flax DynamicScale jit", True)):
            version = version_of("flax") or ""
            checker.check(name, version, "flax", flax_params, flax_drive(jit), reasons=FLUSHES)
    if "jmp" in found:
        check_jmp(checker)
    if "mpx" in found:
        check_mpx(checker)
    if "keras" in found:
        name, version = "keras LossScaleOptimizer (jax)", version_of("keras") or ""
        checker.check(name, version, "keras", keras_params, keras_drive, reasons=FLUSHES)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("KERAS_BACKEND", "jax")
    main()
