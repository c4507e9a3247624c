# SPDX-License-Identifier: Apache-2.0
"""The file of a probe, to which a thread writes the updates that were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import _core
from ._followed import Buffer, Followed
from ._optimizer_state import Group, State, factor

FIRST = 16  # elements by which clipping is found
FOUND, SCALE = FIRST, FIRST + 1  # places of what an optimizer that unscales by itself is given
EXTRA = FIRST + 2  # values in a buffer besides the elements


@dataclass
class Update:
    """An update while it is read, by one optimizer or several."""

    step: int
    buffer: Buffer
    groups: list[Group] = field(default_factory=list)
    group_of: dict[int, int] = field(default_factory=dict)  # by tensor
    optimizers: set[int] = field(default_factory=set)
    stepping: set[int] = field(default_factory=set)  # those of them that have not stepped yet
    scaled: list[int] = field(default_factory=list)  # tensors that the optimizer unscales itself
    clipped: tuple[int, float] | None = None  # a tensor whose gradient was read, and its scale
    values: tuple[Buffer, list[State]] | None = None  # of before


class ProbeFile:
    """The file, opened by its first update. `failed`: updates are missing since the last values."""

    def __init__(
        self, path: Path, elements: int, existing: str, description: Mapping[str, str]
    ) -> None:
        self._path, self._elements = path, elements
        self._existing, self._description = existing, description
        self._file: Any = None
        self.failed = False

    @property
    def updates(self) -> int:
        """How many updates the file holds."""
        return 0 if self._file is None else self._file.steps

    @property
    def bytes(self) -> int:
        """The size of the file."""
        return 0 if self._file is None else self._file.bytes

    def write(self, update: Update, followed: Sequence[Followed]) -> None:
        """Writes an update, unless the optimizer skips it."""
        try:
            self._write(update, followed)
        except BaseException:
            self.failed = True
            raise

    def close(self) -> None:
        """Flushes the file to the device."""
        if self._file is not None:
            self._file.close()

    def _write(self, update: Update, followed: Sequence[Followed]) -> None:
        gradients, extra, parts = update.buffer.array()
        if update.scaled and extra[FOUND]:
            for place in update.scaled:
                update.group_of.pop(place, None)
        for place, part in enumerate(parts):
            if place not in update.group_of:
                gradients[part] = 0
            elif place in update.scaled:
                gradients[part] /= extra[SCALE]
        if self._file is None:
            self._open(update.step, followed)
        if update.values is not None:
            values, _, _ = update.values[0].array()
            # None at all are states, too, where earlier updates of the file have left others.
            states = [one for one in update.values[1] if any(one[1:]) or self.updates > 0]
            self._file.add_values(values, states)
        if update.group_of:
            self._file.add_step(
                update.step,
                _clip(update, gradients, extra, parts, followed),
                update.groups,
                [update.group_of.get(place) for place in range(len(parts))],
                gradients,
            )

    def _open(self, step: int, followed: Sequence[Followed]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _core.ProbeWriter(
            str(self._path),
            [one.row for one in followed],
            self._elements,
            dict(self._description),
            existing="continue" if self._existing == "continue" else "replace",
        )
        self._file.forget(step)


def _clip(
    update: Update,
    gradients: Any,
    extra: Any,
    parts: Sequence[slice],
    followed: Sequence[Followed],
) -> float | None:
    import torch

    if update.clipped is None:
        return None
    place, scale = update.clipped
    if place not in update.group_of:
        return None
    read = gradients[parts[place]][:FIRST]
    eps = torch.finfo(followed[place].parameter.dtype).eps
    return factor(read, extra[: len(read)], scale, eps)
