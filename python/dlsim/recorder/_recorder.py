# SPDX-License-Identifier: Apache-2.0
"""The recorder: what a training loop calls."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from inspect import cleandoc
from typing import Any

from .._errors import Error, InputError, UsageError
from ..traces._writer import checked_grad_scale
from ._background import Background
from ._calls import Calls
from ._choice import Choice, models_of
from ._endings import OPEN, complete_abandoned, when_collected
from ._help import ARGUMENTS
from ._lending import lender_of
from ._live import Live
from ._metadata import check_still_scaled, scale_of
from ._on_device import check_on_device
from ._order import order_of
from ._output import description_of, one_of, output_of
from ._parts import Parts
from ._placement import Pieces
from ._ranks import ranks_of
from ._report import Report
from ._selection import Patterns, selections_of, whole_number
from ._sinks import Existing
from ._snapshot import HostCopies, described
from ._sources import Sources, gradients_of
from ._watch import watch_of


class Recorder:
    """Records the gradients of a model, step by step, as a trace or a profile.

    `with dlsim.Recorder(model, "run/") as rec:` then `rec.step(loss=loss, scale=scale)` in each
    step, after backward and before gradients are changed or cleared. `model` is a module or several
    by name. `path` is a directory, or a .dlprof file for a profile.

    Wrong arguments raise; after that nothing but a missing scale does: errors are counted, see
    `report()`, unless `on_error="raise"`.
    """

    def __init__(
        self,
        model: Any,
        path: str | os.PathLike[str],
        *,
        gradients: Patterns = "*",
        activations: Patterns = "*",
        exclude: Patterns = None,
        every: int = 1,
        start: int = 0,
        end: int | None = None,
        config: Mapping[str, Any] | str | None = None,
        sample: int | None = None,
        dtype: str | None = None,
        micro_steps: bool = False,
        copy: bool = True,
        on_device: bool = False,
        gradient_of: Callable[[Any], Any] | None = None,
        scaler: Any = None,
        scheduler: Any = None,
        first_step: int = 0,
        format: str | None = None,
        ladder: Mapping[str, Any] = {},
        existing: Existing = "refuse",
        distributed: str | None = None,
        rank: int | None = None,
        ranks: int | None = None,
        description: Mapping[str, Any] = {},
        dry_run: bool = False,
        watch: Any = None,
        on_error: str = "count",
    ) -> None:
        one_of("on_error", on_error, ("count", "raise"))
        complete_abandoned()
        models = models_of(model)
        self._choice = Choice(
            models,
            selections_of(
                config, gradients, activations, exclude, every=every, start=start, end=end
            ),
        )
        self._ranks = ranks_of(
            list(models.values()), distributed, rank, ranks, micro_steps=micro_steps
        )
        lender = lender_of(self._ranks, copy=copy or gradient_of is not None)
        copies = HostCopies(dtype, sample, lender, borrowed=not micro_steps, on_device=on_device)
        about = description_of(models, {"sample": sample, "stored_dtype": dtype})
        pieces = Pieces(list(models.values()), self._choice.parameters, self._ranks)
        output = output_of(
            path,
            format,
            self._ranks,
            existing=existing,
            description={**about, **description},
            ladder=ladder,
            dry_run=dry_run,
        )
        check_on_device(on_device, profile=output.profile)
        self._report = Report(f"{output.path}{' (dry run)' if dry_run else ''}")
        self._steps = Background(output, self._report, raises=on_error == "raise")
        unheld = partial(self._choice.uncompiled.hold, False)
        self._collected = when_collected(self, self._steps, unheld)
        self._calls = Calls(self._report, raises=on_error == "raise")
        self._process = os.getpid()  # one that is forked from it closes nothing
        self._scaler, self._on_error, self._micro_steps = scaler, on_error, micro_steps
        self._next = whole_number("first_step", first_step, 0)
        self._last = -1  # the last step recorded here
        self._micro = 0  # the coming micro-step
        self._incomplete = self._closed = self._completed = False
        order = order_of(
            models.values(),
            self._choice.parameters,
            self._choice.parameter,
            self._guarded,
            self._ranks,
            scaler=scaler,
            active=gradient_of is None and not micro_steps,
        )
        self._sources = Sources(
            self._choice,
            gradients_of(gradient_of, micro_steps=micro_steps),
            order,
            self._guarded,
            micro_steps=micro_steps,
            count=self._count,
            spill=self._spill,
        )
        self._parts = Parts(self._sources, pieces, copies, self._ranks, self._report.left_out)
        self._live = Live(None, None, None, self._counting)
        if self._ranks.records:
            self._live = Live(watch_of(watch), scaler, scheduler, self._counting)
            self._start()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def errors(self) -> int:
        """How many errors of the recorder were counted so far."""
        self._steps.settle()
        return self._report.errors

    def report(self) -> Report:
        """Returns what was recorded so far, and what went wrong."""
        self._steps.settle()
        with self._counting("report"):
            self._steps.measure()
        kept = {"messages": list(self._report.messages), "left_out": dict(self._report.left_out)}
        return dataclasses.replace(self._report, **kept)  # type: ignore[arg-type]

    def micro_step(self, *, scale: Any = None, loss: Any = None, **metadata: object) -> None:
        """Records what the backward pass since the last call has computed, alone.

        Arguments as those of `step`. Needs `micro_steps=True`.
        """
        if not self._micro_steps:
            raise UsageError("micro_step: not prepared, expected Recorder(..., micro_steps=True)")
        with self._calls.one("micro_step") as alone:
            if not alone:
                return
            stated = self._stated(scale)
            if self._choice.any():
                added = self._add(stated, {"loss": loss, **metadata})
                self._incomplete = not added or self._incomplete
                self._micro += 1

    def step(
        self, *, scale: Any = None, loss: Any = None, step: int | None = None, **metadata: object
    ) -> None:
        """Records the gradients that the parameters have now, if this step is selected.

        `scale` is the loss scale that they still carry, 1 if they were unscaled or never scaled; it
        is never guessed. Without it the recorder's `scaler` is asked. `loss`, `lr` and other
        metadata are written down as text. `step` is its number, by default one more than that of
        the step before. With `micro_steps` it completes the step that they make, and needs no
        scale. Raises TypeError if no scale is known.
        """
        taken = None
        with self._calls.one("step") as alone:
            if alone:
                taken = self._step(scale, step, {"loss": loss, **metadata})
        if taken is not None:
            self._live.finish(taken)

    def _step(self, scale: Any, step: int | None, metadata: Mapping[str, object]) -> int:
        """Records a step; returns its number."""
        stated = None if self._micro_steps else self._stated(scale)
        with self._counting(f"step {self._next}"):
            self._steps.look()
            self._take_number(step)
            self._live.look(self._next)
        taken = self._next
        if self._choice.any() and not self._closed:
            if self._micro_steps:
                complete = self._micro > 0 and not self._incomplete
                if self._micro == 0:
                    self._count(Error("micro_step was not called"))
            else:
                complete = self._add(stated, metadata) and not self._incomplete
            self._finish(complete)
        with self._counting(f"step {self._next}"):
            self._begin(self._next + 1)
        return taken

    def close(self) -> None:
        """Completes the trace or profile and removes all hooks. More calls do nothing.

        But they complete what an interrupt has left undone.
        """
        if self._completed or os.getpid() != self._process:
            return
        self._closed = True
        self._choice.end()
        with self._counting("close"):
            self._steps.settle()  # then all steps are counted
        with self._counting("close"):
            if self._report.steps > 0:
                self._sources.note_idle(self._report.left_out)
            self._sources.remove_hooks()
        with self._counting("close"):
            self._steps.close()
        with self._counting("close"):
            self._live.close()
            self._collected.detach()
            OPEN.discard(self)
            self._report.log_at_close()
        self._completed = True

    def _leave(self) -> None:
        """Ends recording in a forked process, without a trace: the output is its parent's."""
        self._closed = self._completed = True
        self._collected.detach()
        self._choice.end()
        self._steps.leave()
        OPEN.discard(self)

    def _counting(self, doing: str) -> AbstractContextManager[None]:
        return self._report.counting(doing, raises=self._on_error == "raise")

    def _count(self, error: Error) -> None:
        with self._counting(f"step {self._next}"):
            raise error

    def _guarded(self, action: Callable[[], None]) -> None:
        """Runs what a hook does."""
        with self._counting(f"step {self._next}"):
            action()

    def _start(self) -> None:
        try:
            self._steps.open()
        except (InputError, OSError) as error:  # each recorded step tries again
            if self._on_error == "raise":
                raise
            self._report.count(error, "opening")
        self._sources.add_hooks(self._report.left_out)
        OPEN.add(self)
        self._begin(self._next)

    def _begin(self, step: int) -> None:
        self._next, self._micro, self._incomplete = step, 0, False
        self._sources.clear()
        self._steps.forget_spilled()
        if self._ranks.records and not self._closed:
            self._choice.begin(step)

    def _take_number(self, step: int | None) -> None:
        """Makes `step` the number of this one."""
        if step is None or step == self._next:
            return
        whole_number("step", step, 0)
        if self._micro_steps:
            self._incomplete = True
            expected, self._next = self._next, step
            raise Error(f"micro-steps were recorded as those of step {expected}: say first_step")
        self._next = step
        if self._ranks.records and not self._closed:
            self._choice.begin(step)

    def _stated(self, scale: Any) -> float | None:
        """Returns the stated scale; None if it cannot be had or is not that of the gradients."""
        if not self._choice.any() and (scale is not None or self._scaler is not None):
            return None
        if scale is None and self._scaler is None:
            scale_of(None, None)  # raises: a loop that forgets it shall not run on
        with self._counting(f"step {self._next}"):
            if scale is None:
                check_still_scaled(self._scaler)
            return scale_of(scale, self._scaler)
        return None

    def _add(self, scale: float | None, metadata: Mapping[str, object]) -> bool:
        """Hands the gradients over as a part of the step; returns whether that worked."""
        if scale is None:
            return False
        with self._counting(f"step {self._next}"):
            if self._next <= self._last:
                raise Error(f"steps must ascend, expected more than {self._last}")
            grad_scale = checked_grad_scale(scale)
            self._steps.open()
            if self._micro == 0:
                self._steps.begin()
            else:
                self._steps.wait()
            micro = self._micro if self._micro_steps else None
            part = self._parts.take(self._next, micro, grad_scale, metadata)
            part = self._steps.completed(part)
            self._steps.add(self._next, part)
            self._live.add(self._next, part)
            self._report.tensors = described(part)
            return True
        return False

    def _spill(self) -> None:
        """Puts aside what the earlier batches of a step have left."""
        before, self._incomplete = self._incomplete, True
        self._steps.put_aside(self._parts.take_early(self._next))
        self._incomplete = before

    def _finish(self, complete: bool) -> None:
        with self._counting(f"step {self._next}"):
            if not complete:
                self._steps.drop()
                self._live.drop()
                return
            self._last = self._next
            self._steps.finish(self._next)


# help() shows all arguments.
Recorder.__doc__ = f"{cleandoc(Recorder.__doc__ or '')}\n\n{cleandoc(ARGUMENTS)}\n"
