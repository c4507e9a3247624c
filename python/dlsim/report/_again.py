# SPDX-License-Identifier: Apache-2.0
"""What results lack and their trace can tell: the command runs once more and must find the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._core import scaled_format_names
from .._errors import Error
from ..runs import _bridge
from ..runs._options import arguments_of
from ._inputs import Run, ShownResult, check_result

# Options in the record of a replay that are keywords of the same name.
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
    "optimizers",
    "resume_at",
)


def results_of_trace(
    trace: str, formats: Sequence[str], policies: Sequence[str]
) -> list[ShownResult]:
    """Replays and tunes a trace or profile; raises as the command does.

    Scaled formats have no loss scale to tune, and alone no policies and no heat maps.
    """
    tuned = [name for name in formats if not _is_scaled(name)]
    alone = bool(formats) and not tuned
    tried: dict[str, Any] = {} if alone else {"heat_map": True}
    if policies:
        tried["policies"] = policies
    calls = [arguments_of("replay", {"formats": formats, "quiet": True, **tried})]
    if not alone:
        calls.append(arguments_of("tune", {"formats": tuned, "quiet": True}))
    commands = ("replay", "tune")
    return [
        check_result(trace, _run([command, *chosen], [trace]))
        for command, chosen in zip(commands, calls, strict=False)
    ]


def _is_scaled(name: str) -> bool:
    return name.partition(":")[0] in scaled_format_names()


def _run(arguments: Sequence[str], paths: Sequence[str]) -> Any:
    """Runs the command; raises what its exit code means, with its own line."""
    found = _bridge.run(arguments, paths)
    found.check()
    return found.data


def add_heat_maps(runs: Sequence[Run], paths: Sequence[str]) -> str | None:
    """Gives a replay's runs the heat maps that they lack; returns why not if it cannot.

    The trace is replayed with the parameters of the runs, format by format. Runs that then go
    another way than the result says get no map.
    """
    by_format: dict[str, list[Run]] = {}
    for run in runs:
        by_format.setdefault(run.format, []).append(run)
    problems = []
    for group in by_format.values():
        try:
            problems += _take(group, _run(["replay", *_arguments(group)], paths)["runs"])
        except Error as error:
            problems.append(str(error))
    return problems[0] if problems else None


def _arguments(runs: Sequence[Run]) -> list[str]:
    found = runs[0].result.data.get("options")
    recorded = found if isinstance(found, dict) else {}
    fresh = [run.data for run in runs if not run.data.get("resume")]
    keywords = {
        **{key: recorded[key] for key in _OPTIONS if key in recorded},
        "formats": runs[0].format,
        "policies": [run["policy"] for run in fresh],
        "settings": {
            f"{run['policy']}.{key}": "none" if value is None else value
            for run in fresh
            for key, value in (run.get("params") or {}).items()
        },
        "heat_map": True,
        "quiet": True,
    }
    states = [f"--state={state}" for state in recorded.get("state") or ()]
    return arguments_of("replay", keywords) + states


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
