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
Kernels are those of dlsim_bench, which is in $PATH, or $DLSIM_BENCH.

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
        help="measure kernels or commands and write their times to a file",
        epilog=_RUN_EXAMPLES,
    )
    default = Request()
    for option, metavar, text in (
        ("--filter", "RE", "benchmarks whose name the regular expression matches; -RE: does not"),
        ("--sizes", "L1,L2,DRAM", "sizes (default all); of commands large,small"),
        ("--threads", "N[,M]", "numbers of threads (default 1; of commands 1 and all)"),
        (
            "--targets",
            "best|all|NAME[,NAME]",
            "SIMD targets (default best; with --instructions AVX2)",
        ),
        ("--dram-mib", "N", "MiB of float32 of the size DRAM"),
        ("--device", "auto|cpu|cuda[:N]", "whose kernels (default: the CPU's)"),
    ):
        parser.add_argument(option, metavar=metavar, default="", help=text)
    for option, value, text in (
        ("--repetitions", default.repetitions, "repetitions of each (default 11)"),
        ("--processes", None, "processes over which they are spread (default one each)"),
        ("--trace-mib", None, "MiB of each of the two traces of --commands (default 256)"),
    ):
        parser.add_argument(option, metavar="N", type=int, default=value, help=text)
    parser.add_argument(
        "--min-time",
        metavar="S",
        type=float,
        default=None,
        help="seconds per repetition (default 0.05)",
    )
    parser.add_argument(
        "--trace-dir",
        metavar="DIR",
        help="where they are written, and removed at the end (default $TMPDIR, or /tmp)",
    )
    for option, text in (
        ("--commands", "instead, time whole commands on generated traces, and reading these files"),
        ("--cold", "drop the files from the page cache before each command, if they are on a disk"),
        ("--instructions", "count instructions under Valgrind instead, in L2 on one thread"),
        ("--quiet", "no progress, no table; errors only"),
    ):
        parser.add_argument(option, action="store_true", help=text)
    parser.add_argument(
        "--out", metavar="FILE", required=True, help="result, JSON; - is standard output"
    )
    parser.set_defaults(verb="run")


def _add_compare(commands: _Commands) -> None:
    for name, text, epilog in (
        ("compare", "say which kernels became slower or faster", _COMPARE_EXAMPLES),
        ("gate", "compare, and fail if a kernel became slower", _GATE_EXAMPLES),
    ):
        parser = commands.add_parser(name, help=text, epilog=epilog)
        parser.add_argument(
            "files",
            nargs="*",
            metavar="[BASE] NEW",
            help="results of dlsim bench run, or of any program with Google Benchmark; without "
            "BASE, the baseline of this processor",
        )
        for option, metavar, more in (
            (
                "--threshold",
                "P%",
                "change of the median that matters (default 5%%; of instructions 1%%)",
            ),
            ("--alpha", "A", "probability of one false alarm in all (default 0.01)"),
            ("--filter", "RE", "benchmarks whose name matches"),
            ("--json", "FILE", "write the comparison as JSON; - is standard output"),
        ):
            parser.add_argument(option, metavar=metavar, help=more)
        _add_baselines(parser)
        parser.add_argument("--quiet", action="store_true", help="no table; errors only")
        if name == "gate":
            parser.add_argument(
                "--instructions",
                action="store_true",
                help="BASE [NEW] hold instructions; without NEW, count now",
            )
        parser.set_defaults(verb=name, instructions=False)


def _add_bless(commands: _Commands) -> None:
    parser = commands.add_parser(
        "bless",
        help="make a result the baseline of its processor",
        epilog="Examples:\n  dlsim bench bless new.json\n",
    )
    parser.add_argument("file", metavar="FILE", help="result of dlsim bench run")
    _add_baselines(parser)
    parser.set_defaults(verb="bless")


def _add_baselines(parser: CommandParser) -> None:
    parser.add_argument(
        "--baseline-dir",
        metavar="DIR",
        default=_BASELINES,
        help=f"where baselines are (default {_BASELINES})",
    )


def bench_parser() -> CommandParser:
    """Returns the parser; `verb` is the command that was chosen."""
    parser = CommandParser(
        prog="dlsim bench",
        description="Measures kernels and commands, and compares measurements.",
        epilog="dlsim bench COMMAND --help shows examples.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_run(commands)
    _add_compare(commands)
    _add_bless(commands)
    return parser
