# SPDX-License-Identifier: Apache-2.0
"""The exceptions of dlsim; each message is one line: place: problem, expected ..., got ..."""

from __future__ import annotations

TYPE_CHECKING = False  # as in __init__.py
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any


class Error(Exception):
    """Any failure that dlsim reports."""


class UsageError(Error, ValueError):
    """An argument that cannot be right."""


class InputError(Error, ValueError):
    """A file that is bad, unsupported or cannot be read or written."""


class PolicyRefusal(Error, ValueError):
    """A policy refused its parameters; the message is that of the original software.

    `original_type` is the name of the exception that the original raises, such as "ValueError".
    `result` is what the command found all the same, for instance with other policies.
    """

    result: Any = None  # a dlsim.Result, or None

    def __init__(self, original_type: str, message: str) -> None:
        super().__init__(message)
        self.original_type = original_type

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.original_type, str(self)), {"result": self.result}


# Tracebacks name them as users import them.
for _exception in (Error, UsageError, InputError, PolicyRefusal):
    _exception.__module__ = "dlsim"


def some_of(names: Iterable[str], most: int = 5) -> str:
    """Returns the first names of several for a message; the empty one is that of a model."""
    known = [name or "(root)" for name in names]
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def bytes_text(count: float) -> str:
    """Returns "12.3 MiB": in the largest binary unit that leaves at least 1, at least KiB."""
    units = ["KiB", "MiB", "GiB", "TiB"]
    count /= 1024
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.1f} {units[0]}"


def counted(count: int, things: str) -> str:
    """Returns a count with its noun, which is given in the plural: "1 step", "2 steps"."""
    return f"{count} {things.removesuffix('s') if count == 1 else things}"


class MissingKey(KeyError):
    """A KeyError whose message reads as a sentence; that of KeyError is quoted."""

    def __init__(self, kind: str, key: object, known: Sequence[str], listed: str = "") -> None:
        """`kind` says what there is none of; `listed` is what to expect (default: the first)."""
        from difflib import get_close_matches

        close = get_close_matches(str(key), known, 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        super().__init__(f"no {kind} {key!r}{hint}, expected one of {listed or some_of(known)}")

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        return KeyError, self.args
