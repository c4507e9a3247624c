# SPDX-License-Identifier: Apache-2.0
"""What came of the expectations of a call: the keyword `expect`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._errors import InputError


@dataclass(frozen=True)
class Expectation:
    """An expectation about the figures of a run, or of a whole result.

    `run` is such as "fp16/torch", None if the result is one; `found` is the figure, a pair if it
    is an estimate between two numbers, None if it has no value.
    """

    expression: str
    run: str | None
    found: float | tuple[float, float] | None
    holds: bool


def expectations_of(data: Mapping[str, Any]) -> tuple[Expectation, ...]:
    """Returns the expectations of a result's JSON; raises InputError for another form."""
    try:
        return tuple(
            Expectation(item["expression"], item["run"], _found(item["found"]), item["holds"])
            for item in data.get("expectations", ())
        )
    except (KeyError, TypeError, ValueError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise InputError(f"expectations: not of the form {data.get('schema')}: {cause}") from error


def _found(value: Any) -> float | tuple[float, float] | None:
    if value is None:
        return None
    if isinstance(value, list):
        low, high = map(float, value)
        return low, high
    return float(value)
