# SPDX-License-Identifier: Apache-2.0
"""Runs dlsim_bench in several processes, or under Valgrind, and merges what they measured."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._errors import Error, InputError, UsageError
from ._programs import run_program
from ._results import GPU_FIELDS, SCHEMA, parse_results, quoted, threads_of

_PROGRAM = "dlsim_bench"
_SIZE_PART = 4  # Kernel/format/mode/target/size
_CONTEXT_FIELDS = ("cpu_model", "simd_target", "compiler", "compiler_flags", "threads", "dram_mib")
# Callgrind's dumps.
_COUNTS = re.compile(
    r"^desc: Trigger: (?:Client Request: )?(?P<name>.*)$|^totals: (?P<total>\d+)$", re.M
)


@dataclass
class Request:
    """Which benchmarks run, and how; empty texts are the defaults of dlsim_bench."""

    filter: str = ""
    sizes: str = ""
    threads: str = ""
    targets: str = ""
    dram_mib: str = ""
    device: str = ""
    repetitions: int = 11
    processes: int = 0  # 0: one per repetition
    min_time: float = 0.05  # seconds per repetition


def name_filter(pattern: str) -> Callable[[str], bool]:
    """Returns a test for names that contain a pattern, or, after a leading "-", do not."""
    try:
        regex = re.compile(pattern.removeprefix("-"))
    except re.error as error:
        raise UsageError(
            f"--filter: malformed pattern, expected a regular expression, got {quoted(pattern)}"
        ) from error
    negated = pattern.startswith("-")
    return lambda name: (regex.search(name) is None) == negated


def size_of(name: str) -> str:
    """Returns "L2" of "Encode/cb16/rne/AVX2/L2/grad/threads:1"; "" if there is none."""
    return (name.split("/") + [""] * 5)[_SIZE_PART]


def exact_pattern(names: Sequence[str]) -> str:
    """Returns a pattern, POSIX and Python, that matches exactly these names."""
    return "^(" + "|".join(re.sub(r"([.^$*+?()\[\]{}|\\])", r"\\\1", name) for name in names) + ")$"


def process_count(request: Request) -> int:
    """Returns the number of processes; raises UsageError."""
    if request.repetitions < 1:
        raise UsageError("--repetitions: out of range, expected 1 or more")
    count = request.processes or request.repetitions
    if 1 <= count <= request.repetitions:
        return count
    raise UsageError(
        f"--processes: out of range, expected at most {request.repetitions}, got {count}"
    )


def list_kernels(program: str, request: Request) -> list[str]:
    """Returns the names of the benchmarks that the request selects; raises UsageError if none."""
    is_chosen = name_filter(request.filter)
    listed = run_program([program, *_common(request), "--benchmark_list_tests=true"]).split("\n")
    names = [name for name in listed if name]
    sizes = request.sizes.split(",") if request.sizes else []
    chosen = [name for name in names if is_chosen(name) and (not sizes or size_of(name) in sizes)]
    if chosen:
        return chosen
    known = {size_of(name) for name in names}
    for size in sizes:
        if size not in known:
            some = ", ".join(sorted(known - {""}))
            raise UsageError(f"--sizes: unknown size, expected some of {some}, got {quoted(size)}")
    raise UsageError(
        f"--filter: no benchmark matches, expected part of one of {len(names)} names, "
        f"got {quoted(request.filter)}"
    )


def run_benchmarks(
    program: str, request: Request, progress: Callable[[int], None]
) -> dict[str, Any]:
    """Returns a document of schema dlsim.bench/1, which tools of Google Benchmark read, too.

    What one repetition of a kernel shares with the next, such as where arrays lie in memory, must
    not be more than what two runs share: each has a process. `progress` receives how many are done.
    """
    processes = process_count(request)
    arguments = _arguments(program, request, list_kernels(program, request))
    arguments += [
        "--benchmark_enable_random_interleaving=true",
        f"--benchmark_min_time={request.min_time:g}",
    ]
    share, more = divmod(request.repetitions, processes)
    documents = []
    for process in range(processes):
        own = share + (process < more)
        documents.append(_run([*arguments, f"--benchmark_repetitions={own}"]))
        progress(process + 1)
    merged = merge(documents)
    merged["dlsim"].update(
        processes=processes, repetitions=request.repetitions, min_time=request.min_time
    )
    return merged


def merge(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns one document of what several processes measured, as if one had done so."""
    kernels: dict[str, list[dict[str, Any]]] = {}
    for process, document in enumerate(documents):
        for entry in document["benchmarks"]:
            if entry.get("run_type") != "aggregate":
                kernels.setdefault(entry["run_name"], []).append({**entry, "process": process})
    entries = []
    for family, (_, own) in enumerate(kernels.items()):
        for i, entry in enumerate(own):
            entry.update(family_index=family, repetitions=len(own), repetition_index=i)
            entries.append(entry)
    context = documents[0]["context"]
    return {"context": context, "dlsim": _block(context, "time"), "benchmarks": entries}


def count_instructions(program: str, request: Request) -> dict[str, Any]:
    """Returns a document of kind "instructions": the same numbers at each run, on any machine.

    Targets default to AVX2, the widest that Valgrind executes.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise InputError("valgrind: not found; counting instructions needs it (Debian: valgrind)")
    request.targets = request.targets or "AVX2"
    request.threads = "1"
    names = list_kernels(program, request)
    # Callgrind does not record the machine and the build: from one short run without it.
    one = Request(exact_pattern(names[:1]), threads="1", targets=request.targets)
    one.dram_mib = request.dram_mib
    context = _run([*_arguments(program, one, names[:1]), "--benchmark_min_time=0.001"])["context"]
    dumps = os.memfd_create("callgrind", 0)
    try:
        options = ["--tool=callgrind", "--instr-atstart=no", "--combine-dumps=yes"]
        options.append(f"--callgrind-out-file=/dev/fd/{dumps}")
        arguments = [*_arguments(program, request, names), "--instructions", "all"]
        run_program(
            [valgrind, *options, *arguments],
            environment=_least_environment(),
            inherited_file=dumps,
        )
        with open(dumps, encoding="utf-8", closefd=False) as file:
            file.seek(0)
            counts = parse_callgrind(file.read())
    finally:
        os.close(dumps)
    # Not the best target of this machine, but that of the kernels.
    block = {**_block(context, "instructions"), "simd_target": request.targets}
    entries = [_count_entry(name, counts[name]) for name in names if name in counts]
    return {"context": context, "dlsim": block, "benchmarks": entries}


def parse_callgrind(dumps: str) -> dict[str, int]:
    """Returns instructions by benchmark from Callgrind's combined dumps."""
    counts = {}
    name = ""
    for found in _COUNTS.finditer(dumps):
        if found["total"] is None:
            name = found["name"] if "Client Request: " in found[0] else ""  # else the program's end
        elif name:
            counts[name] = int(found["total"])
            name = ""
    if not counts:
        raise Error("callgrind: no counts in its output")
    return counts


def _common(request: Request) -> list[str]:
    options = {
        "--threads": request.threads,
        "--targets": request.targets,
        "--dram-mib": request.dram_mib,
        "--device": request.device,
    }
    return [word for option, value in options.items() if value for word in (option, value)]


# One pattern cannot ask for name and size. All names would be more than std::regex takes where
# there are thousands.
def _arguments(program: str, request: Request, names: Sequence[str]) -> list[str]:
    pattern = request.filter
    if request.sizes and request.filter:
        pattern = exact_pattern(names)
    elif request.sizes:
        pattern = f"^([^/]*/){{{_SIZE_PART}}}({request.sizes.replace(',', '|')})/"
    chosen = [f"--benchmark_filter={pattern}"] if pattern else []
    return [program, *_common(request), *chosen]


def _run(command: Sequence[str]) -> dict[str, Any]:
    """Runs dlsim_bench once and returns its JSON; a benchmark that failed is no result."""
    output = run_program([*command, "--benchmark_format=json"])
    try:
        document: dict[str, Any] = json.loads(output)
    except ValueError as error:
        raise Error(f"{_PROGRAM}: its output is not JSON: {error}") from error
    parse_results(_PROGRAM, document)
    return document


def _block(context: Mapping[str, Any], kind: str) -> dict[str, Any]:
    block: dict[str, Any] = {"schema": SCHEMA, "kind": kind}
    for name in (*_CONTEXT_FIELDS, "dlsim_version"):
        if name not in context:
            raise Error(f'{_PROGRAM}: its output has no "{name}"')
        block[name] = context[name]
    block.update((name, context[name]) for name in GPU_FIELDS if name in context)
    block["date"] = context.get("date", "")
    return block


# The size of the environment moves the stack.
def _least_environment() -> dict[str, str]:
    kept = ("PATH", "LD_LIBRARY_PATH")
    return {"LC_ALL": "C", **{name: os.environ[name] for name in kept if name in os.environ}}


def _count_entry(name: str, instructions: int) -> dict[str, Any]:
    return {
        "name": name,
        "run_name": name,
        "run_type": "iteration",
        "repetitions": 1,
        "repetition_index": 0,
        "threads": threads_of(name),
        "iterations": 1,
        "instructions": instructions,
    }
