# SPDX-License-Identifier: Apache-2.0
"""How many recorded values have which exponent, from traces and from profiles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._errors import InputError, UsageError
from .._text import counted
from ._recorded import AnyPath, Header, Role, encoded_paths

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
