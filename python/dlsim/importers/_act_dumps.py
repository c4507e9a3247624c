# SPDX-License-Identifier: Apache-2.0
"""Cerebras act_dumps*.npz (DumpContext of the Model Zoo), which dlsim's reader of traces knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from .._errors import InputError
from .._values import Paths, PathText
from ..traces import open_trace
from ._steps import Import, Imported, Part, Position, files_of

_NAME = re.compile(r"act_dumps(?:_([1-9]\d{0,17}))?\.npz")


def import_act_dumps(
    inputs: Paths,
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
    so does bfloat16 (V2) with `npy_void` = "bf16". Raises InputError and UsageError.
    """
    job = Import(output, tensors, grad_scale=grad_scale, force=force)
    files = sorted(files_of(inputs, (".npz",)), key=_number)
    trace = open_trace(files, npy_void2=npy_void)
    for note in trace.notes:
        job.note(note)
    positions = [Position(step + i) for i in range(len(trace))]

    def parts() -> Iterator[Part]:
        for position, found in zip(positions, trace, strict=True):
            values = {}
            for name in filter(job.takes, found.names):
                is_half = found.dtype(name) == "F16"
                values[name] = found.tensors[name].astype(np.float16 if is_half else np.float32)
                job.roles[name] = found.role(name)
            yield position, values, {}

    return job.write("act-dumps", files[0].parent, positions, parts())


def _number(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    if found is None:
        raise InputError(f"{path}: expected a name such as act_dumps.npz or act_dumps_1.npz")
    return int(found[1] or 0)
