# SPDX-License-Identifier: Apache-2.0
"""`dlsim export RESULT -o OUTPUT`."""

from __future__ import annotations

from collections.abc import Sequence

from .._command_parser import CommandParser
from .._errors import UsageError
from ..results import table_names
from ._arrow import result_of
from ._files import export

_EXAMPLES = """\
Examples:
  dlsim replay runs/a --json a.json --csv a.csv
  dlsim export a.json -o tables/                     # every table, tables/runs.parquet, ...
  dlsim export a.json -o steps.parquet --table steps
  dlsim export a.csv -o rows.parquet                 # any number of rows
  dlsim export a.json --list                         # the names of the tables

Exit codes: 0 ok, 2 wrong usage, 3 bad input or an output that cannot be written. The columns are
those of docs/results.md; more in docs/import.md.
"""


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="dlsim export",
        description="Write results of dlsim as tables: Parquet or CSV.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "result", metavar="RESULT", help="JSON of any command, or CSV of replay or summaries"
    )
    parser.add_argument(
        "-o", "--output", help="FILE.parquet, FILE.csv, or a directory for all tables"
    )
    parser.add_argument(
        "--table",
        action="append",
        default=[],
        metavar="NAME",
        help="Write only this table; repeatable if OUTPUT is a directory",
    )
    parser.add_argument("--list", action="store_true", help="Print the names of the tables")
    parser.add_argument("--force", action="store_true", help="Replace an existing output")
    parser.add_argument("-q", "--quiet", action="store_true", help="No summary; errors only")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit code; errors are raised."""
    options = _parser().parse_args(arguments)
    try:
        if options.list:
            print("\n".join(table_names(result_of(options.result).data)))
            return 0
        if options.output is None:
            raise UsageError("output: expected -o OUTPUT, or --list")
        exported = export(options.result, options.output, tables=options.table, force=options.force)
    except ModuleNotFoundError as error:
        raise UsageError(str(error)) from error
    if not options.quiet:
        print(exported)
    return 0
