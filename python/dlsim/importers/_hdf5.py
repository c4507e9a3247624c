# SPDX-License-Identifier: Apache-2.0
"""HDF5 files to a trace or profile: steps as groups, along the first axis, or one per file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .._errors import InputError, UsageError
from ._gradients import (
    NUMBERS,
    Gradients,
    Notes,
    Selection,
    check_name,
    one_line,
    scalars,
    scale_metadata,
    selection,
)
from ._numbering import PathText, Position, files_of, position_of, step_pattern, without_repeats
from ._progress import shown
from ._runs import Imported, Layout, write_all

SUFFIXES = (".h5", ".hdf5", ".he5")
STEP_SOURCES = ("group", "axis", "file")
_DEEPEST = 32
# What a filter can make of a stored byte; more is filled in by HDF5 and was never recorded.
_BEST_RATIO = 1032
# Holds the chunks of all datasets that cross several steps, so that each is decompressed once.
_CHUNK_CACHE = 1 << 26
_SMALLEST_CACHE = 1 << 20
_FLOATS = (np.float16, np.float32, np.float64)


@dataclass(frozen=True)
class _Places:
    """Where the steps of a file are, as the options say."""

    group: str
    step_from: str
    pattern: re.Pattern[str] | None
    steps: str | None
    first: int


def import_hdf5(
    inputs: PathText | Iterable[PathText],
    output: PathText,
    *,
    step_from: str = "group",
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
    places = _Places(group, step_from, step_pattern(pattern), steps, step)
    chosen = selection(tensors, act_grad)
    metadata = scale_metadata(grad_scale)
    notes = Notes()
    files = files_of(inputs, SUFFIXES)
    read = {"group": _by_group, "axis": _by_axis, "file": _by_file}[step_from]

    def items() -> Iterator[Gradients]:
        for position, attributes, found in read(files, places, chosen, notes):
            roles = {name: chosen.role(name) for name in found}
            yield Gradients(position, found, roles, {**attributes, **metadata})

    description = {"imported_from": "hdf5"}
    return write_all(output, items(), notes, description=description, force=force)


_Step = tuple[Position, dict[str, str], dict[str, Any]]


def _import_h5py() -> ModuleType:
    try:
        return import_module("h5py")
    except ImportError as error:
        raise ModuleNotFoundError(
            "HDF5 files need h5py: pip install 'dlsim-numerics[import]'"
        ) from error


@contextmanager
def _opened(path: Path, group: str, cache: int = _SMALLEST_CACHE) -> Iterator[Any]:
    """Gives the group of a file; what h5py raises meanwhile becomes an InputError."""
    h5py = _import_h5py()
    try:
        with h5py.File(path, "r", rdcc_nbytes=cache) as file:
            found = file.get(group, getlink=False) if group in file else None
            if not isinstance(found, h5py.Group):
                raise InputError(f"{path}: no group {group!r}")
            yield found
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read: {one_line(error)}") from error


def _by_group(
    files: list[Path], places: _Places, chosen: Selection, notes: Notes
) -> Iterator[_Step]:
    found: dict[Position, tuple[Path, str]] = {}
    for path in files:
        with _opened(path, places.group) as root:
            for name in _step_groups(path, root, notes):
                position = _position(path, name, places.pattern)
                if position in found:
                    raise InputError(f"{path}: {name!r}: is {position}, as is {found[position][1]}")
                found[position] = (path, name)
    layout = Layout(files[0], list(found))
    for position in shown(sorted(found, key=Position.sort_key), "steps"):
        path, name = found[position]
        with _opened(path, places.group) as root:
            attributes = _attributes(path, root[name])
            datasets = _datasets(path, root[name], chosen, notes)
            tensors = {label: _whole(path, dataset) for label, dataset in datasets.items()}
        placed = layout.placed(Gradients(position, {}, {}, attributes))
        yield placed.position, placed.metadata, tensors


def _step_groups(path: Path, root: Any, notes: Notes) -> list[str]:
    h5py = _import_h5py()
    names = []
    for name in root:
        if isinstance(root.get(name, getlink=True), h5py.HardLink) and isinstance(
            root[name], h5py.Group
        ):
            names.append(name)
        else:
            notes.add(f"left out {name!r}: no group of a step")
    if not names:
        raise InputError(
            f"{path}: no groups of steps, expected some such as step_000123; or say where steps "
            "are with --step-from axis or file"
        )
    return names


def _position(path: Path, name: str, pattern: re.Pattern[str] | None) -> Position:
    try:
        return position_of(Path(name), pattern)
    except InputError as error:
        raise InputError(f"{path}: group {name!r}: no step number in the name") from error


def _by_axis(
    files: list[Path], places: _Places, chosen: Selection, notes: Notes
) -> Iterator[_Step]:
    number = places.first
    last = -1
    for path in shown(files, "files"):
        with _opened(path, places.group) as root:
            cache = _CHUNK_CACHE // len(_datasets(path, root, chosen, Notes()))
        with _opened(path, places.group, max(cache, _SMALLEST_CACHE)) as root:
            datasets = _datasets(path, root, chosen, notes)
            datasets.pop((places.steps or "").strip("/").replace("/", "."), None)
            count = _common_axis(path, datasets)
            numbers = _numbers(path, root, places.steps, count) or range(number, number + count)
            attributes = _attributes(path, root)
            for i, step in enumerate(numbers):
                if step <= last:
                    raise InputError(f"{path}: step {step} follows step {last}, must ascend")
                last = step
                yield (
                    Position(step),
                    attributes,
                    {label: _native(path, dataset[i]) for label, dataset in datasets.items()},
                )
            number += count


def _common_axis(path: Path, datasets: Mapping[str, Any]) -> int:
    counts = {0 if not dataset.shape else dataset.shape[0] for dataset in datasets.values()}
    if len(counts) != 1 or counts == {0}:
        raise InputError(
            f"{path}: the first axes of the datasets differ, expected the same number of steps, "
            f"got {sorted(counts)}"
        )
    return int(counts.pop())


def _numbers(path: Path, root: Any, name: str | None, count: int) -> list[int] | None:
    if name is None:
        return None
    dataset = root.get(name)
    if (
        dataset is None
        or getattr(dataset, "shape", None) != (count,)
        or dataset.dtype.kind not in "iu"
    ):
        raise InputError(f"{path}: {name!r}: expected a dataset of {count} whole numbers")
    numbers = [int(number) for number in dataset[()]]
    if any(number < 0 for number in numbers):
        raise InputError(f"{path}: {name!r}: a negative step number")
    return numbers


def _by_file(
    files: list[Path], places: _Places, chosen: Selection, notes: Notes
) -> Iterator[_Step]:
    ordered = list(without_repeats((position_of(path, places.pattern), path) for path in files))
    layout = Layout(files[0].parent, [position for position, _ in ordered])
    for position, path in shown(ordered, "files"):
        with _opened(path, places.group) as root:
            datasets = _datasets(path, root, chosen, notes)
            tensors = {label: _whole(path, dataset) for label, dataset in datasets.items()}
            attributes = _attributes(path, root)
        placed = layout.placed(Gradients(position, {}, {}, attributes))
        yield placed.position, placed.metadata, tensors


def _attributes(path: Path, group: Any) -> dict[str, str]:
    values = {key: group.attrs[key] for key in NUMBERS if key in group.attrs}
    return scalars(
        path,
        {
            key: value.item() if np.ndim(value) == 0 and hasattr(value, "item") else value
            for key, value in values.items()
        },
    )


def _datasets(path: Path, group: Any, chosen: Selection, notes: Notes) -> dict[str, Any]:
    """Returns the floating-point datasets below a group by their dotted names."""
    found: dict[str, Any] = {}
    for name, dataset in _walk(path, group, "", 0, notes):
        if not chosen.takes(check_name(path, name)):
            continue
        if name in found:
            raise InputError(f"{path}: two datasets are named {name!r}")
        if dataset.dtype.kind != "f" or dataset.dtype.newbyteorder("=") not in _FLOATS:
            notes.add(f"left out {name!r}: {dataset.dtype} is not a floating-point type")
            continue
        _check_storage(path, name, dataset)
        found[name] = dataset
    if not found:
        raise InputError(f"{path}: {group.name!r}: no tensor to import, expected float datasets")
    return found


def _walk(path: Path, group: Any, name: str, depth: int, notes: Notes) -> Iterator[tuple[str, Any]]:
    h5py = _import_h5py()
    if depth > _DEEPEST:
        raise InputError(f"{path}: groups nested deeper than {_DEEPEST} levels")
    for key in group:
        label = f"{name}.{key}" if name else key
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            notes.add(f"left out {label!r}: a link")
            continue
        item = group[key]
        if isinstance(item, h5py.Group):
            yield from _walk(path, item, label, depth + 1, notes)
        elif isinstance(item, h5py.Dataset):
            yield label, item


def _check_storage(path: Path, name: str, dataset: Any) -> None:
    if dataset.is_virtual or dataset.external:
        raise InputError(f"{path}: {name!r}: refused: its values are in other files")
    if dataset.shape is None:
        raise InputError(f"{path}: {name!r}: an empty dataspace, expected an array")
    if dataset.nbytes > _BEST_RATIO * dataset.id.get_storage_size():
        raise InputError(f"{path}: {name!r}: far larger than what is stored, expected values")


def _whole(path: Path, dataset: Any) -> Any:
    return _native(path, dataset[()])


def _native(path: Path, values: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(values)
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)
