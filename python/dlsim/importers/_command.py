# SPDX-License-Identifier: Apache-2.0
"""`dlsim import FORMAT INPUT... -o OUTPUT`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from .._errors import UsageError
from . import import_pt
from ._runs import Imported

_EXAMPLES = """\
examples:
  dlsim import pt dumps/grads_*.pt -o runs/a
  dlsim import pt dumps/ -o a.dlprof --key grads --grad-scale 2^16

OUTPUT is the directory of a trace, or a profile if its name ends in .dlprof. It appears complete
or not at all. Exit codes: 0 ok, 2 wrong usage, 3 bad input or an output that cannot be written.
More in docs/import.md.
"""


class _Parser(argparse.ArgumentParser):
    """Wrong usage becomes one line."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(f"{message} (see {self.prog} --help)")


def _number(text: str) -> float:
    """Reads a number or a power such as 2^16."""
    base, power, exponent = text.partition("^")
    try:
        return float(base) ** float(exponent) if power else float(text)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise argparse.ArgumentTypeError(
            f"expected a number such as 65536 or 2^16, got {text!r}"
        ) from error


def _add_common(parser: argparse.ArgumentParser, files: str) -> None:
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help=files)
    parser.add_argument("-o", "--output", required=True, help="trace directory, or FILE.dlprof")
    parser.add_argument(
        "--tensors", action="append", metavar="GLOB", help="import these names only; repeatable"
    )
    parser.add_argument(
        "--grad-scale",
        type=_number,
        metavar="S",
        help="the loss scale that the values still carry, e.g. 2^16; it is written down",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing output")
    parser.add_argument("-q", "--quiet", action="store_true", help="print no summary, no notes")


def _add_act_grad(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--act-grad",
        action="append",
        default=[],
        metavar="GLOB",
        help="these are activation gradients (as is *.act_grad); repeatable",
    )


def _add_pt(formats: argparse._SubParsersAction[_Parser]) -> None:
    parser = formats.add_parser("pt", help="files of torch.save, one step each")
    _add_common(parser, "files, globs, or directories of *.pt and *.pth")
    _add_act_grad(parser)
    parser.add_argument("--key", default="", help="the part to take of a dict, e.g. state.grads")
    parser.add_argument(
        "--step", type=int, metavar="N", help="number the files N, N+1, ... in their order"
    )
    parser.add_argument(
        "--step-pattern",
        metavar="REGEX",
        help="finds (?P<step>...), and perhaps (?P<rank>...) and (?P<micro>...), in the path",
    )
    parser.set_defaults(run=_run_pt)


def _run_pt(options: argparse.Namespace) -> Imported:
    return import_pt(
        options.inputs,
        options.output,
        tensors=options.tensors or "*",
        act_grad=options.act_grad,
        key=options.key,
        step=options.step,
        pattern=options.step_pattern,
        grad_scale=options.grad_scale,
        force=options.force,
    )


def _parser() -> _Parser:
    parser = _Parser(
        prog="dlsim import",
        description="Converts dumps of other tools to dlsim's traces and profiles.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    formats = parser.add_subparsers(metavar="FORMAT", required=True, dest="format")
    for add in (_add_pt,):
        add(formats)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit code; errors are raised."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], Imported] = options.run
    try:
        imported = run(options)
    except ModuleNotFoundError as error:
        raise UsageError(str(error)) from error
    if not options.quiet:
        for note in imported.notes:
            print(f"dlsim import: note: {note}", file=sys.stderr)
        print(imported)
    return 0
