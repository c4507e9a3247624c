# SPDX-License-Identifier: Apache-2.0
"""TensorBoard's event files: which histograms they hold, and each of them when it is asked for."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from .._errors import InputError
from ._gradients import Notes
from ._progress import shown

# A record is its length and data, each followed by a checksum.
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_PLUGIN = "histograms"
_SHOWN_TAGS = 5


def _need(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ModuleNotFoundError(
            "event files need tensorboard: pip install 'dlsim-numerics[import]'"
        ) from error


@dataclass(frozen=True)
class _Record:
    file: int
    start: int
    size: int


@dataclass
class _Index:
    """Where the chosen histograms are: by step and tag, the last one of each."""

    records: dict[int, dict[str, _Record]] = field(default_factory=dict)
    scalars: dict[int, float] = field(default_factory=dict)
    other_tags: set[str] = field(default_factory=set)
    plugin_tags: set[str] = field(default_factory=set)


class EventFiles:
    """The histograms of one run, whose `files` follow each other; none is kept in memory.

    `wanted` chooses tags. The scalars of `scale_tag` are read too. A file that ends within
    a record, as one that is being written does, is read as far as it goes, with a note. Raises
    InputError for damaged files and if there is no histogram to read.
    """

    def __init__(
        self,
        files: list[Path],
        wanted: Callable[[str], bool],
        notes: Notes,
        *,
        scale_tag: str | None = None,
    ) -> None:
        self._event = _need("tensorboard.compat.proto.event_pb2").Event
        stub = _need("tensorboard.compat.tensorflow_stub.pywrap_tensorflow")
        self._checksum: Callable[[bytes], int] = stub.masked_crc32c
        self._files = files
        self._index = _Index()
        self._stack = ExitStack()
        self._open: list[IO[bytes]] = []
        self._last: tuple[_Record, Any] | None = None
        try:
            for path in files:
                self._open.append(self._stack.enter_context(path.open("rb")))
            for i in shown(range(len(files)), "event files"):
                self._scan(i, wanted, scale_tag, notes)
        except OSError as error:
            raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from error
        if not self._index.records:
            raise InputError(f"{files[0]}: no histogram to import{self._hint()}")

    def __enter__(self) -> EventFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def steps(self) -> list[int]:
        """The steps that have histograms, ascending."""
        return sorted(self._index.records)

    @property
    def scalars(self) -> dict[int, float]:
        """The values of the scale tag by step."""
        return self._index.scalars

    def histograms(self, step: int) -> Iterator[tuple[str, Any]]:
        """Yields the tag and the Summary.Value of each histogram of a step."""
        for tag, record in self._index.records[step].items():
            event = self._parsed(record)
            for value in event.summary.value:
                if value.tag == tag and self._is_histogram(value):
                    found = value
            yield tag, found

    def place(self, step: int, tag: str) -> str:
        """Names a histogram for messages."""
        path = self._files[self._index.records[step][tag].file]
        return f"{path}: {tag!r} at step {step}"

    def _parsed(self, record: _Record) -> Any:
        if self._last is None or self._last[0] != record:
            file = self._open[record.file]
            file.seek(record.start)
            self._last = (record, self._event.FromString(file.read(record.size)))
        return self._last[1]

    def _scan(
        self, number: int, wanted: Callable[[str], bool], scale_tag: str | None, notes: Notes
    ) -> None:
        for record, data, checksum in self._records(number, notes):
            is_checked = False
            place = f"{self._files[number]}: damaged record at byte {record.start}"
            try:
                event = self._event.FromString(data)
            except Exception as error:
                raise InputError(f"{place}: no event") from error
            for value in event.summary.value:
                if value.tag == scale_tag and scale_tag is not None:
                    self._index.scalars[event.step] = _scalar(value)
                if not self._is_histogram(value):
                    continue
                if not wanted(value.tag):
                    self._index.other_tags.add(value.tag)
                    continue
                if not is_checked and self._checksum(data) != checksum:
                    raise InputError(f"{place}: wrong checksum")
                is_checked = True
                self._add(event.step, value.tag, record, notes)

    def _add(self, step: int, tag: str, record: _Record, notes: Notes) -> None:
        if step < 0:
            raise InputError(f"{self._files[record.file]}: {tag!r}: negative step {step}")
        of_step = self._index.records.setdefault(step, {})
        if tag in of_step:
            notes.add("a histogram was logged again for the same step: the last is taken")
        of_step[tag] = record

    def _records(self, number: int, notes: Notes) -> Iterator[tuple[_Record, bytes, int]]:
        file, path = self._open[number], self._files[number]
        left = path.stat().st_size
        while left >= _HEADER.size:
            head = file.read(_HEADER.size)
            start = file.tell()
            if len(head) < _HEADER.size:
                break
            size, checksum = _HEADER.unpack(head)
            if self._checksum(head[:8]) != checksum:
                raise InputError(f"{path}: damaged record at byte {start - _HEADER.size}")
            left -= _HEADER.size
            if size + _FOOTER.size > left:
                break
            data = file.read(size)
            tail = file.read(_FOOTER.size)
            if len(tail) < _FOOTER.size:
                break
            left -= size + _FOOTER.size
            yield _Record(number, start, size), data, _FOOTER.unpack(tail)[0]
        else:
            if left == 0:
                return
        notes.add(f"{path.name}: ends within a record, read up to there")

    def _is_histogram(self, value: Any) -> bool:
        """Whether a value is one; of a tag's tensors only the first tells its plugin."""
        kind = value.WhichOneof("value")
        if kind == "histo":
            return True
        if kind != "tensor":
            return False
        if value.metadata.plugin_data.plugin_name == _PLUGIN:
            self._index.plugin_tags.add(value.tag)
        return value.tag in self._index.plugin_tags

    def _hint(self) -> str:
        tags = sorted(self._index.other_tags)
        if not tags:
            return ", expected histograms, as of SummaryWriter.add_histogram"
        some = ", ".join(map(repr, tags[:_SHOWN_TAGS]))
        more = f" and {len(tags) - _SHOWN_TAGS} more" if len(tags) > _SHOWN_TAGS else ""
        return f"; choose with --tensors among {some}{more}"


def _scalar(value: Any) -> float:
    if value.WhichOneof("value") == "simple_value":
        return float(value.simple_value)
    return scalar_of(value.tensor)


def scalar_of(tensor: Any) -> float:
    """Returns the number that a TensorProto holds, NaN if that is not one."""
    for numbers in (tensor.float_val, tensor.double_val):
        if len(numbers) == 1:
            return float(numbers[0])
    if len(tensor.tensor_content) == 4:
        return float(struct.unpack("<f", tensor.tensor_content)[0])
    if len(tensor.tensor_content) == 8:
        return float(struct.unpack("<d", tensor.tensor_content)[0])
    return float("nan")
