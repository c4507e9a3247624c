# SPDX-License-Identifier: Apache-2.0
"""`dlsim import FORMAT INPUT... -o OUTPUT`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from .. import _core
from .._command_parser import CommandParser
from . import import_act_dumps, import_hdf5, import_pt, import_te
from ._hdf5 import STEP_SOURCES
from ._steps import Imported

_EXAMPLES = """\
Examples:
  dlsim import pt dumps/ -o a.profile --key grads --grad-scale 2^16
  dlsim import pt msprobe_dump/ -o runs/a              # step0/rank0/dump_tensor_data/*.pt
  dlsim import act-dumps model_dir/ -o runs/a
  dlsim import te nvdlfw_logs/ -o runs/a
  dlsim import hdf5 grads.h5 -o runs/a --step-from axis

OUTPUT is the directory of a trace, or a profile if its name ends in .profile. It appears complete
or not at all. Exit codes: 0 ok, 2 wrong usage, 3 bad input or an output that cannot be written.
More in docs/import.md.
"""


def number(text: str) -> float:
    """Reads a number or a power such as 2^16; argparse names this function in its message."""
    return _core.parse_number(text, "number")


_FORMATS: dict[str, tuple[Callable[..., Imported], str, str]] = {
    "pt": (
        import_pt,
        "Files of torch.save, one step each, and dumps of msprobe",
        "Files, patterns, or directories of *.pt and *.pth",
    ),
    "act-dumps": (
        import_act_dumps,
        "Files act_dumps*.npz of the Cerebras Model Zoo",
        "Files, or a directory with act_dumps.npz, act_dumps_1.npz, ...",
    ),
    "te": (
        import_te,
        "Directory tensor_dumps of TransformerEngine's DumpTensors",
        "The log directory, its tensor_dumps, or one of the directories rank_<N> in that",
    ),
    "hdf5": (import_hdf5, "HDF5 files", "Files, patterns, or directories of *.h5 and *.hdf5"),
}

# By the keywords of these functions, each of which has the options of its keywords.
_OPTIONS: dict[str, dict[str, Any]] = {
    "tensors": {
        "action": "append",
        "metavar": "GLOB",
        "help": "Import only the tensors whose names match this pattern (* ? []); repeatable",
    },
    "act_grad": {
        "action": "append",
        "metavar": "GLOB",
        "help": "Names that match this pattern are gradients of activations, like those that end "
        "in .act_grad; repeatable",
    },
    "key": {"help": "Key of the gradients in nested dicts, such as state.grads"},
    "step_from": {
        "choices": STEP_SOURCES,
        "help": "What makes a step: a group such as step_000123 (group, default), an index of the "
        "first axis of every dataset (axis), or a file",
    },
    "group": {"help": "Read only this group and those in it"},
    "step": {
        "type": int,
        "metavar": "N",
        "help": "Number of the first step where they are counted; those of pt are then counted in "
        "the order of the files",
    },
    "npy_void": {"choices": ["bf16"], "help": "Read NumPy's dtype V2 as bf16"},
    "grad_scale": {
        "type": number,
        "metavar": "S",
        "help": "Loss scale that the values still carry, such as 2^16; it is stored with them",
    },
    "force": {"action": "store_true", "help": "Replace an existing output"},
}


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="dlsim import",
        description="Convert dumps of other tools into traces or profiles.",
        epilog=_EXAMPLES,
    )
    formats = parser.add_subparsers(metavar="FORMAT", required=True, dest="format")
    for name, (run, description, inputs) in _FORMATS.items():
        of_format = formats.add_parser(name, help=description)
        add = of_format.add_argument
        add("inputs", nargs="+", metavar="INPUT", help=inputs)
        add("-o", "--output", required=True, help="Directory of a trace, or NAME.profile")
        for keyword in filter(_OPTIONS.__contains__, signature(run).parameters):
            flag = f"--{keyword.replace('_', '-')}"
            add(flag, default=argparse.SUPPRESS, **_OPTIONS[keyword])
        add("-q", "--quiet", action="store_true", help="No summary and no notes; errors only")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit code; errors are raised."""
    options = vars(_parser().parse_args(arguments))
    run, *_ = _FORMATS[options.pop("format")]
    quiet = options.pop("quiet")
    imported = run(options.pop("inputs"), options.pop("output"), **options)
    if not quiet:
        for note in imported.notes:
            print(f"dlsim import: note: {note}", file=sys.stderr)
        print(imported)
    return 0
