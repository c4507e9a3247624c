# SPDX-License-Identifier: Apache-2.0
"""What a recorder tells of the steps while the training runs: where to, and when to raise alarm."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from .._core import STEP_PATH, Alert, Format, HeldStep
from .._errors import Error, UsageError
from .._values import text_of, whole_number
from ..runs import call
from ._order import SkippedSteps, tells_skips
from ._output import Part, counted_parts

_LOG = logging.getLogger("dlsim.recorder")

Figures = dict[str, float | None]
Target = Callable[[int, Figures], object]


class AlertStop(Error):
    """An alert with the action "stop"; it leaves `Recorder.step`, and what was recorded stays."""


AlertStop.__module__ = "dlsim.recorder"


@dataclass(frozen=True)
class Watch:
    """Figures of a training while it runs: `Recorder(..., watch=Watch(...))`.

    `to` says where they go, one target or several: a TensorBoard SummaryWriter, a run of W&B, or a
    callable that takes the step and the figures. They are computed for the first recorded step and
    then once every `every` steps, by a replay of that step in `format` at its loss scale; their
    names and meanings are those in its JSON: `mean_harm`, `worst_harm`, `underflow_fraction`, ...
    In addition there are `window_low` and `window_high`, the lowest and the highest safe loss scale
    of the step; `tensors_at_risk` and `dead_tensors`, the numbers of tensors with a harm above a
    tenth and of tensors that are all zeros; and `skipped_steps` and `longest_skip_run` of the
    recorder's `scaler`. A figure that is not known is None.

    `alerts` maps expressions FIGURE OP NUMBER, such as "scale<=1", to what is done when one becomes
    true: "warn" logs it, "stop" raises AlertStop from `Recorder.step`, a callable is called with
    step and figures. OP is <, <=, >, >=, == or !=; NUMBER also 2^-14, and `none` after == and !=.
    """

    to: Any = ()
    every: int = 100
    format: str | Format = "fp16"
    alerts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the arguments; raises UsageError and TypeError."""
        whole_number("watch.every", self.every, 1)
        for target in self.targets():
            target_of(target)
        self.parsed_alerts()

    def targets(self) -> list[Any]:
        """Returns `to` as a list."""
        return list(self.to) if isinstance(self.to, (list, tuple)) else [self.to]

    def parsed_alerts(self) -> list[tuple[Alert, Any]]:
        """Returns the alerts, parsed, with their actions."""
        for text, action in self.alerts.items():
            if action not in ("warn", "stop") and not callable(action):
                raise UsageError(
                    f"watch.alerts: {text}: expected 'warn', 'stop' or a callable, got {action!r}"
                )
        return [(Alert(text, "watch.alerts"), do) for text, do in self.alerts.items()]


def target_of(target: Any) -> Target:
    """Returns the function that shows figures; raises TypeError for what takes none."""
    if callable(getattr(target, "add_scalar", None)):  # torch.utils.tensorboard, tensorboardX

        def to_tensorboard(step: int, figures: Figures) -> None:
            for name, value in figures.items():
                if value is not None:
                    target.add_scalar(f"dlsim/{name}", value, step)

        return to_tensorboard
    if callable(getattr(target, "define_metric", None)) and callable(getattr(target, "log", None)):
        defined: list[bool] = []

        def to_wandb(step: int, figures: Figures) -> None:
            if not defined:  # the run counts its own steps, which are others
                target.define_metric("dlsim/*", step_metric="dlsim/step")
                defined.append(True)
            known = {f"dlsim/{name}": value for name, value in figures.items() if value is not None}
            target.log({**known, "dlsim/step": step})

        return to_wandb
    if callable(target):
        return target  # type: ignore[no-any-return]
    raise TypeError(
        f"watch: expected a SummaryWriter, a run of W&B or a callable, got {type(target).__name__}"
    )


# -- Computes the figures of watched steps, shows them and raises alarm

# Of a step's numbers, those that say nothing of it here.
_NO_FIGURES = ("step", "next_scale")

Counting = Callable[[str], AbstractContextManager[None]]


class Watching:
    """A watch at work, or targets alone, for which its defaults hold.

    `counting` guards what may fail without stopping the training.
    """

    def __init__(self, watch: Any, scaler: Any, counting: Counting) -> None:
        self._watch = watch = watch if isinstance(watch, Watch) else Watch(to=watch)
        self._skipped = SkippedSteps(scaler) if tells_skips(scaler) else None
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
        settings = {"loss_scale": self._scale}
        options = {"formats": self._format, "policies": "static", "settings": settings}
        found = call("replay", [STEP_PATH], {**options, "quiet": True}, self._held)
        skipped = self._skipped
        return {
            **figures_of(found),
            "skipped_steps": None if skipped is None else skipped.count,
            "longest_skip_run": None if skipped is None else skipped.longest_run,
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

    def close(self) -> None:
        self.drop()
        if self._skipped is not None:
            self._skipped.close()


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
        elif value is None or (type(value) in (int, float) and key not in _NO_FIGURES):
            yield prefix + key, value
