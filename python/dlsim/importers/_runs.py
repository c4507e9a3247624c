# SPDX-License-Identifier: Apache-2.0
"""From gradients, one after another, to the finished output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .._errors import InputError
from .._text import counted
from ._gradients import Gradients, Notes
from ._numbering import PathText, Position
from ._outputs import open_output


@dataclass(frozen=True)
class Imported:
    """What an import has written: `steps` from `first_step` to `last_step` of `tensors` tensors.

    `tensors` counts different names; `notes` are remarks, one line each. `high` is the second
    profile of an import as brackets, of which `path` is the low one.
    """

    path: Path
    steps: int
    first_step: int
    last_step: int
    tensors: int
    notes: tuple[str, ...]
    high: Path | None = None

    def __str__(self) -> str:
        steps = counted(self.steps, "steps")
        tensors = counted(self.tensors, "tensors")
        path = str(self.path) if self.high is None else f"{self.path} and {self.high}"
        return f"{path}: {steps} ({self.first_step} to {self.last_step}), {tensors}"


class Layout:
    """How the files of a trace belong together: which ranks and micro-steps each step has.

    A single rank is imported as if there were no ranks. Raises InputError if ranks or micro-steps
    are missing somewhere.
    """

    def __init__(self, place: object, positions: Sequence[Position]) -> None:
        ranks = {position.rank for position in positions}
        if None in ranks and len(ranks) > 1:
            raise InputError(f"{place}: files with and without ranks, expected one kind")
        self._ranks = len(ranks)
        self._micro_steps: Counter[int] = Counter()
        for step, micro in {(position.step, position.micro) for position in positions}:
            self._micro_steps[step] += micro is not None
        of_part = Counter((position.step, position.micro) for position in positions)
        for (step, micro), count in of_part.items():
            if count != self._ranks:
                part = Position(step, micro)
                raise InputError(f"{place}: {part} has {count} ranks, others have {self._ranks}")
            if micro is None and self._micro_steps[step]:
                raise InputError(f"{place}: step {step} has files with and without micro-steps")

    def placed(self, gradients: Gradients) -> Gradients:
        """Returns gradients with the metadata that say how many ranks and micro-steps there are."""
        position = gradients.position
        metadata = dict(gradients.metadata)
        if self._ranks == 1:
            position = replace(position, rank=None)
        else:
            metadata["ranks"] = str(self._ranks)
        if position.micro is not None:
            metadata["micro_steps"] = str(self._micro_steps[position.step])
        return replace(gradients, position=position, metadata=metadata)


def write_all(
    output: PathText,
    items: Iterable[Gradients],
    notes: Notes,
    *,
    description: Mapping[str, str],
    force: bool,
) -> Imported:
    """Writes gradients, which come in ascending order. Raises InputError if there are none."""
    steps: list[int] = []
    names: set[str] = set()
    with open_output(output, description, force=force) as out:
        for gradients in items:
            if not gradients.tensors:
                raise InputError(
                    f"{gradients.position}: no tensor is left, expected gradients; choose others "
                    "with --tensors or --key"
                )
            out.write(gradients)
            names |= gradients.tensors.keys()
            if not steps or gradients.position.step != steps[-1]:
                steps.append(gradients.position.step)
        if not steps:
            raise InputError(f"{output}: nothing to import, expected at least one step")
    return Imported(Path(output), len(steps), steps[0], steps[-1], len(names), tuple(notes.lines()))
