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
from ..runs import _bridge
from ._sinks import Part, counted_parts

# -- Which steps a GradScaler skips, and learning-rate schedules that go on all the same

_LOG = logging.getLogger("dlsim.recorder")


class SkippedSteps:
    """Counts the steps that a scaler skips, from now on.

    `scaler` is a GradScaler of torch or of dlsim.amp; it is read after each call of its `update`.
    `step_was_skipped` then says whether the last optimizer step was skipped, `count` is the number
    of skipped steps, `run` how many of the last steps were skipped in a row, and `longest_run` the
    largest such number. To keep a scheduler in step with its optimizer:

        scaler.update()
        if not skipped.step_was_skipped:
            scheduler.step()

    Raises UsageError for another scaler.
    """

    def __init__(self, scaler: Any) -> None:
        if not tells_skips(scaler):
            raise UsageError(
                "scaler: does not report skipped steps, expected a GradScaler of torch or of "
                f"dlsim.amp, got {type(scaler).__name__}"
            )
        self.step_was_skipped = False
        self.count = self.run = self.longest_run = 0
        self._scaler = scaler
        self._before = _own_count(scaler)
        self._update = WatchedUpdate(scaler, self._note)

    def close(self) -> None:
        """Leaves the scaler as it was."""
        self._update.close()

    def _note(self, overflows: bool) -> None:
        now = _own_count(self._scaler)
        self.step_was_skipped = overflows or now > self._before
        self._before = now
        self.count += self.step_was_skipped
        self.run = self.run + 1 if self.step_was_skipped else 0
        self.longest_run = max(self.run, self.longest_run)


class WatchedUpdate:
    """Calls `note` whenever the `update` of a scaler was called, until it is closed."""

    def __init__(self, scaler: Any, note: Callable[[bool], None]) -> None:
        self._scaler = scaler
        self._before = vars(scaler).get("update")  # that of another who looks
        self._ours = scaler.update = _Update(scaler, note)

    def close(self) -> None:
        """Leaves the scaler as it was."""
        if vars(self._scaler).get("update") is self._ours:
            del self._scaler.update
            if self._before is not None:
                self._scaler.update = self._before


class _Update:
    """The `update` of a scaler, looked at. Copies and pickles of the scaler have their own."""

    def __init__(self, scaler: Any, note: Callable[[bool], None]) -> None:
        self._scaler, self._update, self._note = scaler, scaler.update, note

    def __call__(self, *args: Any, **options: Any) -> Any:
        overflows = _overflows(self._scaler)  # update forgets them
        result = self._update(*args, **options)
        self._note(overflows)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._scaler, "update")


def tells_skips(scaler: Any) -> bool:
    """Returns whether SkippedSteps knows how a scaler says that it skipped."""
    return callable(getattr(scaler, "update", None)) and (
        hasattr(scaler, "_per_optimizer_states") or hasattr(scaler, "get_num_skipped_steps")
    )


def _own_count(scaler: Any) -> int:
    """Returns what a scaler has counted by itself: that of dlsim.amp, and Cerebras' own."""
    count = getattr(scaler, "get_num_skipped_steps", None)
    return int(count()) if callable(count) else 0


def _overflows(scaler: Any) -> bool:
    """Returns whether torch's scaler has found infinities or NaN in the gradients of the step."""
    states = getattr(scaler, "_per_optimizer_states", None)
    return any(
        bool(found.item())
        for state in (states.values() if isinstance(states, Mapping) else ())
        for found in state["found_inf_per_device"].values()
    )


class Drift:
    """Notices a schedule of learning rates that advances at every step, also at skipped ones.

    It runs ahead then: warm-up and decay end before the optimizer has taken their steps. `steps`
    counts those by which it does.
    """

    def __init__(self, scheduler: Any, skipped: SkippedSteps) -> None:
        scheduler = getattr(scheduler, "scheduler", scheduler)  # Accelerate's wraps that of torch
        if not isinstance(getattr(scheduler, "last_epoch", None), int):
            raise UsageError(
                "scheduler: expected one of torch.optim.lr_scheduler, got "
                f"{type(scheduler).__name__}"
            )
        self.steps = 0
        self._scheduler = scheduler
        self._skipped = skipped
        self._seen: tuple[int, int] | None = None
        self._each_step = True  # it advances at each step, and not with the epochs

    def look(self, step: int) -> None:
        """Looks at what has happened since the last call, which was at the step before."""
        now = (self._scheduler.last_epoch, self._skipped.count)
        before, self._seen = self._seen, now
        if before is None or not self._each_step:
            return
        if now[0] == before[0]:
            self._each_step = now[1] > before[1]  # one that waits for skipped steps is right
        elif now[1] > before[1]:
            self.steps += 1
            if self.steps == 1:
                _LOG.warning(
                    "dlsim recorder: the step before %d was skipped and the learning rate's "
                    "schedule advanced all the same; call scheduler.step() only if "
                    "dlsim.recorder.SkippedSteps(scaler).step_was_skipped is false",
                    step,
                )


# -- What a recorder tells of the steps while the training runs: where to, and when to raise alarm

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
    tenth and of tensors that are all zeros; `skipped_steps` and `longest_skip_run` of the
    recorder's `scaler`; and `schedule_ahead`, how many steps the recorder's `scheduler` is ahead of
    it. A figure that is not known is None.

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


def watch_of(watch: Any) -> Watch | None:
    """Returns what `Recorder` was given as a Watch, with defaults around targets alone."""
    return watch if watch is None or isinstance(watch, Watch) else Watch(to=watch)


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


# -- What a recorder observes while the training runs, besides recording it


class Live:
    """What a recorder looks at between steps: skips, the schedule of learning rates, the watch."""

    def __init__(
        self, watch: Watch | None, scaler: Any, scheduler: Any, counting: Counting
    ) -> None:
        self._skipped = self._drift = self._watching = None
        if (watch is not None or scheduler is not None) and tells_skips(scaler):
            self._skipped = SkippedSteps(scaler)
        if scheduler is not None:
            if self._skipped is None:
                raise UsageError(
                    "scheduler: nothing says which steps are skipped, expected scaler, a "
                    "GradScaler of torch or of dlsim.amp"
                )
            self._drift = Drift(scheduler, self._skipped)
        if watch is not None:
            self._watching = Watching(watch, self._skipped, self._drift, counting)

    def look(self, step: int) -> None:
        """Looks at what has happened since the step before."""
        if self._drift is not None:
            self._drift.look(step)

    def add(self, step: int, part: Part) -> None:
        """Takes a part of a recorded step."""
        if self._watching is not None:
            self._watching.add(step, part)

    def drop(self) -> None:
        """Forgets the parts of a step that is not complete."""
        if self._watching is not None:
            self._watching.drop()

    def finish(self, step: int) -> None:
        """Shows what was recorded; raises AlertStop if an alert says so."""
        if self._watching is not None:
            self._watching.finish(step)

    def close(self) -> None:
        """Leaves the scaler as it was."""
        self.drop()
        if self._skipped is not None:
            self._skipped.close()
