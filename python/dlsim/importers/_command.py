# SPDX-License-Identifier: Apache-2.0
"""`dlsim import FORMAT INPUT... -o OUTPUT`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TypeAlias

from .. import _core
from .._command_parser import CommandParser
from .._errors import UsageError
from . import import_act_dumps, import_hdf5, import_pt, import_te
from ._hdf5 import STEP_SOURCES
from ._steps import Imported

_EXAMPLES = """\
Examples:
  dlsim import pt dumps/grads_*.pt -o runs/a
  dlsim import pt dumps/ -o a.dlprof --key grads --grad-scale 2^16
  dlsim import pt msprobe_dump/ -o runs/a              # step0/rank0/dump_tensor_data/*.pt
  dlsim import act-dumps model_dir/ -o runs/a
  dlsim import te nvdlfw_logs/ -o runs/a
  dlsim import hdf5 grads.h5 -o runs/a --step-from axis

OUTPUT is the directory of a trace, or a profile if its name ends in .dlprof. It appears complete
or not at all. Exit codes: 0 ok, 2 wrong usage, 3 bad input or an output that cannot be written.
More in docs/import.md.
"""


_Formats: TypeAlias = "argparse._SubParsersAction[CommandParser]"


def _number(text: str) -> float:
    """Reads a number or a power such as 2^16."""
    try:
        return _core.parse_number(text, "number")
    except UsageError as error:
        raise argparse.ArgumentTypeError(
            f"expected a number such as 65536 or 2^16, got {text!r}"
        ) from error


def _add_common(parser: argparse.ArgumentParser, files: str) -> None:
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help=files)
    parser.add_argument(
        "-o", "--output", required=True, help="Directory of a trace, or FILE.dlprof"
    )
    parser.add_argument(
        "--tensors",
        action="append",
        default=argparse.SUPPRESS,
        metavar="GLOB",
        help="Import only the tensors whose names match this pattern (* ? []); repeatable",
    )
    parser.add_argument(
        "--grad-scale",
        type=_number,
        metavar="S",
        help="Loss scale that the values still carry, such as 2^16; it is stored with them",
    )
    parser.add_argument("--force", action="store_true", help="Replace an existing output")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="No summary and no notes; errors only"
    )


def _add_act_grad(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--act-grad",
        action="append",
        default=[],
        metavar="GLOB",
        help="Names that match this pattern are gradients of activations, like those that end in "
        ".act_grad; repeatable",
    )


def _add_pattern(parser: argparse.ArgumentParser, where: str) -> None:
    parser.add_argument(
        "--step-pattern",
        dest="pattern",
        metavar="REGEX",
        help=f"Regular expression with the groups (?P<step>...) and, optionally, (?P<rank>...) and "
        f"(?P<micro>...), which is searched in {where}",
    )


def _add_pt(formats: _Formats) -> None:
    parser = formats.add_parser(
        "pt", help="Files of torch.save, one step each, and dumps of msprobe"
    )
    _add_common(parser, "Files, patterns, or directories of *.pt and *.pth")
    _add_act_grad(parser)
    parser.add_argument(
        "--key", default="", help="Key of the gradients in nested dicts, such as state.grads"
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help="Number the files N, N+1, ... in their order"
    )
    _add_pattern(parser, "the path")
    parser.set_defaults(run=import_pt)


def _add_act_dumps(formats: _Formats) -> None:
    parser = formats.add_parser("act-dumps", help="Files act_dumps*.npz of the Cerebras Model Zoo")
    _add_common(parser, "Files, or a directory with act_dumps.npz, act_dumps_1.npz, ...")
    parser.add_argument(
        "--step", type=int, default=0, metavar="N", help="Number of the first step (default 0)"
    )
    parser.add_argument("--npy-void", choices=["bf16"], help="Read NumPy's dtype V2 as bf16")
    parser.set_defaults(run=import_act_dumps)


def _add_te(formats: _Formats) -> None:
    parser = formats.add_parser(
        "te", help="Directory tensor_dumps of TransformerEngine's DumpTensors"
    )
    _add_common(
        parser, "The log directory, its tensor_dumps, or one of the directories rank_<N> in that"
    )
    parser.add_argument("--rank", type=int, metavar="N", help="Import only this rank")
    parser.set_defaults(run=import_te)


def _add_hdf5(formats: _Formats) -> None:
    parser = formats.add_parser("hdf5", help="HDF5 files")
    _add_common(parser, "Files, patterns, or directories of *.h5 and *.hdf5")
    _add_act_grad(parser)
    parser.add_argument(
        "--step-from",
        choices=STEP_SOURCES,
        default="group",
        help="What makes a step: a group such as step_000123 (group, default), an index of the "
        "first axis of every dataset (axis), or a file",
    )
    parser.add_argument("--group", default="/", help="Read only this group and those in it")
    _add_pattern(parser, "the name of the group, or with --step-from file the path")
    parser.add_argument(
        "--steps", metavar="DATASET", help="Dataset that lists the step numbers of the first axis"
    )
    parser.add_argument(
        "--step",
        type=int,
        default=0,
        metavar="N",
        help="Number of the first step of the axis (default 0)",
    )
    parser.set_defaults(run=import_hdf5)


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="dlsim import",
        description="Convert dumps of other tools into traces or profiles.",
        epilog=_EXAMPLES,
    )
    formats = parser.add_subparsers(metavar="FORMAT", required=True, dest="format")
    for add in (_add_pt, _add_act_dumps, _add_te, _add_hdf5):
        add(formats)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit code; errors are raised."""
    options = _parser().parse_args(arguments)
    given = vars(options)
    run: Callable[..., Imported] = given.pop("run")
    quiet = given.pop("quiet")
    del given["format"]
    try:
        imported = run(given.pop("inputs"), given.pop("output"), **given)
    except ModuleNotFoundError as error:
        raise UsageError(str(error)) from error
    if not quiet:
        for note in imported.notes:
            print(f"dlsim import: note: {note}", file=sys.stderr)
        print(imported)
    return 0
