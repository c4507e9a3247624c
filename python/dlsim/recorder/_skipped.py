# SPDX-License-Identifier: Apache-2.0
"""Which steps a GradScaler skips, and learning-rate schedules that go on all the same."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from .._errors import UsageError

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
