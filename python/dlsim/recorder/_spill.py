# SPDX-License-Identifier: Apache-2.0
"""Gradients of a step that is not complete, in files: accumulation would fill the memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from ..arrays._dtypes import name_of_dtype
from ..traces._writer import TraceWriter

_LOADED_AT_ONCE = 1 << 24  # bytes


class Spilled(NamedTuple):
    """A tensor in a file."""

    path: Path
    shape: tuple[int, ...]
    dtype: str
    bytes: int

    def load(self, name: str) -> Any:
        """Returns the tensor of this name."""
        from safetensors import safe_open

        with safe_open(self.path, "pt") as file:
            return file.get_tensor(name)


class Spill:
    """Files in `folder`, or in a temporary one, which exists only while it holds something."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._writer: TraceWriter | None = None
        self._files = 0
        self._tensors: dict[str, Spilled] = {}

    def add(self, tensors: Mapping[str, Any]) -> None:
        """Writes tensors; one that was written before becomes the sum of both."""
        if self._writer is None:
            self._writer = TraceWriter(self._new_folder(), describes=False)
        summed = self.summed(tensors)
        path = self._writer.write(self._files, summed)
        self._files += 1
        for name, tensor in summed.items():
            size = tensor.numel() * tensor.element_size()
            dtype = name_of_dtype(tensor.dtype)
            self._tensors[name] = Spilled(path, tuple(tensor.shape), dtype, size)

    def summed(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Returns tensors with what was written of the same names, which is forgotten."""
        before = {name: self._tensors.pop(name, None) for name in tensors}
        return {
            name: tensor if (old := before[name]) is None else old.load(name) + tensor
            for name, tensor in tensors.items()
        }

    @property
    def holds(self) -> bool:
        """Whether there is something that no step has taken."""
        return bool(self._tensors)

    def take(self) -> dict[str, Spilled]:
        """Returns all by name, for a step; its files stay until `remove`."""
        found, self._tensors = self._tensors, {}
        return found

    def clear(self) -> None:
        """Forgets everything."""
        self._tensors.clear()
        if self._writer is not None:
            shutil.rmtree(self._writer.directory, ignore_errors=True)
            self._writer = None

    def _new_folder(self) -> Path:
        if self._folder is None:
            return Path(mkdtemp(prefix="dlsim-spill-"))
        shutil.rmtree(self._folder, ignore_errors=True)  # of a process that was killed
        return self._folder


def remove(spilled: Mapping[str, Spilled]) -> None:
    """Removes the files of a step."""
    for path in {one.path for one in spilled.values()}:
        path.unlink(missing_ok=True)


def loaded(spilled: Mapping[str, Spilled]) -> Iterator[dict[str, Any]]:
    """Yields the tensors, a few at a time: their files are mapped into memory until the next."""
    from safetensors import safe_open

    for path, names in _groups(spilled):
        with safe_open(path, "pt") as file:
            yield {name: file.get_tensor(name) for name in names}


def _groups(spilled: Mapping[str, Spilled]) -> Iterator[tuple[Path, list[str]]]:
    """Yields names of tensors in one file that together take little more than _LOADED_AT_ONCE."""
    by_path: dict[Path, list[str]] = {}
    for name, one in spilled.items():
        by_path.setdefault(one.path, []).append(name)
    for path, names in by_path.items():
        first = size = 0
        for i, name in enumerate(names):
            size += spilled[name].bytes
            if size >= _LOADED_AT_ONCE or i + 1 == len(names):
                yield path, names[first : i + 1]
                first, size = i + 1, 0
