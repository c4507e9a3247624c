# SPDX-License-Identifier: Apache-2.0
"""Recorded gradients as NumPy arrays, step by step and without holding a trace in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from operator import index
from typing import Generic, Literal, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._errors import InputError, MissingKey, UsageError
from .._text import counted

__all__ = [
    "Exponents",
    "Recording",
    "TensorExponents",
    "TensorInfo",
    "Tensors",
    "Trace",
    "TraceStep",
    "exponents",
    "open_trace",
]

# -- What traces and profiles have in common: paths, and tensors known without their values


AnyPath: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"
Role: TypeAlias = Literal["grad", "act_grad", "act", "value"]
Header: TypeAlias = tuple[str, str, str, tuple[int, ...]]
Step = TypeVar("Step")


@dataclass(frozen=True)
class TensorInfo:
    """A recorded tensor without its values.

    `dtype` is the recorded type as safetensors names it ("F32", "F64", "F16", "BF16").
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]


class ByName(dict[str, TensorInfo]):
    """Tensors by name, in their order; a missing one is a KeyError that names the likely one."""

    def __missing__(self, name: object) -> TensorInfo:
        raise MissingKey("tensor", name, list(self))


def tensor_infos(headers: Iterable[Header]) -> ByName:
    """Returns the tensors by name, in their order."""
    return ByName(
        (name, TensorInfo(name, cast("Role", role), dtype, shape))
        for name, role, dtype, shape in headers
    )


def encoded_paths(paths: AnyPath | Iterable[AnyPath]) -> list[bytes]:
    """Returns one path or several as the operating system spells them; no path is an error."""
    given = [paths] if isinstance(paths, (str, bytes, os.PathLike)) else paths
    if not isinstance(given, Iterable):
        raise TypeError(f"path: expected a path or several, got {type(given).__name__}")
    encoded = [_encoded(path) for path in given]
    if not encoded:
        raise UsageError("path: nothing to open, expected at least one path")
    return encoded


def _encoded(path: object) -> bytes:
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"path: expected a path, got {type(path).__name__}")
    try:
        return os.fsencode(path)
    except UnicodeEncodeError:
        raise UsageError(f"path: not valid Unicode, got {str(path)[:80]!a}") from None


def position(steps: Sequence[int], number: int) -> int:
    """Returns where a step number is among ascending ones; KeyError without it."""
    from bisect import bisect_left

    wanted = _whole("step", number)
    at = bisect_left(steps, wanted)
    if at == len(steps) or steps[at] != wanted:
        raise MissingKey("step", wanted, (), ranges_of(steps))
    return at


def ranges_of(steps: Sequence[int], most: int = 5) -> str:
    """Returns ascending numbers for a message: 0 to 44, or 1, 5, 9 and 12 more."""
    if len(steps) > 1 and steps[-1] - steps[0] == len(steps) - 1:
        return f"{steps[0]} to {steps[-1]}"
    more = len(steps) - most
    shown = ", ".join(map(str, steps[:most]))
    return f"{shown} and {more} more, up to {steps[-1]}" if more > 0 else shown


def index_of(i: int, count: int, place: str) -> int:
    """Returns `i` counted from the front (a negative one counts from the end), or IndexError."""
    at = _whole("index of a step", i)
    if not -count <= at < count:
        raise IndexError(f"{place}: no step at index {at} of {count}")
    return at % count


def _whole(place: str, number: object) -> int:
    try:
        return index(number)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{place}: expected a whole number, got {number!r}") from None


# -- Recorded gradients as NumPy arrays, step by step and without holding a trace in memory


FloatArray: TypeAlias = NDArray[np.float32]


class Tensors(Mapping[str, FloatArray]):
    """Arrays by name, in the order of the file; each access reads a new array."""

    def __init__(
        self, infos: Mapping[str, TensorInfo], read: Callable[[TensorInfo], FloatArray]
    ) -> None:
        """`read` gives the values of a tensor in its shape."""
        self.infos = infos
        self._read = read

    def __getitem__(self, name: str) -> FloatArray:
        return self._read(self.infos[name])

    def __contains__(self, name: object) -> bool:  # that of Mapping would read the tensor
        return name in self.infos

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)

    def __repr__(self) -> str:
        return f"Tensors({list(self.infos)})"


@dataclass(frozen=True)
class Recording:
    """One recorded file of a step: the whole step, or one micro-step of it.

    Several data-parallel ranks are one recording, reduced as requested of `open_trace`.
    """

    place: str  # the file; that of rank 0
    micro: int | None  # number of the micro-step; None without any
    grad_scale: float  # the loss scale that the file's values carry; `tensors` do not
    metadata: Mapping[str, str]  # as recorded: step, loss, lr, ...
    tensors: Tensors = field(repr=False)


class TraceStep:
    """One optimizer step of a trace: names and shapes at once, values when asked for.

    Arrays are float32 copies without the recorded loss scale, in C order; float64 values are
    rounded to nearest even. They stay valid when the step and its files are gone.
    """

    def __init__(self, core: _core.LoadedStep) -> None:
        """For `Trace`."""
        self._core = core

    @property
    def number(self) -> int:
        """The number of the step, as recorded."""
        return self._core.number

    @cached_property
    def recordings(self) -> tuple[Recording, ...]:
        """The files of the step: one, or one per micro-step in ascending order."""
        return tuple(
            Recording(
                place,
                None if micro < 0 else micro,
                grad_scale,
                metadata,
                _tensors(self._core, r, place, tensor_infos(headers)),
            )
            for r, (place, micro, grad_scale, metadata, headers) in enumerate(
                self._core.recordings()
            )
        )

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of the first recording."""
        return self.recordings[0].metadata if self.recordings else {}

    @cached_property
    def tensors(self) -> Tensors:
        """The tensors of the step, over all its micro-steps.

        A parameter gradient is the float32 sum of its micro-steps in their order: the effective
        gradient. Activations and their gradients belong to the inputs of a micro-step: those of
        all are joined along the first axis if their other sizes agree, and flat if not. Parameters
        are those of the first micro-step that has them.
        """
        if len(self.recordings) == 1:
            return self.recordings[0].tensors
        infos = ByName()
        for recording in self.recordings:
            for name, info in recording.tensors.infos.items():
                infos[name] = _joined(infos.get(name), info)
        rows = [{name: row for row, name in enumerate(r.tensors)} for r in self.recordings]
        return Tensors(infos, partial(_over_micro_steps, self._core, self.recordings, rows))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors, in the order of the file."""
        return tuple(self.tensors.infos)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor as `tensors` gives it; KeyError without it."""
        return self.tensors.infos[name].shape

    def role(self, name: str) -> Role:
        """What a tensor is: "grad" or "act_grad", and of the forward pass "act" or "value"."""
        return self.tensors.infos[name].role

    def dtype(self, name: str) -> str:
        """The type in which a tensor was recorded first: "F32", "F64", "F16" or "BF16"."""
        return self.tensors.infos[name].dtype

    def gradients(self) -> dict[str, FloatArray]:
        """Reads the effective gradient of every parameter: unscaled, summed over micro-steps."""
        return self._of_role("grad")

    def activation_gradients(self) -> dict[str, FloatArray]:
        """Reads all activation gradients; see `tensors` for micro-steps."""
        return self._of_role("act_grad")

    def activations(self) -> dict[str, FloatArray]:
        """Reads all outputs of the forward pass, as recorded; see `tensors` for micro-steps."""
        return self._of_role("act")

    def parameter_values(self) -> dict[str, FloatArray]:
        """Reads all parameters, as recorded."""
        return self._of_role("value")

    def _of_role(self, role: Role) -> dict[str, FloatArray]:
        infos = self.tensors.infos.items()
        return {name: self.tensors[name] for name, info in infos if info.role == role}

    def __repr__(self) -> str:
        return f"<dlsim.TraceStep {self.number}: {counted(len(self.names), 'tensors')}>"


# Functions and not methods: a cycle of references would keep the files of a step open.


def _tensors(
    core: _core.LoadedStep, recording: int, place: str, infos: dict[str, TensorInfo]
) -> Tensors:
    rows = {name: row for row, name in enumerate(infos)}

    def read(info: TensorInfo) -> FloatArray:
        values = np.empty(_countable(info, place), np.float32)
        core.read(recording, rows[info.name], values.reshape(-1))
        return values

    return Tensors(infos, read)


def _over_micro_steps(
    core: _core.LoadedStep,
    recordings: tuple[Recording, ...],
    rows: list[dict[str, int]],
    info: TensorInfo,
) -> FloatArray:
    if info.role == "value":
        return next(r.tensors[info.name] for r in recordings if info.name in r.tensors)
    if info.role != "grad":
        parts = [r.tensors[info.name].reshape(-1) for r in recordings if info.name in r.tensors]
        flat: FloatArray = np.concatenate(parts)
        return flat.reshape(info.shape)
    total = np.zeros(_countable(info, recordings[0].place), np.float32)
    for recording, row_of in enumerate(rows):
        if info.name in row_of:
            core.add(recording, row_of[info.name], total.reshape(-1))
    return total


def _countable(info: TensorInfo, place: str) -> tuple[int, ...]:
    """Returns the shape; empty tensors may have other sizes beyond what NumPy counts."""
    if 4 * prod(size for size in info.shape if size > 0) >= 1 << 63:
        raise InputError(
            f"{place}: tensor {info.name!r} has a shape that NumPy cannot hold: {list(info.shape)}"
        )
    return info.shape


def _joined(before: TensorInfo | None, info: TensorInfo) -> TensorInfo:
    if before is None:
        return info
    if info.role in ("grad", "value"):  # the reader has refused gradients of different shapes
        return before
    shape: tuple[int, ...]
    if before.shape and info.shape and before.shape[1:] == info.shape[1:]:
        shape = (before.shape[0] + info.shape[0], *info.shape[1:])
    else:
        shape = (prod(before.shape) + prod(info.shape),)
    return TensorInfo(info.name, before.role, before.dtype, shape)


class Steps(Generic[Step]):
    """What is opened for reading; `len`, iteration and indices go over its steps."""

    _reader: _core.TraceReader | _core.ProfileReader

    def __init__(self, reader: _core.TraceReader | _core.ProfileReader, place: str) -> None:
        """For what opens it."""
        self._reader, self._place = reader, place
        self.steps: tuple[int, ...] = tuple(reader.steps())

    @property
    def description(self) -> dict[str, str]:
        """The texts of the description (model, data, optimizer, ...); {} without one."""
        return self._reader.description()

    @property
    def file_bytes(self) -> int:
        """Size of all files, in bytes."""
        return self._reader.file_bytes()

    def _load(self, i: int) -> Step:
        raise NotImplementedError

    def step(self, number: int) -> Step:
        """Opens the step of that number; KeyError without it, InputError if its files are bad."""
        return self[position(self.steps, number)]

    def __getitem__(self, i: int) -> Step:
        return self._load(index_of(i, len(self), self._place))

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        for i in range(len(self)):
            yield self[i]

    def __repr__(self) -> str:
        return f"<dlsim.{type(self).__name__} {self._place}: {counted(len(self), 'steps')}>"


class Trace(Steps[TraceStep]):
    """A trace opened for reading: its steps are known, no tensor is read before it is asked for.

    `len`, iteration and indices go over the steps; one step is in memory at a time as long as
    the caller keeps one. May be used from several threads, which read one after another.
    """

    _reader: _core.TraceReader

    def _load(self, i: int) -> TraceStep:
        return TraceStep(self._reader.load(i))

    @property
    def notes(self) -> list[str]:
        """Remarks, such as files that were left out; one line each."""
        return self._reader.notes()

    def files(self, i: int) -> list[str]:
        """The paths of the files of the i-th step."""
        return self._reader.files(index_of(i, len(self), self._place))


def open_trace(
    path: AnyPath | Iterable[AnyPath],
    *,
    tensors: str = "*",
    ranks: Literal["mean", "sum"] = "mean",
    npy_void2: Literal["bf16"] | None = None,
) -> Trace:
    """Opens a trace, or several as one whose steps follow each other (docs/traces.md).

    Tensors whose names do not match the pattern `tensors` (* ? []) are not read; `ranks`, "mean" or
    "sum", is how the gradients of data-parallel ranks are combined; `npy_void2="bf16"` reads
    NumPy's dtype V2 as bf16. Raises InputError naming the file and the defect. Files are never
    changed.
    """
    paths = encoded_paths(path)
    for one in paths:
        if _core.is_profile(one):
            name = os.fsdecode(one)
            raise InputError(
                f"{name:.256}: is a profile, expected a trace; dlsim.open_profile opens it"
            )
    core = _core.TraceReader(paths, tensors=tensors, ranks=ranks, npy_void2=npy_void2)
    return Trace(core, paths[0].decode(errors="replace"))


# -- How many recorded values have which exponent, from traces and from profiles


LOWEST_EXPONENT = -149  # of the smallest subnormal float32
HIGHEST_EXPONENT = 127
_BINADES = HIGHEST_EXPONENT - LOWEST_EXPONENT + 1

Counts: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class TensorExponents:
    """What was counted of one tensor over all steps and micro-steps.

    `counts[i]` values have 2^e <= |x| < 2^(e + 1) with e = LOWEST_EXPONENT + i, subnormal float32
    values by their own exponents. With `per_step` every field has an axis of steps in front;
    a step without the tensor has zeros.
    """

    role: Role
    counts: Counts
    zeros: Counts
    nan: Counts
    inf: Counts
    elements: Counts


@dataclass(frozen=True)
class Exponents:
    """Counts per binade of each tensor; `exponents[i]` is the exponent of `counts[..., i]`."""

    steps: tuple[int, ...]
    tensors: dict[str, TensorExponents]
    exponents: NDArray[np.int64] = field(
        default_factory=lambda: np.arange(LOWEST_EXPONENT, HIGHEST_EXPONENT + 1)
    )

    def __repr__(self) -> str:
        steps, tensors = counted(len(self.steps), "steps"), counted(len(self.tensors), "tensors")
        return f"<dlsim.Exponents: {steps}, {tensors}>"


class _Tally:
    """Adds the rows of steps by the names of their tensors."""

    def __init__(self, steps: int, per_step: bool) -> None:
        self._shape = (steps, _BINADES + 4) if per_step else (_BINADES + 4,)
        self._roles: dict[str, Role] = {}
        self._rows: dict[str, Counts] = {}

    def add(self, step: int, headers: list[Header], rows: Counts) -> None:
        for (name, role, *_), row in zip(headers, rows, strict=True):
            if name not in self._rows:
                self._rows[name] = np.zeros(self._shape, np.int64)
                self._roles[name] = cast("Role", role)
            of_tensor = self._rows[name]
            (of_tensor[step] if of_tensor.ndim == 2 else of_tensor)[...] += row

    def result(self) -> dict[str, TensorExponents]:
        return {
            name: TensorExponents(
                self._roles[name],
                row[..., :_BINADES],
                *(row[..., _BINADES + i] for i in range(4)),
            )
            for name, row in self._rows.items()
        }


def exponents(
    path: AnyPath | Iterable[AnyPath],
    *,
    tensors: str = "*",
    per_step: bool = False,
    ranks: Literal["mean", "sum"] = "mean",
    npy_void2: Literal["bf16"] | None = None,
) -> Exponents:
    """Counts the exponents of a trace's recorded values, on all threads, or those of a profile.

    Values are float32 without the recorded loss scale; each micro-step counts by itself (in a
    profile made with `--accumulate sum-first`, their sum). Tensors whose names do not match the
    pattern are left out; that none matches is an InputError. `per_step` takes 2.2 KiB for each
    tensor and step. `ranks` and `npy_void2` are those of `open_trace`; a profile has its own. The
    counts of a trace and of its profile are equal.
    """
    paths = encoded_paths(path)
    place = paths[0].decode(errors="replace")
    reader: _core.TraceReader | _core.ProfileReader
    if any(_core.is_profile(p) for p in paths):
        if len(paths) > 1:
            raise UsageError(f"{place}: a profile among others, expected one profile or traces")
        reader = _core.ProfileReader(paths[0], tensors=tensors)
    else:
        reader = _core.TraceReader(paths, tensors=tensors, ranks=ranks, npy_void2=npy_void2)
    steps = tuple(reader.steps())
    tally = _Tally(len(steps), per_step)
    for i in range(len(steps)):
        tally.add(i, *reader.load(i).exponents())
    counted = tally.result()
    if steps and not counted:
        raise InputError(f"{place}: no tensor matches the pattern {tensors!r}")
    return Exponents(steps, counted)
