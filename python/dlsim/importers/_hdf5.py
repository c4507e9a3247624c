# SPDX-License-Identifier: Apache-2.0
"""HDF5 files to a trace or profile: steps as groups, along the first axis, or one per file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .._errors import InputError, UsageError
from ._steps import (
    NUMBERS,
    Gradients,
    Imported,
    Layout,
    Notes,
    PathText,
    Position,
    Selection,
    by_position,
    files_of,
    numbered_name,
    one_line,
    position_of,
    scalars,
    scale_metadata,
    selection,
    step_pattern,
    write_all,
)

SUFFIXES = (".h5", ".hdf5", ".he5")
STEP_SOURCES = ("group", "axis", "file")
_DEEPEST = 32
# What a filter can make of a stored byte; more is filled in by HDF5 and was never recorded.
_BEST_RATIO = 1032

# A step: its position, the file and the group that hold it, and its index on the first axis.
_Place = tuple[Position, Path, str, "int | None"]


def import_hdf5(
    inputs: PathText | Iterable[PathText],
    output: PathText,
    *,
    step_from: Literal["group", "axis", "file"] = "group",
    group: str = "/",
    pattern: str | None = None,
    steps: str | None = None,
    step: int = 0,
    tensors: str | Iterable[str] = "*",
    act_grad: str | Iterable[str] = (),
    grad_scale: float | None = None,
    force: bool = False,
) -> Imported:
    """Imports float16, float32 and float64 datasets of HDF5 files, with their bits.

    `step_from` says where the steps are: "group": each child group of `group` is a step whose name
    tells its number (and rank and micro-step), or by the regular expression `pattern`; "axis": the
    first axis of every dataset counts them, from `step` on, or the dataset `steps` lists their
    numbers; "file": each file is a step, named as for import_pt. Names of nested groups are joined
    by dots. Links to other files are not followed. Memory is that of one step.
    Raises InputError, UsageError, and ModuleNotFoundError without h5py.
    """
    _import_h5py()
    if step_from not in STEP_SOURCES:
        raise UsageError(f"step from: expected one of {', '.join(STEP_SOURCES)}, got {step_from!r}")
    if step < 0:
        raise UsageError(f"step: expected a number from 0 on, got {step}")
    chosen = selection(tensors, act_grad)
    metadata = scale_metadata(grad_scale)
    notes = Notes()
    files = files_of(inputs, SUFFIXES)
    by_name = step_pattern(pattern)
    if step_from == "group":
        places = _groups(files, group, by_name, notes)
    elif step_from == "axis":
        places = _rows(files, group, steps, step, chosen)
    else:
        ordered = by_position((position_of(path, by_name), path) for path in files)
        places = [(position, path, group, None) for position, path in ordered]
    layout = Layout(files[0].parent, [position for position, *_ in places])

    def items() -> Iterator[Gradients]:
        for (path, name), of_group in groupby(places, key=lambda place: place[1:3]):
            with _opened(path, name) as found:
                datasets = _datasets(path, found, chosen, notes, left_out=steps)
                numbers = {key: found.attrs[key] for key in NUMBERS if key in found.attrs}
                plain = {key: np.asarray(value).tolist() for key, value in numbers.items()}
                texts = scalars(path, plain) | metadata
                roles = {label: chosen.role(label) for label in datasets}
                for position, _, _, row in of_group:
                    index = () if row is None else row
                    values = {label: _native(data[index]) for label, data in datasets.items()}
                    yield layout.placed(Gradients(position, values, roles, texts))

    return write_all("hdf5", output, items(), notes, force=force)


def _import_h5py() -> Any:
    try:
        return import_module("h5py")
    except ImportError as error:
        raise ModuleNotFoundError(
            "HDF5 files need h5py: pip install 'dlsim-numerics[import]'", name="h5py"
        ) from error


@contextmanager
def _opened(path: Path, group: str) -> Iterator[Any]:
    """Gives the group of a file; what h5py raises meanwhile becomes an InputError."""
    h5py = _import_h5py()
    try:
        with h5py.File(path, "r") as file:
            found = file.get(group) if group in file else None
            if not isinstance(found, h5py.Group):
                raise InputError(f"{path}: no group {group!r}")
            yield found
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read: {one_line(error)}") from error


def _groups(
    files: list[Path], group: str, pattern: re.Pattern[str] | None, notes: Notes
) -> list[_Place]:
    """Returns the groups of steps, in ascending order."""
    h5py = _import_h5py()
    found: dict[Position, _Place] = {}
    for path in files:
        with _opened(path, group) as root:
            names = [name for name, item in _members(root) if isinstance(item, h5py.Group)]
            for name in root.keys() - set(names):
                notes.add(f"left out {name!r}: no group of a step")
        if not names:
            raise InputError(
                f"{path}: no groups of steps, expected some such as step_000123; or say where "
                "steps are with --step-from axis or file"
            )
        for name in names:
            numbered = numbered_name(Path(name), pattern)
            if numbered is None:
                raise InputError(f"{path}: group {name!r}: no step number in the name")
            position = numbered.position
            if position in found:
                raise InputError(f"{path}: {name!r}: is {position}, as is {found[position][2]}")
            found[position] = (position, path, f"{group}/{name}", None)
    return sorted(found.values(), key=lambda place: place[0].sort_key())


def _rows(
    files: list[Path], group: str, steps: str | None, first: int, chosen: Selection
) -> list[_Place]:
    """Returns the indices of the first axis that all datasets of a file have in common."""
    places: list[_Place] = []
    for path in files:
        with _opened(path, group) as root:
            datasets = _datasets(path, root, chosen, Notes(), left_out=steps)
            counts = {0 if not data.shape else int(data.shape[0]) for data in datasets.values()}
            if len(counts) != 1 or counts == {0}:
                raise InputError(
                    f"{path}: the first axes of the datasets differ, expected the same number of "
                    f"steps, got {sorted(counts)}"
                )
            count = counts.pop()
            numbers = list(range(first, first + count))
            if steps is not None:
                listed = root.get(steps)
                if getattr(listed, "shape", None) != (count,) or listed.dtype.kind not in "iu":
                    raise InputError(
                        f"{path}: {steps!r}: expected a dataset of {count} whole numbers"
                    )
                numbers = listed[()].tolist()
        for row, number in enumerate(numbers):
            last = places[-1][0].step if places else -1
            if number <= last:
                raise InputError(f"{path}: step {number} follows step {last}, must ascend from 0")
            places.append((Position(number), path, group, row))
        first += count
    return places


def _members(group: Any) -> Iterator[tuple[str, Any]]:
    """Yields what a group holds itself: no links."""
    h5py = _import_h5py()
    for name in group:
        if isinstance(group.get(name, getlink=True), h5py.HardLink):
            yield name, group[name]


def _datasets(
    path: Path, group: Any, chosen: Selection, notes: Notes, *, left_out: str | None
) -> dict[str, Any]:
    """Returns the floating-point datasets below a group by their dotted names."""
    found: dict[str, Any] = {}
    for name, dataset in _walk(path, group, "", 0, notes):
        if not chosen.takes(name) or name == _dotted(left_out or ""):
            continue
        if name in found:
            raise InputError(f"{path}: two datasets are named {name!r}")
        if dataset.dtype.kind != "f" or dataset.dtype.itemsize not in (2, 4, 8):
            notes.add(f"left out {name!r}: {dataset.dtype} is not a floating-point type")
            continue
        if dataset.is_virtual or dataset.external:
            raise InputError(f"{path}: {name!r}: refused: its values are in other files")
        if dataset.shape is None:
            raise InputError(f"{path}: {name!r}: an empty dataspace, expected an array")
        if dataset.nbytes > _BEST_RATIO * dataset.id.get_storage_size():
            raise InputError(f"{path}: {name!r}: far larger than what is stored, expected values")
        found[name] = dataset
    if not found:
        raise InputError(f"{path}: {group.name!r}: no tensor to import, expected float datasets")
    return found


def _dotted(name: str) -> str:
    return name.strip("/").replace("/", ".")


def _walk(path: Path, group: Any, name: str, depth: int, notes: Notes) -> Iterator[tuple[str, Any]]:
    h5py = _import_h5py()
    if depth > _DEEPEST:
        raise InputError(f"{path}: groups nested deeper than {_DEEPEST} levels")
    members = dict(_members(group))
    for key in group.keys() - members.keys():
        notes.add(f"left out {f'{name}.{key}' if name else key!r}: a link")
    for key, item in members.items():
        label = f"{name}.{key}" if name else key
        if isinstance(item, h5py.Group):
            yield from _walk(path, item, label, depth + 1, notes)
        elif isinstance(item, h5py.Dataset):
            yield label, item


def _native(values: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(values)
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)
