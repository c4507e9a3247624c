# SPDX-License-Identifier: Apache-2.0
"""Probes (.dlprobe): a few elements of each parameter and their gradients, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._text import counted
from .traces._recorded import AnyPath, encoded_paths, index_of

_Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ProbeTensor:
    """A parameter of which some elements are followed; `dtype` is that of the training."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: int  # from the start of one run of neighbors to the start of the next
    run: int  # elements of a run
    count: int

    @property
    def indices(self) -> NDArray[np.int64]:
        """Where the elements lie in the flattened parameter."""
        i = np.arange(self.count)
        return i // self.run * self.stride + i % self.run


@dataclass(frozen=True)
class ProbeGroup:
    """What one group of parameters was updated with: "lr", "beta1", "weight_decay", ..."""

    optimizer: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class ProbeStep:
    """One update; `gradients` are as the optimizer read them, of the parameters it updated."""

    number: int
    clip: float | None  # what gradients were multiplied with; None if that is not known
    groups: Mapping[str, ProbeGroup] = field(repr=False)  # by parameter
    gradients: Mapping[str, _Floats] = field(repr=False)


@dataclass(frozen=True)
class ProbeState:
    """What the optimizer remembers of a parameter: "exp_avg", "exp_avg_sq", ..."""

    updates: int  # that were made before
    values: Mapping[str, _Floats] = field(repr=False)


@dataclass(frozen=True)
class ProbeValues:
    """The elements between two updates, by the names of their parameters."""

    values: Mapping[str, _Floats] = field(repr=False)
    states: Mapping[str, ProbeState] = field(repr=False)


class Probe:
    """A probe opened for reading; `len`, iteration and indices go over its updates."""

    def __init__(self, core: _core.ProbeReader, place: str) -> None:
        """For `open_probe`."""
        self._core = core
        self._place = place
        tensors = [ProbeTensor(*tensor) for tensor in core.tensors()]
        self.tensors: dict[str, ProbeTensor] = {tensor.name: tensor for tensor in tensors}

    @property
    def description(self) -> dict[str, str]:
        """What is known of the training."""
        return self._core.description()

    @property
    def elements(self) -> int:
        """How many elements of a parameter are followed at most."""
        return self._core.elements

    @property
    def cut_bytes(self) -> int:
        """Bytes of an unfinished update at the end: the writer was killed, or is still writing."""
        return self._core.cut_bytes

    def values(self, i: int = 0) -> ProbeValues | None:
        """The elements before the i-th update, or after the last one for i = len(self).

        None if they were not recorded. They are recorded before the first update, where a training
        was resumed, 10 updates later, and every 100.
        """
        i = i if i == len(self) else index_of(i, len(self), self._place)
        found = self._core.values(i)
        if found is None:
            return None
        values, states = found
        names = list(self.tensors)
        return ProbeValues(
            self._by_name(values),
            {names[tensor]: ProbeState(updates, of) for tensor, updates, of in states},
        )

    def _by_name(self, elements: _Floats) -> dict[str, _Floats]:
        ends = np.cumsum([tensor.count for tensor in self.tensors.values()])
        return dict(zip(self.tensors, np.split(elements, ends[:-1]), strict=True))

    def __getitem__(self, i: int) -> ProbeStep:
        number, clip, groups, group_of, gradients = self._core.step(
            index_of(i, len(self), self._place)
        )
        made = [ProbeGroup(*group) for group in groups]
        named = self._by_name(gradients)
        of = {name: made[at] for name, at in zip(named, group_of, strict=True) if at is not None}
        return ProbeStep(number, clip, of, {name: named[name] for name in of})

    def __len__(self) -> int:
        return self._core.steps

    def __iter__(self) -> Iterator[ProbeStep]:
        for i in range(len(self)):
            yield self[i]

    def __repr__(self) -> str:
        return f"<dlsim.Probe {self._place}: {counted(len(self), 'updates')}>"


def open_probe(path: AnyPath) -> Probe:
    """Opens a probe (docs/probe-format.md); raises InputError naming the file and the defect."""
    (encoded,) = encoded_paths(path)
    return Probe(_core.ProbeReader(encoded), encoded.decode(errors="replace"))
