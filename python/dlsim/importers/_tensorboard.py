# SPDX-License-Identifier: Apache-2.0
"""TensorBoard histograms to two profiles that bracket what the gradients themselves would show."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from .._errors import InputError, UsageError
from ..traces._writer import checked_grad_scale
from ._brackets import Brackets, brackets_of
from ._event_files import EventFiles
from ._gradients import Notes, Selection, check_name, selection
from ._numbering import PathText, files_of, natural_key
from ._outputs import PROFILE_SUFFIX, check_file, open_profile
from ._progress import shown
from ._runs import Imported

LOG2_CHOICES = ("auto", "none", "all")
# Tags of Cerebras' TensorFlow trainer, whose histograms are of logarithms.
_LOG2_TAGS = ("kernel_grads/*", "bias_grads/*", "*/kernel_grads/*", "*/bias_grads/*")
_EVENT_FILE = "tfevents"


@dataclass(frozen=True)
class _Choice:
    """Which histograms are read, and how: see import_tensorboard."""

    selection: Selection
    log2: str
    grad_scale: float
    scale_tag: str | None
    first: int | None
    last: int | None

    def has_step(self, step: int) -> bool:
        """Whether the step is between `first` and `last`."""
        return not (self.first is not None and step < self.first) and not (
            self.last is not None and step > self.last
        )

    def is_log2(self, tag: str) -> bool:
        """Whether the values of the tag's histograms are logarithms."""
        if self.log2 == "auto":
            return any(fnmatchcase(tag, glob) for glob in _LOG2_TAGS)
        return self.log2 == "all"


def import_tensorboard(
    inputs: PathText | Iterable[PathText],
    output: PathText,
    *,
    tensors: str | Iterable[str] | None = None,
    act_grad: str | Iterable[str] = (),
    log2: str = "auto",
    grad_scale: float | None = None,
    scale_tag: str | None = None,
    first: int | None = None,
    last: int | None = None,
    force: bool = False,
) -> Imported:
    """Imports the histograms of a TensorBoard run as two profiles, OUTPUT.low and OUTPUT.high.

    A bucket says that values lie between two limits. In the low profile each is at its limit next
    to zero, in the high one at the other, so that counts of underflow and overflow of the true
    values are between those of replays of both. Values in a bucket that touches zero are the
    smallest positive float32 in the low profile and zero in the high one.

    `tensors` chooses tags (default: those with "grad"). `log2`: "all" if the values are Cerebras'
    log2(|x| + 2^-50), "none" if not, "auto" for the tags of its trainer. `grad_scale` is the loss
    scale that the values still carry, or `scale_tag` the tag of scalars that hold it. `first` and
    `last` bound the steps. Raises InputError, UsageError, ModuleNotFoundError without tensorboard.
    """
    if log2 not in LOG2_CHOICES:
        raise UsageError(f"log2: expected one of {', '.join(LOG2_CHOICES)}, got {log2!r}")
    if grad_scale is not None and scale_tag is not None:
        raise UsageError("grad scale: expected a scale or a tag of scales, got both")
    chosen = selection("*[gG][rR][aA][dD]*" if tensors is None else tensors, act_grad)
    scale = 1.0 if grad_scale is None else float(checked_grad_scale(grad_scale))
    choice = _Choice(chosen, log2, scale, scale_tag, first, last)
    base = str(output).removesuffix(PROFILE_SUFFIX)
    paths = {side: Path(f"{base}.{side}{PROFILE_SUFFIX}") for side in ("low", "high")}
    for path in paths.values():
        check_file(path, force=force)
    return _write(paths, inputs, choice)


def _write(
    paths: dict[str, Path], inputs: PathText | Iterable[PathText], choice: _Choice
) -> Imported:
    """Writes the two profiles, of which both or none appear."""
    notes = Notes()
    steps: list[int] = []
    names: set[str] = set()
    with ExitStack() as stack:
        writers = {
            side: stack.enter_context(
                open_profile(
                    path,
                    {"imported_from": "tensorboard", "values": f"{side} ends of their buckets"},
                )
            )
            for side, path in paths.items()
        }
        for step, histograms in _read(inputs, choice, notes):
            sides: dict[str, list[Any]] = {side: [] for side in writers}
            for tag, brackets in histograms:
                role = choice.selection.role(tag)
                names.add(tag)
                for side, tensors in sides.items():
                    tensors.append((tag, role, *_values(brackets, side)))
            for side, writer in writers.items():
                writer.append_counts(step, {}, sides[side])
            steps.append(step)
        for writer in writers.values():
            writer.commit()
    low, high = paths.values()
    return Imported(low, len(steps), steps[0], steps[-1], len(names), tuple(notes.lines()), high)


def _read(
    inputs: PathText | Iterable[PathText], choice: _Choice, notes: Notes
) -> Iterator[tuple[int, Iterator[tuple[str, Brackets]]]]:
    """Yields each step with the brackets of its histograms by their tags, one at a time."""
    files = event_files(inputs)
    with EventFiles(files, choice.selection.takes, notes, scale_tag=choice.scale_tag) as events:
        steps = [step for step in events.steps if choice.has_step(step)]
        if not steps:
            raise InputError(f"{files[0]}: no step between the first and the last that are wanted")
        for step in shown(steps, "steps"):
            yield step, _of_step(events, step, choice, notes)


def _of_step(
    events: EventFiles, step: int, choice: _Choice, notes: Notes
) -> Iterator[tuple[str, Brackets]]:
    scale = _scale_at(events, step, choice)
    for tag, value in events.histograms(step):
        place = events.place(step, tag)
        is_log2 = choice.is_log2(tag)
        if is_log2 and choice.log2 == "auto":
            notes.add("tags of Cerebras' trainer are read as log2(|x| + 2^-50); see --log2")
        yield check_name(place, tag), brackets_of(place, value, is_log2=is_log2, scale=scale)


def _scale_at(events: EventFiles, step: int, choice: _Choice) -> float:
    """Returns the loss scale that the values of a step still carry."""
    if choice.scale_tag is None:
        return choice.grad_scale
    if step not in events.scalars:
        raise InputError(f"{choice.scale_tag!r}: no scalar at step {step}, expected its scale")
    try:
        return float(checked_grad_scale(events.scalars[step]))
    except UsageError as error:
        raise InputError(f"{choice.scale_tag!r} at step {step}: {error}") from error


def event_files(inputs: PathText | Iterable[PathText]) -> list[Path]:
    """Returns the event files of one run, in the order of their names.

    Raises InputError if there are none, or if they are in several directories, as of several runs.
    """
    given = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
    files = []
    for item in given:
        path = Path(item)
        found = [p for p in path.rglob(f"*{_EVENT_FILE}*") if p.is_file()] if path.is_dir() else []
        if path.is_dir() and not found:
            raise InputError(f"{path}: no event files (*{_EVENT_FILE}*) in it")
        files += sorted(found, key=natural_key) if path.is_dir() else files_of(item, ())
    runs = sorted({path.parent for path in files})
    if len(runs) > 1:
        names = ", ".join(map(str, runs[:4]))
        raise InputError(f"{names}: {len(runs)} runs, expected one; give its directory")
    return files


def _values(brackets: Brackets, side: str) -> tuple[Any, Any]:
    """Returns what a profile counts: values, and how often each occurs."""
    if side == "low":
        values = brackets.smallest()
    else:
        values = np.where(brackets.touches_zero, np.float32(0), brackets.largest())
    return (
        np.append(values, [np.nan, np.inf]).astype(np.float32),
        np.append(brackets.counts, [brackets.nan, brackets.inf]).astype(np.uint64),
    )
