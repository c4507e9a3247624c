# SPDX-License-Identifier: Apache-2.0
"""`dlsim bench run|compare|gate|bless`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .._errors import InputError, UsageError
from .._files import replacing, require_no_input
from ._arguments import bench_parser
from ._baselines import baseline_path, bless, read_baseline
from ._commands import CommandRequest, time_commands
from ._comparison import Comparison, Rule, compare
from ._comparison_report import comparison_json, format_comparison
from ._kernels import (
    Request,
    count_instructions,
    exact_pattern,
    name_filter,
    process_count,
    run_benchmarks,
)
from ._programs import bench_program
from ._results import IncomparableError, Results, parse_results, printable, quoted, read_results
from ._scaling import command_report

_CHECK_FAILED, _INCOMPARABLE = 1, 4  # exit codes
_INSTRUCTION_THRESHOLD = 0.01


@contextmanager
def _output(path: str) -> Iterator[Callable[[str], object]]:
    """Gives what writes to a file, which appears complete or not at all; "-" is standard output."""
    if path == "-":
        yield sys.stdout.write
        return
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        yield file.write


def _json_text(document: object) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _require(options: argparse.Namespace, names: Sequence[str], other: str, given: bool) -> None:
    """Raises UsageError if an option is set although --commands is not as it must be."""
    for name in names:
        if (
            getattr(options, name.strip("-").replace("-", "_")) not in (None, "", False)
            and not given
        ):
            raise UsageError(f"{name}: cannot be used {other} --commands")


def _check_run(options: argparse.Namespace) -> None:
    kernels = ("--targets", "--dram-mib", "--processes", "--min-time", "--device", "--instructions")
    _require(options, kernels, "with", not options.commands)
    traces = ("--trace-mib", "--trace-dir", "--cold")
    _require(options, traces, "without", options.commands)
    if options.min_time is not None and not 0 < options.min_time <= 1000:
        raise UsageError(
            f"--min-time: out of range, expected above 0, at most 1000, got {options.min_time:g}"
        )
    if options.instructions and options.device.startswith("cuda"):
        raise UsageError(
            "--instructions: Valgrind counts those of the CPU alone, expected --device cpu, "
            f"got {quoted(options.device)}"
        )


def _run(options: argparse.Namespace) -> int:
    _check_run(options)
    request = Request(options.filter, options.sizes, options.threads, options.targets)
    request.dram_mib, request.repetitions = options.dram_mib, options.repetitions
    request.device = options.device if options.device.startswith("cuda") else ""
    request.processes = options.processes or 0
    request.min_time = options.min_time or request.min_time
    count = process_count(request)  # bad values fail before the work
    progress = _progress(options.quiet)

    def announce(text: str) -> None:
        if not options.quiet:
            print(f"dlsim bench run: {text}", file=sys.stderr)

    with _output(options.out) as write:
        if options.commands:
            mib = 256 if options.trace_mib is None else options.trace_mib
            chosen = CommandRequest(request, options.trace_dir or "", mib, options.cold)
            document = time_commands(chosen, announce, progress)
        elif options.instructions:
            document = count_instructions(bench_program(), request)
        else:
            document = run_benchmarks(bench_program(), request, lambda done: progress(done, count))
        write(_json_text(document))
    if options.commands and options.out != "-" and not options.quiet:
        sys.stdout.write(command_report(document))
    return 0


def _progress(quiet: bool) -> Callable[[int, int], None]:
    drawn = not quiet and sys.stderr is not None and sys.stderr.isatty()

    def progress(done: int, total: int) -> None:
        if drawn:
            text = f"bench: {done} of {total}" if done < total else ""
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    return progress


def _share(option: str, text: str) -> float:
    """Returns 0.05 for "5%" and for "0.05"."""
    percent = text.endswith("%")
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise UsageError(f"{option}: expected a number or P%, got {quoted(text)}") from None
    share = number / 100 if percent else number
    if 0 <= share < 1:
        return share
    meant = f" (did you mean '{text}%'?)" if not percent and 1 <= share < 100 else ""
    raise UsageError(
        f"{option}: out of range{meant}, expected 0% or more and below 100%, got {quoted(text)}"
    )


def _rule(options: argparse.Namespace, kind: str) -> Rule:
    rule = Rule() if kind == "time" else Rule(_INSTRUCTION_THRESHOLD)
    threshold, alpha = rule.threshold, rule.alpha
    if options.threshold is not None:
        threshold = _share("--threshold", options.threshold)
    if options.alpha is not None:
        alpha = _share("--alpha", options.alpha)
    return Rule(threshold, alpha)


def _count_now(options: argparse.Namespace, base: Results | None) -> Results:
    """Counts what the base has, or what the filter asks for."""
    request = Request(options.filter or "")
    if base is not None and not request.filter:
        request.filter = exact_pattern([kernel.name for kernel in base.kernels])
    return parse_results("this build", count_instructions(bench_program(), request))


def _load(options: argparse.Namespace) -> tuple[Results, Results]:
    """Returns base and new."""
    files = [read_results(path) for path in options.files]
    if options.instructions:
        for file in files:
            if file.kind != "instructions":
                raise InputError(
                    f"{file.place}: holds times, "
                    "expected instructions, from dlsim bench run --instructions"
                )
        if len(files) == 1:
            return files[0], _count_now(options, files[0])
        files = files or [_count_now(options, None)]
    if not files:
        raise UsageError("no file, expected BASE NEW, or NEW and a baseline")
    if len(files) == 2:
        return files[0], files[1]
    if options.json not in (None, "-"):
        require_no_input(options.json, [baseline_path(options.baseline_dir, files[0])])
    return read_baseline(options.baseline_dir, files[0]), files[0]


def _compared(options: argparse.Namespace) -> Comparison:
    if len(options.files) > 2:
        raise UsageError(f"expected BASE NEW, got {len(options.files)} files")
    is_chosen = name_filter(options.filter or "")
    _rule(options, "time")  # bad values fail before the work
    if options.json not in (None, "-"):
        require_no_input(options.json, options.files)
    base, new = _load(options)
    comparison = compare(base, new, _rule(options, base.kind), is_chosen)
    if options.json is not None:
        with _output(options.json) as write:
            write(_json_text(comparison_json(base, new, comparison)))
    if options.json != "-" and not options.quiet:
        sys.stdout.write(format_comparison(base, new, comparison))
    return comparison


def _compare(options: argparse.Namespace) -> int:
    _compared(options)
    return 0


def _gate(options: argparse.Namespace) -> int:
    slower = [
        f"{printable(kernel.name)} ({100 * (kernel.median_ratio - 1):+.1f} %)"
        for kernel in _compared(options).kernels
        if kernel.verdict == "slower"
    ]
    if not slower:
        return 0
    sys.stdout.flush()
    print(f"dlsim bench gate: slower: {', '.join(slower)}", file=sys.stderr)
    return _CHECK_FAILED


def _bless(options: argparse.Namespace) -> int:
    print(bless(options.file, options.baseline_dir))
    return 0


def main(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit code; errors are raised."""
    given = list(arguments)
    if "--filter" in given[:-1]:  # argparse takes a pattern that begins with "-" for an option
        at = given.index("--filter")
        given[at : at + 2] = [f"--filter={given[at + 1]}"]
    options = bench_parser().parse_args(given)
    verbs = {"run": _run, "compare": _compare, "gate": _gate, "bless": _bless}
    try:
        return verbs[options.verb](options)
    except IncomparableError as error:
        print(f"dlsim bench: {error}", file=sys.stderr)
        return _INCOMPARABLE
