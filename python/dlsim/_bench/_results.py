# SPDX-License-Identifier: Apache-2.0
"""Results of benchmarks: the JSON of Google Benchmark, with a block "dlsim".

docs/benchmarking.md describes both.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._errors import Error, InputError

SCHEMA = "dlsim.bench/1"
KINDS = ("time", "instructions")
# Labels of what is not code of dlsim: a limit that it is compared with, and other libraries.
LIMIT, PEER = "limit", "peer"

# Times depend on the machine and on the arrays; instructions, which are counted on one thread and
# in one size, depend on the code alone.
GPU_FIELDS = ("gpu", "gpu_driver", "cuda_compiler")
_TIME_FIELDS = (
    *("cpu_model", "simd_target", "threads", "compiler", "compiler_flags", "dram_mib"),
    *("suite", "trace_mib"),
    *GPU_FIELDS,
)
_INSTRUCTION_FIELDS = ("simd_target", "compiler", "compiler_flags")
# What Google Benchmark records of a machine and a build by itself.
_PLAIN_FIELDS = ("num_cpus", "mhz_per_cpu", "library_build_type")

_NANOSECONDS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_MOST_BYTES = 32 << 20


class IncomparableError(Error):
    """Two results that cannot be compared: exit code 4."""


@dataclass
class Kernel:
    """One benchmark, with one value per repetition; costs are nanoseconds, or instructions."""

    name: str
    cost: list[float] = field(default_factory=list)
    bytes_per_second: list[float] = field(default_factory=list)
    fraction_of_stream: list[float] = field(default_factory=list)
    is_judged: bool = True


@dataclass
class Results:
    """What a file says. `identity` must agree before two files may be compared."""

    place: str
    kind: str
    identity: dict[str, str]
    kernels: list[Kernel]
    cpu_model: str = ""
    processes: str = ""


def printable(text: str) -> str:
    """Returns text safe to print on one line: hidden characters and quotes are escaped."""
    shown = text if len(text) <= 256 else text[:256] + "..."
    return "".join(
        c if c.isprintable() and c not in "'\"" else c.encode("unicode_escape").decode()
        for c in shown
    )


def quoted(text: str) -> str:
    """Returns text in quotes, safe to print."""
    return f"'{printable(text)}'"


def threads_of(name: str) -> int:
    """Returns 2 for "Encode/cb16/.../threads:2", and 1 where the name has no number of threads."""
    found = re.search(r"/threads:(\d+)", name)
    return int(found[1]) if found else 1


def uses_wall_time(name: str) -> bool:
    """Returns whether wall-clock time is judged, and not CPU time.

    So it is with several threads, of a GPU, and of commands that wait for a disk.
    """
    return threads_of(name) > 1 or name.startswith("gpu/") or "/cold/" in name


def read_results(path: str) -> Results:
    """Reads a file of `dlsim bench run`, of dlsim_bench or of any program with Google Benchmark.

    Repetitions are gathered by benchmark; aggregates are ignored.
    """
    place = printable(path)
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{place}: cannot be opened: {error.strerror}") from error
    if len(data) > _MOST_BYTES:
        raise InputError(f"{place}: too large, expected at most {_MOST_BYTES >> 20} MiB")
    try:
        document = json.loads(data, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: bad JSON: {printable(str(error))}") from error
    return parse_results(place, document)


def parse_results(place: str, document: object) -> Results:
    """Does the same with a document; `place` names it in messages."""
    if not (isinstance(document, dict) and "context" in document and "benchmarks" in document):
        raise InputError(
            f"{place}: no result of a benchmark, "
            "expected the JSON of dlsim bench run or of Google Benchmark"
        )
    context, entries = document["context"], document["benchmarks"]
    block = document.get("dlsim", {})
    for name, value, expected, what in (
        ("context", context, dict, "an object"),
        ("benchmarks", entries, list, "an array"),
        ("dlsim", block, dict, "an object"),
    ):
        if not isinstance(value, expected):
            raise InputError(f'{place}: bad "{name}", expected {what}')
    kind = _kind_of(place, block) if "dlsim" in document else "time"
    results = Results(place, kind, _identity(kind, context, block), [])
    results.cpu_model = _as_text(block.get("cpu_model", ""))
    results.processes = _as_text(block.get("processes", ""))
    kernels: dict[str, Kernel] = {}
    for entry in entries:
        _add_entry(results, entry, kernels)
    results.kernels = list(kernels.values())
    if not kernels:
        raise InputError(f"{place}: no benchmark in it")
    return results


def require_comparable(base: Results, current: Results) -> None:
    """Raises IncomparableError that names each field in which the two differ, with both values."""

    def value(results: Results, name: str) -> str:
        return quoted(results.identity[name]) if name in results.identity else "none"

    names = sorted(base.identity.keys() | current.identity.keys())
    pairs = [(name, value(base, name), value(current, name)) for name in names]
    different = [f"{name} {before} against {now}" for name, before, now in pairs if before != now]
    if different:
        raise IncomparableError(
            f"{base.place} and {current.place}: not comparable: {'; '.join(different)}"
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    names = [name for name, _ in pairs]
    raise ValueError(f"duplicate key {next(n for n in names if names.count(n) > 1)}")


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _kind_of(place: str, block: Mapping[str, Any]) -> str:
    schema = _text(place, block, "schema")
    if schema != SCHEMA:
        raise InputError(f"{place}: unknown schema, expected {SCHEMA}, got {quoted(schema)}")
    kind = _text(place, block, "kind")
    if kind in KINDS:
        return kind
    raise InputError(f'{place}: bad "kind", expected {" or ".join(KINDS)}, got {quoted(kind)}')


# dlsim_bench puts into the context what `dlsim bench run` puts into a block of its own.
def _identity(kind: str, context: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, str]:
    known = {**context, **block}
    fields: Iterable[str] = _TIME_FIELDS if "cpu_model" in known else _PLAIN_FIELDS
    if kind == "instructions":
        fields = _INSTRUCTION_FIELDS
    return {"kind": kind, **{name: _as_text(known[name]) for name in fields if name in known}}


def _member(place: str, entry: Mapping[str, Any], name: str) -> Any:
    if name not in entry:
        raise InputError(f'{place}: no "{name}"')
    return entry[name]


def _text(place: str, entry: Mapping[str, Any], name: str) -> str:
    value = _member(place, entry, name)
    if isinstance(value, str):
        return value
    raise InputError(f'{place}: bad "{name}", expected a text')


def _positive(place: str, entry: Mapping[str, Any], name: str) -> float:
    value = _member(place, entry, name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if 0 < value < 2**63 and math.isfinite(value):
            return float(value)
    got = quoted(json.dumps(value))
    raise InputError(f'{place}: bad "{name}", expected a positive number, got {got}')


def _add_entry(results: Results, entry: object, kernels: dict[str, Kernel]) -> None:
    place = results.place
    if not isinstance(entry, dict):
        raise InputError(f"{place}: bad benchmark, expected an object")
    if entry.get("run_type") == "aggregate":
        return
    # There is no "run_name" before Google Benchmark 1.5.
    name = _text(place, entry, "run_name" if "run_name" in entry else "name")
    place = f"{place}: {printable(name)}"
    if entry.get("error_occurred") is True:
        why = printable(_as_text(entry.get("error_message", "")))
        raise InputError(f"{place}: the benchmark failed: {why}")
    kernel = kernels.setdefault(name, Kernel(name))
    kernel.is_judged = kernel.is_judged and entry.get("label") not in (LIMIT, PEER)
    factor = 1.0
    if results.kind == "instructions":
        kernel.cost.append(_positive(place, entry, "instructions"))
    else:
        unit = _text(place, entry, "time_unit")
        if unit not in _NANOSECONDS:
            raise InputError(
                f'{place}: bad "time_unit", expected one of ns, us, ms, s, got {quoted(unit)}'
            )
        time = _positive(place, entry, "real_time" if uses_wall_time(name) else "cpu_time")
        kernel.cost.append(_NANOSECONDS[unit] * time)
        if "cpu_model" in results.identity:
            # dlsim_bench divides bytes by wall-clock time, whichever time is judged.
            factor = _positive(place, entry, "real_time") / time
    _add_rate(entry, "bytes_per_second", factor, kernel.bytes_per_second)
    _add_rate(entry, "fraction_of_stream", 1.0, kernel.fraction_of_stream)


def _add_rate(entry: Mapping[str, Any], name: str, factor: float, values: list[float]) -> None:
    value = entry.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        values.append(factor * value)
