# SPDX-License-Identifier: Apache-2.0
"""What a recorder observes while the training runs, besides recording it."""

from __future__ import annotations

from typing import Any

from .._errors import UsageError
from ._sinks import Part
from ._skipped import Drift, SkippedSteps, tells_skips
from ._watch import Watch
from ._watching import Counting, Watching


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
