# SPDX-License-Identifier: Apache-2.0
"""Profiles: the tables of every step and tensor (docs/profiles.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from . import _core
from ._core import TensorTable
from ._errors import UsageError
from ._text import counted
from .traces import AnyPath, Steps, TensorInfo, encoded_paths, tensor_infos

_STEP_FILE = re.compile(r"step-(\d{10,})\.npz")


def step_file(folder: Path, step: int) -> Path:
    """Returns where a profile has a step."""
    return folder / f"step-{step:010d}.npz"


def steps_in(folder: Path) -> dict[int, Path]:
    """Returns the files of a profile's steps by number, ascending."""
    found = ((_STEP_FILE.fullmatch(path.name), path) for path in folder.iterdir())
    return dict(sorted((int(name[1]), path) for name, path in found if name))


class ProfileStep:
    """One step of a profile. Part p is its p-th micro-step, or the whole step without any."""

    def __init__(self, core: _core.LoadedProfileStep) -> None:
        """For `Profile`."""
        self._core = core

    @property
    def number(self) -> int:
        """The number of the step."""
        return self._core.number

    @property
    def micro_steps(self) -> tuple[int | None, ...]:
        """The micro-step of each part; (None,) if the step has none or their sum was profiled."""
        return tuple(None if micro < 0 else micro for micro in self._core.micro_steps())

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of the first file of the step."""
        return self._core.metadata()

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """The tensors of the step by name, in the order of the file."""
        return tensor_infos(self._core.tensors())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors, in the order of the file."""
        return tuple(self.tensors)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.tensors)}

    def table(self, name: str, part: int = 0) -> TensorTable:
        """The table of a tensor in a part; KeyError and IndexError without them."""
        row = self._rows[self.tensors[name].name]  # which says what is missing
        return self._core.table(range(self._core.parts())[part], row)

    def __repr__(self) -> str:
        return f"<dlsim.ProfileStep {self.number}: {counted(len(self.tensors), 'tensors')}>"


class Profile(Steps[ProfileStep]):
    """A profile opened for reading; `len`, iteration and indices go over its steps."""

    _reader: _core.ProfileReader

    def _load(self, i: int) -> ProfileStep:
        return ProfileStep(self._reader.load(i))

    @property
    def accumulate(self) -> str:
        """What was profiled of micro-steps: "quantize-first" (each) or "sum-first" (their sum)."""
        return self._reader.accumulate()

    @property
    def pattern(self) -> str:
        """The pattern of the tensors that were profiled."""
        return self._reader.tensors()


def open_profile(path: AnyPath, *, tensors: str = "*") -> Profile:
    """Opens a profile, a folder that `dlsim profile` or a recorder has written (docs/profiles.md).

    Tensors whose name does not match the pattern are left out. Raises InputError naming the file
    and the defect.
    """
    paths = encoded_paths(path)
    place = paths[0].decode(errors="replace")
    if len(paths) > 1:
        raise UsageError(f"{place}: several profiles, expected one folder")
    return Profile(_core.ProfileReader(paths[0], tensors=tensors), place)
