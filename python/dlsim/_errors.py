# SPDX-License-Identifier: Apache-2.0
"""The exceptions of dlsim; each message is one line: place: problem, expected ..., got ..."""

from __future__ import annotations

from ._text import some_of

TYPE_CHECKING = False  # as in __init__.py
if TYPE_CHECKING:
    from collections.abc import Sequence
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


def needed(module: str, message: str) -> Any:
    """Returns a module that is not always installed; `message` says why and how to install it."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise ModuleNotFoundError(message, name=module.partition(".")[0]) from error


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
