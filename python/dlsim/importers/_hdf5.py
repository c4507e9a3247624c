# SPDX-License-Identifier: Apache-2.0
"""HDF5 files to a trace or profile: steps as groups, along the first axis, or one per file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from .._errors import InputError, UsageError, needed
from .._values import Paths, PathText
from ._steps import (
    DEEPEST,
    Import,
    Imported,
    Part,
    Position,
    files_of,
    in_order,
    numbered_name,
    one_line,
    position_of,
    scalars,
)

STEP_SOURCES = ("group", "axis", "file")
# What a filter can make of a stored byte; more is filled in by HDF5 and was never recorded.
_BEST_RATIO = 1032


class _Place(NamedTuple):
    """Where a step is: a group of a file, and the index of the first axis if that counts steps."""

    path: Path
    group: str
    row: int | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.group!r}"


def import_hdf5(
    inputs: Paths,
    output: PathText,
    *,
    step_from: Literal["group", "axis", "file"] = "group",
    group: str = "/",
    step: int = 0,
    tensors: str | Iterable[str] = "*",
    act_grad: str | Iterable[str] = (),
    grad_scale: float | None = None,
    force: bool = False,
) -> Imported:
    """Imports float16, float32 and float64 datasets of HDF5 files, with their bits.

    `step_from` says where the steps are: "group": each child group of `group` is a step whose name
    tells its number (and rank and micro-step); "axis": the first axis of every dataset counts them,
    from `step` on; "file": each file is a step, named as for import_pt. Names of nested groups are
    joined by dots. Links to other files are not followed. Memory is that of one step.
    Raises InputError, UsageError, and ModuleNotFoundError without h5py.
    """
    _h5py()
    if step_from not in STEP_SOURCES:
        raise UsageError(f"step from: expected one of {', '.join(STEP_SOURCES)}, got {step_from!r}")
    job = Import(output, tensors, act_grad, grad_scale=grad_scale, force=force)
    files = files_of(inputs, (".h5", ".hdf5", ".he5"))
    if step_from == "axis":
        rows = [row for path in files for row in _rows(path, group, job)]
        places = [(Position(number), row) for number, row in enumerate(rows, step)]
    elif step_from == "group":
        places = in_order(found for path in files for found in _groups(path, group, job))
    else:
        places = in_order((position_of(path), _Place(path, group)) for path in files)

    def parts() -> Iterator[Part]:
        for (path, name), of_group in groupby(places, key=lambda item: item[1][:2]):
            with _opened(path, name) as found:
                datasets = _datasets(path, found, job)
                numbers = scalars(path, found.attrs)
                for position, place in of_group:
                    row = () if place.row is None else place.row
                    values = {
                        name: np.array(data[row], data.dtype.newbyteorder("<"), order="C")
                        for name, data in datasets.items()
                    }
                    yield position, values, numbers

    return job.write("hdf5", files[0].parent, [position for position, _ in places], parts())


def _h5py() -> Any:
    return needed("h5py", "HDF5 files need h5py: pip install 'dlsim-numerics[import]'")


@contextmanager
def _opened(path: Path, group: str) -> Iterator[Any]:
    """Gives the group of a file; what h5py raises meanwhile becomes an InputError."""
    h5py = _h5py()
    try:
        with h5py.File(path, "r") as file:
            found = file.get(group) if group in file else None
            if not isinstance(found, h5py.Group):
                raise InputError(f"{path}: no group {group!r}")
            yield found
    except InputError:
        raise
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {one_line(error)}") from error


def _groups(path: Path, group: str, job: Import) -> list[tuple[Position, _Place]]:
    places = []
    with _opened(path, group) as root:
        for name, item in _members(root):
            if not isinstance(item, _h5py().Group):
                job.note(f"left out {name!r}: no group of a step")
            elif (numbered := numbered_name(Path(name))) is None:
                raise InputError(f"{path}: group {name!r}: no step number in the name")
            else:
                places.append((numbered.position, _Place(path, f"{group}/{name}")))
    if not places:
        raise InputError(
            f"{path}: no groups of steps, expected some such as step_000123; or say where steps "
            "are with --step-from axis or file"
        )
    return places


def _rows(path: Path, group: str, job: Import) -> list[_Place]:
    """Returns the indices of the first axis that all datasets of a file have in common."""
    with _opened(path, group) as root:
        datasets = _datasets(path, root, job).values()
        counts = {0 if not data.shape else int(data.shape[0]) for data in datasets}
    if len(counts) != 1 or counts == {0}:
        raise InputError(
            f"{path}: the first axes of the datasets differ, expected the same number of steps, "
            f"got {sorted(counts)}"
        )
    return [_Place(path, group, row) for row in range(counts.pop())]


def _members(group: Any) -> Iterator[tuple[str, Any]]:
    """Yields what a group holds; None for a link, which may lead out of the file."""
    for name in group:
        is_own = isinstance(group.get(name, getlink=True), _h5py().HardLink)
        yield name, group[name] if is_own else None


def _datasets(path: Path, group: Any, job: Import) -> dict[str, Any]:
    """Returns the floating-point datasets below a group by their dotted names."""
    found: dict[str, Any] = {}
    for name, dataset in _walk(path, group, job):
        if not job.takes(name):
            continue
        if name in found:
            raise InputError(f"{path}: two datasets are named {name!r}")
        if dataset.dtype.kind != "f" or dataset.dtype.itemsize not in (2, 4, 8):
            job.note(f"left out {name!r}: {dataset.dtype} is not a floating-point type")
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


def _walk(
    path: Path, group: Any, job: Import, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """Yields all datasets below a group by their dotted names."""
    h5py = _h5py()
    if depth > DEEPEST:
        raise InputError(f"{path}: groups nested deeper than {DEEPEST} levels")
    for key, item in _members(group):
        if item is None:
            job.note(f"left out {prefix + key!r}: a link")
        elif isinstance(item, h5py.Group):
            yield from _walk(path, item, job, f"{prefix}{key}.", depth + 1)
        elif isinstance(item, h5py.Dataset):
            yield prefix + key, item
