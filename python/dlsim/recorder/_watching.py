# SPDX-License-Identifier: Apache-2.0
"""Computes the figures of watched steps, shows them and raises alarm."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from .._core import STEP_PATH, HeldStep
from .._values import text_of
from ..runs import _bridge
from ._sinks import Part, counted_parts
from ._skipped import Drift, SkippedSteps
from ._watch import AlertStop, Figures, Watch, target_of

_LOG = logging.getLogger("dlsim.recorder")

# Of a step's numbers, those that say nothing of it here.
_NO_FIGURES = ("step", "next_scale")

Counting = Callable[[str], AbstractContextManager[None]]


class Watching:
    """A watch at work. `counting` guards what may fail without stopping the training."""

    def __init__(
        self,
        watch: Watch,
        skipped: SkippedSteps | None,
        drift: Drift | None,
        counting: Counting,
    ) -> None:
        self._watch = watch
        self._skipped, self._drift = skipped, drift
        self._counting = counting
        self._targets = [target_of(one) for one in watch.targets()]
        self._alerts = watch.parsed_alerts()
        self._raised: set[str] = set()  # those that were true of the last watched step
        self._next = 0  # the first step that may be watched next
        self._scale = 1.0
        self._format = text_of("watch.format", watch.format)
        self._held = HeldStep()
        self._counts = False  # whether parts of a step are held
        if self._alerts:
            names = list(self._figures_of_nothing())
            for alert, _ in self._alerts:
                alert.require(names)

    def add(self, step: int, part: Part) -> None:
        """Counts a part of a step, if the step is watched; what fails loses the step's figures."""
        if step < self._next:
            return
        with self._counting(f"watch of step {step}"):
            self._count(part, step)
            return
        self.drop()
        self._next = step + 1

    def _count(self, part: Part, step: int) -> None:
        self._counts, self._scale = True, part.scale
        for counted in counted_parts(part):
            self._held.add(step, counted)
            del counted  # free before the next are loaded

    def drop(self) -> None:
        """Forgets the parts of a step that is not complete."""
        self._held.drop()
        self._counts = False

    def finish(self, step: int) -> None:
        """Shows the figures of a step that was watched; raises AlertStop if an alert says so."""
        if not self._counts:
            return
        self._next = step + self._watch.every
        figures: Figures = {}
        try:
            with self._counting(f"watch of step {step}"):
                figures = self._replayed()
        finally:
            self.drop()
        if not figures:
            return
        for show in self._targets:
            with self._counting(f"watch of step {step}"):
                show(step, dict(figures))
        self._alarm(step, figures)

    def _replayed(self) -> Figures:
        words = ["replay", f"--format={self._format}", "--policy=static", "--quiet"]
        words.append(f"--set=loss_scale={text_of('watch', self._scale)}")
        found = _bridge.run(words, [STEP_PATH], step=self._held).result()
        return {**figures_of(found.data), **self._of_scaler()}

    def _of_scaler(self) -> Figures:
        skipped, drift = self._skipped, self._drift
        return {
            "skipped_steps": None if skipped is None else skipped.count,
            "longest_skip_run": None if skipped is None else skipped.longest_run,
            "schedule_ahead": None if drift is None else drift.steps,
        }

    def _figures_of_nothing(self) -> Figures:
        """Returns all figures, of a step of zeros."""
        import torch

        zeros = {name: torch.zeros(1) for name in ("0.grad", "0.act_grad")}
        self._count(Part(None, 1.0, {}, zeros), 0)
        figures = self._replayed()
        self.drop()
        return figures

    def _alarm(self, step: int, figures: Figures) -> None:
        now = {alert.text for alert, _ in self._alerts if alert.holds(figures[alert.figure])}
        new, self._raised = now - self._raised, now
        stops = []
        for alert, action in self._alerts:
            if alert.text not in new:
                continue
            text = f"step {step}: {alert.figure} is {figures[alert.figure]}, alert {alert.text}"
            if callable(action):
                with self._counting(f"alert {alert.text}"):
                    action(step, dict(figures))
            elif action == "warn":
                _LOG.warning("dlsim recorder: %s", text)
            else:
                stops.append(text)
        if stops:
            raise AlertStop(stops[0])


def figures_of(replayed: Mapping[str, Any]) -> Figures:
    """Returns the figures of the JSON of a replay of one step in one format at its scale."""
    run, verdict = replayed["runs"][0], replayed["verdict"]["formats"][0]
    _, low, high = verdict["steps"][0] if verdict["steps"] else (None, None, None)
    gradients = [one for one in run["tensors"] if one["role"] not in ("act", "value")]
    dead = [one for one in gradients if one["zeros"] + one["underflow"] == one["elements"]]
    return {
        **dict(_numbers(run["steps"][0])),
        "window_low": low,
        "window_high": high,
        "tensors_at_risk": len(verdict["tensors_at_risk"]),
        "dead_tensors": len(dead),
    }


def _numbers(found: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    """Yields the numbers of a step's object, those of an object inside with its name and a dot."""
    for key, value in found.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}.")
        elif value is None or value in ("inf", "-inf", "nan"):
            yield prefix + key, None if value is None else float(value)
        elif type(value) in (int, float) and key not in _NO_FIGURES:
            yield prefix + key, value
