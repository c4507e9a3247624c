# SPDX-License-Identifier: Apache-2.0
"""What results lack and their trace can tell: the command runs once more and must find the same."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._binary import command_path
from .._errors import Error, InputError, UsageError
from ._inputs import Result, Run, check_result, read_result

# Options of the record of a replay that are options of the command under nearly the same name.
_OPTIONS = (
    "rounding",
    "overflow",
    "subnormals",
    "seed",
    "check",
    "accumulate",
    "on_fatal",
    "tensors",
    "max_gradient_norm",
    "max_gradient_value",
    "clip_rule",
    "clip_at",
    "grad_accum_steps",
)


def run_command(arguments: Sequence[str]) -> None:
    """Runs the C++ command; raises what its exit code means, with its own line."""
    process = subprocess.run(
        [command_path(), *arguments], capture_output=True, text=True, errors="replace", check=False
    )
    if process.returncode == 0:
        return
    lines = process.stderr.strip().splitlines()
    line = lines[-1].removeprefix(f"dlsim {arguments[0]}: ") if lines else "no message"
    kinds = {2: UsageError, 3: InputError}
    raise kinds.get(process.returncode, Error)(line)


def results_of_trace(trace: str, formats: Sequence[str], policies: Sequence[str]) -> list[Result]:
    """Replays and tunes a trace or profile; raises as the command does."""
    chosen = [word for name in formats for word in ("--format", name)]
    tried = [word for name in policies for word in ("--policy", name)]
    with tempfile.TemporaryDirectory(prefix="dlsim-report-") as folder:
        results = []
        for command, more in (("replay", [*tried, "--heat-map"]), ("tune", [])):
            path = Path(folder) / f"{command}.json"
            run_command([command, trace, *chosen, *more, "--json", str(path), "--quiet"])
            results.append(check_result(trace, read_result(path).data))
    return results


def add_heat_maps(runs: Sequence[Run], paths: Sequence[str]) -> str | None:
    """Gives a replay's runs the heat maps that they lack; returns why not if it cannot.

    The trace is replayed with the parameters of the runs, format by format. Runs that then go
    another way than the result says get no map.
    """
    by_format: dict[str, list[Run]] = {}
    for run in runs:
        by_format.setdefault(run.format, []).append(run)
    problems = []
    with tempfile.TemporaryDirectory(prefix="dlsim-report-") as folder:
        for i, (name, group) in enumerate(by_format.items()):
            path = Path(folder) / f"{i}.json"
            arguments = ["replay", *paths, "--format", name, *_arguments(group)]
            try:
                run_command([*arguments, "--heat-map", "--json", str(path), "--quiet"])
                problems += _take(group, json.loads(path.read_text(encoding="utf-8"))["runs"])
            except Error as error:
                problems.append(str(error))
    return problems[0] if problems else None


def _arguments(runs: Sequence[Run]) -> list[str]:
    options = runs[0].result.data.get("options")
    options = options if isinstance(options, dict) else {}
    arguments = []
    for key in _OPTIONS:
        if key in options:
            arguments += [f"--{key.replace('_', '-')}", _text(options[key])]
    for name, pattern in (options.get("optimizers") or {}).items():
        arguments += ["--optimizer", f"{name}={pattern}"]
    for state in options.get("state") or []:
        arguments += ["--state", state]
    if "resume_at" in options:
        arguments += ["--resume-at", _text(options["resume_at"])]
    for run in runs:
        if run.data.get("resume"):
            continue
        arguments += ["--policy", run.data["policy"]]
        for key, value in (run.data.get("params") or {}).items():
            arguments += ["--set", f"{run.data['policy']}.{key}={_text(value)}"]
    return arguments


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else "none" if value is None else str(value)


def _take(runs: Sequence[Run], again: Sequence[Mapping[str, Any]]) -> list[str]:
    problems = []
    for run, other in zip(runs, again, strict=False):
        if _path(run.data) == _path(other) and "heat_map" in other:
            run.data["heat_map"] = other["heat_map"]
        elif run.data["steps"]:
            problems.append(f"the trace no longer gives the result of {run.label}")
    return problems


def _path(run: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    keys = ("step", "scale", "skipped", "underflow", "overflow")
    return [tuple(step.get(key) for key in keys) for step in run["steps"]]
