# SPDX-License-Identifier: Apache-2.0
"""What TensorBoard histograms leave open of underflow and overflow, per tag, format and scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._errors import UsageError
from ._brackets import SMALLEST, Brackets
from ._gradients import Notes
from ._numbering import PathText
from ._tensorboard import histogram_choice, read_brackets

_Flags = NDArray[np.bool_]


@dataclass
class Bounds:
    """Of one tag, format and scale over its steps: each number is in [low, high].

    Fractions are of the finite nonzero values, as `underflow_fraction` in docs/results.md;
    `worst_step` is the first step whose own fraction can be the largest, `worst_fraction` its
    range.
    """

    tensor: str
    format: str
    scale: float
    first_step: int
    last_step: int = 0
    steps: int = 0
    elements: int = 0
    nonfinite: int = 0
    underflow: tuple[int, int] = (0, 0)
    overflow: tuple[int, int] = (0, 0)
    underflow_fraction: tuple[float, float] = (0.0, 0.0)
    worst_step: int = 0
    worst_fraction: tuple[float, float] = (0.0, 0.0)
    # What the fractions are of: with the fewest and the most underflow.
    nonzero: tuple[int, int] = field(default=(0, 0), repr=False)

    def add(self, step: int, counts: _Counts) -> None:
        """Adds what a step leaves open."""
        if self.steps == 0 or counts.fraction[1] > self.worst_fraction[1]:
            self.worst_step, self.worst_fraction = step, counts.fraction
        self.last_step = step
        self.steps += 1
        self.elements += counts.elements
        self.nonfinite += counts.nonfinite
        self.underflow = _sum(self.underflow, counts.underflow)
        self.overflow = _sum(self.overflow, counts.overflow)
        self.nonzero = _sum(self.nonzero, counts.nonzero)
        self.underflow_fraction = _fraction(self.underflow, self.nonzero)


@dataclass(frozen=True)
class _Counts:
    elements: int
    nonfinite: int
    underflow: tuple[int, int]
    overflow: tuple[int, int]
    nonzero: tuple[int, int]

    @property
    def fraction(self) -> tuple[float, float]:
        return _fraction(self.underflow, self.nonzero)


@dataclass(frozen=True)
class _Question:
    """The magnitudes from which on values survive and overflow, of positive and negative ones."""

    format: str
    scale: float
    survive: tuple[float, float]
    overflow: tuple[float, float]

    def reached(self, values: NDArray[np.float32], limits: tuple[float, float]) -> _Flags:
        """Returns for each value whether it has reached the limit of its sign."""
        of_sign = np.where(values < 0, limits[1], limits[0]).astype(np.float32)
        return np.asarray(np.abs(values) >= of_sign)

    def mirrored(self) -> _Question:
        """The same for values of the other sign."""
        return _Question(self.format, self.scale, self.survive[::-1], self.overflow[::-1])


@dataclass(frozen=True)
class _Outcomes:
    """What the values of each entry must or may become."""

    must_underflow: _Flags
    may_underflow: _Flags
    may_survive: _Flags
    must_overflow: _Flags
    may_overflow: _Flags


def tensorboard_bounds(
    inputs: PathText | Iterable[PathText],
    *,
    formats: str | Sequence[str] = "fp16",
    scales: float | Sequence[float] = 1.0,
    rounding: str = "rne",
    flush: bool = False,
    tensors: str | Iterable[str] | None = None,
    log2: str = "auto",
    grad_scale: float | None = None,
    scale_tag: str | None = None,
    first: int | None = None,
    last: int | None = None,
) -> tuple[list[Bounds], tuple[str, ...]]:
    """Returns what histograms of a TensorBoard run say of underflow and overflow, and notes.

    One Bounds per tag, format and loss scale. The true counts, as `dlsim replay` would find them
    with the policy `static`, lie within. `flush` makes subnormal results zeros; the options from
    `tensors` on are those of import_tensorboard. Raises as that does.
    """
    choice = histogram_choice(
        tensors=tensors,
        log2=log2,
        grad_scale=grad_scale,
        scale_tag=scale_tag,
        first=first,
        last=last,
    )
    questions = _questions(
        [formats] if isinstance(formats, str) else formats,
        [scales] if isinstance(scales, (int, float)) else scales,
        rounding,
        flush,
    )
    notes = Notes()
    rows: dict[tuple[str, int], Bounds] = {}
    for step, histograms in read_brackets(inputs, choice, notes):
        for tag, brackets in histograms:
            for i, question in enumerate(questions):
                if (tag, i) not in rows:
                    rows[tag, i] = Bounds(tag, question.format, question.scale, step)
                rows[tag, i].add(step, _count(brackets, question))
    return list(rows.values()), tuple(notes.lines())


def _questions(
    formats: Sequence[str], scales: Sequence[float], rounding: str, flush: bool
) -> list[_Question]:
    questions = []
    for name in formats:
        form = _core.Format(name)
        for scale in scales:
            single = _single(scale)
            found = [
                _core.thresholds(form, single, rounding, flush, negative)
                for negative in (False, True)
            ]
            survive, _, overflow = zip(*found, strict=True)
            questions.append(
                _Question(form.name, single, (survive[0], survive[1]), (overflow[0], overflow[1]))
            )
    return questions


def _single(scale: float) -> float:
    with np.errstate(over="ignore"):
        single = float(np.float32(scale))
    if not 0 < single < np.inf:
        raise UsageError(f"scale: expected a positive float32 number, got {scale!r}")
    return single


def _count(brackets: Brackets, question: _Question) -> _Counts:
    found = _outcomes(brackets, question)
    if not brackets.has_signs:
        found = _either(found, _outcomes(brackets, question.mirrored()))
    counts, touches = brackets.counts, brackets.touches_zero
    finite = int(counts.sum())

    def total(chosen: _Flags) -> int:
        return int(counts[chosen].sum())

    return _Counts(
        brackets.elements,
        brackets.nan + brackets.inf,
        (total(found.must_underflow), total(found.may_underflow)),
        (total(found.must_overflow), total(found.may_overflow)),
        (
            finite - total(touches & ~found.may_survive),
            finite - total(touches & ~found.may_underflow),
        ),
    )


def _outcomes(brackets: Brackets, question: _Question) -> _Outcomes:
    touches = brackets.touches_zero
    small, large = brackets.smallest(), brackets.largest()
    zero = (brackets.lows == 0) & (brackets.highs == 0)
    # Values next to zero may have either sign.
    tiny = np.where(touches & (brackets.lows < 0), -SMALLEST, small)
    survive, overflow = question.survive, question.overflow
    both_survive = question.reached(small, survive) & question.reached(tiny, survive)
    return _Outcomes(
        must_underflow=~touches & ~question.reached(large, survive),
        may_underflow=~zero & ~both_survive,
        may_survive=~zero & _any_end(brackets, question, survive),
        must_overflow=~touches & question.reached(small, overflow),
        may_overflow=_any_end(brackets, question, overflow),
    )


def _either(a: _Outcomes, b: _Outcomes) -> _Outcomes:
    """Of values that may be as in `a` or as in `b`."""
    return _Outcomes(
        a.must_underflow & b.must_underflow,
        a.may_underflow | b.may_underflow,
        a.may_survive | b.may_survive,
        a.must_overflow & b.must_overflow,
        a.may_overflow | b.may_overflow,
    )


def _any_end(brackets: Brackets, question: _Question, limits: tuple[float, float]) -> _Flags:
    """Whether some value between the limits of an entry reaches the limit of its sign."""
    return question.reached(brackets.lows, limits) | question.reached(brackets.highs, limits)


def _sum(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] + b[0], a[1] + b[1]


def _fraction(underflow: tuple[int, int], nonzero: tuple[int, int]) -> tuple[float, float]:
    low, high = (
        part / whole if whole else 0.0 for part, whole in zip(underflow, nonzero, strict=True)
    )
    return low, high
