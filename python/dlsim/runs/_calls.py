# SPDX-License-Identifier: Apache-2.0
"""What the functions of the module _command_options do: they run the command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from .._errors import InputError
from .._values import text_of
from ..results import JudgedResult, Result
from . import _bridge
from ._options import arguments_of, check_keywords

_Function = TypeVar("_Function", bound=Callable[..., Any])

_LONGEST_PATH = 4096  # bytes; Linux takes no longer one


def command(function: _Function) -> _Function:
    """Makes a generated function one of dlsim.runs; for a wrong keyword it names the likely one."""

    @wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        check_keywords(function, keywords)
        return function(*arguments, **keywords)

    checked.__module__ = "dlsim.runs"
    return cast("_Function", checked)


def run(name: str, paths: object, options: Mapping[str, object]) -> Result:
    """Runs a command that writes its result to a file."""
    given = paths_of(name, paths)
    return _bridge.run([name, *arguments_of(name, options)], given).result()


def judge(name: str, paths: object, options: Mapping[str, object]) -> JudgedResult:
    """Runs a command whose result has a verdict."""
    found = run(name, paths, options)
    return JudgedResult(found.command, found.data, found.notes, found.report)


def printed(name: str, arguments: Sequence[str], positional: Sequence[str]) -> Result:
    """Runs a command that prints its result."""
    found = _bridge.run([name, *arguments, "--json", "--", *positional], writes_json=False)
    found.check()
    return Result(found.command, json.loads(found.report), found.notes)


def info(paths: object, options: Mapping[str, object]) -> Result:
    """Runs `dlsim info`."""
    return printed("info", arguments_of("info", options), paths_of("info", paths))


def paths_of(name: str, paths: object) -> list[str]:
    """Returns one path or several as texts; raises TypeError, UsageError and InputError."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        paths = [paths]
    _refuse_arrays(name, paths)
    if not isinstance(paths, Iterable):
        raise TypeError(f"{name}: expected a path or several, got {type(paths).__name__}")
    return [_path(name, path) for path in paths]


def _path(name: str, path: object) -> str:
    _refuse_arrays(name, path)
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"{name}: expected a path, got {type(path).__name__}")
    text = text_of(name, os.fsdecode(path))
    if len(os.fsencode(text)) >= _LONGEST_PATH:
        raise InputError(
            f"{text[:40]}...: cannot be opened: File name too long, expected less than "
            f"{_LONGEST_PATH} bytes, got {len(os.fsencode(text))}"
        )
    return text


def _refuse_arrays(name: str, given: object) -> None:
    """Raises TypeError where arrays are given instead of paths."""
    if isinstance(given, Mapping):
        kind = "a mapping"
    elif hasattr(given, "__array__") or hasattr(given, "__dlpack__"):
        kind = "an array"
    else:
        return
    raise TypeError(
        f"{name}: expected the path of a trace or profile, got {kind}; "
        "dlsim.check({name: array}) judges gradients at hand, dlsim.Recorder records a trace"
    )
