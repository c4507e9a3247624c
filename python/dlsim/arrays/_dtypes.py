# SPDX-License-Identifier: Apache-2.0
"""Element types by name, and the formats that they are.

Names are those of NumPy and ml_dtypes, which PyTorch and JAX share: "float32", "bfloat16", ...
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from .._core import Format
from .._errors import UsageError

# Types whose bits are the codes of a format.
FORMAT_OF_ELEMENT = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8-e4m3",
    "float8_e5m2": "fp8-e5m2",
    "float8_e4m3": "e4m3",
    "float8_e3m4": "e3m4",
}
ELEMENT_OF_FORMAT = {format: element for element, format in FORMAT_OF_ELEMENT.items()}

VALUES = ("float32", "float64", "float16", "bfloat16")
INTEGER_CODES = ("uint8", "uint16", "uint32", "int8", "int16", "int32")
CODES = (*INTEGER_CODES, *FORMAT_OF_ELEMENT)

# From here on a float64 rounds to an infinite float32 (docs/numerics.md, section 5).
FLOAT32_OVERFLOW = 2.0**128 - 2.0**103

# Bytes of an element.
SIZES = {"float64": 8, "float32": 4, "uint32": 4, "int32": 4} | {
    name: 1 if "8" in name.split("_")[0] else 2
    for name in ("uint8", "int8", "uint16", "int16", *FORMAT_OF_ELEMENT)
}
# The type that holds the bits of an element, by its size in bytes.
BITS_DTYPE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

# Types of results whose memory is made as such; others are views of their bits.
PLAIN_RESULTS = ("float32", "uint16", "uint32")


def bad_element(place: str, expected: tuple[str, ...], got: object) -> TypeError:
    """Returns the error of an array of a type that is not among `expected`."""
    names = f"{', '.join(expected[:-1])} or {expected[-1]}" if len(expected) > 1 else expected[0]
    return TypeError(f"{place}: bad element type, expected {names}, got {got}")


def check_shape(place: str, expected: tuple[int, ...], got: tuple[int, ...]) -> None:
    """Raises UsageError unless the shapes are equal."""
    if tuple(got) != tuple(expected):
        raise UsageError(f"{place}: wrong shape, expected {tuple(expected)}, got {tuple(got)}")


@lru_cache(maxsize=64)
def _format_of_name(name: str) -> Format:
    return Format(name)


def name_of_dtype(dtype: object) -> str:
    """Returns the name of a dtype of NumPy, ml_dtypes, JAX or PyTorch; "" for anything else."""
    if type(dtype).__module__.partition(".")[0] == "torch":
        return str(dtype).removeprefix("torch.")
    if dtype is None:
        return ""
    try:
        return np.dtype(dtype).name  # type: ignore[call-overload, no-any-return]
    except TypeError:
        return ""


def format_of(format: Any) -> Format:
    """Returns the format of a Format, of a name ("cb16", "fp8-e4m3", "e5m3") or of a dtype.

    Raises UsageError for an unknown name and TypeError for a dtype that is no format.
    """
    if isinstance(format, Format):
        return format
    if isinstance(format, str):
        return _format_of_name(format)
    name = FORMAT_OF_ELEMENT.get(name_of_dtype(format))
    if name is None:
        known = ", ".join(FORMAT_OF_ELEMENT)
        raise TypeError(
            f"format: no format, expected a Format, a name or a dtype among {known}, got {format!r}"
        )
    return _format_of_name(name)


def element_of_format(format: Format) -> str:
    """Returns the type whose bits are the codes of the format; raises UsageError without one."""
    element = ELEMENT_OF_FORMAT.get(format.name)
    if element is None:
        known = ", ".join(ELEMENT_OF_FORMAT)
        raise UsageError(f"as_dtype: no dtype holds {format.name}, expected one of {known}")
    return element


@lru_cache(maxsize=64)
def code_elements(format: Format) -> tuple[str, ...]:
    """Returns the element types that can hold codes of the format."""
    return tuple(
        name
        for name in CODES
        if FORMAT_OF_ELEMENT.get(name, format.name) == format.name
        and 8 * SIZES[name] >= format.bits
    )


def format_of_codes(element: str, format: Format | None) -> Format:
    """Returns the format of codes of an element type; `format` is what the caller said.

    Raises UsageError if that is not enough or wrong.
    """
    if element in FORMAT_OF_ELEMENT:
        own = format_of(FORMAT_OF_ELEMENT[element])
        if format is not None and format != own:
            raise UsageError(f"codes: are {element}, expected codes of {format.name}")
        return own
    if format is None:
        raise UsageError(f"format: missing, expected the format of the {element} codes")
    if 8 * SIZES[element] < format.bits:
        raise TypeError(
            f"codes: bad element type, expected {format.bits} bits or more, got {element}"
        )
    return format
