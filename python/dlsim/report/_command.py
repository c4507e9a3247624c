# SPDX-License-Identifier: Apache-2.0
"""The command `dlsim report`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._command_parser import CommandParser
from .._errors import UsageError
from .._text import bytes_text

_EXAMPLES = """Examples:
  dlsim report run.profile
  dlsim report runs/a --policy torch --format fp16 -o report.html
  dlsim replay runs/a --policy torch --policy deepspeed --heat-map --json replay.json
  dlsim report replay.json -o report.html --title "Run A"
  dlsim report diff.json explain.json -o both.html
"""

_OPTIONS = {
    "--title": ("TEXT", "Title of the page"),
    "--trace": ("PATH", "Trace or profile for exponents (default: that of a result, if it exists)"),
    "--format": ("F", "Format for a trace as RESULT, repeatable (default: fp16 bf16 cb16)"),
    "--policy": ("NAME", "Policy for a trace as RESULT, repeatable (default: cerebras torch)"),
}


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="dlsim report",
        description="Write results of dlsim replay, sweep, tune, diff and explain as one HTML "
        "page, which needs no other files and loads nothing from the network.",
        epilog=_EXAMPLES,
    )
    results = "JSON of these commands; or a trace or profile, which is then replayed and tuned"
    page = "The page to write (default: run.html here for runs/run.profile, if there is none yet)"
    parser.add_argument("results", nargs="+", metavar="RESULT", help=results)
    parser.add_argument("-o", "--output", metavar="FILE", help=page)
    for name, (value, words) in _OPTIONS.items():
        several: dict[str, Any] = (
            {"action": "append", "default": []} if "repeatable" in words else {}
        )
        parser.add_argument(name, metavar=value, help=words, **several)
    parser.add_argument("--no-trace", action="store_true", help="Use only what the results hold")
    parser.add_argument("--quiet", action="store_true", help="No summary; errors only")
    return parser


def _page_of(result: str) -> str:
    """Returns the page for a result that the user names no page for; none that is there already."""
    path = Path(result)
    name = os.path.basename(os.path.abspath(result))  # "." has none
    page = (path.stem if path.suffix in (".profile", ".json") else name) + ".html"
    if os.path.lexists(page):
        raise UsageError(f"{page}: exists already, expected -o FILE")
    return page


def main(arguments: Sequence[str]) -> int:
    """Runs `dlsim report ARGUMENTS...` and returns the exit code; raises dlsim.Error."""
    options = _parser().parse_args(arguments)
    if options.trace is not None and options.no_trace:
        raise UsageError("--no-trace: taken by --trace, expected one of them")
    from . import write_report

    page = options.output or _page_of(options.results[0])
    write_report(
        options.results,
        page,
        trace=options.trace,
        title=options.title,
        read_trace=not options.no_trace,
        formats=options.format,
        policies=options.policy,
    )
    if not options.quiet:
        print(f"{page}: {bytes_text(Path(page).stat().st_size)}", file=sys.stderr)
    return 0
