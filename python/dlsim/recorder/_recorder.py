# SPDX-License-Identifier: Apache-2.0
"""The recorder: what a training loop calls."""

from __future__ import annotations

import atexit
import dataclasses
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from inspect import cleandoc
from typing import Any

from .._errors import Error, InputError, UsageError
from .._values import whole_number
from ..traces._writer import checked_grad_scale
from ._order import StepOrder, scale_of
from ._output import (
    Background,
    Existing,
    HostCopies,
    Output,
    Report,
    described,
    description_of,
    is_profile,
    one_of,
)
from ._ranks import ranks_of
from ._selection import AUTO, Choice, Patterns, forward_steps, models_of, pace_of
from ._shadows import FORMATS, Shadows, formats_of
from ._sources import Sources, gradients_of
from ._tensors import check_on_device, in_recorder, is_rerun
from ._watch import Watching

# -- What help() says of the recorder's arguments

ARGUMENTS = """
    What is recorded:
      model: A torch.nn.Module, or several by name
      path: A directory; one that ends in .profile is a profile; None writes nothing, `report()`
          says what would be written
      gradients="*": Parameters by globs over the whole name, compiled regular expressions, which
          are searched for, or a list of both; a glob after "!" leaves out what it matches; None for
          none
      activations="*": Modules whose output gradients are recorded; the model itself is "(root)";
          None for none
      every: Steps: multiples of a whole number, those of a range such as range(100, 500, 10), or as
          many as a share of the training's time allows, such as 0.1: all until recording has taken
          a minute, then fewer; by default all for a trace, and for a profile "auto", which is 0.03
      forward_every: Steps at which the forward pass is recorded as well (outputs and buffers of
          the chosen modules, and the chosen parameters): multiples of it, 0 for none; by default
          none for a trace, and 0, 1, 2, 4, ... 32 and multiples of 50 for a profile
      shadow=("fp16", "bf16", "cb16"): Formats in which some of these steps are run once more, as
          training in them would (docs/verdict.md); None for none
      inference=False: True records forward passes alone, without gradients, of all steps that are
          selected; call `step` after each batch, no scale is needed
      micro_steps=False: Record each backward pass alone: call `micro_step` after it
      on_device=False: True tabulates the tensors of a profile on the GPU that has them, and only
          tables leave it: with the kernel of a build with CUDA, else by PyTorch's own operations
      gradient_of: Takes a parameter and returns its gradient or None, where that is not in `.grad`
    About the training:
      scaler: A GradScaler of torch or dlsim.amp, or a dlsim.LossScaler; `step` takes the scale
          from it unless it is stated
    Where it goes:
      also: What a profile answers besides: loss scales that are these times a power of two, such as
          2e15, and what tensors lose in formats with scales of their own, such as "mxfp8"
      existing="refuse": What happens to an output that is there already: "refuse", "replace" or
          "continue", which keeps the steps before the first that is recorded
      watch: A Watch, a SummaryWriter, a run of W&B or a callable that gets figures during training
    With several processes:
      distributed: How their gradients are related: "reduced", "separate", "sharded" or "stages"
          (docs/recorder-processes.md); detected for DistributedDataParallel and sharded models.
          ("separate", 0, 4): also this process's rank and the number of ranks, instead of those in
          torch.distributed
    Errors:
      on_error="count": "raise" to raise what would be counted
"""


# -- What happens to open recorders when their process ends, or in one that is forked from it

# Recorders, of probes too, that a program has forgotten to close, which its end closes.
OPEN: weakref.WeakSet[Any] = weakref.WeakSet()

# Outputs of recorders that nobody refers to any more. The garbage collector may find one at any
# moment, in any thread and under any lock, so nothing is done there but to write it down.
_ABANDONED: list[tuple[Background, Callable[[], None]]] = []


def when_collected(
    recorder: Recorder, output: Background, end: Callable[[], None]
) -> weakref.finalize[Any, Any]:
    """Returns what keeps the output of a recorder that is collected; detach it in `close`.

    `end` is called before the output is completed.
    """
    found = weakref.finalize(recorder, _ABANDONED.append, (output, end))
    found.atexit = False
    return found


def complete_abandoned() -> None:
    """Completes the outputs of recorders that were collected without being closed."""
    while _ABANDONED:
        output, end = _ABANDONED.pop()
        end()
        output.abandon()


@atexit.register
def _close_all() -> None:
    for recorder in list(OPEN):
        recorder.close()
    complete_abandoned()


def _leave_all() -> None:
    for recorder in list(OPEN):
        recorder._leave()
    while _ABANDONED:
        _ABANDONED.pop()[0].leave()


os.register_at_fork(after_in_child=_leave_all)


# -- The recorder: what a training loop calls


class Recorder:
    """Records the gradients of a model, and its forward pass, as a trace or a profile.

    `with dlsim.Recorder(model, "run/") as rec:` then `rec.step(loss=loss, scale=scale)` in each
    step, after backward and before gradients are changed or cleared. `model` is a module or several
    by name. `path` is a directory, or a .profile for a profile.

    Wrong arguments raise. After that only a missing scale does: other errors are counted, see
    `report()`, unless `on_error="raise"`.
    """

    def __init__(
        self,
        model: Any,
        path: str | os.PathLike[str] | None,
        *,
        gradients: Patterns = "*",
        activations: Patterns = "*",
        every: range | float | str | None = None,
        micro_steps: bool = False,
        forward_every: int | None = None,
        shadow: Iterable[str] | str | None = FORMATS,
        inference: bool = False,
        on_device: bool = False,
        gradient_of: Callable[[Any], Any] | None = None,
        scaler: Any = None,
        also: Any = (),
        existing: Existing = "refuse",
        distributed: str | tuple[str | None, int, int] | None = None,
        watch: Any = None,
        on_error: str = "count",
    ) -> None:
        one_of("on_error", on_error, ("count", "raise"))
        self._raises = on_error == "raise"
        complete_abandoned()
        models = models_of(model)
        ranks = ranks_of(list(models.values()), distributed, micro_steps=micro_steps)
        profile = is_profile(path)
        if inference:
            for name, value in {
                "forward_every": forward_every,
                "micro_steps": micro_steps,
                "on_device": on_device,
                "gradient_of": gradient_of,
                "scaler": scaler,
                "watch": watch,
            }.items():
                if value is not None and value is not False:
                    raise UsageError(f"{name}: not with inference, which has no gradients")
        forward = forward_steps(1 if inference else forward_every, profile=profile)
        self._pace = pace = pace_of(
            every,
            forward,
            default=AUTO if profile and not inference else 1,
            fixed=ranks.kind not in ("single", "reduced"),
        )
        self._choice = Choice(models, gradients, activations, pace, inference=inference)
        output = Output(
            path,
            ranks,
            existing=existing,
            description=description_of(models, pace.description(), inference=inference),
            also=also,
        )
        check_on_device(on_device, profile=profile, scaled_formats=output.extras["scaled_formats"])
        self._next_command = output.next_command(path)
        self._completes = existing == "continue"  # what is there, also without steps
        self._tells_size = not profile and self._next_command is not None
        self._report = Report("dry run" if output.path is None else str(output.path))
        pace.chosen = self._report.choose
        self._steps = Background(output, self._report, pace, raises=self._raises)
        unheld = partial(self._choice.uncompiled.hold, False)
        self._collected = when_collected(self, self._steps, unheld)
        self._inside: dict[str, int] = {}  # the thread that is in a call
        self._process = os.getpid()  # one that is forked from it closes nothing
        self._scaler, self._micro_steps, self._records = scaler, micro_steps, ranks.records
        self._next = 0  # the number of the coming step
        self._is_known = False  # whether the first step has a number, which its call may state
        self._last = -1  # the last step recorded here
        self._micro = 0  # the coming micro-step
        self._incomplete = self._ended = self._completed = False
        self._called = False  # whether any step was taken
        self._taken = False  # whether the last call recorded a step, which nobody has revoked
        self._order = order = StepOrder(
            list(models.values()),
            self._choice,
            self._guarded,
            ranks,
            restart=self._restart,
            revoke=self._revoke,
            scaler=scaler,
            active=gradient_of is None and not micro_steps and not inference,
        )
        formats = formats_of(shadow)
        shadows = None
        if formats and ranks.kind == "single":
            shadows = Shadows(models, formats)
            self._choice.due = shadows.due
        self._sources = Sources(
            list(models.values()),
            self._choice,
            gradients_of(gradient_of, micro_steps=micro_steps),
            order,
            self._guarded,
            micro_steps=micro_steps,
            count=self._count,
            spill=self._spill,
            shadows=shadows,
            copies=HostCopies(borrowed=not micro_steps, on_device=on_device),
            ranks=ranks,
            left_out=self._report.left_out,
        )
        self._watching = None
        if watch is not None and ranks.records:
            self._watching = Watching(watch, scaler, self._counting)
        if ranks.records:
            with self._opening():
                self._steps.open()
            self._sources.add_hooks()
            OPEN.add(self)
            self._begin(None)

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

    def describe(self, **texts: str) -> None:
        """Stores texts by name in the output, such as model and data; to be called before steps."""
        for name, text in texts.items():
            if not isinstance(text, str):
                raise TypeError(f"describe: {name}: expected text, got {type(text).__name__}")
        with self._opening():
            self._steps.describe(texts)

    def micro_step(
        self, *, scale: Any = None, loss: Any = None, step: int | None = None, **metadata: object
    ) -> None:
        """Records what the backward pass since the last call has computed, alone.

        Arguments as those of `step`, the number in the first call of a step. Needs
        `micro_steps=True`.
        """
        if not self._micro_steps:
            raise UsageError("micro_step: not prepared, expected Recorder(..., micro_steps=True)")
        with self._alone("micro_step") as alone:
            if not alone:
                return
            began = time.perf_counter()
            self._sources.end_forward()
            self._take_number(step)
            stated = self._stated(scale)
            if self._choice.records:
                added = self._add(stated, {"loss": loss, **metadata})
                self._incomplete = not added or self._incomplete
                self._micro += 1
            self._pace.in_hook(time.perf_counter() - began)

    def step(
        self,
        *,
        scale: Any = None,
        loss: Any = None,
        step: int | None = None,
        again: Callable[[], Any] | None = None,
        **metadata: object,
    ) -> None:
        """Records the gradients that the parameters have now, if this step is selected.

        `scale` is the loss scale that they still carry, 1 if they were unscaled or never scaled; it
        is never guessed. Without it the recorder's `scaler` is asked; an inference has none.
        `loss`, `lr` and other metadata are written down as text. `step` is its number, by default
        one more than that of the step before. `again` computes the loss again, as the loop has,
        for steps that are run in formats; without it the calls that the loop has made, of modules
        and torch's functions, are made again. With `micro_steps` it completes the step that they
        make, and needs no scale. Raises TypeError if no scale is known.
        """
        taken = None
        with self._alone("step") as alone:
            if alone:
                with self._pace.call():
                    before = self._sources.seconds_again
                    self._sources.runs_again(loss, again)
                    try:
                        taken = self._take(scale, step, {"loss": loss, **metadata})
                    finally:
                        self._sources.runs_again(None, None)
                        self._pace.aside(self._sources.seconds_again - before)
        if self._tells_size and self._report.tensors:
            self._tells_size = False
            self._report.say_size(forward=self._choice.takes_forward)
        if taken is not None and self._watching is not None:
            self._watching.finish(taken)

    def close(self) -> None:
        """Completes the trace or profile and removes all hooks. More calls do nothing.

        But they complete what an interrupt has left undone.
        """
        if self._completed or os.getpid() != self._process:
            return
        self._end()
        with self._counting("close"):
            self._steps.settle()  # then all steps are counted
        with self._counting("close"):
            if self._report.steps > 0:
                self._sources.note_idle()
            self._sources.remove_hooks()
        with self._counting("close"):
            self._steps.close()
        with self._counting("close"):
            if self._watching is not None:
                self._watching.close()
            self._collected.detach()
            OPEN.discard(self)
            self._report.log_at_close()
            if self._next_command is not None:
                self._report.say_at_close(
                    self._next_command or None,
                    called=self._called,
                    completes=self._completes,
                )
        self._completed = True

    def _leave(self) -> None:
        """Ends recording in a forked process, without a trace: the output is its parent's."""
        self._completed = True
        self._collected.detach()
        self._end()
        self._sources.end_forward()
        self._steps.leave()
        OPEN.discard(self)

    def _end(self) -> None:
        self._ended = True
        self._choice.end()

    # What goes wrong without stopping the training.

    @contextmanager
    def _alone(self, name: str) -> Iterator[bool]:
        """Measures a call; counts an error, and yields False, if another thread is in one."""
        began, own = time.perf_counter(), threading.get_ident()
        # One bytecode looks and enters, so that no other thread comes in between.
        if self._inside.setdefault("thread", own) != own:
            with self._counting(name):
                raise Error("another thread is in a call of this recorder, expected one at a time")
            yield False
            return
        try:
            with in_recorder():
                yield True
        finally:
            self._report.seconds += time.perf_counter() - began
            self._inside.clear()

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Counts that the output cannot be opened; each recorded step tries again."""
        try:
            yield
        except (InputError, OSError) as error:
            if self._raises:
                raise
            self._report.count(error, "opening")

    def _counting(self, doing: str) -> AbstractContextManager[None]:
        return self._report.counting(doing, raises=self._raises)

    def _count(self, error: Error) -> None:
        with self._counting(f"step {self._next}"):
            raise error

    def _guarded(self, action: Callable[[], None]) -> None:
        if is_rerun():
            return
        began = time.perf_counter()
        try:  # not `_counting`: this is called for each tensor
            with in_recorder():
                action()
        except Exception as error:
            if self._raises:
                raise
            self._report.count(error, f"step {self._next}")
        finally:
            self._pace.in_hook(time.perf_counter() - began)

    # What hooks report about the step.

    def _revoke(self, error: Error) -> None:
        """Counts an error of the step that was taken last, and removes what was recorded of it."""
        if not self._taken:
            return
        self._taken = False
        with self._counting(f"step {self._last}"):
            self._report.count(error, f"step {self._last}")
            if self._steps.revoke(self._last):
                self._report.revoke()
        if self._raises:
            raise error

    def _spill(self) -> None:
        """Puts aside what the step has left so far."""
        before, self._incomplete = self._incomplete, True
        self._steps.put_aside(self._sources.take_early())
        self._incomplete = before

    def _restart(self) -> None:
        """Forgets what was seen so far: an optimizer has stepped, so it is of a step before."""
        self._sources.restart()
        self._steps.forget_spilled()

    # A step: its number, its parts, its completion.

    def _take(self, scale: Any, step: int | None, metadata: Mapping[str, object]) -> int:
        self._called = True
        self._sources.end_forward()
        self._take_number(step)
        stated = None if self._micro_steps else self._stated(scale)
        taken = self._next
        if self._choice.records and not self._ended:
            if self._micro_steps:
                complete = self._micro > 0 and not self._incomplete
                if self._micro == 0:
                    self._count(Error("micro_step was not called"))
                elif complete and self._sources.holds_micro_step():
                    complete = False
                    self._count(Error("micro_step was not called after the last backward pass"))
            else:
                complete = self._add(stated, metadata) and not self._incomplete
            self._finish(complete)
            self._pace.took(taken, forward=self._choice.forward)
        with self._counting(f"step {self._next}"):
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
        with self._counting(f"step {self._next}"):
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
        with self._counting(f"step {self._next}"):
            self._order.check_scale(scale)
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
            if self._micro == 0:
                metadata = {**metadata, **self._report.refusals()}
            part = self._sources.take(self._next, micro, grad_scale, metadata)
            part = self._steps.completed(part)
            self._steps.add(self._next, part)
            if self._watching is not None:
                self._watching.add(self._next, part)
            self._report.tensors = described(part)
            return True
        return False

    def _finish(self, complete: bool) -> None:
        self._taken = False
        with self._counting(f"step {self._next}"):
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


# help() shows all arguments.
Recorder.__doc__ = f"{cleandoc(Recorder.__doc__ or '')}\n\n{cleandoc(ARGUMENTS)}\n"
