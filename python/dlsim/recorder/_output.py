# SPDX-License-Identifier: Apache-2.0
"""Where a recorder puts its steps, a trace or a profile, and what it says there about itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, ClassVar, Literal, NamedTuple, get_args
from weakref import WeakValueDictionary

from .._core import ProfileWriter, __version__
from .._errors import InputError, UsageError
from .._values import text_of
from ..arrays._arguments import listed
from ..arrays._dtypes import name_of_dtype
from ..profiles import step_file, steps_in
from ..traces._writer import TraceWriter
from ._ranks import Ranks, process_group
from ._selection import class_of
from ._tensors import NamedArray, named_arrays

# -- Gradients of a step that is not complete, in files: accumulation would fill the memory

_LOADED_AT_ONCE = 1 << 24  # bytes


class Spilled(NamedTuple):
    """A tensor in a file."""

    path: Path
    shape: tuple[int, ...]
    dtype: str
    bytes: int

    def load(self, name: str) -> Any:
        """Returns the tensor of this name."""
        from safetensors import safe_open

        with safe_open(self.path, "pt") as file:
            return file.get_tensor(name)


class Spill:
    """Files in `folder`, or in a temporary one, which exists only while it holds something."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._writer: TraceWriter | None = None
        self._files = 0
        self._tensors: dict[str, Spilled] = {}

    def add(self, tensors: Mapping[str, Any]) -> None:
        """Writes tensors; one that was written before becomes the sum of both."""
        if self._writer is None:
            self._writer = TraceWriter(self._new_folder(), describes=False)
        summed = self.summed(tensors)
        path = self._writer.write(self._files, summed)
        self._files += 1
        for name, tensor in summed.items():
            size = tensor.numel() * tensor.element_size()
            dtype = name_of_dtype(tensor.dtype)
            self._tensors[name] = Spilled(path, tuple(tensor.shape), dtype, size)

    def summed(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Returns tensors with what was written of the same names, which is forgotten."""
        before = {name: self._tensors.pop(name, None) for name in tensors}
        return {
            name: tensor if (old := before[name]) is None else old.load(name) + tensor
            for name, tensor in tensors.items()
        }

    @property
    def holds(self) -> bool:
        """Whether there is something that no step has taken."""
        return bool(self._tensors)

    def take(self) -> dict[str, Spilled]:
        """Returns all by name, for a step; its files stay until `remove`."""
        found, self._tensors = self._tensors, {}
        return found

    def clear(self) -> None:
        """Forgets everything."""
        self._tensors.clear()
        if self._writer is not None:
            shutil.rmtree(self._writer.directory, ignore_errors=True)
            self._writer = None

    def _new_folder(self) -> Path:
        if self._folder is None:
            return Path(mkdtemp(prefix="dlsim-spill-"))
        shutil.rmtree(self._folder, ignore_errors=True)  # of a process that was killed
        return self._folder


def remove(spilled: Mapping[str, Spilled]) -> None:
    """Removes the files of a step."""
    for path in {one.path for one in spilled.values()}:
        path.unlink(missing_ok=True)


def loaded(spilled: Mapping[str, Spilled]) -> Iterator[dict[str, Any]]:
    """Yields the tensors, a few at a time: their files are mapped into memory until the next."""
    from safetensors import safe_open

    for path, names in _groups(spilled):
        with safe_open(path, "pt") as file:
            yield {name: file.get_tensor(name) for name in names}


def _groups(spilled: Mapping[str, Spilled]) -> Iterator[tuple[Path, list[str]]]:
    """Yields names of tensors in one file that together take little more than _LOADED_AT_ONCE."""
    by_path: dict[Path, list[str]] = {}
    for name, one in spilled.items():
        by_path.setdefault(one.path, []).append(name)
    for path, names in by_path.items():
        first = size = 0
        for i, name in enumerate(names):
            size += spilled[name].bytes
            if size >= _LOADED_AT_ONCE or i + 1 == len(names):
                yield path, names[first : i + 1]
                first, size = i + 1, 0


# -- Keeps a trace directory for one recorder at a time


class Lock:
    """A file that is locked until `release`, or until the process ends however it may.

    Raises UsageError if another recorder has it. A file system without locks is taken as it is.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = os.getpid()
        while True:
            # A process that is forked closes its copy, which leaves the lock where it is.
            self._file = path.open("ab")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._file.close()
                raise UsageError(
                    f"{path.parent}: another recorder is writing there, expected another "
                    "directory, or that recorder to be closed"
                ) from None
            except OSError:
                return
            if self._is_at_its_place():
                return
            self._file.close()  # its holder has just removed it

    def _is_at_its_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Removes the file and gives the lock back."""
        if self._file.closed or os.getpid() != self._process:
            return
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
            fcntl.flock(self._file, fcntl.LOCK_UN)  # processes that were forked may have it open
        self._file.close()


# -- A trace or a profile that takes steps

Existing = Literal["refuse", "replace", "continue"]


class Part(NamedTuple):
    """A step, or one of its micro-steps; `scale` is the loss scale that the values carry.

    Tensors on a device may be the training's own, and have to be read before it goes on. `spilled`
    are in files.
    """

    micro: int | None
    scale: float
    metadata: Mapping[str, str]
    tensors: Mapping[str, Any]
    spilled: Mapping[str, Spilled] = {}


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
    """A directory of step files. Parts wait in a directory inside until their step is complete.

    Parts come one by one, then the step: micro-steps, or one part without. Nothing of them is held.
    """

    def __init__(
        self, path: Path, description: Mapping[str, str], ranks: Ranks, existing: Existing
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
        description: Mapping[str, str],
        existing: Existing,
    ) -> None:
        others = self._check(present, existing)
        self._first = self._rank in (None, 0)
        self._writer = present
        self.describe(description)
        self._steps_before = existing == "continue"
        if existing == "replace":
            for rank in {self._rank, *(others if self._first else ())}:
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

    def describe(self, description: Mapping[str, str]) -> None:
        """Writes trace.json, if this is the process that does."""
        self._writer = TraceWriter(
            self._writer.directory, description, exist_ok=True, describes=self._first
        )

    def add(self, step: int, part: Part) -> None:
        """Writes a part where no reader looks."""
        if self._parts is None:
            self._parts = TraceWriter(self._waiting, describes=False)
        tensors: dict[str, Any] = {}
        for spilled in loaded(part.spilled):  # which came before the rest; no memory holds it
            tensors.update(spilled)
        tensors.update(part.tensors)
        self._parts.write(step, tensors, part.metadata, micro=part.micro, rank=self._rank)

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
        self._description, self._extras = description, extras
        self._continues = existing == "continue"
        self._made: ProfileWriter | None = None
        try:
            self._made = self._writer()
        except InputError:
            if not self._continues:
                raise
            # What continues a profile must have its description, which may be said later.
        self._bytes = sum(file.stat().st_size for file in path.iterdir())
        self._steps_before = bool(steps_in(path))
        self._open[self._place] = self

    def _writer(self) -> ProfileWriter:
        has_steps = self._path.is_dir() and bool(steps_in(self._path))
        rule = "continue" if self._continues and has_steps else "replace"
        try:
            return ProfileWriter(
                str(self._path), dict(self._description), existing=rule, **self._extras
            )
        except UsageError as error:
            raise UsageError(re.sub(r"^scal\w+:", "also:", str(error))) from None

    def describe(self, description: Mapping[str, str]) -> None:
        """Has profile.json written again."""
        self._description, self._made = description, None

    def add(self, step: int, part: Part) -> None:
        """Counts a part."""
        self._made = writer = self._made or self._writer()
        for counted in counted_parts(part, writer.mantissas):
            writer.add(step, counted)
            del counted  # free before the next are loaded

    def finish(self, step: int) -> None:
        """Writes the step."""
        if self._steps_before:
            self.forget(step)
            self._steps_before = False
        assert self._made is not None  # a part was added
        self._made.finish()
        self._bytes += step_file(self._path, step).stat().st_size

    def forget(self, step: int) -> None:
        """Removes `step` and later steps."""
        for number, file in steps_in(self._path).items():
            if number >= step:
                self._bytes -= file.stat().st_size
                file.unlink()

    def drop(self) -> None:
        """Forgets counted parts."""
        if self._made is not None:
            self._made.drop()

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


class NoSink(ProfileSink):
    """A profile of which nothing stays: only how many bytes its steps take."""

    def __init__(self, extras: Mapping[str, Any]) -> None:
        self._folder = TemporaryDirectory()
        super().__init__(Path(self._folder.name) / "run.profile", {}, extras, "refuse")
        self._of_last = 0

    def finish(self, step: int) -> None:
        """Adds up what the step takes."""
        before = self._bytes
        super().finish(step)
        self._of_last = self._bytes - before
        step_file(self._path, step).unlink()

    def forget(self, step: int) -> None:
        """Takes off what the last step takes."""
        self._bytes -= self._of_last

    def close(self) -> None:
        """Removes the folder."""
        super().close()
        self._folder.cleanup()


Sink = TraceSink | ProfileSink


# -- Which of them a recorder has, and what it says there about itself


def is_profile(path: str | os.PathLike[str] | None) -> bool:
    """Returns whether a path is the name of a profile; None, for nothing to be written, counts."""
    return path is None or Path(path).suffix == ".profile"


@dataclass
class Output:
    """A trace or profile to be opened, again and again until that succeeds.

    Without a `path` it is a profile of which nothing stays. `extras` are keywords of ProfileWriter.
    """

    path: Path | None
    profile: bool
    ranks: Ranks
    existing: Existing
    description: dict[str, str]
    extras: Mapping[str, list[str]]

    @property
    def spill(self) -> Path | None:
        """The directory for what a step has to put aside; None for a temporary one."""
        if self.path is None:
            return None
        if self.profile:
            return Path(f"{self.path}.spill")
        return self.path / f".spill-{self.ranks.rank if self.ranks.kind == 'separate' else 0}"

    def open(self) -> Sink:
        """Opens it. Raises UsageError if something is there already, InputError if it fails."""
        if self.path is None:
            return NoSink(self.extras)
        if self.profile:
            return ProfileSink(self.path, self.description, self.extras, self.existing)
        return TraceSink(self.path, self.description, self.ranks, self.existing)

    def next_command(self, given: str | os.PathLike[str] | None) -> str | None:
        """Returns the command for what recorders of the given path leave, "" if there is no one.

        None where this process does not speak for the others, and where nothing stays.
        """
        if self.path is None or not self.ranks.records or self.ranks.rank > 0:
            return None
        if self.ranks.kind == "separate" and self.profile:
            return ""
        return f"dlsim replay {shlex.quote(str(given if self.ranks.is_shard else self.path))}"


def output_of(
    path: str | os.PathLike[str] | None,
    ranks: Ranks,
    *,
    existing: Existing,
    description: dict[str, str],
    also: Any,
) -> Output:
    """Returns the output of this process; raises UsageError or TypeError for bad arguments."""
    one_of("existing", existing, get_args(Existing))
    texts = [text_of("also", one) for one in listed(also)]
    if texts and not is_profile(path):
        raise UsageError("also: only a profile has it, expected a path such as run.profile")
    formats = [one for one in texts if one[:1].isalpha()]
    extras = {"scaled_formats": formats, "scales": [one for one in texts if one not in formats]}
    place = None if path is None else _path_of(Path(path), ranks)
    return Output(place, is_profile(path), ranks, existing, description, extras)


def one_of(argument: str, value: object, known: tuple[str, ...]) -> None:
    """Raises UsageError unless `value` is one of those that are known."""
    if value not in known:
        names = ", ".join(map(repr, known))
        raise UsageError(f"{argument}: unknown, expected one of {names}, got {value!r}")


def check_free(path: str | os.PathLike[str] | None, options: Mapping[str, Any]) -> None:
    """Raises UsageError if a recorder with these arguments would be refused for what is there.

    For those that open it later. Only rank 0 looks, and for what it alone would write.
    """
    refuses = options.get("existing", "refuse") == "refuse"
    if path is not None and refuses and process_group()[0] == 0:
        (refuse_profile if is_profile(path) else refuse_trace)(Path(path))


def _path_of(path: Path, ranks: Ranks) -> Path:
    if ranks.is_shard:
        return path / f"shard-{ranks.rank:05d}-of-{ranks.ranks:05d}"
    if ranks.kind == "separate" and is_profile(path):
        return path.with_name(f"{path.stem}.rank-{ranks.rank:05d}{path.suffix}")
    return path


def description_of(
    models: Mapping[str, Any], chosen: Mapping[str, str], *, inference: bool
) -> dict[str, str]:
    """Returns what an output says of itself, with `chosen`, what is said of its steps.

    It is the same in every run with the same arguments.
    """
    carried = "as they were when step() was called, still carrying grad_scale"
    return {
        "model": ", ".join(class_of(model) for model in models.values()),
        "gradients": "not recorded, an inference" if inference else carried,
        "recorder": f"dlsim {__version__}",
        **chosen,
    }
