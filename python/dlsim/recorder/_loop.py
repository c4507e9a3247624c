# SPDX-License-Identifier: Apache-2.0
"""The steps of a training loop, as the recorder's calls make them: numbers, parts, completion."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from .._errors import Error
from .._values import whole_number
from ..traces._writer import checked_grad_scale
from ._background import Background
from ._modes import in_recorder, is_rerun
from ._pace import Pace
from ._report import Report
from ._scaler import scale_of
from ._selection import Choice
from ._snapshot import described
from ._sources import Sources
from ._watch import Watching


class Loop:
    """Takes what each step leaves, by `sources`, to where `steps` writes it.

    `attach` says what they are; before that nothing is called but what hooks call. What fails is
    counted in `report`, or raised if `raises`.
    """

    def __init__(
        self,
        choice: Choice,
        report: Report,
        steps: Background,
        pace: Pace,
        *,
        scaler: Any,
        micro_steps: bool,
        records: bool,
        raises: bool,
    ) -> None:
        self._choice, self._report, self._steps = choice, report, steps
        self._pace = pace
        self._scaler, self._micro_steps = scaler, micro_steps
        self._records, self._raises = records, raises
        self._next = 0
        self._is_known = False  # whether the first step has a number, which its call may state
        self._last = -1  # the last step recorded here
        self._micro = 0  # the coming micro-step
        self._incomplete = self._ended = False
        self.called = False  # whether any step was taken
        self._taken = False  # whether the last call recorded a step, which nobody has revoked

    def attach(self, sources: Sources, watching: Watching | None) -> None:
        """Says what gives the steps, and what looks at them."""
        self._sources, self._watching = sources, watching

    def start(self) -> None:
        """Begins the first step."""
        self._begin(None)

    def end(self) -> None:
        """Records nothing from now on."""
        self._ended = True
        self._choice.end()

    def counting(self, doing: str) -> AbstractContextManager[None]:
        """Counts an error of the block, or lets it pass."""
        return self._report.counting(doing, raises=self._raises)

    def count(self, error: Error) -> None:
        """Counts an error of the step."""
        with self.counting(f"step {self._next}"):
            raise error

    def guarded(self, action: Callable[[], None]) -> None:
        """Runs what a hook does."""
        if is_rerun():
            return
        began = time.perf_counter()
        try:  # not `counting`: this is called for each tensor
            with in_recorder():
                action()
        except Exception as error:
            if self._raises:
                raise
            self._report.count(error, f"step {self._next}")
        finally:
            self._pace.in_hook(time.perf_counter() - began)

    def revoke(self, error: Error) -> None:
        """Counts an error of the step that was taken last, and removes what was recorded of it."""
        if not self._taken:
            return
        self._taken = False
        with self.counting(f"step {self._last}"):
            self._report.count(error, f"step {self._last}")
            if self._steps.revoke(self._last):
                self._report.revoke()
        if self._raises:
            raise error

    def spill(self) -> None:
        """Puts aside what the step has left so far."""
        before, self._incomplete = self._incomplete, True
        self._steps.put_aside(self._sources.take_early())
        self._incomplete = before

    def restart(self) -> None:
        """Forgets what was seen so far: an optimizer has stepped, so it is of a step before."""
        self._sources.restart()
        self._steps.forget_spilled()

    def micro_step(self, scale: Any, step: int | None, metadata: Mapping[str, object]) -> None:
        """Records a micro-step."""
        began = time.perf_counter()
        self._sources.end_forward()
        self._take_number(step)
        stated = self._stated(scale)
        if self._choice.records:
            added = self._add(stated, metadata)
            self._incomplete = not added or self._incomplete
            self._micro += 1
        self._pace.in_hook(time.perf_counter() - began)

    def step(
        self,
        scale: Any,
        step: int | None,
        metadata: Mapping[str, object],
        again: Callable[[], Any] | None = None,
    ) -> int:
        """Records a step; returns its number."""
        with self._pace.call():
            before = self._sources.seconds_again
            self._sources.runs_again(metadata.get("loss"), again)
            try:
                return self._take(scale, step, metadata)
            finally:
                self._sources.runs_again(None, None)
                self._pace.aside(self._sources.seconds_again - before)

    def _take(self, scale: Any, step: int | None, metadata: Mapping[str, object]) -> int:
        self.called = True
        self._sources.end_forward()
        self._take_number(step)
        stated = None if self._micro_steps else self._stated(scale)
        taken = self._next
        if self._choice.records and not self._ended:
            if self._micro_steps:
                complete = self._micro > 0 and not self._incomplete
                if self._micro == 0:
                    self.count(Error("micro_step was not called"))
                elif complete and self._sources.holds_micro_step():
                    complete = False
                    self.count(Error("micro_step was not called after the last backward pass"))
            else:
                complete = self._add(stated, metadata) and not self._incomplete
            self._finish(complete)
            self._pace.took(taken, forward=self._choice.forward)
        with self.counting(f"step {self._next}"):
            self._begin(self._next + 1)
        return taken

    def _begin(self, step: int | None) -> None:
        self._next, self._micro, self._incomplete = step or 0, 0, False
        self._sources.clear()
        self._steps.forget_spilled()
        if self._records and not self._ended:
            self._choice.begin(step)
            self._sources.begin()

    def _take_number(self, step: int | None) -> None:
        """Makes `step` the number of this one, where it is stated."""
        with self.counting(f"step {self._next}"):
            if step is not None and step != self._next:
                whole_number("step", step, 0)
                expected, self._next = self._next, step
                if self._micro > 0:
                    self._incomplete = True
                    raise Error(
                        f"micro-steps were recorded as those of step {expected}, expected "
                        f"step={step} in the call of the first"
                    )
            elif self._is_known:
                return
            self._is_known = True
            if self._records and not self._ended:
                self._choice.begin(self._next)

    def _stated(self, scale: Any) -> float | None:
        """Returns the stated scale; None if it is not available or is not that of the gradients."""
        if self._choice.inference:
            return 1.0
        if not self._choice.records and (scale is not None or self._scaler is not None):
            return None
        if scale is None and self._scaler is None:
            scale_of(None, None)  # raises: a loop that forgets it must stop
        with self.counting(f"step {self._next}"):
            self._sources.check_scale(scale)
            return scale_of(scale, self._scaler)
        return None

    def _add(self, scale: float | None, metadata: Mapping[str, object]) -> bool:
        """Hands the gradients over as a part of the step; returns whether that worked."""
        if scale is None:
            return False
        with self.counting(f"step {self._next}"):
            if self._next <= self._last:
                raise Error(f"steps must ascend, expected more than {self._last}")
            grad_scale = checked_grad_scale(scale)
            self._steps.open()
            if self._micro == 0:
                self._steps.begin()
            else:
                self._steps.wait()
            micro = self._micro if self._micro_steps else None
            if self._micro == 0:
                metadata = {**metadata, **self._report.refusals()}
            part = self._sources.take(self._next, micro, grad_scale, metadata)
            part = self._steps.completed(part)
            self._steps.add(self._next, part)
            if self._watching is not None:
                self._watching.add(self._next, part)
            self._report.tensors = described(part, self._report.tensors)
            return True
        return False

    def _finish(self, complete: bool) -> None:
        self._taken = False
        with self.counting(f"step {self._next}"):
            if not complete:
                self._report.refuse()
                self._steps.drop()
                if self._watching is not None:
                    self._watching.drop()
                return
            self._last = self._next
            self._steps.finish(self._next)
            self._report.recorded()
            self._taken = True
