# SPDX-License-Identifier: Apache-2.0
"""`dlsim bench run|compare`: measures the kernels, and compares two measurements.

Both are JSON of Google Benchmark. The comparison is that of its compare.py, SciPy's Mann-Whitney U
test, with Holm's correction for the number of benchmarks.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ._command_parser import CommandParser
from ._errors import Error, InputError, UsageError, needed
from ._files import replacing
from ._text import counted, some_of

_CHECK_FAILED = 1  # exit code
_NANOSECONDS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
# What must agree where both files tell it: times of another machine or of other arrays differ.
_CONTEXT = ("cpu_model", "gpu", "num_cpus", "dram_mib", "library_build_type")
_ALPHA = 0.01  # the probability of one false alarm among all benchmarks
_MOST_EXACT = 25  # repetitions, for which all orders are counted

_RUN_EXAMPLES = """\
Each repetition is a process of its own, which runs all benchmarks in random order.
dlsim_bench is built from source with -DDLSIM_BUILD_BENCHMARKS=ON.

Examples:
  dlsim bench run --filter /L2/ --out new.json
  dlsim bench run --program build/release/sim/dlsim_bench --out new.json
  dlsim bench run --out gpu.json -- --device=cuda
"""
_COMPARE_EXAMPLES = """\
Exit code 1 if a benchmark is slower: its median time rose by more than the threshold, and
the two-sided Mann-Whitney U test, with Holm's correction, gives p < 0.01. "unclear" is
such a change that may be noise.

Examples:
  dlsim bench compare old.json new.json
  dlsim bench compare old.json new.json --threshold 10%
"""

Times = dict[str, list[float]]  # nanoseconds of each repetition, by name


def measure(
    programs: Sequence[str],
    arguments: Sequence[str],
    repetitions: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[dict[str, Any]]:
    """Runs programs in turn, each `repetitions` times, and returns one document for each.

    Repetitions in one process share what differs between processes, such as where arrays lie: a
    test would take these differences for those of the programs.
    """
    runs: list[list[dict[str, Any]]] = [[] for _ in programs]
    order = list(zip(programs, runs, strict=True))
    for repetition in range(repetitions):
        for program, own in order:
            own.append(_run_once([program, *arguments]))
        order.reverse()
        progress(repetition + 1)
    for own in runs:
        for repetition, document in enumerate(own):
            for entry in document["benchmarks"]:
                entry.update(repetitions=repetitions, repetition_index=repetition)
    return [
        {**own[0], "benchmarks": [entry for document in own for entry in document["benchmarks"]]}
        for own in runs
    ]


def _run_once(command: Sequence[str]) -> dict[str, Any]:
    options = ["--benchmark_format=json", "--benchmark_enable_random_interleaving=true"]
    try:
        done = subprocess.run(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise InputError(
            f"{command[0]}: cannot be run: {error.strerror}, expected dlsim_bench (--program)"
        ) from error
    if done.returncode != 0:
        kind = {2: UsageError, 3: InputError}.get(done.returncode, Error)
        said = done.stderr.strip().rpartition("\n")[2]
        raise kind(f"{command[0]}: failed with exit code {done.returncode}: {said}")
    return _parse(Path(command[0]).name, done.stdout)


def _parse(place: str, text: str | bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: bad JSON: {error}") from error
    match document:
        case {"context": dict(), "benchmarks": list()}:
            return dict(document)
    raise InputError(f'{place}: expected JSON of Google Benchmark, with "context" and "benchmarks"')


def times_of(place: str, document: dict[str, Any]) -> Times:
    """Returns the times by benchmark: on the clock where the name says so, else CPU time."""
    times: Times = {}
    for entry in document["benchmarks"]:
        try:
            name, unit = entry["name"], _NANOSECONDS[entry.get("time_unit", "ns")]
            if entry.get("run_type") == "aggregate":
                continue
            on_clock = "/real_time" in name or "/manual_time" in name
            time = unit * float(entry["real_time" if on_clock else "cpu_time"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{place}: bad benchmark, expected its name and times") from error
        if entry.get("error_occurred") or not 0 < time < math.inf:
            raise InputError(f"{place}: {name}: no time, expected one above 0")
        times.setdefault(name, []).append(time)
    return times


@dataclass
class Change:
    """A benchmark in two measurements: medians in nanoseconds, and the corrected p value."""

    name: str
    old: float
    new: float
    p: float

    @property
    def ratio(self) -> float:
        """Above 1: slower."""
        return self.new / self.old

    def verdict(self, threshold: float) -> str:
        """Returns "slower", "faster", "unclear" (a change that may be noise) or ""."""
        if 1 / (1 + threshold) <= self.ratio <= 1 + threshold:
            return ""
        if self.p >= _ALPHA:
            return "unclear"
        return "slower" if self.ratio > 1 else "faster"


def p_value(old: Sequence[float], new: Sequence[float]) -> float:
    """Returns p of the two-sided Mann-Whitney U test: exact for few values without ties."""
    stats = needed("scipy.stats", 'comparing needs SciPy: pip install "dlsim-numerics[bench]"')
    is_exact = len({*old, *new}) == len(old) + len(new) and max(len(old), len(new)) <= _MOST_EXACT
    method = "exact" if is_exact else "asymptotic"
    p = float(stats.mannwhitneyu(old, new, alternative="two-sided", method=method).pvalue)
    return 1.0 if math.isnan(p) else p  # all values are equal


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns Holm's correction, in the order given: alpha then bounds one false alarm in all."""
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def compare(old: Times, new: Times) -> list[Change]:
    """Compares the benchmarks that both have, the slowest change first.

    Raises InputError if they share none, or if the repetitions are too few to tell.
    """
    names = [name for name in old if name in new]
    if not names:
        raise InputError("no benchmark in common, expected two results of the same benchmarks")
    least = 1  # repetitions with which the smallest p of all is below alpha
    while 2 * len(names) / math.comb(2 * least, least) >= _ALPHA:
        least += 1
    fewest = min(min(len(old[name]), len(new[name])) for name in names)
    if fewest < least:
        raise InputError(
            f"too few repetitions, expected {least} or more to compare "
            f"{counted(len(names), 'benchmarks')}, got {fewest}"
        )
    p_values = holm([p_value(old[name], new[name]) for name in names])
    changes = [
        Change(name, median(old[name]), median(new[name]), p)
        for name, p in zip(names, p_values, strict=True)
    ]
    return sorted(changes, key=lambda change: -change.ratio)


def _require_same_machine(old: dict[str, Any], new: dict[str, Any]) -> None:
    for key in _CONTEXT:
        before, now = (document["context"].get(key) for document in (old, new))
        if before != now and before is not None and now is not None:
            raise InputError(f"{key}: differs, expected {before}, got {now}")


def _time_text(nanoseconds: float) -> str:
    units = [unit for unit, size in _NANOSECONDS.items() if nanoseconds >= size]
    unit = units[-1] if units else "ns"
    return f"{nanoseconds / _NANOSECONDS[unit]:.4g} {unit}"


def report(places: Sequence[str], documents: Sequence[dict[str, Any]], threshold: float) -> int:
    """Prints a table of an old and a new document, and returns the exit code."""
    _require_same_machine(*documents)
    old, new = map(times_of, places, documents)
    changes = compare(old, new)
    rows = [("benchmark", "old", "new", "change", "p", "")]
    for change in changes:
        times = _time_text(change.old), _time_text(change.new)
        percent = f"{100 * (change.ratio - 1):+.1f} %"
        rows.append((change.name, *times, percent, f"{change.p:.2g}", change.verdict(threshold)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells, verdict in rows:
        middle = [cell.rjust(width) for cell, width in zip(cells, widths[1:-1], strict=True)]
        print("  ".join([name.ljust(widths[0]), *middle, verdict]).rstrip())
    if alone := old.keys() ^ new.keys():
        print(f"Only in one of them: {some_of(sorted(alone))}")
    verdicts = [row[-1] for row in rows]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in ("slower", "faster", "unclear"))
    print(f"{counted(len(changes), 'benchmarks')}: {counts} (by more than {100 * threshold:g} %)")
    return _CHECK_FAILED if "slower" in verdicts else 0


def percentage(text: str) -> float:
    """Returns 0.05 for "5%"; raises ValueError for "0.05", which might mean less."""
    share = float(text.removesuffix("%")) / 100
    if not text.endswith("%") or not 0 <= share < 1:
        raise ValueError
    return share


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="dlsim bench", description="Measure kernels, and compare two measurements."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(verb: str, description: str, epilog: str, handler: object) -> CommandParser:
        added = commands.add_parser(verb, help=description, description=description, epilog=epilog)
        added.set_defaults(handler=handler)
        return added

    run = add("run", "Measure the kernels, and write their times", _RUN_EXAMPLES, _run)
    option = run.add_argument
    option("--out", metavar="FILE", required=True, help="JSON of Google Benchmark to write")
    option("--filter", metavar="RE", default="", help="Benchmarks to run (default: all)")
    option("--repetitions", metavar="N", type=int, default=11, help="Processes (default 11)")
    option(
        "--min-time", metavar="S", type=float, default=0.05, help="Seconds of each (default 0.05)"
    )
    option("--program", metavar="FILE", default="dlsim_bench", help="Default: found in $PATH")
    option("more", nargs="*", metavar="OPTION", help="Options of dlsim_bench, after --")

    both = add("compare", "Say which benchmarks are slower", _COMPARE_EXAMPLES, _compare)
    option = both.add_argument
    option("old", metavar="OLD", help="JSON of dlsim bench run, or of Google Benchmark")
    option("new", metavar="NEW", help="The same after a change")
    option(
        "--threshold", metavar="P%", type=percentage, default=0.05, help="Of medians (default 5%%)"
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    def progress(done: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == options.repetitions else ""
            print(f"\rrepetition {done} of {options.repetitions}", end=end, file=sys.stderr)

    if options.repetitions < 1:
        raise UsageError(f"--repetitions: expected 1 or more, got {options.repetitions}")
    chosen = [f"--benchmark_filter={options.filter}"] if options.filter else []
    arguments = [*chosen, f"--benchmark_min_time={options.min_time}", *options.more]
    with replacing(options.out) as temporary:
        temporary.touch()  # fails before the work
        (document,) = measure([options.program], arguments, options.repetitions, progress)
        temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def _compare(options: argparse.Namespace) -> int:
    places = (options.old, options.new)
    return report(places, [_parse(p, Path(p).read_bytes()) for p in places], options.threshold)


def main(arguments: Sequence[str]) -> int:
    """Runs `dlsim bench ARGUMENTS...` and returns the exit code; raises dlsim.Error."""
    options = _parser().parse_args(arguments)
    code: int = options.handler(options)
    return code
