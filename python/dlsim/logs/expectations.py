# SPDX-License-Identifier: Apache-2.0
"""The option --expect: figures of a result, as those of the commands in C++ are checked."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from .._errors import UsageError

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_FORM = re.compile(r"\s*([^<>=!]*?)\s*(<=|>=|==|!=|<|>)\s*(\S.*?)\s*\Z")
_POWER = re.compile(r"([+-]?[\d.]+)(?:\^|\*\*)([+-]?\d{1,4})\Z")


class Expectation(NamedTuple):
    """A figure, how it compares, and a number; None stands for a figure without a value."""

    text: str
    figure: str
    relation: str
    limit: float | None


def _number(text: str) -> float:
    """Reads "3", "2^15", "2e15" and "0x1p3"."""
    power = _POWER.match(text)
    try:
        if power:
            return float(float(power[1]) ** int(power[2]))
        return float.fromhex(text) if "0x" in text.lower() else float(text)
    except (ValueError, OverflowError):
        raise UsageError(
            f"--expect: not a number, expected such as 3 or 2^15, got {text!r}"
        ) from None


def parsed(text: str, figures: Collection[str]) -> Expectation:
    """Returns an expectation about one of some figures; raises UsageError for what is none."""
    found = _FORM.match(text)
    if found is None or not found[1]:
        raise UsageError(
            "--expect: not an expectation, expected a figure, one of < <= > >= == !=, and a "
            f"number, such as skipped_steps<=3, got {text!r}"
        )
    figure, relation, number = found.groups()
    if ":" in figure:
        raise UsageError(
            f"--expect: a log has no runs to choose from, expected a figure alone, got {text!r}"
        )
    if figure not in figures:
        close = get_close_matches(figure, figures, 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        known = ", ".join(figures)
        raise UsageError(f"--expect: unknown figure{hint}, expected one of {known}, got {figure!r}")
    none = number == "none" and relation in ("==", "!=")
    return Expectation(text, figure, relation, None if none else _number(number))


def checked(expectation: Expectation, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what came of an expectation, as in the JSON."""
    name = expectation.figure
    found = None if figures[name] is None else float(figures[name])
    if expectation.limit is None:
        holds = (expectation.relation == "==") == (found is None)
    else:
        holds = found is not None and _OPERATORS[expectation.relation](found, expectation.limit)
    is_count = found is not None and found == found // 1 and abs(found) < 2**53
    return {
        "run": None,
        "expression": expectation.text,
        "found": int(found) if is_count and found is not None else figures[name],
        "holds": holds,
    }


def outcome_text(outcome: Mapping[str, Any]) -> str:
    """Returns a line about an expectation that does not hold."""
    found = "none" if outcome["found"] is None else outcome["found"]
    figure = re.split("[<>=!]", outcome["expression"])[0].strip()
    return f"{figure} is {found}, expected {outcome['expression']}"
