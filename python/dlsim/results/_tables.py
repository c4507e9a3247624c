# SPDX-License-Identifier: Apache-2.0
"""The flat tables of each kind of result: which rows and columns its JSON becomes.

Keys of nested objects are joined by dots, `params.init_scale`; lists of texts become lines of
one text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .._errors import InputError, UsageError
from ._columns import Row, Table, columns_of

Rows = Callable[[Mapping[str, Any]], Iterable[Row]]


def flat(row: Mapping[str, Any], prefix: str = "") -> Row:
    """Returns the values of nested objects under joined keys."""
    result: Row = {}
    for key, value in row.items():
        name = prefix + key
        if isinstance(value, Mapping):
            result.update(flat(value, name + "."))
        elif not isinstance(value, list):
            result[name] = value
        elif all(isinstance(item, str) for item in value):
            result[name] = "\n".join(value)
        else:
            result[name] = json.dumps(value)
    return result


def _without(row: Mapping[str, Any], *keys: str) -> Row:
    return {key: value for key, value in row.items() if key not in keys}


def _runs(data: Mapping[str, Any]) -> Iterator[Row]:
    """One row per run: what it is, its parameters and its summary without a prefix."""
    front = set(data.get("pareto", ()))
    for index, run in enumerate(data["runs"]):
        row = {
            "run": index,
            **_without(run, "params", "summary", "events", "steps", "tensors", "layers"),
        }
        row |= {"events": len(run["events"])} if "events" in run else {}
        row |= {"pareto": index in front} if "pareto" in data else {}
        yield {**flat(row), **flat(run["summary"]), **flat(run["params"], "params.")}


def _of_runs(key: str) -> Rows:
    """Rows of a list that each run has, after the run's number and names."""

    def rows(data: Mapping[str, Any]) -> Iterator[Row]:
        for index, run in enumerate(data["runs"]):
            names = {"run": index, "format": run["format"], "policy": run["policy"]}
            for row in run.get(key, ()):
                yield names | flat(_without(row, "optimizers"))

    return rows


def _optimizers(data: Mapping[str, Any]) -> Iterator[Row]:
    names = list(data.get("options", {}).get("optimizers", ()))
    for index, run in enumerate(data["runs"]):
        for step in run["steps"]:
            for name, row in zip(names, step.get("optimizers", ()), strict=False):
                place = {"run": index, "step": step["step"], "optimizer": name}
                yield place | flat(row or {})


def _listed(*keys: str) -> Rows:
    """Rows of a list of objects."""

    def rows(data: Mapping[str, Any]) -> Iterable[Row]:
        found: Any = data
        for key in keys:
            found = found.get(key) or ()
        return (flat(row) for row in found)

    return rows


def _tune_formats(data: Mapping[str, Any]) -> Iterator[Row]:
    lists = ("comparisons", "other_policies", "tensors", "overflow_tensors", "underflow_tensors")
    for found in data["formats"]:
        row = _without(found, *lists, "config", "headroom")
        row["headroom"] = _without(found.get("headroom") or {}, "steps")
        yield flat(row)


def _of_formats(*keys: str) -> Rows:
    """Rows of a list in each format of a result of tune, after the format's name."""

    def rows(data: Mapping[str, Any]) -> Iterator[Row]:
        for found in data["formats"]:
            for row in _listed(*keys)(found):
                yield {"format": found["format"]} | row

    return rows


def _explained_policies(data: Mapping[str, Any]) -> Iterator[Row]:
    return (flat(_without(row, "evidence")) for row in data["policies"])


def _scaler_runs(data: Mapping[str, Any]) -> Iterator[tuple[Row, Mapping[str, Any]]]:
    yield {"resume.at_step": None, "resume.kept": None}, data
    for twin in data.get("resume", ()):
        yield {"resume.at_step": twin["at_step"], "resume.kept": twin["kept"]}, twin


def _scaler_scales(data: Mapping[str, Any]) -> Iterator[Row]:
    """Per row: the scale after the step was `scale` for `steps` steps from `first_step` on."""
    for names, run in _scaler_runs(data):
        first = 0
        for scale, count in run["scale"]:
            row = {"first_step": first, "steps": count, "scale": float.fromhex(scale)}
            yield names | row
            first += count


def _scaler_skipped(data: Mapping[str, Any]) -> Iterator[Row]:
    return (names | {"step": step} for names, run in _scaler_runs(data) for step in run["skipped"])


def _scaler_events(data: Mapping[str, Any]) -> Iterator[Row]:
    return (names | flat(event) for names, run in _scaler_runs(data) for event in run["events"])


def _scaler_facts(data: Mapping[str, Any]) -> Iterator[Row]:
    start = data["scale_init"]
    yield {
        "policy": data["policy"],
        "scale_init": None if start is None else float.fromhex(start),
        **flat(data["params"], "params."),
        **flat(data["state"], "state."),
    }


def _recordings(data: Mapping[str, Any]) -> Iterator[Row]:
    lists = ("histogram", "tensorflow_histogram")
    return (flat(_without(row, *lists)) for row in data["recordings"])


def _bins(key: str, edge: str) -> Rows:
    def rows(data: Mapping[str, Any]) -> Iterator[Row]:
        for recording in data["recordings"]:
            names = {name: recording[name] for name in ("step", "micro", "tensor", "role")}
            for value, count in recording.get(key, ()):
                yield names | {edge: value, "count": count}

    return rows


def _info_steps(data: Mapping[str, Any]) -> Iterator[Row]:
    for step in data["steps"]:
        yield flat(_without(step, "files", "micro_steps") if "files" in step else step)


def _info_files(data: Mapping[str, Any]) -> Iterator[Row]:
    for step in data["steps"]:
        for file in step.get("files", ()):
            yield {"step": step["step"]} | file


def _whole(data: Mapping[str, Any]) -> Iterator[Row]:
    yield flat(_without(data, "schema"))


# Per schema its tables, the principal one first.
_SCHEMAS: dict[str, dict[str, Rows]] = {
    "dlsim.replay/1": {
        "runs": _runs,
        "steps": _of_runs("steps"),
        "tensors": _of_runs("tensors"),
        "layers": _of_runs("layers"),
        "events": _of_runs("events"),
        "optimizers": _optimizers,
    },
    "dlsim.sweep/1": {"runs": _runs, "refused": _listed("refused")},
    "dlsim.tune/1": {
        "formats": _tune_formats,
        "comparisons": _of_formats("comparisons"),
        "other_policies": _of_formats("other_policies"),
        "tensors": _of_formats("tensors"),
        "headroom": _of_formats("headroom", "steps"),
        "overflow_tensors": _of_formats("overflow_tensors"),
        "underflow_tensors": _of_formats("underflow_tensors"),
    },
    "dlsim.diff/1": {
        "tensors": _listed("tensors"),
        "steps": _listed("steps"),
        "unmatched": _listed("unmatched", "tensors"),
    },
    "dlsim.explain/1": {
        "brackets": _listed("brackets"),
        "policies": _explained_policies,
    },
    "dlsim.scaler/1": {
        "scales": _scaler_scales,
        "skipped": _scaler_skipped,
        "events": _scaler_events,
        "policy": _scaler_facts,
    },
    "dlsim.info/1": {
        "steps": _info_steps,
        "tensors": _listed("tensors"),
        "files": _info_files,
    },
    "dlsim.profile-report/1": {"profile": _whole},
    "dlsim.summaries/1": {
        "recordings": _recordings,
        "histogram": _bins("histogram", "exponent"),
        "tensorflow_histogram": _bins("tensorflow_histogram", "edge"),
    },
    "dlsim.accumulate/3": {"runs": _listed("runs")},
    "dlsim.updates/2": {"runs": _listed("runs")},
    "dlsim.formats/1": {"formats": _listed("formats")},
}


def table_names(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of a result's tables, the principal one first."""
    return tuple(_tables_of(data))


def tables(data: Mapping[str, Any], *, only: str | None = None) -> dict[str, Table]:
    """Returns the tables of a result by name, each a list of values per column.

    Raises UsageError for a schema that is not known, and InputError for data of another form.
    """
    chosen = _tables_of(data)
    names = chosen if only is None else [only]
    try:
        return {name: columns_of(chosen[name](data)) for name in names}
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise InputError(f"result: not of the form {data['schema']}: {cause}") from error


def _tables_of(data: Mapping[str, Any]) -> dict[str, Rows]:
    schema = data.get("schema")
    if schema not in _SCHEMAS:
        raise UsageError(f"schema: expected one of {', '.join(_SCHEMAS)}, got {schema!r}")
    return _SCHEMAS[schema]
