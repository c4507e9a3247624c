# SPDX-License-Identifier: Apache-2.0
"""The command `dlsim explain`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

from .._command_parser import CommandParser
from .._files import require_no_input

_CHECK_FAILED = 1  # exit code

_EXAMPLES = """Examples:
  dlsim explain train.log
  dlsim explain train.log.1.gz train.log --json explained.json
  dlsim explain runs/lm --tag train/loss_scale
  dlsim explain scales.csv --format bf16
  grep OVERFLOW train.log | dlsim explain -
  dlsim explain train.log --quiet --expect 'divergence_from==none'
"""

_OPTIONS: dict[str, dict[str, Any]] = {
    "--format": {
        "metavar": "F",
        "help": "Number format of the gradients, from which their bounds follow (default fp16)",
    },
    "--tag": {
        "metavar": "NAME",
        "help": "TensorBoard's tag of the scale (default: the one that is named so)",
    },
    "--expect": {
        "metavar": "EXPRESSION",
        "action": "append",
        "help": "Check a figure of the result, such as 'skipped_steps<=20'; repeatable; if it is "
        "not so, exit with code 1 and a line on standard error",
    },
    "--json": {"metavar": "FILE", "help": "Write the result as JSON; '-' is standard output"},
    "--csv": {
        "metavar": "FILE",
        "help": "Write the scale path as CSV, one row per step; '-' is standard output",
    },
}


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="dlsim explain",
        description="Find out from a training log which policy set the loss scale, and why steps "
        "were skipped",
        epilog=_EXAMPLES,
    )
    logs = (
        "The log of one training run, or its parts in order: text (also compressed), "
        "trainer_state.json, CSV, or the directory of a run of TensorBoard or MLflow; '-' for "
        "standard input"
    )
    parser.add_argument("logs", nargs="+", metavar="LOG", help=logs)
    for name, row in _OPTIONS.items():
        parser.add_argument(name, **row)
    parser.add_argument("--quiet", action="store_true", help="No report; errors only")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Runs `dlsim explain ARGUMENTS...` and returns the exit code; raises dlsim.Error."""
    options = vars(_parser().parse_args(arguments))
    path = options.pop("json")
    from . import explain

    logs = options.pop("logs")
    if path not in (None, "-"):
        require_no_input(path, logs)
    to_output = "-" in (path, options["csv"])
    result = explain(logs, **options)
    if path == "-":
        sys.stdout.write(json.dumps(result.to_dict(), indent=1, ensure_ascii=False) + "\n")
    elif path is not None:
        result.save(path)
    if not to_output:
        sys.stdout.write(result.report)
    code = 0
    for outcome in result.get("expectations", ()):
        if not outcome["holds"]:
            sys.stdout.flush()
            found = "none" if outcome["found"] is None else outcome["found"]
            figure = re.split("[<>=!]", outcome["expression"])[0].strip()
            text = f"{figure} is {found}, expected {outcome['expression']}"
            print(f"dlsim explain: {text}", file=sys.stderr)
            code = _CHECK_FAILED
    return code
