# SPDX-License-Identifier: Apache-2.0
"""What loss scalers say: their scale, what they have unscaled, and which steps they skip."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from .._errors import UsageError

# Between an optimizer's hook and the scaler that calls it, wrappers may lie.
_FRAMES = 24

_NONE: Mapping[Any, Any] = {}


def scale_of(scale: Any, scaler: Any) -> float:
    """Returns the stated scale, or that of `scaler`; raises TypeError if there is neither.

    A scaler has `get_scale()` or `scale`, as those of torch, dlsim.amp and dlsim.LossScaler.
    """
    if scale is not None:
        return float(scale)
    if scaler is None:
        raise TypeError(
            "scale: missing, expected the loss scale that the gradients carry now: scale=1.0 if "
            "they are unscaled"
        )
    get_scale = getattr(scaler, "get_scale", None)
    return float(get_scale() if callable(get_scale) else scaler.scale)


def unscaled_in(scaler: Any) -> list[Any]:
    """Returns the optimizers, or their ids, whose gradients a GradScaler has unscaled in this step.

    Those of torch and of dlsim.amp say it; of others nothing is known.
    """
    found = []
    for optimizer, state in _states_of(scaler).items():
        stage = state.get("stage") if isinstance(state, Mapping) else state
        if getattr(stage, "name", "") in ("UNSCALED", "STEPPED"):
            found.append(optimizer)
    return found


def is_in_use(scaler: Any) -> bool:
    """Returns whether losses are multiplied by the scale of a GradScaler of torch or dlsim.amp."""
    return _states_of(scaler) is not _NONE and getattr(scaler, "_scale", None) is not None


def has_scaled_nothing(scaler: Any) -> bool:
    """Returns whether a GradScaler of torch is on, but has not multiplied any loss so far."""
    on = _states_of(scaler) is not _NONE and getattr(scaler, "_enabled", True)
    return bool(on) and hasattr(scaler, "_scale") and scaler._scale is None


def scaler_at_work() -> Any:
    """Returns the GradScaler of torch or dlsim.amp whose `step` runs in this thread, or None."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            break
        owner = frame.f_locals.get("self") if frame.f_code.co_name == "step" else None
        if _states_of(owner) is not _NONE and callable(getattr(owner, "get_scale", None)):
            return owner
        frame = frame.f_back
    return None


def _states_of(scaler: Any) -> Mapping[Any, Any]:
    states = getattr(scaler, "_per_optimizer_states", getattr(scaler, "_states", None))
    return states if isinstance(states, Mapping) else _NONE


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
