# SPDX-License-Identifier: Apache-2.0
"""Times whole commands on made-up traces, each with its limit: reading the same files."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .._errors import InputError, UsageError
from . import _launcher
from ._kernels import Request, name_filter, size_of
from ._programs import dlsim_command, require_success, run_program
from ._results import LIMIT, SCHEMA, printable, quoted, uses_wall_time
from ._scaling import scaling_of
from ._traces import SHAPES, BenchTrace, drop_from_cache, read_and_sum, write_trace

_MOST_MIB = 1 << 24
_MOST_THREADS = 1024
_TRACE, _OUTPUT = "{trace}", "{output}"

# Name, arguments (none: the limit), and whether it goes through the files once.
_CASES: tuple[tuple[str, str, bool], ...] = (
    ("Stream/pread/256KiB/-", "", True),
    (
        "Command/replay/fp16/cerebras-2.10",
        "replay {trace} --format fp16 --policy cerebras-2.10",
        True,
    ),
    ("Command/replay/default/default", "replay {trace}", False),
    ("Command/replay/fp16/all", "replay {trace} --format fp16 --policy all", False),
    ("Command/profile/all/-", "profile {trace} -o {output}", True),
    (
        "Command/sweep/fp16/torch",
        "sweep {trace} --format fp16 --policy torch --vary init_scale=2^0..2^31",
        False,
    ),
    ("Command/tune/fp16/cerebras-2.10", "tune {trace} --format fp16", False),
)


@dataclass(frozen=True)
class _Case:
    name: str
    shape: str
    threads: int
    arguments: tuple[str, ...]


@dataclass
class CommandRequest:
    """Which commands run, on traces of `mib` MiB each in `directory` ("": the system's)."""

    selection: Request
    directory: str = ""
    mib: int = 256
    cold: bool = False


def time_commands(
    request: CommandRequest, announce: Callable[[str], None], progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Returns a document of schema dlsim.bench/1.

    Commands take turns: one repetition of each, in an order of its own, then the next. `announce`
    receives what will be done and how long it takes, `progress` how many of how many are done.
    """
    _check(request)
    cases = _select(request)
    repetitions = request.selection.repetitions
    order = list(range(len(cases)))
    entries: list[list[dict[str, Any]]] = [[] for _ in cases]
    with _launched(request.directory) as run:
        announce(
            f"writing traces of {request.mib} MiB each, and running {len(cases)} commands once"
        )
        shapes = {case.shape for case in cases}
        traces = {shape: write_trace(run.folder / shape, shape, request.mib) for shape in shapes}
        begin = time.monotonic()
        for case in cases:  # so that all files are where they will be
            _time(run, case, traces[case.shape], request.cold)
        seconds = (time.monotonic() - begin) * repetitions
        announce(f"{repetitions} repetitions of {len(cases)} commands take about {_long(seconds)}")
        mixed = random.Random(1)
        for repetition in range(repetitions):
            mixed.shuffle(order)
            for i in order:
                entry = _time(run, cases[i], traces[cases[i].shape], request.cold)
                entry.update(family_index=i, repetitions=repetitions, repetition_index=repetition)
                entries[i].append(entry)
                progress(sum(map(len, entries)), repetitions * len(cases))
    benchmarks = [entry for own in entries for entry in own]
    return {
        "context": {"num_cpus": os.cpu_count()},
        "dlsim": {**_block(request), "scaling": scaling_of(benchmarks)},
        "benchmarks": benchmarks,
    }


def _check(request: CommandRequest) -> None:
    if request.selection.repetitions < 1:
        raise UsageError("--repetitions: out of range, expected 1 or more")
    if not 1 <= request.mib <= _MOST_MIB:
        raise UsageError(f"--trace-mib: out of range, expected 1 to {_MOST_MIB}, got {request.mib}")


def _thread_counts(text: str) -> list[int]:
    if not text:
        return sorted({1, os.cpu_count() or 1})
    counts = []
    for part in text.split(","):
        if not (part.isascii() and part.isdigit() and 1 <= int(part) <= _MOST_THREADS):
            raise UsageError(
                f"--threads: out of range, expected 1 to {_MOST_THREADS}, got {quoted(part)}"
            )
        counts.append(int(part))
    if len(set(counts)) < len(counts):
        raise UsageError(f"--threads: given twice, expected different numbers, got {quoted(text)}")
    return counts


def _select(request: CommandRequest) -> list[_Case]:
    selection = request.selection
    is_chosen = name_filter(selection.filter)
    sizes = selection.sizes.split(",") if selection.sizes else list(SHAPES)
    for size in sizes:
        if size not in SHAPES:
            known = ", ".join(SHAPES)
            raise UsageError(f"--sizes: unknown name, expected one of {known}, got {quoted(size)}")
    cache = "cold" if request.cold else "cached"
    cases = [
        _Case(f"{name}/{shape}/{cache}/threads:{count}", shape, count, tuple(arguments.split()))
        for shape in SHAPES
        for name, arguments, reads_once in _CASES
        for count in _thread_counts(selection.threads)
        if reads_once or not request.cold
    ]
    chosen = [case for case in cases if is_chosen(case.name) and size_of(case.name) in sizes]
    if chosen:
        return chosen
    raise UsageError(
        f"--filter: no command matches, expected part of one of {len(cases)} names, "
        f"got {quoted(selection.filter)}"
    )


@dataclass
class _Launcher:
    """A process apart, with a directory that goes however this process ends."""

    process: subprocess.Popen[str]
    folder: Path

    def __call__(self, arguments: Sequence[str], threads: int) -> dict[str, Any]:
        """Runs dlsim and returns what it took."""
        environment = {"OMP_NUM_THREADS": str(threads)}
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([[*dlsim_command(), *arguments], environment]) + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        require_success("dlsim", found["code"], found["errors"])
        return found


@contextmanager
def _launched(directory: str) -> Iterator[_Launcher]:
    # In a session of its own: what a terminal sends to this process does not reach it.
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", _launcher.__file__, directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:  # closes standard input, and waits
        assert process.stdout is not None and process.stderr is not None
        folder = process.stdout.readline().rstrip("\n")
        if not folder:
            place = printable(directory or "the directory of temporary files")
            raise InputError(f"{place}: cannot be made ({process.stderr.read().strip()})")
        try:
            yield _Launcher(process, Path(folder))
        except OSError as error:
            raise InputError(f"{error.filename or folder}: {error.strerror}") from error


def _time(run: _Launcher, case: _Case, trace: BenchTrace, cold: bool) -> dict[str, Any]:
    """Returns the entry of one repetition, which tools of Google Benchmark understand."""
    if cold:
        drop_from_cache(trace.files)
    limit_wall, limit_cpu = read_and_sum(trace.files, case.threads, ahead=cold)
    wall, cpu = limit_wall, limit_cpu
    more: dict[str, Any] = {"label": LIMIT}
    if case.arguments:
        output = run.folder / "output"
        output.unlink(missing_ok=True)
        if cold:
            drop_from_cache(trace.files)
        names = {_TRACE: str(trace.directory), _OUTPUT: str(output)}
        took = run([names.get(word, word) for word in case.arguments], case.threads)
        wall, cpu = took["wall_seconds"], took["cpu_seconds"]
        more = {"peak_bytes": took["peak_bytes"]}
    return {
        "name": case.name,
        "run_name": case.name,
        "run_type": "iteration",
        "threads": case.threads,
        "iterations": 1,
        "real_time": 1e9 * wall,
        "cpu_time": 1e9 * cpu,
        "time_unit": "ns",
        "bytes_per_second": trace.size / wall,
        "fraction_of_stream": limit_wall / wall if uses_wall_time(case.name) else limit_cpu / cpu,
        **more,
    }


def _long(seconds: float) -> str:
    return f"{math.ceil(seconds)} s" if seconds < 100 else f"{math.ceil(seconds / 60)} min"


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(": ")
            if name.startswith("model name"):
                return value.rstrip("\n")
    return "unknown"


def _block(request: CommandRequest) -> Mapping[str, Any]:
    selection = request.selection
    return {
        "schema": SCHEMA,
        "kind": "time",
        "suite": "commands",
        "cpu_model": _cpu_model(),
        **json.loads(run_program([*dlsim_command(), "--build-info"])),
        "threads": ",".join(map(str, _thread_counts(selection.threads))),
        "trace_mib": str(request.mib),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "processes": selection.repetitions,
        "repetitions": selection.repetitions,
    }
