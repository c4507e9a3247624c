# SPDX-License-Identifier: Apache-2.0
"""Where a recorder puts its steps, a trace or a profile, and what it says there about itself."""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import logging
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, ClassVar, Literal, NamedTuple, get_args
from weakref import WeakValueDictionary

from .._core import ProfileWriter, __version__
from .._errors import InputError, UsageError
from .._text import bytes_text, counted
from .._values import text_of
from ..arrays._convert import listed
from ..arrays._dtypes import VALUES, name_of_dtype
from ..profiles import step_file, steps_in
from ..traces._writer import TraceWriter
from ._ranks import Ranks, process_group
from ._selection import Pace, class_of
from ._tensors import NamedArray, any_on_device, device_of, named_arrays, role_of

# -- What a recorder has done, and what went wrong without stopping the training

_LOG = logging.getLogger("dlsim.recorder")
_MESSAGES_KEPT = 20

# Why a tensor is left out that nobody misses: attention has a dropout that fused kernels replace.
NEVER_CALLED = "its module was never called in a recorded step"


def say(text: str) -> None:
    """Tells users something, unless they want warnings alone: logging.getLogger("dlsim.recorder").

    No warning, so that programs without a configuration of logging would not show it.
    """
    if _LOG.level <= logging.INFO:
        print(text, file=sys.stderr)


@dataclass(frozen=True)
class RecordedTensor:
    """A tensor as it is recorded: its name, shape, element type and bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass
class Report:
    """Counts of a recording so far.

    `every` is the distance of the steps that are recorded now, if the recorder has chosen it.
    `seconds` is the time spent in the recorder's own calls, without its hooks. `errors` counts
    failures, `messages` are the first of them, and `refused` the steps that were not recorded for
    them. `left_out` says of each tensor that was missing in a recorded step why. `tensors` are
    those of the last recorded step, `step_bytes` their bytes, and `bytes` what all steps take on
    the disk.
    """

    path: str
    steps: int = 0
    bytes: int = 0
    seconds: float = 0.0
    errors: int = 0
    messages: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    tensors: tuple[RecordedTensor, ...] = ()
    every: int | None = None
    refused: int = 0
    _latest: str = field(default="", repr=False, compare=False)  # error
    # How many steps were refused since the last one that was recorded, and why the first was; and
    # what that one told of those before it.
    _since: tuple[int, str] = field(default=(0, ""), repr=False, compare=False)
    _told: tuple[int, str] = field(default=(0, ""), repr=False, compare=False)

    @property
    def step_bytes(self) -> int:
        """The bytes of the tensors of the last recorded step, in memory."""
        return sum(tensor.bytes for tensor in self.tensors)

    def count(self, error: BaseException, doing: str) -> None:
        """Counts an error; the first one is logged. Never raises."""
        self.errors += 1
        text = f"{doing}: {' '.join(str(error).split()) or type(error).__name__}"
        self._latest = text
        if len(self.messages) >= _MESSAGES_KEPT:
            return
        self.messages.append(text)
        if self.errors == 1:
            _LOG.warning("dlsim recorder: %s (training goes on; later errors are counted)", text)

    @contextmanager
    def counting(self, doing: str, *, raises: bool) -> Iterator[None]:
        """Counts an error of the block, which ends there, or lets it pass if `raises`."""
        try:
            yield
        except Exception as error:
            if raises:
                raise
            self.count(error, doing)

    def refuse(self) -> None:
        """Notes that a step was not recorded, for the error that was counted last."""
        self.refused += 1
        self._since = self._since[0] + 1, self._since[1] or self._latest

    def refusals(self) -> dict[str, str]:
        """Returns what the next step is to say of those before it that were not recorded."""
        count, first = self._since
        return {"refused": str(count), "refused_first": first} if count else {}

    def recorded(self) -> None:
        """Notes that it said so, and was recorded."""
        self._told, self._since = self._since, (0, "")

    def revoke(self) -> None:
        """Notes that this step was removed for the last error: what it told is to be told again."""
        count, first = self._told
        self._since = count + self._since[0], first or self._since[1]
        self._told = 0, ""
        self.refuse()

    def choose(self, every: int, step: int) -> None:
        """Notes the distance of the steps that are recorded from `step` on; logs the first."""
        if self.every is None:
            _LOG.warning(
                "dlsim recorder: %s: of step %d and later, only multiples of %d are recorded for "
                "now, so that recording takes little time (every=1 records all, every=0.1 as many "
                "as take a tenth of the time)",
                *(self.path, step, every),
            )
        self.every = every

    def say_size(self, *, forward: bool) -> None:
        """Says what a trace takes, for those who might rather have a profile."""
        without = "" if forward else ", without the forward pass (forward_every=50 takes some)"
        say(
            f"{self.path}: a trace, {bytes_text(self.step_bytes)} for each step{without}. "
            f"For a profile, which has forward passes and is small, name it {self.path}.profile"
        )

    def say_at_close(
        self, next_command: str | None, *, called: bool, completes: bool = False
    ) -> None:
        """Says how many steps were recorded and what can be done with them.

        `called` says whether any step was asked for: without any, something is wrong, unless the
        recorder `completes` what was there.
        """
        if self.steps > 0:
            refused = f", {self.refused} refused" if self.refused else ""
            then = "" if next_command is None else f" Next: {next_command}"
            say(f"{self.path}: {counted(self.steps, 'steps')} recorded{refused}.{then}")
        elif self.errors == 0 and not completes:
            _LOG.warning(
                "dlsim recorder: %s: nothing was recorded: %s",
                self.path,
                "no step was among those to be recorded"
                if called
                else "Recorder.step was never called, expected it after each backward pass",
            )

    def log_at_close(self) -> None:
        """Logs the errors and the tensors that were left out, a line each, if there are any.

        Those of modules that never ran are no warning.
        """
        if self.errors > 0:
            _LOG.warning("dlsim recorder: %s: %d errors, %d steps", *self._sums())
        for level, left_out in (
            (logging.WARNING, [one for one in self.left_out.items() if one[1] != NEVER_CALLED]),
            (logging.DEBUG, [one for one in self.left_out.items() if one[1] == NEVER_CALLED]),
        ):
            if left_out:
                more = f", and {len(left_out) - 1} more" if len(left_out) > 1 else ""
                first = (self.path, *left_out[0], more)
                _LOG.log(level, "dlsim recorder: %s: left out: %s (%s)%s", *first)

    def _sums(self) -> tuple[str, int, int]:
        return self.path, self.errors, self.steps

    def __str__(self) -> str:
        text = (
            f"{self.path}: {counted(self.steps, 'steps')}, "
            f"{counted(len(self.tensors), 'tensors')} of "
            f"{bytes_text(self.step_bytes)} per step, {bytes_text(self.bytes)} written, "
            f"{self.seconds:.3f} s in the recorder, {counted(self.errors, 'errors')}"
        )
        if self.every is not None:
            text += f", recording {'all' if self.every == 1 else f'multiples of {self.every}'} now"
        return f"{text}, first: {self.messages[0]}" if self.messages else text


# -- Gradients of a step that is not complete, in files: accumulation would fill the memory

_LOADED_AT_ONCE = 1 << 24  # bytes


class Spilled(NamedTuple):
    """A tensor in a file."""

    path: Path
    shape: tuple[int, ...]
    dtype: str
    bytes: int

    def load(self, name: str) -> Any:
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
        self._writer.forget(step, rank=self._rank)

    def drop(self) -> None:
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
        self._description, self._made = description, None

    def add(self, step: int, part: Part) -> None:
        self._made = writer = self._made or self._writer()
        for one in counted_parts(part, writer.mantissas):
            writer.add(step, one)
            del one  # free before the next are loaded

    def finish(self, step: int) -> None:
        if self._steps_before:
            self.forget(step)
            self._steps_before = False
        assert self._made is not None  # a part was added
        self._made.finish()
        self._bytes += step_file(self._path, step).stat().st_size

    def forget(self, step: int) -> None:
        for number, file in steps_in(self._path).items():
            if number >= step:
                self._bytes -= file.stat().st_size
                file.unlink()

    def drop(self) -> None:
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
        super().close()
        self._folder.cleanup()


Sink = TraceSink | ProfileSink


# -- Which of them a recorder has, and what it says there about itself


def is_profile(path: str | os.PathLike[str] | None) -> bool:
    """Returns whether a path is the name of a profile; None, for nothing to be written, counts."""
    return path is None or Path(path).suffix == ".profile"


class Output:
    """A trace or profile to be opened, again and again until that succeeds.

    Without a `path` it is a profile of which nothing stays. `extras` are keywords of ProfileWriter.
    Raises UsageError and TypeError for bad arguments of a recorder.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        ranks: Ranks,
        *,
        existing: Existing,
        description: dict[str, str],
        also: Any,
    ) -> None:
        one_of("existing", existing, get_args(Existing))
        self.profile, self.ranks = is_profile(path), ranks
        self.existing, self.description = existing, description
        texts = [text_of("also", one) for one in listed(also)]
        if texts and not self.profile:
            raise UsageError("also: only a profile has it, expected a path such as run.profile")
        formats = [one for one in texts if one[:1].isalpha()]
        scales = [one for one in texts if one not in formats]
        self.extras = {"scaled_formats": formats, "scales": scales}
        self.path = None if path is None else Path(path)
        if self.path is not None and ranks.is_shard:
            self.path /= f"shard-{ranks.rank:05d}-of-{ranks.ranks:05d}"
        elif self.path is not None and ranks.kind == "separate" and self.profile:
            name = f"{self.path.stem}.rank-{ranks.rank:05d}{self.path.suffix}"
            self.path = self.path.with_name(name)

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


# -- Tensors in host memory, as they were when they were asked for


def described(part: Part) -> tuple[RecordedTensor, ...]:
    """Returns what is recorded of each tensor."""
    in_files = [RecordedTensor(name, *one[1:]) for name, one in part.spilled.items()]
    in_memory = []
    for name, one in part.tensors.items():
        size = one.numel() * one.element_size()
        in_memory.append(RecordedTensor(name, tuple(one.shape), name_of_dtype(one.dtype), size))
    return (*in_memory, *in_files)


def _recorded(tensors: Mapping[str, Any], left_out: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Yields the elements that this process holds, dense; notes those of other types."""
    import torch

    for name, given in tensors.items():
        tensor = given.detach()
        if type(tensor) is not torch.Tensor and hasattr(tensor, "to_local"):  # DTensor
            tensor = tensor.to_local()
        tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
        if (dtype := name_of_dtype(tensor.dtype)) in VALUES:
            yield name, tensor
        else:
            left_out[name] = f"has elements of type {dtype}"


class HostCopies:
    """Takes tensors to the host, once, in buffers that the next call overwrites.

    With `borrowed`, parameters' gradients are those that the training goes on to change. All others
    are held by hooks alone, and are not copied where they are on the CPU. Those on a CUDA device go
    to pinned buffers, with one synchronization of each device for all; with `on_device` those of
    the first device stay there.
    """

    def __init__(self, *, borrowed: bool = True, on_device: bool = False) -> None:
        self._on_device = on_device
        self._borrowed = ("grad", "value") if borrowed else ("value",)
        self._buffers: dict[str, Any] = {}

    def take(self, tensors: Mapping[str, Any], left_out: dict[str, str]) -> dict[str, Any]:
        """Returns contiguous tensors; notes those that are not floating-point numbers."""
        import torch

        host: dict[str, Any] = {}
        counting = None  # the device that counts
        devices = set()
        for name, tensor in _recorded(tensors, left_out):
            device = device_of(tensor)
            if device is not None:
                devices.add(device)
                if self._on_device and counting in (None, device):
                    counting = device
                    host[name] = tensor.resolve_neg().contiguous()
                    continue
                host[name] = self._buffer_like(name, tensor, pinned=True)
                host[name].copy_(tensor, non_blocking=True)
            elif tensor.device.type == "cpu" and role_of(name) in self._borrowed:
                host[name] = self._buffer_like(name, tensor, pinned=False).copy_(tensor)
            else:
                host[name] = tensor.resolve_neg().cpu().contiguous()
        for device in devices:
            torch.cuda.synchronize(device)
        return host

    def _buffer_like(self, name: str, tensor: Any, *, pinned: bool) -> Any:
        import torch

        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            if pinned:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            else:
                buffer = torch.empty_like(tensor, memory_format=torch.contiguous_format)
            if role_of(name) not in ("act", "value"):  # which are recorded in few steps
                self._buffers[name] = buffer
        return buffer


def in_host_memory(tensors: Mapping[str, Any], left_out: dict[str, str]) -> dict[str, Any]:
    """Returns gradients that hooks alone hold, which nobody goes on to change."""
    found = _recorded(tensors, left_out)
    return {name: tensor.resolve_neg().cpu().contiguous() for name, tensor in found}


# -- A thread that runs one job after the other, and that an interrupt of its caller cannot stop


class Job:
    """A call that is made in another thread."""

    def __init__(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._function: Callable[..., object] | None = function
        self._arguments = arguments
        self._error: BaseException | None = None
        self._done = False
        self._signal: SimpleQueue[None] = SimpleQueue()

    def run(self) -> None:
        try:
            assert self._function is not None
            self._function(*self._arguments)
        except BaseException as error:
            self._error = error
        self._function, self._arguments = None, ()  # what they hold is free
        self._done = True
        self._signal.put(None)

    def exception(self) -> BaseException | None:
        """Waits until the call has ended, and returns what it raised."""
        if not self._done:
            self._signal.get()
            self._signal.put(None)  # for another thread that waits
        return self._error

    def result(self) -> None:
        """Waits until the call has ended, and raises what it raised."""
        if self.exception() is not None:
            raise self._error  # type: ignore[misc]


class Worker:
    """The thread, from now on until `end`.

    KeyboardInterrupt, or what another handler of a signal raises, may come at any moment, also
    while one of Python's own locks is being taken, which is then never given back: Future, Thread
    and Condition have such. SimpleQueue takes its lock in C, where no signal is handled. Python's
    end does not wait for the thread, but closes recorders, which do.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._ended = False
        _thread.start_new_thread(_work, (self._jobs,))

    def submit(self, function: Callable[..., object], *arguments: Any) -> Job:
        """Has a function called after all that was submitted before; at once after `end`."""
        job = Job(function, arguments)
        if self._ended:
            job.run()
        else:
            self._jobs.put(job)
        return job

    def wait(self) -> None:
        self.submit(_nothing).exception()

    def end(self) -> None:
        """Waits for all that was submitted, and ends the thread."""
        self.wait()
        self._ended = True  # first: nobody may wait for a thread that has ended
        self._jobs.put(None)  # once more after an interrupt, which may have come before it

    def leave(self) -> None:
        """Ends the thread behind all that was submitted, and does not wait."""
        self._ended = True
        self._jobs.put(None)


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
        del job  # not held while it waits for the next


def _nothing() -> None:
    """Is done when all before it is."""


# -- Counts and writes steps in a thread, while the training goes on


class Background:
    """The output at work in a thread of its own.

    What it is given must stay as it is until `wait` returns. Steps and errors are counted in
    `report` by `settle`, which raises them instead if `raises`. `pace` receives how long that
    thread works on a step, and how long the caller waits for it.
    """

    def __init__(self, output: Output, report: Report, pace: Pace, *, raises: bool) -> None:
        self._output, self._report, self._raises = output, report, raises
        self._pace = pace
        self._sink: Sink | None = None
        self._thread = Worker()
        self._spill = Spill(output.spill)
        # Of the step that is not finished: what reads a part, and its tensors in files.
        self._parts: list[tuple[Job, Mapping[str, Spilled]]] = []
        self._has_parts = False  # the output may hold some
        self._steps: list[tuple[int, Job]] = []
        self._written: int | None = None  # the last step that is there

    def open(self) -> Sink:
        if self._sink is None:
            self._sink = self._output.open()
        return self._sink

    def describe(self, texts: Mapping[str, str]) -> None:
        """Adds to what the output says of itself."""
        if self._has_parts or self._steps or self._written is not None:
            raise UsageError("describe: expected before the first step that is recorded")
        description = {**self._output.description, **texts}
        if self._sink is not None:
            self._sink.describe(description)
        self._output.description = description

    def add(self, step: int, part: Part) -> None:
        """Takes a part of a step; returns when it is read if some of it is on a device."""
        self._has_parts = True
        done = self._thread.submit(self._read, self.open(), step, part)
        if any_on_device(part.tensors.values()):
            with self._waiting():
                done.exception()
        self._parts.append((done, part.spilled))

    def put_aside(self, tensors: Mapping[str, Any]) -> None:
        """Writes tensors of a step whose part comes later; returns when their memory is free."""
        if self._has_parts:  # an interrupted step has left them
            self.drop()
        self.open()  # which refuses a place that somebody else uses
        self._spill.add(tensors)

    def completed(self, part: Part) -> Part:
        """Returns a part with what was put aside for it."""
        return part._replace(tensors=self._spill.summed(part.tensors), spilled=self._spill.take())

    def finish(self, step: int) -> None:
        self.settle()  # those before, which are done
        parts, self._parts = self._parts, []
        self._steps.append((step, self._thread.submit(self._finish, step, parts)))
        self._has_parts = False  # last: if this is interrupted, the next step drops them
        if self._raises:
            self.settle()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._pace.waited(time.perf_counter() - began)

    def _read(self, sink: Sink, step: int, part: Part) -> None:
        began = time.perf_counter()
        sink.add(step, part)
        self._pace.worked(step, time.perf_counter() - began)

    def _finish(self, step: int, parts: list[tuple[Job, Mapping[str, Spilled]]]) -> None:
        began, sink = time.perf_counter(), self.open()
        try:
            for reading, _ in parts:  # all are done: there is one thread
                reading.result()
        except Exception:
            sink.drop()
            raise
        finally:
            for _, spilled in parts:
                remove(spilled)
        sink.finish(step)
        self._pace.worked(step, time.perf_counter() - began)

    def drop(self) -> None:
        self._parts.clear()
        if self._sink is not None:
            self._thread.submit(self._sink.drop)
        self._thread.wait()  # until no part is read
        self._spill.clear()
        self._has_parts = False

    def begin(self) -> None:
        """Begins a step: waits until nothing that was given before is needed.

        Forgets what an interrupted one has left.
        """
        self.wait()
        if self._has_parts:
            self.drop()

    def forget_spilled(self) -> None:
        """Forgets what was put aside for a step that is not recorded."""
        if self._spill.holds:
            self.drop()

    def wait(self) -> None:
        with self._waiting():
            self._thread.wait()

    def settle(self) -> None:
        """Waits for the steps that were finished, and counts them and their errors."""
        while self._steps:
            step, outcome = self._steps[0]
            with self._waiting():
                outcome.exception()
            del self._steps[0]
            errors = self._report.errors
            with self._report.counting(f"step {step}", raises=self._raises):
                outcome.result()
                self._written = step
                self._report.steps += 1
            if self._report.errors > errors:
                self._report.refuse()

    def revoke(self, step: int) -> bool:
        """Removes a step, the last of those that were finished; returns whether it was there."""
        self.settle()
        if self._written != step or self._sink is None:
            return False
        self._sink.forget(step)
        self._written = None
        self._report.steps -= 1
        return True

    def measure(self) -> None:
        """Notes in the report how many bytes are on the disk."""
        if self._sink is not None:
            self.wait()
            self._report.bytes = self._sink.bytes_on_disk()

    def close(self) -> None:
        self._thread.end()
        self._spill.clear()
        if self._sink is not None:
            self._sink.close()
            self._report.bytes = self._sink.bytes_on_disk()
            self._sink = None  # last: what was interrupted can be called again

    def abandon(self) -> None:
        """Completes the output of a recorder that is gone; counts errors, for nobody."""
        self._raises = False
        for finish in (self.settle, self.close):
            with self._report.counting("close", raises=False):
                finish()

    def leave(self) -> None:
        """Forgets everything, in a forked process, which has no such thread."""
        self._parts.clear()
        self._steps.clear()
        self._sink = None
