# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save with one step each, to a trace or profile."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from .._errors import InputError, UsageError
from ._gradients import Gradients, Notes, Selection, scalars, scale_metadata, selection
from ._numbering import PathText, Position, files_of, position_of, step_pattern, without_repeats
from ._progress import shown
from ._runs import Imported, Layout, write_all
from ._torch_files import TorchFile, descend, step_in, tensors_in

SUFFIXES = (".pt", ".pth")
_NUMBERED = re.compile(r"(step|iter|rank|micro)?\d*", re.IGNORECASE)


def import_pt(
    inputs: PathText | Iterable[PathText],
    output: PathText,
    *,
    tensors: str | Iterable[str] = "*",
    act_grad: str | Iterable[str] = (),
    key: str = "",
    step: int | None = None,
    pattern: str | None = None,
    grad_scale: float | None = None,
    force: bool = False,
) -> Imported:
    """Imports gradients saved by torch.save, one step, micro-step or rank per file.

    A file holds tensors in nested dicts and lists; `key` (dotted) is the part to take. Values keep
    their bits and types (8-bit floats become float32). The step is in the file's name, or found by
    the regular expression `pattern`, or counted from `step` on in the order of the files.
    `grad_scale` is the loss scale that the values still carry. Nothing pickled is ever executed.
    Needs no torch. Raises InputError and UsageError.
    """
    chosen = selection(tensors, act_grad)
    metadata = scale_metadata(grad_scale)
    notes = Notes()
    files = _plan(files_of(inputs, SUFFIXES), step, step_pattern(pattern))
    layout = Layout(files[0][1].parent, [position for position, _ in files])
    items = (
        layout.placed(_read(path, position, key=key, chosen=chosen, metadata=metadata, notes=notes))
        for position, path in shown(files, "files")
    )
    description = {"imported_from": "pt"}
    return write_all(output, items, notes, description=description, force=force)


def _plan(
    files: list[Path], step: int | None, pattern: re.Pattern[str] | None
) -> list[tuple[Position, Path]]:
    if step is not None:
        if step < 0:
            raise UsageError(f"step: expected a number from 0 on, got {step}")
        return [(Position(step + i), path) for i, path in enumerate(files)]
    return list(without_repeats((_position(path, pattern), path) for path in files))


def _position(path: Path, pattern: re.Pattern[str] | None) -> Position:
    try:
        return position_of(path, pattern)
    except InputError:
        step = None
        if pattern is None:
            with TorchFile(path) as file:
                step = step_in(path, file.tree)
        if step is None:
            raise
        return Position(step)


def _read(
    path: Path,
    position: Position,
    *,
    key: str,
    chosen: Selection,
    metadata: Mapping[str, str],
    notes: Notes,
) -> Gradients:
    with TorchFile(path) as file:
        tree = file.tree
        recorded = step_in(path, tree)
        if recorded not in (None, position.step):
            notes.add(f"{path}: says step {recorded} inside; imported as {position.step}")
        found = tensors_in(file, descend(path, tree, key), _lone_name(path), notes)
    kept = {name: values for name, values in found.items() if chosen.takes(name)}
    if not kept:
        raise InputError(f"{path}: no tensor to import, expected floating-point tensors")
    return Gradients(
        position,
        kept,
        {name: chosen.role(name) for name in kept},
        {**(scalars(path, tree) if isinstance(tree, Mapping) else {}), **metadata},
    )


def _lone_name(path: Path) -> str:
    """The name of a tensor that is alone in its file: that of the file without its numbers."""
    words = [word for word in re.split(r"[-_.]+", path.stem) if word]
    return "_".join(word for word in words if not _NUMBERED.fullmatch(word)) or "tensor"
