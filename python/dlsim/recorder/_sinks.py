# SPDX-License-Identifier: Apache-2.0
"""Where a recorder puts its steps: a trace, a profile, or nowhere but in a list."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal, NamedTuple, Protocol
from weakref import WeakValueDictionary

from .._core import ProfileWriter
from .._errors import InputError, UsageError
from ..profiles import step_file, steps_in
from ..traces._writer import TraceWriter
from ._append import append
from ._lending import Loan
from ._lock import Lock
from ._on_device import NamedArray, named_arrays
from ._ranks import Ranks
from ._spill import Spilled, loaded

Existing = Literal["refuse", "replace", "continue"]


class Part(NamedTuple):
    """A step, or one of its micro-steps; `scale` is the loss scale that the values carry.

    `loans` are those of its tensors that are the training's own. Those on a device may be so
    without a loan, and have to be read before the training goes on. `spilled` are in files.
    """

    micro: int | None
    scale: float
    metadata: Mapping[str, str]
    tensors: Mapping[str, Any]
    loans: Sequence[Loan] = ()
    spilled: Mapping[str, Spilled] = {}


class Sink(Protocol):
    """Takes the parts of a step, one by one, then the step: micro-steps, or one part without."""

    def add(self, step: int, part: Part) -> None:
        """Takes a part; nothing of it is held when this returns."""

    def finish(self, step: int) -> None:
        """Completes the step."""

    def drop(self) -> None:
        """Forgets the parts of a step that is not finished."""

    def forget(self, step: int) -> None:
        """Removes `step` and later steps, which were finished."""

    def close(self) -> None:
        """Completes the output."""

    def bytes_on_disk(self) -> int:
        """Returns the bytes written so far."""


_OFFER = "existing='replace', as for a cell that runs again, or existing='continue'"


def _held(directory: Path, offer: str) -> UsageError:
    return UsageError(f"{directory}: holds a trace already, expected another directory or {offer}")


def refuse_trace(directory: Path) -> None:
    """Raises UsageError if a directory holds steps."""
    if any(directory.glob("step-*.safetensors")):
        raise _held(directory, _OFFER)


def refuse_profile(path: Path) -> None:
    """Raises UsageError if there is a profile, or anything but an empty folder."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"{path}: exists already, expected another name or {_OFFER}")


def _lock_of(path: Path, rank: int | None) -> Lock:
    try:
        return Lock(path / f".lock-{0 if rank is None else rank}")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


class TraceSink:
    """A directory of step files. Parts wait in a directory inside until their step is complete."""

    def __init__(
        self, path: Path, description: Mapping[str, object], ranks: Ranks, existing: Existing
    ) -> None:
        self._rank = ranks.rank if ranks.kind == "separate" else None
        present = TraceWriter(path, describes=False)
        self._lock = _lock_of(path, self._rank)
        try:
            self._open(present, path, description, existing)
        except BaseException:
            self._lock.release()
            raise

    def _open(
        self,
        present: TraceWriter,
        path: Path,
        description: Mapping[str, object],
        existing: Existing,
    ) -> None:
        others = self._check(present, existing)
        first = self._rank in (None, 0)
        self._writer = TraceWriter(path, description, exist_ok=True, describes=first)
        self._steps_before = existing == "continue"
        if existing == "replace":
            for rank in {self._rank, *(others if first else ())}:
                self._writer.forget(0, rank=rank)
        self._waiting = path / f".parts-{0 if self._rank is None else self._rank}"
        self._parts: TraceWriter | None = None
        self.drop()  # what an interrupted process has left

    def _check(self, present: TraceWriter, existing: Existing) -> set[int | None]:
        """Refuses a directory that is taken; returns the ranks whose files cannot stay."""
        ranks = present.ranks()
        # No reader takes files with and without ranks together.
        others = {rank for rank in ranks if (rank is None) != (self._rank is None)}
        if (existing == "refuse" and self._rank in ranks) or (existing != "replace" and others):
            raise _held(present.directory, "existing='replace'" if others else _OFFER)
        return others

    def add(self, step: int, part: Part) -> None:
        """Writes a part where no reader looks."""
        if self._parts is None:
            self._parts = TraceWriter(self._waiting, describes=False)
        path = self._parts.write(
            step, part.tensors, part.metadata, micro=part.micro, rank=self._rank
        )
        if part.spilled:
            append(path, part.spilled)

    def finish(self, step: int) -> None:
        """Moves the parts to where readers find them."""
        if self._steps_before:
            self._writer.forget(step, rank=self._rank)
            self._steps_before = False
        for name in sorted(os.listdir(self._waiting)):
            self._writer.bytes_written += (self._waiting / name).stat().st_size
            os.replace(self._waiting / name, self._writer.directory / name)

    def forget(self, step: int) -> None:
        """Removes `step` and later steps."""
        self._writer.forget(step, rank=self._rank)

    def drop(self) -> None:
        """Removes parts that wait."""
        shutil.rmtree(self._waiting, ignore_errors=True)
        self._parts = None

    def close(self) -> None:
        """Lists the steps in trace.json."""
        self.drop()
        try:
            self._writer.close()
        finally:
            self._lock.release()

    def bytes_on_disk(self) -> int:
        """Returns the bytes of all steps written here."""
        return self._writer.bytes_written


def counted_parts(
    part: Part, mantissas: Iterable[float] = ()
) -> Iterator[tuple[int, float, dict[str, str], list[NamedArray]]]:
    """Yields a part as ProfileWriter and HeldStep take it, what was put aside before the rest."""
    micro = -1 if part.micro is None else part.micro
    for tensors in chain(loaded(part.spilled), [part.tensors]):
        named = named_arrays(tensors, part.scale, part.metadata, mantissas)
        yield micro, part.scale, dict(part.metadata), named
        del tensors, named  # free before the next are loaded


class ProfileSink:
    """A profile: a folder with a file for each step.

    Raises UsageError while another one of this process writes there.
    """

    _open: ClassVar[WeakValueDictionary[Path, ProfileSink]] = WeakValueDictionary()

    def __init__(
        self,
        path: Path,
        description: Mapping[str, str],
        extras: Mapping[str, Any],
        existing: Existing,
    ) -> None:
        self._path = path
        self._place = path.absolute()
        if self._place in self._open:
            raise UsageError(
                f"{path}: another recorder of this process is writing there, expected another "
                "name, or that recorder to be closed"
            )
        if existing == "refuse":
            refuse_profile(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path}: cannot be created: {error.strerror or error}") from error
        rule = "continue" if existing == "continue" else "replace"
        self._writer = ProfileWriter(str(path), dict(description), existing=rule, **extras)
        self._bytes = sum(file.stat().st_size for file in path.iterdir())
        self._steps_before = bool(steps_in(path))
        self._open[self._place] = self

    def add(self, step: int, part: Part) -> None:
        """Counts a part."""
        for counted in counted_parts(part, self._writer.mantissas):
            self._writer.add(step, counted)
            del counted  # free before the next are loaded

    def finish(self, step: int) -> None:
        """Writes the step."""
        if self._steps_before:
            self.forget(step)
            self._steps_before = False
        self._writer.finish()
        self._bytes += step_file(self._path, step).stat().st_size

    def forget(self, step: int) -> None:
        """Removes `step` and later steps."""
        for number, file in steps_in(self._path).items():
            if number >= step:
                self._bytes -= file.stat().st_size
                file.unlink()

    def drop(self) -> None:
        """Forgets counted parts."""
        self._writer.drop()

    def close(self) -> None:
        """Removes what a profile without any step has left."""
        self.drop()
        if not steps_in(self._path):
            (self._path / "profile.json").unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it holds something else
                self._path.rmdir()
        self._open.pop(self._place, None)

    def bytes_on_disk(self) -> int:
        """Returns the size of the profile."""
        return self._bytes


class DrySink:
    """Writes nothing that stays: only how many bytes the steps would take."""

    def __init__(self, profile: bool, extras: Mapping[str, Any]) -> None:
        self._bytes = 0
        self._of_steps = [0, 0]  # up to the step before the last one, and up to that
        self._folder = TemporaryDirectory() if profile else None
        self._inner: ProfileSink | None = None
        if self._folder is not None:
            path = Path(self._folder.name) / "step.profile"
            self._inner = ProfileSink(path, {}, extras, "replace")
            self._empty = self._inner.bytes_on_disk()

    def add(self, step: int, part: Part) -> None:
        """Adds up what the part would take."""
        if self._inner is not None:
            self._inner.add(step, part)
        else:
            sizes = [tensor.numel() * tensor.element_size() for tensor in part.tensors.values()]
            self._bytes += sum(sizes) + sum(one.bytes for one in part.spilled.values())

    def finish(self, step: int) -> None:
        """Adds up what the step takes, of a profile once it is complete."""
        if self._inner is not None:
            self._inner.finish(step)
            self._bytes += self._inner.bytes_on_disk() - self._empty
            self._inner.forget(0)
        self._of_steps = [self._of_steps[1], self._bytes]

    def forget(self, step: int) -> None:
        """Takes off what the last step takes."""
        self._bytes = self._of_steps[1] = self._of_steps[0]

    def drop(self) -> None:
        """Forgets counted parts."""
        if self._inner is not None:
            self._inner.drop()

    def close(self) -> None:
        """Removes the temporary profile."""
        self._inner = None
        if self._folder is not None:
            self._folder.cleanup()

    def bytes_on_disk(self) -> int:
        """Returns the bytes that the steps so far would take."""
        return self._bytes
