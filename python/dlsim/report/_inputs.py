# SPDX-License-Identifier: Apache-2.0
"""The results that a report is made of: files read, checked and named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._errors import InputError
from ..results._verdict import Verdict, verdict_of
from ._json import objects, part, visible

_KINDS = {
    "dlsim.replay/1": "replay",
    "dlsim.sweep/1": "sweep",
    "dlsim.tune/1": "tune",
    "dlsim.diff/1": "diff",
}

# What the page cannot do without: the arrays of a document, mostly not empty, and what each of
# their items holds.
_ARRAYS: dict[str, dict[str, dict[str, type]]] = {
    "replay": {
        "runs": {"format": str, "policy": str, "summary": dict, "steps": list, "tensors": list}
    },
    "sweep": {"runs": {"format": str, "policy": str, "params": dict, "summary": dict}},
    "tune": {"formats": {"format": str, "verdict": str}},
    "diff": {"tensors": {"name": str}, "steps": {"step": int}},
}
_NAMES: dict[type, str] = {int: "an integer", str: "a text", dict: "an object", list: "an array"}


@dataclass
class ShownResult:
    """One result file: its kind, such as "replay", and the parsed document."""

    name: str
    kind: str
    data: dict[str, Any]

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of replay or tune; None where there is none."""
        return verdict_of(self.data, self.name)

    @property
    def trace_paths(self) -> list[str]:
        """Paths of the trace as they were given to the command."""
        paths = part(self.data, "trace").get("paths")
        return [str(path) for path in paths] if isinstance(paths, list) else []


@dataclass
class Run:
    """One run of a replay, with the label that tells it from the others of the page.

    `data` is a copy of the run's object, to which a heat map may be added.
    """

    label: str
    result: ShownResult
    data: dict[str, Any]

    @property
    def format(self) -> str:
        """Canonical name of the format."""
        return str(self.data["format"])

    @property
    def has_heat_map(self) -> bool:
        """Whether the result holds what each tensor loses over the steps."""
        return isinstance(self.data.get("heat_map"), dict)

    @property
    def summary(self) -> dict[str, Any]:
        """The summary of the run."""
        return part(self.data, "summary")


def check_result(name: str, data: object) -> ShownResult:
    """Returns a parsed document as a ShownResult; raises InputError where keys are missing."""
    if not isinstance(data, dict) or "schema" not in data:
        raise InputError(f"{name}: no result of dlsim, expected an object with the key schema")
    schema = data["schema"]
    kind = _KINDS.get(schema) if isinstance(schema, str) else None
    if kind is None:
        expected = ", ".join(_KINDS)
        raise InputError(
            f"{name}: schema: no report for it, expected one of {expected}, got "
            f"{visible(repr(schema))[:60]}"
        )
    for array, keys in _ARRAYS[kind].items():
        items = data.get(array)
        if not isinstance(items, list):
            raise InputError(f"{name}: {array}: missing, expected an array")
        if not items and not _may_be_empty(kind, data):
            raise InputError(f"{name}: {array}: empty, expected at least one")
        _check_items(f"{name}: {array}", items, keys)
    if kind == "replay":
        for i, run in enumerate(data["runs"]):
            _check_items(f"{name}: runs[{i}].steps", run["steps"], {"step": int})
            _check_items(f"{name}: runs[{i}].tensors", run["tensors"], {"name": str})
    return ShownResult(name, kind, data)


def scaled_formats(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the entries of a document's verdict that are about scaled formats."""
    formats = objects(part(data, "verdict"), "formats")
    return [entry for entry in formats if isinstance(entry.get("scaled"), dict)]


def _may_be_empty(kind: str, data: Mapping[str, Any]) -> bool:
    """A tune recommends nothing without gradients; scaled formats have no runs."""
    return kind == "tune" or bool(scaled_formats(data))


def _check_items(place: str, items: Sequence[object], keys: Mapping[str, type]) -> None:
    for i, item in enumerate(items):
        if not isinstance(item, dict):
            raise InputError(f"{place}[{i}]: expected an object")
        for key, kind in keys.items():
            if not isinstance(item.get(key), kind):
                expected = f"expected {_NAMES[kind]}"
                raise InputError(f"{place}[{i}].{key}: missing or wrong, {expected}")


def runs_of(results: Sequence[ShownResult]) -> list[Run]:
    """Returns the runs of all replays; labels that would be alike are told apart by their file."""
    runs = []
    for result in results:
        if result.kind == "replay":
            runs += [Run(_label(data), result, {**data}) for data in result.data["runs"]]
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(run.label, []).append(run)
    for label, group in alike.items():
        for i, run in enumerate(group if len(group) > 1 else []):
            files = {other.result.name for other in group}
            mark = Path(run.result.name).stem if len(files) == len(group) else str(i + 1)
            run.label = f"{label} ({visible(mark)})"
    return runs


def _label(data: Mapping[str, Any]) -> str:
    label = f"{visible(data['format'])} \u00b7 {visible(data['policy'])}"
    resume = part(data, "resume")
    if resume:
        label += f", resumed at {resume.get('at_step')} keeping {visible(resume.get('kept'))}"
    return label
