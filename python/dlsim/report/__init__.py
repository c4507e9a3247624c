# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page of the results of replay, sweep, tune, diff and explain.

`dlsim.report(...)` is `dlsim.report.write_report(...)`. `dlsim.report.figures` has a function for
each figure of the page.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from .._errors import InputError
from .._files import replacing, require_no_input

if TYPE_CHECKING:
    from ._results import Shown

__all__ = ["write_report"]

StrPath = str | os.PathLike[str]


Given: TypeAlias = StrPath | Mapping[str, Any]


def write_report(
    results: Given | Iterable[Given],
    output: StrPath,
    *,
    trace: StrPath | None = None,
    title: str | None = None,
    read_trace: bool = True,
    formats: str | Sequence[str] = (),
    policies: str | Sequence[str] = (),
) -> None:
    """Writes one self-contained HTML page about results of replay, sweep, tune, diff and explain.

    `results` is one or several of: a file, what `dlsim.replay`, `sweep`, `tune`, `diff` or
    `explain` returned, or its document. A trace or profile is replayed with `formats` and
    `policies` (default: those of `dlsim replay`) and tuned.
    Exponents come from `trace`, or from the trace that a result names if it can be read; with
    `read_trace` False no trace is read.
    `output` is replaced when the page is complete.
    Raises InputError for files that are not results, UsageError for wrong formats and policies.
    """
    from ._results import contents_of
    from .page import render

    folder = Path(output).resolve().parent
    if Path(output).is_dir() or not os.access(folder, os.W_OK):  # before the work
        reason = "is a directory" if Path(output).is_dir() else f"no writable directory {folder}"
        raise InputError(f"{os.fspath(output)}: cannot be written: {reason}")
    formats, policies = ([one] if isinstance(one, str) else one for one in (formats, policies))
    one = isinstance(results, str | os.PathLike | Mapping)
    given = list(cast("Iterable[Given]", [results] if one else results))
    require_no_input(output, [*given, trace])
    read = [result for item in given for result in _read(item, formats, policies)]
    if not read:
        raise InputError("report: no results, expected at least one file")
    named = None if trace is None else os.fspath(trace)
    html = render(contents_of(read, named, read_trace), title)
    with replacing(output) as temporary:
        temporary.write_text(html, encoding="utf-8", newline="\n")


def _read(item: Given, formats: Sequence[str], policies: Sequence[str]) -> list[Shown]:
    from ..results import read_json
    from ._results import results_of_trace, shown_result

    if isinstance(item, Mapping):
        return [shown_result("result", item)]
    if not isinstance(item, str | os.PathLike):
        raise TypeError(f"results: expected a path or a result, got {type(item).__name__}")
    path = Path(item)
    if path.is_dir() or path.suffix in (".safetensors", ".npz"):
        return results_of_trace(os.fspath(item), formats, policies)
    return [shown_result(os.fspath(item), read_json(item))]


class CallableReport(ModuleType):
    """This package, which may be called as its function."""

    write_report = staticmethod(write_report)
    __call__ = staticmethod(write_report)


sys.modules[__name__].__class__ = CallableReport
__signature__ = signature(write_report)
