# SPDX-License-Identifier: Apache-2.0
"""The results that a page shows: read, checked, and completed from the trace that they name."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from .._core import scaled_format_names
from .._errors import Error, InputError
from .._text import percent_text
from ..results import Record, Result, Verdict
from ..runs import call

_KINDS = {f"dlsim.{kind}/1": kind for kind in ("replay", "sweep", "tune", "diff", "explain")}

# Control characters, those that change the order in which text is shown, and those without width.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_POWER = re.compile(r"\b2\^(-?\d+(?:\.\d+)?)")


def visible(value: object) -> str:
    """Returns text whose control, direction and surrogate characters are written as \\uXXXX."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", str(value))


def text(value: object) -> str:
    """Returns text for HTML, and for plotly, which reads tags as well: visible and escaped."""
    return escape(visible(value))


def sentence(value: object) -> str:
    """Returns a sentence of dlsim as `text`, with raised exponents for powers of two."""
    return _POWER.sub(r"2<sup>\1</sup>", text(value))


def number(value: object) -> float | None:
    """Returns a number of a result; else None."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def share(value: object) -> str:
    """Returns a share as a percentage, "" for none."""
    found = number(value)
    return "" if found is None else percent_text(found) if math.isfinite(found) else str(found)


def log2(value: object) -> float | None:
    """Returns the binary logarithm to 4 decimals, or None if that is not finite."""
    found = number(value)
    return round(math.log2(found), 4) if found is not None and 0 < found < math.inf else None


@dataclass
class Shown:
    """One result: its name, and its kind, such as "replay"."""

    name: str
    kind: str
    data: Result

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of replay, tune or sweep; None for other results."""
        found = self.data.get("verdict")
        return found if isinstance(found, Verdict) else None

    @property
    def file(self) -> str:
        return Path(self.name).name

    @property
    def trace(self) -> dict[str, Any]:
        """What the result says of its trace."""
        return dict(self.data.get("trace") or {})

    @property
    def scaled(self) -> list[dict[str, Any]]:
        """The entries of the verdict about formats with scales of their own."""
        formats = (self.data.get("verdict") or {}).get("formats") or []
        return [found for found in formats if found.get("scaled")]


@dataclass
class Run:
    """One run of a replay, with a label that no other run of the page has."""

    label: str
    result: Shown
    data: Record

    @property
    def format(self) -> str:
        return str(self.data["format"])

    @property
    def short(self) -> str:
        return self.label.removeprefix(f"{self.format} \u00b7 ")


@dataclass
class Contents:
    """All that a page shows; `exponents` is what dlsim.exponents returns, if a trace was read."""

    results: list[Shown]
    runs: list[Run] = field(default_factory=list)
    exponents: Any = None
    problem: str = ""

    def of_kind(self, kind: str) -> list[Shown]:
        return [result for result in self.results if result.kind == kind]


@contextmanager
def form_of(name: str, schema: object) -> Iterator[None]:
    """Raises InputError where a document turns out not to be of the form that it claims."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{name}: not of the form {schema}: {words:.200}") from error


def shown_result(name: str, data: object) -> Shown:
    """Returns a parsed document as a result; raises InputError if there is no page for it."""
    if not isinstance(data, dict) or "schema" not in data:
        raise InputError(f"{name}: no result of dlsim, expected an object with the key schema")
    schema = data["schema"]
    kind = _KINDS.get(schema) if isinstance(schema, str) else None
    if kind is None:
        raise InputError(
            f"{name}: schema: no report for it, expected one of {', '.join(_KINDS)}, got "
            f"{visible(repr(schema)):.60}"
        )
    result = Shown(name, kind, data if isinstance(data, Result) else Result(data))
    needed = {"tune": "formats", "diff": "steps", "explain": "brackets"}.get(kind, "runs")
    with form_of(name, schema):
        if not isinstance(data.get(needed), list):
            raise InputError(f"{name}: {needed}: missing, expected an array")
        if not data[needed] and needed == "runs" and not result.scaled:
            raise InputError(f"{name}: runs: empty, expected at least one")
    return result


def results_of_trace(trace: str, formats: Sequence[str], policies: Sequence[str]) -> list[Shown]:
    """Replays and tunes a trace or profile; raises as the command does.

    Scaled formats have no loss scale to tune, and alone no policies and no heat maps.
    """
    tuned = [name for name in formats if name.partition(":")[0] not in scaled_format_names()]
    calls: dict[str, dict[str, object]] = {"replay": {"formats": formats}}
    if tuned or not formats:
        calls["replay"] |= {"heat_map": True, "policies": policies or None}
        calls["tune"] = {"formats": tuned}
    results = []
    for command, keywords in calls.items():
        results.append(shown_result(trace, call(command, [trace], {**keywords, "quiet": True})))
    return results


def contents_of(
    results: Sequence[Shown], trace: str | None = None, read_trace: bool = True
) -> Contents:
    """Returns results with their runs and the exponents of their trace.

    A trace that was given must be readable; one that a result names may be gone, or another.
    """
    contents = Contents(list(results))
    for result in contents.of_kind("replay"):
        with form_of(result.name, result.data["schema"]):
            contents.runs += [Run(_label(data), result, data) for data in result.data["runs"]]
    _tell_apart(contents.runs)
    if trace is not None and not os.access(trace, os.R_OK):
        raise InputError(f"{trace}: cannot be read")
    for result in results if read_trace else ():
        paths = [trace] if trace is not None else list(map(str, result.trace.get("paths") or ()))
        if contents.exponents is None and paths and all(os.access(p, os.R_OK) for p in paths):
            try:
                _count_exponents(contents, result, paths, trace is not None)
            except Error as error:
                if trace is not None:
                    raise
                contents.problem = str(error)
    return contents


def _label(data: Mapping[str, Any]) -> str:
    resumed = data.get("resume") or {}
    kept = f", resumed at {resumed.get('at_step')} keeping {resumed.get('kept')}" if resumed else ""
    return f"{data['format']} \u00b7 {data['policy']}{kept}"


def _tell_apart(runs: Sequence[Run]) -> None:
    """Adds numbers and files to labels of runs that would be alike."""
    for run in runs:
        alike = [other for other in runs if other.label == run.label]
        for i, other in enumerate(alike if len(alike) > 1 else (), 1):
            other.label += f" ({i}: {Path(other.result.name).stem})"


def _count_exponents(contents: Contents, result: Shown, paths: list[str], given: bool) -> None:
    """Adds exponents, unless the named trace no longer has the steps of the result."""
    from ..traces import exponents

    counted = exponents(paths)
    steps = counted.steps
    found = {"steps": len(steps), "first_step": steps[0], "last_step": steps[-1]}
    if given or all(result.trace.get(key, value) == value for key, value in found.items()):
        contents.exponents = counted
    else:
        contents.problem = f"{', '.join(paths)} has other steps than the result"
