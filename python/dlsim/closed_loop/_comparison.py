# SPDX-License-Identifier: Apache-2.0
"""Compares what a replay predicted with what happened in training."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from .._core import Format
from .._text import percent_text, scale_text
from ..runs import replay
from ._run import Run

Settings = Mapping[str, object]


def predict(
    trace: str | os.PathLike[str],
    *,
    format: str | Format = "cb16",
    policy: str = "cerebras-2.10",
    settings: Settings | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Replays a recorded trace: one of the `runs` of dlsim.replay/1, to compare with a Run.

    `options` are those of dlsim.replay.
    """
    values = {key: setting_text(value) for key, value in (settings or {}).items()}
    result = replay(trace, formats=str(format), policies=policy, settings=values, **options)
    run: dict[str, Any] = result.data["runs"][0]
    return run


def compare(predicted: Mapping[str, Any], observed: Run) -> dict[str, Any]:
    """Returns pairs: what a replay predicted (one of its `runs`), and what happened.

    `first_difference` is the first step with another scale or another skip, None if all agree;
    `same_skips` counts the steps that both skipped; `zero_fraction` is the share of the finite
    gradients that are zero after rounding, whether they were already zero before or not.
    """
    expected, found = predicted["summary"], observed.summary()
    keys = (
        "steps",
        "skipped_steps",
        "first_applied_step",
        "final_scale",
        "underflow_fraction",
        "worst_step_energy_lost",
    )
    skipped = {step["step"] for step in predicted["steps"] if step["skipped"]}
    return {
        "format": observed.format,
        "policy": observed.policy,
        "params": observed.params,
        **{key: (expected[key], found[key]) for key in keys},
        "zero_fraction": (_zero_fraction(expected), _zero_fraction(found)),
        "same_skips": len(skipped & set(observed.skipped)),
        "first_difference": _first_difference(predicted["steps"], observed.steps),
        "final_loss": observed.losses[-1] if observed.steps else math.nan,
    }


def comparison_table(pairs: Iterable[tuple[str, Mapping[str, Any], Run]], last: int = 20) -> str:
    """Returns a Markdown table of predictions and what happened, as `predicted / observed`.

    A pair has a title for the policy, the run of a replay, and the run that really trained. The
    final loss is the mean over the `last` steps.
    """
    lines = [
        "| format | policy | skipped steps | of these, the same | first applied | final scale "
        "| first difference | underflow | zero after rounding | worst energy lost | final loss |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for title, predicted, observed in pairs:
        row = compare(predicted, observed)
        difference = row["first_difference"]
        cells = [
            observed.format,
            title,
            _pair(row["skipped_steps"], str),
            str(row["same_skips"]),
            _pair(row["first_applied_step"], lambda step: "never" if step is None else str(step)),
            _pair(row["final_scale"], lambda scale: scale_text(float(scale))),
            "none" if difference is None else f"step {difference}",
            _pair(row["underflow_fraction"], percent_text),
            _pair(row["zero_fraction"], percent_text),
            _pair(row["worst_step_energy_lost"], percent_text),
            f"{mean_loss(observed, last):.4g}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def mean_loss(run: Run, last: int = 20) -> float:
    """Returns the mean loss over the `last` steps; NaN without steps."""
    tail = run.losses[-last:]
    return sum(tail) / len(tail) if tail else math.nan


def _first_difference(
    predicted: list[dict[str, Any]], observed: list[dict[str, Any]]
) -> int | None:
    for expected, found in zip(predicted, observed, strict=False):
        same_scale = float(expected["scale"]) == float(found["scale"])
        if not same_scale or expected["skipped"] != found["skipped"]:
            return int(found["step"])
    if len(predicted) == len(observed):
        return None
    longer = max(predicted, observed, key=len)
    return int(longer[min(len(predicted), len(observed))]["step"])


def setting_text(value: object) -> str:
    """Returns a parameter of a policy as `--set` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _zero_fraction(counters: Mapping[str, Any]) -> float:
    finite = counters["elements"] - counters["nonfinite"]
    zeros = counters["zeros"] + counters["underflow"]
    return zeros / finite if finite else 0.0


def _pair(values: tuple[Any, Any], text: Any) -> str:
    return f"{text(values[0])} / {text(values[1])}"
