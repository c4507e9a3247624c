# SPDX-License-Identifier: Apache-2.0
"""From results to the page: reads, completes from the trace, writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from .._errors import Error, InputError
from .._files import replacing, require_no_input
from ..results import read_json
from ._again import add_heat_maps, results_of_trace
from ._inputs import ShownResult, check_result, runs_of
from .page import Completed, render
from .training import training_of

StrPath = str | os.PathLike[str]


class HasData(Protocol):
    """A result of `dlsim.replay`, `sweep`, `tune` or `diff`."""

    @property
    def data(self) -> dict[str, Any]:
        """The JSON of the result."""
        ...


Given = StrPath | Mapping[str, Any] | HasData


def write_report(
    results: Given | Iterable[Given],
    output: StrPath,
    *,
    trace: StrPath | None = None,
    title: str | None = None,
    read_trace: bool = True,
    formats: Sequence[str] = (),
    policies: Sequence[str] = (),
    note: Callable[[str], None] | None = None,
) -> None:
    """Writes one self-contained HTML page about results of replay, sweep, tune and diff.

    `results` is one or several of: a file, what `dlsim.replay`, `sweep`, `tune` or `diff`
    returned, or its document. A trace or profile is replayed with `formats` and `policies`
    (default: those of `dlsim replay`) and tuned.
    Heat maps and exponents come from the results if these hold them, else from `trace`, or from
    the trace that a result names if it can be read; with `read_trace` False no trace is read.
    `note` is called with a line of text before a trace is read, which may take long. `output` is
    replaced when the page is complete.
    Raises InputError for files that are not results, UsageError for wrong formats and policies.
    """
    folder = Path(output).resolve().parent
    if Path(output).is_dir() or not os.access(folder, os.W_OK):  # before the work
        reason = "is a directory" if Path(output).is_dir() else f"no writable directory {folder}"
        raise InputError(f"{os.fspath(output)}: cannot be written: {reason}")
    one = isinstance(results, str | os.PathLike | Mapping) or hasattr(results, "data")
    given = list(cast("Iterable[Given]", [results] if one else results))
    require_no_input(output, [*given, trace])
    read: list[ShownResult] = []
    for item in given:
        read += _read(item, formats, policies)
    if not read:
        raise InputError("report: no results, expected at least one file")
    html = render(read, complete(read, trace, read_trace, note), title)
    with replacing(output) as temporary:
        temporary.write_text(html, encoding="utf-8", newline="\n")


def _read(item: Given, formats: Sequence[str], policies: Sequence[str]) -> list[ShownResult]:
    document = item if isinstance(item, Mapping) else getattr(item, "data", None)
    if isinstance(document, Mapping):
        return [check_result("result", dict(document))]
    if not isinstance(item, str | os.PathLike):
        raise TypeError(f"results: expected a path or a result, got {type(item).__name__}")
    path = Path(item)
    if path.is_dir() or path.suffix in (".dlprof", ".safetensors", ".npz"):
        return results_of_trace(os.fspath(item), formats, policies)
    return [check_result(os.fspath(item), read_json(item))]


def complete(
    results: Sequence[ShownResult],
    trace: StrPath | None,
    read_trace: bool,
    note: Callable[[str], None] | None = None,
) -> Completed:
    """Returns the runs with their heat maps, and the exponents, as far as the trace gives them.

    A trace that was given must be readable; one that a result names may be gone, or another.
    """
    completed = Completed(runs_of(results))
    if trace is not None and not os.access(trace, os.R_OK):
        raise InputError(f"{os.fspath(trace)}: cannot be read")
    named = _paths(results, trace)
    if not read_trace or not named:
        return completed
    if note is not None:
        note(f"reading {', '.join(named)} for heat maps and exponents")
    for result in results:
        lacking = [r for r in completed.runs if r.result is result and not r.has_heat_map]
        paths = _paths([result], trace)
        if lacking and paths:
            completed.heat_map_problem = add_heat_maps(lacking, paths)
    try:
        from ..traces._exponents import exponents

        completed.exponents = exponents(named)
        completed.training = training_of(named)
    except Error as error:
        if trace is not None:
            raise
        completed.exponents_problem = str(error)
        return completed
    if trace is None and not _are_steps_of(completed.exponents.steps, results, named):
        completed.exponents = completed.training = None
        completed.exponents_problem = f"{', '.join(named)} has other steps than the result"
    return completed


def _are_steps_of(steps: Sequence[int], results: Sequence[ShownResult], paths: list[str]) -> bool:
    """Whether the trace that a result names still has the steps that the result tells."""
    result = next(result for result in results if result.trace_paths == paths)
    stated = result.data["trace"]
    found = {"steps": len(steps), "first_step": steps[0], "last_step": steps[-1]}
    return all(stated.get(key, value) == value for key, value in found.items())


def _paths(results: Sequence[ShownResult], trace: StrPath | None) -> list[str]:
    """The trace that was given, or the first one that a result names and that is there."""
    if trace is not None:
        return [os.fspath(trace)]
    named = (result.trace_paths for result in results)
    return next((paths for paths in named if _readable(paths)), [])


def _readable(paths: Sequence[str]) -> bool:
    return bool(paths) and all(os.access(path, os.R_OK) for path in paths)
