# SPDX-License-Identifier: Apache-2.0
"""The command `dlsim report`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .._command_parser import CommandParser
from .._errors import UsageError
from .._text import bytes_text

_SUFFIXES = (".dlprof", ".json")  # of results; a trace is a folder of any name

_EXAMPLES = """Examples:
  dlsim replay runs/a --policy torch --policy deepspeed --heat-map --json replay.json
  dlsim report replay.json -o report.html
  dlsim tune runs/a --json tune.json
  dlsim sweep runs/a --policy torch --vary init_scale=2^0..2^32 --json sweep.json
  dlsim report replay.json sweep.json tune.json -o report.html --title "Run A"
  dlsim report runs/a --policy torch --format fp16 -o report.html
  dlsim report run.dlprof
  dlsim diff runs/float32 runs/bf16 --json diff.json
  dlsim report diff.json -o diff.html
"""


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="dlsim report",
        description="Write results of dlsim replay, sweep, tune and diff as one HTML "
        "page, which needs no other files and loads nothing from the network.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "results",
        nargs="+",
        metavar="RESULT",
        help="JSON of dlsim replay, sweep, tune or diff; or a trace or profile, which is "
        "then replayed and tuned",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="The page to write (default: run.html in this folder for runs/run.dlprof, if there is "
        "no such file yet)",
    )
    parser.add_argument("--title", metavar="TEXT", help="Title of the page")
    parser.add_argument(
        "--trace",
        metavar="PATH",
        help="Trace or profile of the results, for heat maps and exponents (default: the one that "
        "a result names, if it exists)",
    )
    parser.add_argument(
        "--no-trace", action="store_true", help="Read no trace: use only what the results hold"
    )
    for option, name, default in (
        ("format", "F", "fp16 bf16 cb16"),
        ("policy", "NAME", "cerebras torch"),
    ):
        words = (
            f"{option.capitalize()} for a trace given as RESULT, repeatable (default: {default})"
        )
        parser.add_argument(f"--{option}", action="append", default=[], metavar=name, help=words)
    parser.add_argument("--quiet", action="store_true", help="No summary; errors only")
    return parser


def _page_of(result: str) -> str:
    """Returns the page for a result that the user names no page for; none that is there already."""
    path = Path(result)
    name = os.path.basename(os.path.abspath(result))  # "." has none
    page = (path.stem if path.suffix in _SUFFIXES else name) + ".html"
    if os.path.lexists(page):
        raise UsageError(f"{page}: exists already, expected -o FILE")
    return page


def main(arguments: Sequence[str]) -> int:
    """Runs `dlsim report ARGUMENTS...` and returns the exit code; raises dlsim.Error."""
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as ended:  # --help
        return int(ended.code or 0)
    if options.trace is not None and options.no_trace:
        raise UsageError("--no-trace: taken by --trace, expected one of them")
    from ._write import write_report

    page = options.output or _page_of(options.results[0])
    write_report(
        options.results,
        page,
        trace=options.trace,
        title=options.title,
        read_trace=not options.no_trace,
        formats=options.format,
        policies=options.policy,
        note=None
        if options.quiet
        else lambda line: print(f"dlsim report: {line}", file=sys.stderr),
    )
    if not options.quiet:
        print(f"{page}: {bytes_text(Path(page).stat().st_size)}", file=sys.stderr)
    return 0
