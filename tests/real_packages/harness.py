# SPDX-License-Identifier: Apache-2.0
"""Compares dlsim's policies with the real scalers of installed packages, on random cases.

A script makes a Checker and calls check() for each object. Rows go to standard output as JSON
lines, the smallest cases that differ to standard error; tools/real-packages reads the rows.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

Params = dict[str, Any]


class Refused(Exception):
    """The original refuses its parameters, for the error that this one comes from."""


@dataclass
class Run:
    """What a scaler did. Scales are texts of float.hex(); the list has those after each step."""

    init: str | None = None
    scales: list[str] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    events: list[tuple[int, str, str]] = field(default_factory=list)  # step, type, message
    state: Params = field(default_factory=dict)
    refused: tuple[str, str] | None = None
    cut: bool = False  # only the steps so far are compared


Drive = Callable[[Params, int, list[int]], Run]


def hex_of(number: Any) -> str:
    try:
        value = float(number)
    except OverflowError:  # a Python integer above the largest float64
        return "inf" if number > 0 else "-inf"
    return "nan" if math.isnan(value) else value.hex()


def drive_steps(
    steps: int,
    overflows: Iterable[int],
    scale: Callable[[], Any],
    step: Callable[[bool], bool],
    skip_on_error: bool = True,
) -> Run:
    """Runs `step(overflow)`, which returns whether the optimizer skipped."""
    run, bad = Run(init=hex_of(scale())), set(overflows)
    for i in range(steps):
        try:
            skipped = step(i in bad)
        except Exception as error:
            run.events.append((i, type(error).__name__, str(error)))
            skipped = skip_on_error
        run.scales.append(hex_of(scale()))
        if skipped:
            run.skipped.append(i)
        if run.events:
            break
    return run


def refusing(make: Callable[[], Any], *errors: type[Exception]) -> Any:
    try:
        return make()
    except errors as error:
        raise Refused from error


def text_of(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float) and math.isinf(value):
        return "none"  # as a limit
    return repr(value)


def run_dlsim(binary: str, policy: str, params: Params, steps: int, overflows: list[int]) -> Run:
    command = [binary, "scaler", "--policy", policy, "--steps", str(steps), "--json", "-"]
    command += ["--quiet"] + [f"--set={key}={text_of(value)}" for key, value in params.items()]
    if overflows:
        command += ["--overflow-at", ",".join(map(str, overflows))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        return Run(refused=("usage", done.stderr.strip()))
    result = json.loads(done.stdout)
    events = [(e["step"], e["type"], e.get("message", "")) for e in result["events"]]
    refusals = [(kind, message) for step, kind, message in events if step == -1]
    if refusals:
        return Run(refused=refusals[0])
    scales = [plain(scale) for scale, count in result["scale"] for _ in range(count)]
    return Run(
        init=plain(result["scale_init"]),
        scales=scales,
        skipped=result["skipped"],
        events=events,
        state=result["state"],
    )


def plain(scale: str) -> str:
    return "nan" if "nan" in scale else float.fromhex(scale).hex()


PATTERNS = ("none", "all", "rare", "half", "often", "bursts", "alternating", "period", "front")


def overflow_pattern(rng: random.Random, steps: int) -> list[int]:
    kind = rng.choice(PATTERNS)
    chances = {"none": 0.0, "all": 1.0, "rare": 0.04, "half": 0.5, "often": 0.85}
    if kind in chances:
        return [i for i in range(steps) if rng.random() < chances[kind]]
    if kind == "alternating":
        return list(range(rng.randint(0, 1), steps, 2))
    if kind == "period":
        period = rng.randint(2, 9)
        return list(range(rng.randrange(period), steps, period))
    if kind == "front":
        return list(range(min(steps, rng.randint(1, 40))))
    found: list[int] = []
    start = rng.randint(1, 15)
    while start < steps:
        length = rng.randint(1, 6)
        found += range(start, min(steps, start + length))
        start += length + rng.randint(1, 15)
    return found


def draw(rng: random.Random, **values: list[Any]) -> Params:
    """A value of each parameter, or its default in three cases of ten."""
    return {name: rng.choice(choice) for name, choice in values.items() if rng.random() < 0.7}


POWERS = [2.0**e for e in (-149, -126, -3, 0, 4, 10, 15, 16, 24, 32, 126, 127)]
SCALES = [*POWERS, 0.1, 3.0, 12345.678, 1e-30, 2e15, 7.0]
GROWTHS = [2.0, 1.5, 1.1, 3.0, 4.0, 1.0000001, 1.001, 10.0, 65536.0, 1e30]
BACKOFFS = [0.5, 0.3, 0.1, 0.9, 1 / 3, 0.999, 0.25, 1e-5]
WINDOWS = [1, 2, 3, 4, 5, 7, 10, 17, 50, 2000]


def refusal_difference(real: Run, ours: Run, messages: bool) -> str:
    if real.refused is None and ours.refused is None:
        return ""
    told = f"refusal: the original {real.refused or 'accepts'}, dlsim {ours.refused or 'accepts'}"
    if real.refused is None or ours.refused is None:
        return told
    if ours.refused[0] == "usage":
        return ""
    same_text = not messages or not real.refused[1] or real.refused[1] == ours.refused[1]
    return "" if real.refused[0] == ours.refused[0] and same_text else told


def scale_difference(real: Run, ours: Run) -> str:
    if real.init != ours.init:
        return f"first scale: the original {real.init}, dlsim {ours.init}"
    for i, (theirs, mine) in enumerate(zip(real.scales, ours.scales, strict=False)):
        if theirs != mine:
            flushed = theirs == "0x0.0p+0" and abs(float.fromhex(mine)) < 2.0**-126
            kind = "subnormal" if flushed else "scale"
            return f"{kind}: after step {i} the original {theirs}, dlsim {mine}"
    return ""


def outcome_difference(real: Run, ours: Run, messages: bool) -> str:
    width = 3 if messages else 2
    pairs = [
        ("skips", real.skipped, ours.skipped),
        ("events", [e[:width] for e in real.events], [e[:width] for e in ours.events]),
        ("steps", len(real.scales), len(ours.scales)),
        *((f"state {name}", value, ours.state.get(name)) for name, value in real.state.items()),
    ]
    if real.cut:
        pairs = [("skips", real.skipped, [i for i in ours.skipped if i < len(real.scales)])]
    for kind, theirs, mine in pairs:
        if theirs != mine:
            return f"{kind}: the original {theirs}, dlsim {mine}"
    return ""


def difference(real: Run, ours: Run, messages: bool) -> str:
    """Says how dlsim's run differs from the original's; "" if it does not."""
    if real.refused or ours.refused:
        return refusal_difference(real, ours, messages)
    return scale_difference(real, ours) or outcome_difference(real, ours, messages)


class Checker:
    """Draws the cases of a script and reports on each object."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--dlsim", required=True, help="the built command")
        parser.add_argument("--cases", type=int, default=300, help="per object")
        parser.add_argument("--seed", type=int, default=1)
        self.args = parser.parse_args()

    def check(
        self,
        package: str,
        version: str,
        policy: str,
        make_params: Callable[[random.Random], Params],
        drive: Drive,
        *,
        rename: Mapping[str, str] | None = None,
        settings: Params | None = None,
        messages: bool = True,
        reasons: Mapping[str, str] | None = None,
        reason_of: Callable[[Params, str], str | None] | None = None,
    ) -> None:
        """Compares drive(params, steps, overflows) with the policy.

        `rename` gives dlsim's names of parameters, `settings` what dlsim needs besides. A
        difference is explained by its kind in `reasons` or by `reason_of`.
        """
        rng = random.Random(f"{self.args.seed}/{package}")
        unexplained, explained = [], []
        for _ in range(self.args.cases):
            params = make_params(rng)
            steps = rng.choice([1, 2, 5, 12, 30, 60, 120, 200])
            overflows = overflow_pattern(rng, steps)
            names = rename or {}
            ours = {**(settings or {}), **{names.get(k, k): v for k, v in params.items()}}
            got = run_dlsim(self.args.dlsim, policy, ours, steps, overflows)
            why = difference(drive_safely(drive, params, steps, overflows), got, messages)
            if not why:
                continue
            reason = (reasons or {}).get(why.split(":")[0])
            reason = reason or (reason_of(params, why) if reason_of else None)
            explained.append(reason) if reason else unexplained.append(
                (len(params), steps, overflows, ours, why)
            )
        self.show(package, policy, unexplained)
        self.report(package, version, policy, explained, len(unexplained))

    def show(self, package: str, policy: str, found: list[Any]) -> None:
        """The smallest cases that differ, as commands to try."""
        for _, steps, overflows, params, why in sorted(found, key=lambda f: f[:2])[:3]:
            listed = ",".join(map(str, overflows))
            shown = " ".join(f"--set {k}={text_of(v)}" for k, v in params.items())
            line = f"dlsim scaler --policy {policy} {shown} --steps {steps}"
            print(f"{package}: {why}\n  {line} --overflow-at '{listed}'", file=sys.stderr)

    def report(
        self, package: str, version: str, policy: str, explained: list[str], differ: int
    ) -> None:
        row = {
            "policy": policy,
            "package": package,
            "version": version,
            "cases": self.args.cases,
            "differ": differ,
            "explained": len(explained),
            "reasons": sorted(set(explained)),
        }
        print(json.dumps(row), flush=True)


def drive_safely(drive: Drive, params: Params, steps: int, overflows: list[int]) -> Run:
    try:
        return drive(params, steps, overflows)
    except Refused as error:
        cause = error.__cause__ or error
        return Run(refused=(type(cause).__name__, str(cause)))
