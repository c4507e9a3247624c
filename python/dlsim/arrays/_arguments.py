# SPDX-License-Identifier: Apache-2.0
"""Arguments of encode and its kin, checked."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from .._core import Conversion, Format, parse_number
from .._errors import UsageError
from ._dtypes import format_of


@lru_cache(maxsize=256)
def _known_conversion(
    format: Any, rounding: str, overflow: str, subnormals: str
) -> tuple[Format, Conversion]:
    for name, value in (("rounding", rounding), ("overflow", overflow), ("subnormals", subnormals)):
        if not isinstance(value, str):
            raise TypeError(f"{name}: expected a string, got {value!r}")
    chosen = format_of(format)
    return chosen, Conversion(chosen, rounding, overflow, subnormals)


def conversion_of(
    format: Any, rounding: str, overflow: str, subnormals: str
) -> tuple[Format, Conversion]:
    """Returns a format and the conversion to it; raises TypeError and UsageError."""
    try:
        return _known_conversion(format, rounding, overflow, subnormals)
    except TypeError:  # an argument that has no hash, which is a wrong one
        return _known_conversion.__wrapped__(format, rounding, overflow, subnormals)


def scale_of(scale: Any) -> float:
    """Returns a scale, which may be a text as "2^15", as a number; raises TypeError."""
    if type(scale) is float:
        return scale
    if isinstance(scale, str):
        return parse_number(scale, "scale")
    if getattr(scale, "ndim", 0) > 0:
        raise TypeError(f"scale: expected a number, got an array of shape {tuple(scale.shape)}")
    if not hasattr(scale, "__float__") and not hasattr(scale, "__index__"):
        raise TypeError(f"scale: expected a number, got {scale!r}")
    try:
        return float(scale)
    except OverflowError:  # an integer beyond float64
        return math.inf


def _unsigned(name: str, value: Any, bits: int) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name}: expected an integer, got {value!r}") from error
    if not 0 <= number < 1 << bits:
        raise UsageError(f"{name}: out of range, expected 0 to 2^{bits} - 1, got {number}")
    return number


def draws_of(scale: Any, seed: Any, stream: Any) -> tuple[float, int, int]:
    """Returns what random bits are drawn with, checked; raises TypeError and UsageError."""
    if type(scale) is float and type(seed) is type(stream) is int:
        if 0 <= seed < 1 << 64 and 0 <= stream < 1 << 32:
            return scale, seed, stream
    return scale_of(scale), _unsigned("seed", seed, 64), _unsigned("stream", stream, 32)


def is_list(argument: Any) -> bool:
    """Whether an argument stands for several; an array without dimensions is a number."""
    return (
        isinstance(argument, Iterable)
        and not isinstance(argument, str | type)
        and getattr(argument, "ndim", 1) > 0
    )


def listed(argument: Any) -> list[Any]:
    """Returns an argument as a list."""
    return list(argument) if is_list(argument) else [argument]
