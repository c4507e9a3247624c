# SPDX-License-Identifier: Apache-2.0
"""Compares how dlsim and the real stacks read the same random configuration files.

Both give what a file resolves to, or refuse it. That dlsim refuses, in one line, what a stack
takes, and that it reads what a stack refuses, so that no run has it, is counted as explained; that
it takes another meaning is not. `--dlsim` must be the command of the Python package, which reads
the files.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness import Checker

Resolved = dict[str, Any]  # format, policy, params, clip, accumulation; or {"refused": text}

TRACE = Path(__file__).resolve().parent.parent / "data" / "traces" / "cnn-digits"
LOUD = "dlsim refuses what the stack takes"
NO_RUN = "dlsim reads what the stack refuses"


def refused(error: BaseException) -> Resolved:
    return {"refused": f"{type(error).__name__}: {str(error)[:200]}"}


def maybe(
    rng: random.Random, table: dict[str, Any], key: str, values: list[Any], chance: float = 0.5
) -> None:
    if rng.random() < chance:
        table[key] = rng.choice(values)


def dlsim_reads(binary: str, path: str, extra: tuple[str, ...]) -> Resolved:
    command = [binary, "replay", str(TRACE), "--config", path, "--json", "-", "--quiet", *extra]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        return {"refused": done.stderr.strip()}
    result = json.loads(done.stdout)
    options, run = result["options"], result["runs"][0]
    refusals = [event for event in run["events"] if event["step"] == -1]
    if refusals:
        return {"refused": f"{refusals[0]['type']}: {refusals[0].get('message', '')}"}
    notes = options["config"]["notes"]
    accumulates = [n.split()[2] for n in notes if n.startswith("training accumulates ")]
    counted = [int(number) for number in accumulates if number.isdigit()]
    float32 = any("computes in float32" in note for note in notes)
    return {
        "format": None if float32 else run["format"],
        "policy": run["policy"],
        "params": run["params"],
        "clip": options.get("max_gradient_norm"),
        "clip_value": options.get("max_gradient_value"),
        "accumulation": options.get("grad_accum_steps", counted[0] if counted else 1),
    }


def config_difference(real: Resolved, ours: Resolved) -> str:
    """Says how the readings differ in what the original's gives; "" if they do not."""
    if "refused" in real:
        return "" if "refused" in ours else NO_RUN
    if "refused" in ours:
        return LOUD
    pairs = [(key, value, ours.get(key)) for key, value in real.items() if key != "params"]
    params = real.get("params", {})
    pairs += [(name, value, ours["params"].get(name)) for name, value in params.items()]
    for key, theirs, mine in pairs:
        if theirs != mine:
            return f"{key}: the original {theirs!r}, dlsim {mine!r}"
    return ""


def deepspeed_resolves(config: Any) -> Resolved:
    """What a DeepSpeedConfig means for the loss scale."""
    fp16, bf16 = config.float16_config, config.bfloat16_config
    zero = config.zero_optimization_stage > 0
    clip = float(config.gradient_clipping or 0)
    out: Resolved = {
        "format": "fp16" if fp16.enabled else "bf16" if bf16.enabled else None,
        "clip": clip if clip > 0 else None,
        "accumulation": config.gradient_accumulation_steps,
        "policy": "deepspeed" if zero else "deepspeed-fp16-optimizer",
    }
    if not fp16.enabled:
        checked = bf16.enabled and getattr(bf16, "check_grad_overflow", False)
        out["params"] = {"loss_scale": 1} if checked else {}
        if not bf16.enabled:
            out["policy"] = "static"
        elif not checked:
            del out["policy"]
        return out
    if fp16.loss_scale != 0:
        return {**out, "params": {"loss_scale": fp16.loss_scale}}
    arguments = fp16.dynamic_loss_scale_args()
    names = ["init_scale", "scale_window", "min_scale"]
    names += ["delayed_shift", "consecutive_hysteresis"] if zero else []
    return {**out, "params": {name: arguments[name] for name in names}}


class ConfigChecker:
    """Writes the files of a script and compares what is made of them."""

    def __init__(self) -> None:
        self.checker = Checker()

    def check(
        self,
        package: str,
        version: str,
        make: Callable[[random.Random], tuple[str, Any]],
        resolve: Callable[[Any, str], Resolved],
        extension: str = ".json",
        *,
        extra: tuple[str, ...] = (),
        reasons: Mapping[str, str] | None = None,
    ) -> None:
        """make(rng) gives the text of a file and what resolve(that, path) needs of it.

        `reasons` explains differences by a part of their text.
        """
        rng = random.Random(f"{self.checker.args.seed}/{package}")
        known = {LOUD: LOUD, NO_RUN: NO_RUN, **(reasons or {})}
        explained, found = [], []
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "file" + extension)
            for _ in range(self.checker.args.cases):
                text, more = make(rng)
                Path(path).write_text(text)
                try:
                    real = resolve(more, path)
                except Exception as error:
                    real = refused(error)
                why = config_difference(real, dlsim_reads(self.checker.args.dlsim, path, extra))
                reason = [text for part, text in known.items() if part in why]
                if reason:
                    explained.append(reason[0])
                elif why:
                    found.append((len(text), text, why))
        for _, text, why in sorted(found)[:3]:
            print(f"{package}: {why}\n{text}", file=sys.stderr)
        self.checker.report(package, version, "configuration", explained, len(found))
