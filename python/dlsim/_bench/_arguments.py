# SPDX-License-Identifier: Apache-2.0
"""The arguments of `dlsim bench run|compare|gate|bless`."""

from __future__ import annotations

import argparse
from typing import TypeAlias

from .._command_parser import CommandParser
from ._comparison import Rule, describe_rule
from ._kernels import Request

_BASELINES = "bench/baselines"

_RUN_EXAMPLES = """\
The kernels are in the program dlsim_bench, which is found in $PATH or is $DLSIM_BENCH.

Examples:
  dlsim bench run --out new.json
  dlsim bench run --filter '^(Encode|Stream)/' --sizes L2,DRAM --threads 1,2 --out new.json
  dlsim bench run --commands --out new.json
  dlsim bench run --commands --cold --trace-mib 1024 --trace-dir /data --out cold.json
  dlsim bench run --device cuda --out gpu.json
  dlsim bench run --instructions --out base.cg.json
"""
_COMPARE_EXAMPLES = f"""\
Rule (with the default options):
{describe_rule("time", Rule(), "the kernels compared")}
Files that differ in processor, SIMD target, threads, compiler or its flags are
incomparable: exit code 4.

Examples:
  dlsim bench compare base.json new.json
  dlsim bench compare new.json --threshold 3% --json verdicts.json
"""
_GATE_EXAMPLES = """\
Exit code 1 if a kernel is slower by the rule of dlsim bench compare --help.

Examples:
  dlsim bench gate base.json new.json
  dlsim bench gate --instructions base.cg.json
"""

_Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"


def _add_run(commands: _Commands) -> None:
    parser = commands.add_parser(
        "run",
        help="Measure kernels or commands, and write their times to a file",
        description="Measure kernels or commands, and write their times to a file.",
        epilog=_RUN_EXAMPLES,
    )
    default = Request()
    for option, metavar, text in (
        (
            "--filter",
            "RE",
            "Run the benchmarks whose names this regular expression matches; -RE: all others",
        ),
        ("--sizes", "L1,L2,DRAM", "Sizes to measure (default: all); with --commands: large,small"),
        ("--threads", "N[,M]", "Numbers of threads (default: 1; with --commands: 1 and all)"),
        (
            "--targets",
            "best|all|NAME[,NAME]",
            "SIMD targets (default: best; with --instructions: AVX2)",
        ),
        ("--dram-mib", "N", "Size of the float32 array of size DRAM, in MiB"),
        ("--device", "auto|cpu|cuda[:N]", "Device whose kernels are measured (default: cpu)"),
    ):
        parser.add_argument(option, metavar=metavar, default="", help=text)
    for option, value, text in (
        ("--repetitions", default.repetitions, "Repetitions of each benchmark (default 11)"),
        (
            "--processes",
            None,
            "Processes that share the repetitions (default: one for each repetition)",
        ),
        ("--trace-mib", None, "Size of each of the two traces of --commands, in MiB (default 256)"),
    ):
        parser.add_argument(option, metavar="N", type=int, default=value, help=text)
    parser.add_argument(
        "--min-time",
        metavar="S",
        type=float,
        default=None,
        help="Seconds of each repetition, at least (default 0.05)",
    )
    parser.add_argument(
        "--trace-dir",
        metavar="DIR",
        help="Directory for these traces, which are removed at the end (default: $TMPDIR, or /tmp)",
    )
    for option, text in (
        (
            "--commands",
            "Time whole commands on generated traces, and reading these files, instead of kernels",
        ),
        ("--cold", "Drop the files from the page cache before each command, if they are on a disk"),
        (
            "--instructions",
            "Count instructions under Valgrind instead of time, in L2 on one thread",
        ),
        ("--quiet", "No progress and no table; errors only"),
    ):
        parser.add_argument(option, action="store_true", help=text)
    parser.add_argument(
        "--out",
        metavar="FILE",
        required=True,
        help="Write the result as JSON; - is standard output",
    )
    parser.set_defaults(verb="run")


def _add_compare(commands: _Commands) -> None:
    for name, text, epilog in (
        ("compare", "Say which kernels became slower or faster", _COMPARE_EXAMPLES),
        ("gate", "Compare, and fail if a kernel became slower", _GATE_EXAMPLES),
    ):
        parser = commands.add_parser(name, help=text, description=f"{text}.", epilog=epilog)
        parser.add_argument(
            "files",
            nargs="*",
            metavar="[BASE] NEW",
            help="Results of dlsim bench run, or of any program that uses Google Benchmark; "
            "without BASE, the baseline of this processor",
        )
        for option, metavar, more in (
            (
                "--threshold",
                "P%",
                "Smallest change of the median that counts (default 5%%; of instructions 1%%)",
            ),
            ("--alpha", "A", "Probability of a false alarm among all kernels (default 0.01)"),
            (
                "--filter",
                "RE",
                "Compare the benchmarks whose names this expression matches; -RE: all others",
            ),
            ("--json", "FILE", "Write the comparison as JSON; - is standard output"),
        ):
            parser.add_argument(option, metavar=metavar, help=more)
        _add_baselines(parser)
        parser.add_argument("--quiet", action="store_true", help="No table; errors only")
        if name == "gate":
            parser.add_argument(
                "--instructions",
                action="store_true",
                help="BASE and NEW hold numbers of instructions; without NEW, they are counted now",
            )
        parser.set_defaults(verb=name, instructions=False)


def _add_bless(commands: _Commands) -> None:
    parser = commands.add_parser(
        "bless",
        help="Store a result as the baseline of its processor",
        description="Store a result as the baseline of its processor.",
        epilog="Examples:\n  dlsim bench bless new.json\n",
    )
    parser.add_argument("file", metavar="FILE", help="Result of dlsim bench run")
    _add_baselines(parser)
    parser.set_defaults(verb="bless")


def _add_baselines(parser: CommandParser) -> None:
    parser.add_argument(
        "--baseline-dir",
        metavar="DIR",
        default=_BASELINES,
        help=f"Directory of the baselines (default {_BASELINES})",
    )


def bench_parser() -> CommandParser:
    """Returns the parser; `verb` is the command that was chosen."""
    parser = CommandParser(
        prog="dlsim bench",
        description="Measure kernels and commands, and compare measurements.",
        epilog="dlsim bench COMMAND --help shows examples.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_run(commands)
    _add_compare(commands)
    _add_bless(commands)
    return parser
