# SPDX-License-Identifier: Apache-2.0
"""Probes: that of a recorder, and one alone."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, get_args

from .._errors import UsageError
from ._choice import Choice, models_of
from ._endings import OPEN
from ._metadata import scale_of, unscaled_in
from ._names import parameters_of
from ._output import Output, description_of, one_of
from ._probe import ELEMENTS, Following, elements_of
from ._ranks import ranks_of
from ._report import Report
from ._selection import whole_number
from ._sinks import Existing


class Probing(Protocol):
    """What a recorder tells its probe."""

    @property
    def updates(self) -> int:
        """How many updates the file holds."""

    @property
    def bytes(self) -> int:
        """The size of the file."""

    def at_step(self, step: int, scale: float | None) -> None:
        """Begins a step."""

    def close(self) -> None:
        """Completes the file."""

    def leave(self) -> None:
        """Ends in a forked process."""


class _NoProbe:
    """Follows nothing."""

    updates = bytes = 0

    def at_step(self, step: int, scale: float | None) -> None:
        pass

    def close(self) -> None:
        pass

    def leave(self) -> None:
        pass


def stated(scale: Any, scaler: Any, *, micro_steps: bool) -> float | None:
    """Returns the loss scale that the gradients of a step carry; None if that is not known."""
    if micro_steps or (scale is None and unscaled_in(scaler)):
        return None
    with suppress(TypeError, ValueError):
        return scale_of(scale, scaler)
    return None


def probing_of(
    probe: Any, output: Output, models: Mapping[str, Any], choice: Choice, first_step: int
) -> Callable[[Report, bool], Probing]:
    """Returns what begins the probe of a recorder; raises UsageError if there can be none."""
    path = output.path / "probe.dlprobe"
    if output.profile:
        path = output.path.with_suffix(".dlprobe")
    output = dataclasses.replace(output, path=path)
    return _probing(
        choice.parameters or parameters_of(models), output, elements_of(probe), first_step
    )


def _probing(
    parameters: Mapping[str, Any], output: Output, elements: int, first_step: int
) -> Callable[[Report, bool], Probing]:
    path, ranks = output.path, output.ranks
    if elements > 0 and ranks.is_shard:
        raise UsageError("probe: parameters lie in several processes, expected whole ones")
    writes = ranks.records and (ranks.kind != "separate" or ranks.rank == 0)
    if elements == 0 or output.dry_run or not writes:
        return lambda report, raises: _NoProbe()
    if output.existing == "refuse" and path.exists():
        raise UsageError(
            f"{path}: exists already, expected another path, or existing='replace' or 'continue'"
        )
    texts = {key: str(value) for key, value in output.description.items() if key != "gradients"}
    return lambda report, raises: Following(
        parameters,
        path,
        report,
        elements=elements,
        existing=output.existing,
        description=texts,
        first_step=first_step,
        raises=raises,
    )


class ProbeRecorder:
    """Follows a few elements of each parameter of a model through its training, as a probe.

    `with dlsim.ProbeRecorder(model, "run.dlprobe"):` around the training loop is all: what any
    optimizer does to the model's parameters is written, see docs/recorder.md. `elements` of each
    parameter are followed at most. `first_step` is the number of the first update, such as that of
    a checkpoint, and `existing` says what happens to a file that is there: "refuse", "replace" or
    "continue", which keeps the updates before `first_step`.

    Wrong arguments raise; later errors are counted, see `report()`, unless `on_error="raise"`.
    """

    def __init__(
        self,
        model: Any,
        path: str | os.PathLike[str],
        *,
        elements: int = ELEMENTS,
        first_step: int = 0,
        existing: Existing = "refuse",
        description: Mapping[str, str] = {},
        on_error: str = "count",
    ) -> None:
        one_of("on_error", on_error, ("count", "raise"))
        one_of("existing", existing, get_args(Existing))
        if elements_of(elements) == 0:
            raise UsageError(f"elements: expected at least 1, got {elements!r}")
        models = models_of(model)
        ranks = ranks_of(list(models.values()), None, None, None, micro_steps=False)
        output = Output(
            Path(path),
            profile=True,
            ranks=ranks,
            existing=existing,
            description={**description_of(models, {}), **description},
            ladder={},
            dry_run=False,
        )
        begin = _probing(parameters_of(models), output, elements, first_step)
        self._report = Report(str(path))
        self._following = begin(self._report, on_error == "raise")
        OPEN.add(self)

    def __enter__(self) -> ProbeRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def report(self) -> Report:
        """Returns how many updates were written so far, as steps, and what went wrong."""
        now = {"steps": self._following.updates, "bytes": self._following.bytes}
        kept = {"messages": list(self._report.messages), "left_out": dict(self._report.left_out)}
        return dataclasses.replace(self._report, **now, **kept)  # type: ignore[arg-type]

    def step(self, number: int) -> None:
        """Says which step of the training the coming updates belong to; else they are counted."""
        self._following.at_step(whole_number("number", number, 0), None)

    def close(self) -> None:
        """Completes the file. More calls do nothing."""
        self._following.close()
        if self in OPEN:
            OPEN.discard(self)
            self._report.log_at_close()

    def _leave(self) -> None:
        self._following.leave()
        OPEN.discard(self)
