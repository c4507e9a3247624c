# SPDX-License-Identifier: Apache-2.0
"""The record of a training under a loss-scaling policy, under the names of dlsim.replay/1."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .._core import COUNTER_KEYS, LossScaler, role_of
from ..arrays._tensor_stats import TensorStats
from ..emulation._rounding import add_stats
from ..results import Result


class _StepTotals(NamedTuple):
    gradients: TensorStats | None
    activations: TensorStats | None


@dataclass
class Run:
    """What happened in a training under a format and a policy: docs/results.md names the keys.

    `steps` are objects of dlsim.replay/1 with `loss` and without harm, `tensors` counters
    over all steps by gradient.
    """

    format: str
    policy: str
    params: dict[str, Any]
    finite_test: str
    options: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    tensors: dict[str, TensorStats] = field(default_factory=dict)
    stopped_at_step: int | None = None
    _totals: list[_StepTotals] = field(default_factory=list, repr=False)
    _first_overflow: dict[str, int] = field(default_factory=dict, repr=False)
    _worst_energy: dict[str, float] = field(default_factory=dict, repr=False)

    @classmethod
    def begun(cls, scaler: LossScaler, format: str, options: dict[str, Any]) -> Run:
        """Returns a run without steps, under a policy that was just made."""
        return cls(
            format=format,
            policy=scaler.policy,
            params=dict(scaler.parameters),
            finite_test=scaler.finite_test,
            options=options,
            notes=list(scaler.notes),
        )

    @property
    def losses(self) -> list[float]:
        """The loss of each step, without the loss scale."""
        return [step["loss"] for step in self.steps]

    @property
    def skipped(self) -> list[int]:
        """The numbers of the steps on which the optimizer did not step."""
        return [step["step"] for step in self.steps if step["skipped"]]

    def add(
        self,
        step: dict[str, Any],
        gradients: Mapping[str, TensorStats],
        activations: Mapping[str, TensorStats] = {},
    ) -> None:
        """Adds a step, and the counters of its parameter and of its activation gradients."""
        for name, part in [*gradients.items(), *activations.items()]:
            self.tensors[name] = add_stats(self.tensors.get(name), part)
            if part.overflow:
                self._first_overflow.setdefault(name, step["step"])
            worst = self._worst_energy.setdefault(name, 0.0)
            if not step["skipped"]:
                self._worst_energy[name] = max(worst, part.energy_lost)
        totals = _StepTotals(_sum(gradients.values()), _sum(activations.values()))
        self._totals.append(totals)
        self.steps.append({**step, **_counters(totals)})

    def summary(self) -> dict[str, Any]:
        """Returns the summary of the run; without steps, all that is null in dlsim.replay/1."""
        applied = [step for step in self.steps if not step["skipped"]]
        totals = _StepTotals(
            _sum(step.gradients for step in self._totals),
            _sum(step.activations for step in self._totals),
        )
        scales = [step["scale"] for step in self.steps]
        return {
            "steps": len(self.steps),
            "skipped_steps": len(self.skipped),
            "longest_skip_run": self._longest_skip_run(),
            "hopeless_steps": sum(not s.get("lower_scale_helps", True) for s in self.steps),
            "nonfinite_steps": sum(not step["finite"] for step in self.steps),
            "worst_step_energy_lost": max((s["energy_lost"] for s in applied), default=0.0),
            "first_applied_step": applied[0]["step"] if applied else None,
            "stopped_at_step": self.stopped_at_step,
            "final_scale": self.steps[-1]["next_scale"] if self.steps else None,
            "min_scale": min(scales, default=None),
            "max_scale": max(scales, default=None),
            **_counters(totals),
        }

    def data(self) -> dict[str, Any]:
        """Returns the run as one of the `runs` of dlsim.replay/1, ready for JSON."""
        run = {
            "format": self.format,
            "policy": self.policy,
            "params": self.params,
            "finite_test": self.finite_test,
            "notes": self.notes,
            "summary": self.summary(),
            "events": self.events,
            "steps": self.steps,
            "tensors": [
                {
                    "name": name,
                    "role": role_of(name),
                    **_named(stats),
                    "worst_step_energy_lost": self._worst_energy[name],
                    "absmax": stats.absmax,
                    "first_overflow_step": self._first_overflow.get(name),
                }
                for name, stats in self.tensors.items()
            ],
        }
        return dict(_for_json(run))

    def _longest_skip_run(self) -> int:
        longest = row = 0
        for step in self.steps:
            row = row + 1 if step["skipped"] else 0
            longest = max(longest, row)
        return longest


def result_of(*runs: Run) -> Result:
    """Returns trainings as a result of the form dlsim.replay/1, for tables and `dlsim report`."""
    numbers = [step["step"] for run in runs for step in run.steps]
    trace = {
        "paths": ["training"],
        "steps": max((len(run.steps) for run in runs), default=0),
        "first_step": min(numbers, default=0),
        "last_step": max(numbers, default=0),
        "file_bytes": 0,
        "description": {"source": "trained under dlsim.closed_loop, not replayed"},
    }
    options = runs[0].options if runs else {}
    data = {"schema": "dlsim.replay/1", "trace": trace, "options": options}
    return Result((), {**data, "runs": [run.data() for run in runs]})


def _named(stats: TensorStats | None) -> dict[str, float]:
    return {key: 0 if stats is None else getattr(stats, key) for key in COUNTER_KEYS}


def _counters(totals: _StepTotals) -> dict[str, Any]:
    return {**_named(totals.gradients), "activations": _named(totals.activations)}


def _sum(parts: Iterable[TensorStats | None]) -> TensorStats | None:
    total: TensorStats | None = None
    for part in parts:
        total = total if part is None else add_stats(total, part)
    return total


def _for_json(value: Any) -> Any:
    """Writes numbers that JSON does not have as results.md says: inf, -inf, nan."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: _for_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_for_json(item) for item in value]
    return value
