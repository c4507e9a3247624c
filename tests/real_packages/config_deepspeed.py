# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's JSON as DeepSpeedConfig and as dlsim read it."""

from __future__ import annotations

import json
import logging
import random
import warnings
from typing import Any

from configs import ConfigChecker, Resolved, deepspeed_resolves, maybe


def fp16_table(rng: random.Random) -> dict[str, Any]:
    table: dict[str, Any] = {}
    maybe(rng, table, "enabled", [True, True, True, False, "true", 1, 0, "yes"], 0.9)
    maybe(rng, table, "loss_scale", [0, 0, 0, 128, 1024.0, 0.5, 1, "0", "64", -1, True])
    maybe(rng, table, "initial_scale_power", [16, 12, 32, 0, 20, "8", -2, 15.0, 2.5])
    maybe(rng, table, "loss_scale_window", [1000, 500, 1, 0, -1, "100", 2.5, 7.0])
    maybe(rng, table, "hysteresis", [2, 1, 4, 0, -1, "3", 1.5], 0.4)
    maybe(rng, table, "consecutive_hysteresis", [True, False, "true", 1], 0.3)
    maybe(rng, table, "min_loss_scale", [1, 2, 0, 128, 0.5, "1", -1, 4.0], 0.4)
    maybe(rng, table, rng.choice(["loss_scale_windw", "opt_level", "scale_factor"]), [2], 0.05)
    return table


def make(rng: random.Random) -> tuple[str, Any]:
    file: dict[str, Any] = {"train_batch_size": 8}
    if rng.random() < 0.85:
        file["fp16"] = fp16_table(rng)
    if rng.random() < 0.3:
        bf16: dict[str, Any] = {}
        maybe(rng, bf16, "enabled", [True, False, "true", 1], 0.9)
        maybe(rng, bf16, "check_grad_overflow", [True, False], 0.2)
        file[rng.choice(["bf16", "bf16", "bfloat16"])] = bf16
    zero: dict[str, Any] = {}
    maybe(rng, zero, "stage", [0, 1, 2, 3, 2, "2", 4, -1], 0.9)
    if rng.random() < 0.7:
        file["zero_optimization"] = zero
    maybe(rng, file, "gradient_clipping", [1.0, 0, 0.5, "1.0", 5, 1e-3], 0.6)
    maybe(rng, file, "gradient_accumulation_steps", [1, 2, 4, 8, "2", 0], 0.4)
    return json.dumps(file, indent=1), file


def resolve(file: Any, path: str) -> Resolved:
    from deepspeed.runtime.config import DeepSpeedConfig

    return deepspeed_resolves(DeepSpeedConfig(path))


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    import deepspeed

    checker = ConfigChecker()
    version = deepspeed.__version__
    never = {"delayed_shift: the original -1, dlsim 0": "below 1 the scale never falls"}
    checker.check("DeepSpeedConfig", version, make, resolve, reasons=never)
    newest = ("--config-version", version)
    checker.check(
        "DeepSpeedConfig, --config-version", version, make, resolve, extra=newest, reasons=never
    )


if __name__ == "__main__":
    main()
