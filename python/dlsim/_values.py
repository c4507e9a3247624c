# SPDX-License-Identifier: Apache-2.0
"""Values of the keywords of `dlsim.replay` and the others: their types, and their texts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ._errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from ._core import Format

    class TorchDType(Protocol):
        """A dtype of PyTorch, which need not be installed."""

        @property
        def is_floating_point(self) -> bool:
            """Whether its elements are floats."""
            ...

    DType: TypeAlias = np.dtype[Any] | type | TorchDType

PathText: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = PathText | Sequence[PathText]
Number: TypeAlias = float | str
FormatName: TypeAlias = "str | Format | DType"
FormatNames: TypeAlias = "FormatName | Sequence[FormatName]"
Names: TypeAlias = str | Sequence[str]
Settings: TypeAlias = Mapping[str, bool | float | str]


def text_of(place: str, value: object) -> str:
    """Returns a value as the command reads it, numbers with all their bits."""
    if isinstance(value, os.PathLike):
        value = os.fsdecode(value)
    if isinstance(value, str):
        return _passable(place, value)
    from ._core import Format

    if isinstance(value, Format):
        return value.name
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()  # a scalar of NumPy or PyTorch
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    from .arrays._dtypes import FORMAT_OF_ELEMENT, name_of_dtype

    name = FORMAT_OF_ELEMENT.get(name_of_dtype(value))
    if name is None:
        raise TypeError(f"{place}: expected a text or number, got {type(value).__name__}")
    return name


def _passable(place: str, text: str) -> str:
    """Returns a text that can be an argument of a process; raises UsageError for others."""
    if "\0" in text:
        raise UsageError(f"{place}: holds a zero byte, got {text[:80]!a}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise UsageError(f"{place}: not valid Unicode, got {text[:80]!a}") from None
    return text


def whole_number(place: str, value: object, least: int) -> int:
    """Returns `value` if it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{place}: expected a whole number, got {type(value).__name__}")
    if value < least:
        raise UsageError(f"{place}: out of range, expected {least} or more, got {value}")
    return value
