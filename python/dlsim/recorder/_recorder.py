# SPDX-License-Identifier: Apache-2.0
"""The recorder: what a training loop calls."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import Any

from .._errors import InputError, UsageError
from .._values import text_of
from ..arrays._arguments import listed
from ._background import Background
from ._calls import Calls
from ._choice import Choice, models_of
from ._endings import OPEN, complete_abandoned, when_collected
from ._help import ARGUMENTS
from ._lending import lender_of
from ._live import Live
from ._loop import Loop
from ._on_device import check_on_device
from ._order import order_of
from ._output import description_of, is_profile, one_of, output_of
from ._pace import AUTO, pace_of
from ._parts import Parts
from ._placement import Pieces
from ._ranks import ranks_of
from ._report import Report
from ._selection import Patterns, check_inference, forward_steps, selections_of
from ._shadows import FORMATS, Shadows, formats_of
from ._shards import next_command
from ._sinks import Existing
from ._snapshot import HostCopies
from ._sources import Sources, gradients_of
from ._watch import watch_of


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
        path: str | os.PathLike[str],
        *,
        gradients: Patterns = "*",
        activations: Patterns = "*",
        exclude: Patterns = None,
        every: int | str | None = None,
        budget: float | None = None,
        start: int = 0,
        end: int | None = None,
        config: Mapping[str, Any] | str | None = None,
        sample: int | None = None,
        dtype: str | None = None,
        micro_steps: bool = False,
        forward_every: int | None = None,
        shadow: Iterable[str] | str | None = FORMATS,
        inference: bool = False,
        copy: bool = True,
        on_device: bool = False,
        gradient_of: Callable[[Any], Any] | None = None,
        scaler: Any = None,
        scheduler: Any = None,
        first_step: int = 0,
        format: str | None = None,
        scales: Any = (),
        scaled_formats: Any = (),
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
        self._ranks = ranks_of(
            list(models.values()), distributed, rank, ranks, micro_steps=micro_steps
        )
        profile = is_profile(path, format)
        if inference:
            check_inference(
                forward_every=forward_every,
                micro_steps=micro_steps,
                on_device=on_device,
                gradient_of=gradient_of,
                scaler=scaler,
                scheduler=scheduler,
                watch=watch,
            )
        forward = forward_steps(1 if inference else forward_every, profile=profile)
        distance, pace = pace_of(
            every,
            budget,
            forward,
            default=AUTO if profile and config is None and not inference else 1,
            fixed=self._ranks.kind not in ("single", "reduced"),
        )
        self._choice = Choice(
            models,
            selections_of(
                config, gradients, activations, exclude, every=distance, start=start, end=end
            ),
            forward,
            pace,
            inference=inference,
        )
        lender = lender_of(self._ranks, copy=copy or gradient_of is not None)
        copies = HostCopies(dtype, sample, lender, borrowed=not micro_steps, on_device=on_device)
        about = description_of(
            models,
            {
                "gradients": "not recorded, an inference" if inference else None,
                "sample": sample,
                "stored_dtype": dtype,
                **pace.description(),
            },
        )
        pieces = Pieces(list(models.values()), self._choice.parameters, self._ranks)
        given = {"scales": scales, "scaled_formats": scaled_formats}
        extras = {key: [text_of(key, one) for one in listed(of)] for key, of in given.items()}
        output = output_of(
            path,
            format,
            self._ranks,
            existing=existing,
            description={**about, **description},
            extras=extras,
            dry_run=dry_run,
        )
        check_on_device(on_device, profile=output.profile, scaled_formats=extras["scaled_formats"])
        command = next_command(Path(path), output.path, self._ranks, profile=profile)
        self._next_command = None if dry_run else command
        self._completes = existing == "continue"  # what is there, also without steps
        self._tells_size = format is None and not profile and self._next_command is not None
        self._report = Report(f"{output.path}{' (dry run)' if dry_run else ''}")
        pace.chosen = self._report.choose
        self._steps = Background(output, self._report, pace, raises=on_error == "raise")
        unheld = partial(self._choice.uncompiled.hold, False)
        self._collected = when_collected(self, self._steps, unheld)
        self._calls = Calls(self._report, raises=on_error == "raise")
        self._process = os.getpid()  # one that is forked from it closes nothing
        self._micro_steps, self._completed = micro_steps, False
        self._loop = loop = Loop(
            self._choice,
            self._report,
            self._steps,
            pace,
            scaler=scaler,
            micro_steps=micro_steps,
            first_step=first_step,
            records=self._ranks.records,
            raises=on_error == "raise",
        )
        order = order_of(
            models.values(),
            self._choice.parameters,
            self._choice.parameter,
            loop.guarded,
            self._ranks,
            restart=loop.restart,
            revoke=loop.revoke,
            scaler=scaler,
            active=gradient_of is None and not micro_steps and not inference,
        )
        formats = formats_of(shadow)
        shadows = None
        if formats and self._ranks.kind == "single":
            shadows = Shadows(models, formats)
            self._choice.due = shadows.due
        self._sources = Sources(
            self._choice,
            gradients_of(gradient_of, micro_steps=micro_steps),
            order,
            loop.guarded,
            micro_steps=micro_steps,
            count=loop.count,
            spill=loop.spill,
            shadows=shadows,
        )
        parts = Parts(self._sources, pieces, copies, self._ranks, self._report.left_out)
        self._live = Live(None, None, None, loop.counting)
        if self._ranks.records:
            self._live = Live(watch_of(watch), scaler, scheduler, loop.counting)
        loop.attach(self._sources, parts, self._live)
        if self._ranks.records:
            self._start(raises=on_error == "raise")

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
        with self._loop.counting("report"):
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
            if alone:
                self._loop.micro_step(scale, {"loss": loss, **metadata})

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
        with self._calls.one("step") as alone:
            if alone:
                taken = self._loop.step(scale, step, {"loss": loss, **metadata}, again)
        if self._tells_size and self._report.tensors:
            self._tells_size = False
            self._report.say_size(forward=self._choice.forward_steps.any)
        if taken is not None:
            self._live.finish(taken)

    def close(self) -> None:
        """Completes the trace or profile and removes all hooks. More calls do nothing.

        But they complete what an interrupt has left undone.
        """
        if self._completed or os.getpid() != self._process:
            return
        self._loop.end()
        with self._loop.counting("close"):
            self._steps.settle()  # then all steps are counted
        with self._loop.counting("close"):
            if self._report.steps > 0:
                self._sources.note_idle(self._report.left_out)
            self._sources.remove_hooks()
        with self._loop.counting("close"):
            self._steps.close()
        with self._loop.counting("close"):
            self._live.close()
            self._collected.detach()
            OPEN.discard(self)
            self._report.log_at_close()
            if self._next_command is not None:
                self._report.say_at_close(
                    self._next_command or None,
                    called=self._loop.called,
                    completes=self._completes,
                )
        self._completed = True

    def _leave(self) -> None:
        """Ends recording in a forked process, without a trace: the output is its parent's."""
        self._completed = True
        self._collected.detach()
        self._loop.end()
        self._sources.end_forward()
        self._steps.leave()
        OPEN.discard(self)

    def _start(self, *, raises: bool) -> None:
        try:
            self._steps.open()
        except (InputError, OSError) as error:  # each recorded step tries again
            if raises:
                raise
            self._report.count(error, "opening")
        self._sources.add_hooks(self._report.left_out)
        OPEN.add(self)
        self._loop.start()


# help() shows all arguments.
Recorder.__doc__ = f"{cleandoc(Recorder.__doc__ or '')}\n\n{cleandoc(ARGUMENTS)}\n"
