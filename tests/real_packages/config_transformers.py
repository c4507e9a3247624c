# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's TrainingArguments in YAML, on command lines and with a DeepSpeed table."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import random
import warnings
from collections.abc import Callable
from typing import Any

import yaml
from configs import ConfigChecker, Resolved, deepspeed_resolves, maybe, refused


def arguments(rng: random.Random, odd: bool) -> dict[str, Any]:
    file: dict[str, Any] = {"output_dir": "out", "learning_rate": 1e-4}
    maybe(rng, file, "fp16", [True, True, False, *(["true", "false", 1, 0] if odd else [])], 0.65)
    maybe(rng, file, "bf16", [False, False, True, *(["true", 1] if odd else [])])
    maybe(rng, file, "fp16_full_eval", [True, False], 0.1)
    maybe(rng, file, "max_grad_norm", [1.0, 0.5, 0, 5, *(["0.3", -1.0] if odd else [])])
    maybe(rng, file, "gradient_accumulation_steps", [1, 2, 8, *(["4", 0] if odd else [])])
    maybe(rng, file, "per_device_train_batch_size", [1, 4, 8])
    if odd:
        maybe(rng, file, "half_precision_backend", ["auto", "apex"], 0.15)
    return file


def deepspeed_table(rng: random.Random) -> dict[str, Any]:
    file: dict[str, Any] = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
    fp16: dict[str, Any] = {"enabled": rng.choice(["auto", "auto", True, False])}
    maybe(rng, fp16, "loss_scale", [0, 0, 128], 0.4)
    maybe(rng, fp16, "initial_scale_power", [16, 12, 20], 0.4)
    maybe(rng, fp16, "loss_scale_window", [1000, 100], 0.4)
    maybe(rng, fp16, "hysteresis", [2, 1, 4], 0.4)
    maybe(rng, file, "fp16", [fp16], 0.8)
    maybe(rng, file, "bf16", [{"enabled": "auto"}, {"enabled": True}, {"enabled": False}], 0.6)
    maybe(rng, file, "zero_optimization", [{"stage": stage} for stage in range(4)], 0.9)
    maybe(rng, file, "gradient_clipping", ["auto", "auto", 1.0, 0.5], 0.7)
    maybe(rng, file, "gradient_accumulation_steps", ["auto", "auto", 2], 0.7)
    return file


def make_yaml(odd: bool) -> Callable[[random.Random], tuple[str, Any]]:
    def make(rng: random.Random) -> tuple[str, Any]:
        file = arguments(rng, odd)
        return yaml.safe_dump(file, sort_keys=False), file

    return make


def make_line(rng: random.Random) -> tuple[str, Any]:
    words: list[str] = []
    spellings = {True: ["True", "true", "1", "yes"], False: ["False", "false", "0", "no"]}
    for key, value in arguments(rng, False).items():
        text = rng.choice(spellings[value]) if isinstance(value, bool) else str(value)
        if value is True and rng.random() < 0.3:
            words.append(f"--{key}")
        elif rng.random() < 0.3:
            words.append(f"--{key}={text}")
        else:
            words += [f"--{key}", text]
    return "python train.py \\\n  " + " ".join(words) + "\n", words


def make_deepspeed(rng: random.Random) -> tuple[str, Any]:
    file = {**arguments(rng, False), "deepspeed": deepspeed_table(rng)}
    return json.dumps(file, indent=1), file


def from_arguments(args: Any) -> Resolved:
    if args.deepspeed:
        from deepspeed.runtime.config import DeepSpeedConfig

        if args.hf_deepspeed_config.mismatches:  # for which the trainer raises
            return refused(ValueError("mismatch of DeepSpeed's and the trainer's values"))
        plugin = args.deepspeed_plugin
        plugin.set_mixed_precision(args.mixed_precision)
        return deepspeed_resolves(DeepSpeedConfig(dict(plugin.deepspeed_config)))
    norm = args.max_grad_norm
    fp16 = args.mixed_precision == "fp16"
    return {
        "format": args.mixed_precision if args.mixed_precision in ("fp16", "bf16") else None,
        "policy": "torch" if fp16 else "static",
        "params": {"init_scale": 65536.0, "growth_interval": 2000} if fp16 else {},
        "clip": norm if norm > 0 else None,
        "accumulation": args.gradient_accumulation_steps,
    }


def main() -> None:
    os.environ.update({"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""})
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    import transformers

    parser = transformers.HfArgumentParser(transformers.TrainingArguments)

    def of_table(file: Any, path: str) -> Resolved:
        os.environ.pop("ACCELERATE_MIXED_PRECISION", None)
        return from_arguments(parser.parse_dict({**file, "use_cpu": True})[0])

    def of_line(words: Any, path: str) -> Resolved:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                parsed = parser.parse_args_into_dataclasses([*words, "--use_cpu", "True"])
        except SystemExit as error:
            return refused(error)
        return from_arguments(parsed[0])

    checker, version = ConfigChecker(), transformers.__version__
    removed = {"Some keys are not used by the HfArgumentParser": "keys that older releases have"}
    name = "TrainingArguments"
    checker.check(f"{name} YAML", version, make_yaml(False), of_table, ".yaml")
    odd = make_yaml(True)
    checker.check(f"{name} YAML, odd values", version, odd, of_table, ".yaml", reasons=removed)
    checker.check(f"{name} command line", version, make_line, of_line, ".sh")
    with contextlib.suppress(ImportError):
        import deepspeed  # noqa: F401

        checker.check(f"{name} with DeepSpeed", version, make_deepspeed, of_table)


if __name__ == "__main__":
    main()
