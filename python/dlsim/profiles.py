# SPDX-License-Identifier: Apache-2.0
"""Profiles (.dlprof): histograms of every step and tensor as NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._text import counted
from .traces._recorded import AnyPath, TensorInfo, encoded_paths, index_of, position, tensor_infos

_Fields: TypeAlias = tuple[
    int, int, int, int, float, float, float, NDArray[np.int64], NDArray[np.float64]
]


@dataclass(frozen=True)
class Histogram:
    """The values of one tensor in one step: exact counts between the edges of the profile.

    Bin b holds the magnitudes from edges[b] up to but without edges[b + 1]; zeros, infinities and
    NaN are in no bin.
    """

    elements: int
    zeros: int
    nan: int
    inf: int
    sum: float  # of the finite values
    largest_positive: float  # largest finite magnitudes; 0 if there is none
    largest_negative: float
    positive: NDArray[np.int64] = field(repr=False)  # values per bin
    negative: NDArray[np.int64] = field(repr=False)
    positive_squares: NDArray[np.float64] = field(repr=False)  # sums of squares per bin
    negative_squares: NDArray[np.float64] = field(repr=False)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Values of both signs per bin."""
        return self.positive + self.negative

    @property
    def squares(self) -> NDArray[np.float64]:
        """Sums of squares per bin, over both signs."""
        return self.positive_squares + self.negative_squares

    @property
    def absmax(self) -> float:
        """The largest finite magnitude; 0 if there is none."""
        return max(self.largest_positive, self.largest_negative)


def _histogram(fields: _Fields) -> Histogram:
    elements, zeros, nan, inf, total, positive, negative, counts, squares = fields
    return Histogram(elements, zeros, nan, inf, total, positive, negative, *counts, *squares)


class ProfileStep:
    """One step of a profile. Part p is its p-th micro-step, or the whole step without any."""

    def __init__(self, core: _core.LoadedProfileStep) -> None:
        """For `Profile`."""
        self._core = core

    @property
    def number(self) -> int:
        """The number of the step."""
        return self._core.number

    @property
    def micro_steps(self) -> tuple[int | None, ...]:
        """The micro-step of each part; (None,) if the step has none or their sum was profiled."""
        return tuple(None if micro < 0 else micro for micro in self._core.micro_steps())

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of the first file of the step."""
        return self._core.metadata()

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """The tensors of the step by name, in the order of the file."""
        return tensor_infos(self._core.tensors())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors, in the order of the file."""
        return tuple(self.tensors)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.tensors)}

    def histogram(self, name: str, part: int = 0) -> Histogram:
        """The histogram of a tensor in a part; KeyError and IndexError without them."""
        row = self._rows[self.tensors[name].name]  # which says what is missing
        return _histogram(self._core.histogram(range(len(self.micro_steps))[part], row))

    def __repr__(self) -> str:
        return f"<dlsim.ProfileStep {self.number}: {counted(len(self.tensors), 'tensors')}>"


class Profile:
    """A profile opened for reading; `len`, iteration and indices go over its steps."""

    def __init__(self, core: _core.ProfileReader, place: str) -> None:
        """For `open_profile`."""
        self._core = core
        self._place = place
        self.steps: tuple[int, ...] = tuple(core.steps())
        # Float32 magnitudes, ascending; the last one is infinity.
        self.edges: NDArray[np.float32] = core.edges()

    @property
    def description(self) -> dict[str, str]:
        """The description of the trace."""
        return self._core.description()

    @property
    def accumulate(self) -> str:
        """What was profiled of micro-steps: "quantize-first" (each) or "sum-first" (their sum)."""
        return self._core.accumulate()

    @property
    def pattern(self) -> str:
        """The pattern of the tensors that were profiled."""
        return self._core.tensors()

    @property
    def file_bytes(self) -> int:
        """Size of the profile, in bytes."""
        return self._core.file_bytes()

    @property
    def trace_bytes(self) -> int:
        """Size of the files that it was made from."""
        return self._core.trace_bytes()

    def totals(self, i: int) -> tuple[list[Histogram], list[Histogram]]:
        """Histograms of the i-th step over all its parameter and all its activation gradients.

        One of each per part; much less work than the tensors.
        """
        gradients, activations = self._core.totals(index_of(i, len(self), self._place))
        return [_histogram(h) for h in gradients], [_histogram(h) for h in activations]

    def step(self, number: int) -> ProfileStep:
        """Decodes the step of that number; KeyError without it."""
        return self[position(self.steps, number)]

    def __getitem__(self, i: int) -> ProfileStep:
        return ProfileStep(self._core.load(index_of(i, len(self), self._place)))

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[ProfileStep]:
        for i in range(len(self)):
            yield self[i]

    def __repr__(self) -> str:
        return f"<dlsim.Profile {self._place}: {counted(len(self), 'steps')}>"


def open_profile(path: AnyPath | Iterable[AnyPath], *, tensors: str = "*") -> Profile:
    """Opens a profile, or several of one trace (shards) as one (docs/profiles.md).

    Tensors whose name does not match the pattern are left out, but not of `totals`. Raises
    InputError naming the file and the defect.
    """
    paths = encoded_paths(path)
    core = _core.ProfileReader(paths, tensors=tensors)
    return Profile(core, paths[0].decode(errors="replace"))
