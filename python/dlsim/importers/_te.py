# SPDX-License-Identifier: Apache-2.0
"""TransformerEngine's tensor_dumps (DumpTensors of nvidia-dlframework-inspect).

Source of the layout: transformer_engine/debug/features/dump_tensors.py. A file is
tensor_dumps/rank_<N>/<layer>_<tensor>_iter_<NNNNNN>.pt, where dots and spaces of the layer's name
are underscores, and holds a dict of `high_precision` and `quantized`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .._errors import InputError
from ._pt import load, tensors_in
from ._steps import (
    Gradients,
    Imported,
    Layout,
    Notes,
    PathText,
    Position,
    Selection,
    files_of,
    scale_metadata,
    selection,
    write_all,
)

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
    inputs: PathText | Iterable[PathText],
    output: PathText,
    *,
    tensors: str | Iterable[str] = "*",
    rank: int | None = None,
    grad_scale: float | None = None,
    force: bool = False,
) -> Imported:
    """Imports the high-precision tensors of TransformerEngine's DumpTensors.

    `inputs` is the log directory, its tensor_dumps, or one of their rank_<N>; `rank` takes one rank
    only. `wgrad` becomes <layer>.weight.grad, `gradient` and `dgrad` (of a layer's output and
    input) become activation gradients; `output` and `activation` (a layer's input) are those of the
    forward pass, and `weight` is a parameter. Values keep their bits. Needs torch.
    Raises InputError, UsageError, and ModuleNotFoundError without torch.
    """
    chosen = selection(tensors)
    metadata = scale_metadata(grad_scale)
    notes = Notes()
    groups = _plan(files_of(inputs, (".pt",)), rank, chosen, notes)
    layout = Layout("tensor_dumps", groups)
    if len({position.rank for position in groups}) > 1:
        notes.add(
            "several ranks: dlsim takes them as data-parallel; where they hold parts of a layer, "
            "import one with --rank"
        )
    items = (
        layout.placed(_read(position, groups[position], metadata, notes))
        for position in sorted(groups, key=Position.sort_key)
    )
    return write_all("te", output, items, notes, force=force)


def _plan(
    files: list[Path], rank: int | None, chosen: Selection, notes: Notes
) -> dict[Position, dict[str, Path]]:
    """Returns the files of each step and rank by the names of their tensors."""
    groups: dict[Position, dict[str, Path]] = {}
    for path in files:
        found = _NAME.fullmatch(path.name)
        of_rank = _RANK.fullmatch(path.parent.name)
        if found is None:
            notes.add("left out files not named <layer>_<tensor>_iter_<number>.pt")
            continue
        name = found["layer"] + _SUFFIXES[found["tensor"]]
        number = int(of_rank[1]) if of_rank else None
        if not chosen.takes(name) or (rank is not None and number != rank):
            continue
        group = groups.setdefault(Position(int(found["step"]), rank=number), {})
        if name in group:
            raise InputError(f"{path}: holds the same tensor and step as {group[name]}")
        group[name] = path
    if not groups:
        wanted = "" if rank is None else f" of rank {rank}"
        raise InputError(
            f"{files[0].parent}: no tensors{wanted}, expected files such as "
            "rank_0/fc1_wgrad_iter_000000.pt"
        )
    return groups


def _read(
    position: Position, files: Mapping[str, Path], metadata: Mapping[str, str], notes: Notes
) -> Gradients:
    tensors: dict[str, Any] = {}
    for name, path in files.items():
        tree = load(path, keeps_foreign=True)
        if not isinstance(tree, Mapping) or "high_precision" not in tree:
            raise InputError(f"{path}: no high_precision tensor, expected one of DumpTensors")
        found = tensors_in(path, tree["high_precision"], name, notes)
        if list(found) != [name]:
            raise InputError(f"{path}: high_precision is not a floating-point tensor")
        tensors |= found
    return Gradients(position, tensors, {}, dict(metadata))
