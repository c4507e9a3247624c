# SPDX-License-Identifier: Apache-2.0
"""TransformerEngine's tensor_dumps (DumpTensors of nvidia-dlframework-inspect).

Source of the layout: transformer_engine/debug/features/dump_tensors.py. A file is
tensor_dumps/rank_<N>/<layer>_<tensor>_iter_<NNNNNN>.pt, where dots and spaces of the layer's name
are underscores, and holds a dict of `high_precision` and `quantized`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .._errors import InputError
from .._values import Paths, PathText
from ._pt import load, tensors_in
from ._steps import Import, Imported, Part, Position, files_of

_NAME = re.compile(
    r"(?P<layer>.+)_(?P<tensor>activation|weight|gradient|output|wgrad|dgrad)"
    r"_iter_(?P<step>\d{6,18})\.pt",
    re.DOTALL,
)
_RANK = re.compile(r"rank_(\d{1,9})")

# What a dumped tensor is called in a trace, whose names give roles. The activation is the layer's
# input.
_SUFFIXES = {
    "activation": ".activation.act",
    "output": ".act",
    "weight": ".weight.value",
    "wgrad": ".weight.grad",
    "gradient": ".gradient.act_grad",
    "dgrad": ".dgrad.act_grad",
}


def import_te(
    inputs: Paths,
    output: PathText,
    *,
    tensors: str | Iterable[str] = "*",
    grad_scale: float | None = None,
    force: bool = False,
) -> Imported:
    """Imports the high-precision tensors of TransformerEngine's DumpTensors.

    `inputs` is the log directory, its tensor_dumps, or one of their rank_<N>. `wgrad` becomes
    <layer>.weight.grad, `gradient` and `dgrad` (of a layer's output and input) become activation
    gradients; `output` and `activation` (a layer's input) are those of the forward pass, and
    `weight` is a parameter. Raises InputError, UsageError, and ModuleNotFoundError without torch.
    """
    job = Import(output, tensors, grad_scale=grad_scale, force=force)
    files: dict[Position, dict[str, Path]] = {}
    for path in (given := files_of(inputs, (".pt",))):
        found = _NAME.fullmatch(path.name)
        of_rank = _RANK.fullmatch(path.parent.name)
        if found is None:
            job.note("left out files not named <layer>_<tensor>_iter_<number>.pt")
        elif job.takes(name := found["layer"] + _SUFFIXES[found["tensor"]]):
            position = Position(int(found["step"]), rank=int(of_rank[1]) if of_rank else -1)
            of_part = files.setdefault(position, {})
            if name in of_part:
                raise InputError(f"{path}: holds the same tensor and step as {of_part[name]}")
            of_part[name] = path
    if not files:
        raise InputError(
            f"{given[0].parent}: no tensors, expected files such as rank_0/fc1_wgrad_iter_000000.pt"
        )
    if len({position.rank for position in files}) > 1:
        job.note(
            "several ranks: dlsim takes them as data-parallel; where they hold parts of a layer, "
            "import the directory of one"
        )

    def parts() -> Iterator[Part]:
        for position in sorted(files):
            named = files[position].items()
            yield position, {name: _read(path, name, job) for name, path in named}, {}

    return job.write("te", "tensor_dumps", files, parts())


def _read(path: Path, name: str, job: Import) -> Any:
    tree = load(path, keeps_foreign=True)
    if not isinstance(tree, Mapping) or "high_precision" not in tree:
        raise InputError(f"{path}: no high_precision tensor, expected one of DumpTensors")
    found = tensors_in(path, tree["high_precision"], name, job)
    if list(found) != [name]:
        raise InputError(f"{path}: high_precision is not a floating-point tensor")
    return found[name]
