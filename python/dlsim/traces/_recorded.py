# SPDX-License-Identifier: Apache-2.0
"""What traces and profiles have in common: paths, and tensors known without their values."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Literal, TypeAlias, cast

from .._errors import MissingKey, UsageError

AnyPath: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"
Role: TypeAlias = Literal["grad", "act_grad", "act", "value"]
Header: TypeAlias = tuple[str, str, str, tuple[int, ...]]


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
