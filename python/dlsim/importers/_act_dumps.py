# SPDX-License-Identifier: Apache-2.0
"""Cerebras act_dumps*.npz (DumpContext of the Model Zoo), which dlsim's reader of traces knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .._errors import InputError, UsageError
from ..traces import TraceStep, open_trace
from ._steps import (
    Gradients,
    Imported,
    Notes,
    PathText,
    Position,
    files_of,
    scale_metadata,
    selection,
    write_all,
)

_NAME = re.compile(r"act_dumps(?:_([1-9]\d{0,17}))?\.npz")


def import_act_dumps(
    inputs: PathText | Iterable[PathText],
    output: PathText,
    *,
    tensors: str | Iterable[str] = "*",
    step: int = 0,
    npy_void: Literal["bf16"] | None = None,
    grad_scale: float | None = None,
    force: bool = False,
) -> Imported:
    """Imports dumps of the Cerebras Model Zoo, in the order of their numbers.

    Steps count from `step` on. Forward activations that are not floating-point numbers are left
    out. Values are those that the commands read from the same files: float64 becomes float32, and
    so does bfloat16, which NumPy saves as V2, with `npy_void` = "bf16". Raises InputError and
    UsageError.
    """
    if npy_void not in (None, "bf16"):
        raise UsageError(f"npy void: expected bf16, got {npy_void!r}")
    if step < 0:
        raise UsageError(f"step: expected a number from 0 on, got {step}")
    chosen = selection(tensors)
    metadata = scale_metadata(grad_scale)
    notes = Notes()
    files = sorted(files_of(inputs, (".npz",)), key=_number)
    trace = open_trace(files, npy_void2=npy_void)
    for note in trace.notes:
        notes.add(note)

    def items() -> Iterator[Gradients]:
        for number, found in enumerate(trace, step):
            names = [name for name in found.names if chosen.takes(name)]
            roles = {name: found.role(name) for name in names}
            values = {name: _values(found, name) for name in names}
            yield Gradients(Position(number), values, roles, metadata)

    return write_all("act-dumps", output, items(), notes, force=force)


def _values(step: TraceStep, name: str) -> Any:
    values = step.tensors[name]
    return values.astype(np.float16) if step.dtype(name) == "F16" else values


def _number(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    if found is None:
        raise InputError(f"{path}: expected a name such as act_dumps.npz or act_dumps_1.npz")
    return int(found[1] or 0)
