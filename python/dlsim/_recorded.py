# SPDX-License-Identifier: Apache-2.0
"""What traces and profiles have in common: paths, and tensors known without their values."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from ._errors import UsageError

AnyPath: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"
Role: TypeAlias = Literal["grad", "act_grad"]
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


def tensor_infos(headers: Iterable[Header]) -> dict[str, TensorInfo]:
    """Returns the tensors by name, in their order."""
    return {
        name: TensorInfo(name, cast("Role", role), dtype, shape)
        for name, role, dtype, shape in headers
    }


def encoded_paths(paths: AnyPath | Iterable[AnyPath]) -> list[bytes]:
    """Returns one path or several as the operating system spells them; no path is an error."""
    given = [paths] if isinstance(paths, (str, bytes, os.PathLike)) else paths
    if not isinstance(given, Iterable):
        raise TypeError(f"path: expected a path or several, got {type(given).__name__}")
    encoded = [os.fsencode(path) for path in given]
    if not encoded:
        raise UsageError("path: nothing to open, expected at least one path")
    return encoded


def position(steps: Sequence[int], number: int) -> int:
    """Returns where a step number is among ascending ones; KeyError without it."""
    from bisect import bisect_left

    at = bisect_left(steps, number)
    if at == len(steps) or steps[at] != number:
        raise KeyError(number)
    return at


def index_of(i: int, count: int, place: str) -> int:
    """Returns `i` counted from the front (a negative one counts from the end), or IndexError."""
    from operator import index

    at = index(i)
    if not -count <= at < count:
        raise IndexError(f"{place}: no step at index {at} of {count}")
    return at % count
