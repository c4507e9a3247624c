# SPDX-License-Identifier: Apache-2.0
"""Tensors of a training on their way from a dump into a trace or profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from .._core import role_of
from .._errors import InputError, UsageError
from ..traces._writer import checked_grad_scale
from ._numbering import Position

# The longest name that a trace's reader accepts, in bytes.
_LONGEST_NAME = 4096

NUMBERS = ("loss", "lr", "grad_scale")  # that dlsim knows as metadata


@dataclass
class Gradients:
    """What a file of a trace holds: the tensors of a step, or of one micro-step or rank of it.

    Tensors are float16, float32 or float64 NumPy arrays, or bfloat16 PyTorch tensors, contiguous.
    `roles` are those that do not follow from their names.
    """

    position: Position
    tensors: dict[str, Any]
    roles: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Selection:
    """Which tensors are imported, and which of them are activation gradients: globs of names."""

    tensors: Sequence[str] = ("*",)
    act_grad: Sequence[str] = ()

    def takes(self, name: str) -> bool:
        """Whether the tensor is imported."""
        return any(fnmatchcase(name, glob) for glob in self.tensors)

    def role(self, name: str) -> str:
        """The role of the tensor."""
        chosen = any(fnmatchcase(name, glob) for glob in self.act_grad)
        return "act_grad" if chosen else role_of(name)


def selection(tensors: str | Iterable[str], act_grad: str | Iterable[str]) -> Selection:
    """Returns a Selection of one glob or several each."""
    return Selection(
        (tensors,) if isinstance(tensors, str) else tuple(tensors),
        (act_grad,) if isinstance(act_grad, str) else tuple(act_grad),
    )


def one_line(reason: object) -> str:
    """Returns a foreign message as one printable line."""
    lines = str(reason).strip().splitlines() or [type(reason).__name__]
    return "".join(c if c.isprintable() else "?" for c in lines[0][:200])


def check_name(place: object, name: str) -> str:
    """Returns `name` if a trace can hold it. Raises InputError."""
    try:
        length = len(name.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InputError(f"{place}: a tensor's name is not valid Unicode: {name!r}") from error
    if not 0 < length <= _LONGEST_NAME or name == "__metadata__":
        raise InputError(
            f"{place}: bad name of a tensor, expected 1 to {_LONGEST_NAME} bytes other than "
            f"__metadata__, got {name[:40]!r}"
        )
    return name


def scale_metadata(grad_scale: float | None) -> dict[str, str]:
    """Returns the metadata of gradients that still carry a loss scale. Raises UsageError."""
    return {} if grad_scale is None else {"grad_scale": checked_grad_scale(grad_scale)}


def scalars(place: object, items: Mapping[str, Any]) -> dict[str, str]:
    """Returns the NUMBERS among `items`, as text."""
    found = {}
    for key in NUMBERS:
        value = items.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[key] = repr(float(value))
    if "grad_scale" in found:
        try:
            found |= scale_metadata(float(found["grad_scale"]))
        except UsageError as error:
            raise InputError(f"{place}: {error}") from error
    return found


class Notes:
    """Remarks for the user, each once, with how often it was made."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, remark: str) -> None:
        """Makes a remark."""
        self._counts[remark] = self._counts.get(remark, 0) + 1

    def lines(self) -> list[str]:
        """Returns all remarks in the order of their first appearance."""
        return [
            text if count == 1 else f"{text} ({count} times)"
            for text, count in self._counts.items()
        ]
