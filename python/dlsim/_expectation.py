# SPDX-License-Identifier: Apache-2.0
"""Expressions such as skipped_steps<=3 about the figures of a result: FIGURE OP NUMBER."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ._errors import UsageError, some_of

# The longer ones first, as each begins like another.
_OPERATORS = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True)
class Expectation:
    """An expression; a `limit` of None is `none`: the figure has no value."""

    text: str
    figure: str
    relation: str
    limit: float | None

    def holds(self, figures: Mapping[str, float | None]) -> bool:
        """Returns whether it is true of the figures.

        NaN satisfies no comparison but `!=`; a figure without a value none but `== none`.
        """
        found = figures.get(self.figure)
        if self.limit is None:
            return (found is None) == (self.relation == "==")
        return found is not None and bool(_OPERATORS[self.relation](found, self.limit))


def parse_expectation(text: str, place: str) -> Expectation:
    """Reads an expression; blanks around its parts do not count. Raises UsageError."""
    at = next((i for i, letter in enumerate(text) if letter in "<>=!"), len(text))
    relation = next((one for one in _OPERATORS if text.startswith(one, at)), "")
    figure, number = text[:at].strip(), text[at + len(relation) :].strip()
    if not figure or not relation:
        raise UsageError(
            f"{place}: not an expectation, expected a figure, one of < <= > >= == !=, and a "
            f"number, such as skipped_steps<=3, got {text!r}"
        )
    if number == "none" and relation in ("==", "!="):
        return Expectation(text, figure, relation, None)
    return Expectation(text, figure, relation, _number(number, place))


def require_figure(expectation: Expectation, names: Iterable[str], place: str) -> None:
    """Raises UsageError unless the figure is one of `names`."""
    known = list(names)
    if expectation.figure not in known:
        raise UsageError(
            f"{place}: unknown figure, expected one of {some_of(sorted(known), most=len(known))}, "
            f"got {expectation.figure!r}"
        )


def _number(text: str, place: str) -> float:
    """Returns the value of "65536", "2e15", "0x1.8p+3" or "2^-14", as the command reads numbers."""
    try:
        base, power, exponent = text.partition("^")
        if power:
            value = {"2": 1.0, "+2": 1.0, "-2": -1.0}[base] * 2.0 ** int(exponent)
        else:
            value = float.fromhex(text) if "0x" in text.lower() else float(text)
    except (KeyError, ValueError, OverflowError):
        value = float("nan")
    if value - value != 0.0 or "_" in text:  # inf and nan are no numbers there
        raise UsageError(f"{place}: not a number, expected such as 3, 1e-3 or 2^-14, got {text!r}")
    return value
