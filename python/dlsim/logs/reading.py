# SPDX-License-Identifier: Apache-2.0
"""Files to records, in one pass: text, also compressed, CSV, JSON, runs of TensorBoard, MLflow."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import math
import os
import re
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from .._errors import InputError, UsageError, needed
from .losses import ALL, FINITE, STEP, Loss, Losses, loss_in
from .wordings import (
    SCALE_NAMES,
    SKIP_KEYS,
    STEPS,
    Printed,
    Record,
    count_of,
    free_record,
    is_bare_name,
    is_scale_name,
    json_record,
    log2_record,
    message_of,
    prints_settings,
    read_number,
    whole_number,
)

# -- The scalars of TensorBoard's event files as the CSV that `dlsim explain` reads

_EVENT_FILE = "tfevents"
# DeepSpeed counts samples in place of steps.
_BY_SAMPLES = "train/samples/"
_SHOWN = 5


def is_event_log(path: str) -> bool:
    """Whether a path is an event file, or a directory with some."""
    given = Path(path)
    if os.path.isdir(given):  # False for a name that is too long, too
        return any(given.rglob(f"*{_EVENT_FILE}*"))
    return _EVENT_FILE in given.name


def scales_of(path: str, tag: str | None) -> list[tuple[int, float]]:
    """Returns the steps and scales of an event log.

    Raises InputError for files without them, UsageError where it is open which are meant, and
    ModuleNotFoundError without tensorboard.
    """
    accumulator = _accumulator(path)
    chosen = _tag(path, accumulator, tag)
    scales = _scales(accumulator, chosen)
    if not scales:
        raise InputError(f"{path}: {chosen!r} has no values")
    by_samples = chosen.lower().startswith(_BY_SAMPLES)
    stride = (math.gcd(*(step for step, _ in scales)) if by_samples else 0) or 1
    return [(step // stride, scale) for step, scale in scales]


def _accumulator(place: str) -> Any:
    module = needed(
        "tensorboard.backend.event_processing.event_accumulator",
        "event files need TensorBoard: pip install 'dlsim-numerics[import]'",
    )
    everything = {"scalars": 0, "tensors": 0, "histograms": 1, "images": 1, "audio": 1}
    accumulator = module.EventAccumulator(_one_run(place), size_guidance=everything)
    try:
        accumulator.Reload()
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{place}: cannot be read as an event log: {error}") from error
    return accumulator


def _one_run(place: str) -> str:
    """Returns the directory of the only run below a directory."""
    given = Path(place)
    if not given.is_dir():
        return place
    runs = sorted({file.parent for file in given.rglob(f"*{_EVENT_FILE}*")})
    if len(runs) == 1:
        return str(runs[0])
    raise UsageError(f"{place}: several runs, expected one of {_list(map(str, runs))}")


def _tag(place: str, accumulator: Any, tag: str | None) -> str:
    tags = accumulator.Tags()
    known: list[str] = sorted({*tags["scalars"], *tags["tensors"]})
    if tag is not None:
        if tag in known:
            return tag
        raise UsageError(f"tag: expected one of {_list(known)}, got {tag!r}")
    found = [name for name in known if name.lower().rpartition("/")[2] in (*SCALE_NAMES, "scale")]
    if not found:
        raise InputError(f"{place}: no tag of loss scales, expected tag= one of {_list(known)}")
    if len(found) > 1:
        raise UsageError(
            f"{place}: several tags of loss scales, expected tag= one of {_list(found)}"
        )
    return found[0]


def _scales(accumulator: Any, tag: str) -> list[tuple[int, float]]:
    """Returns the last value of each step, in their order."""
    if tag in accumulator.Tags()["scalars"]:
        found = {event.step: float(event.value) for event in accumulator.Scalars(tag)}
    else:
        found = {e.step: _number_in(e.tensor_proto) for e in accumulator.Tensors(tag)}
    return sorted(found.items())


def _number_in(tensor: Any) -> float:
    """Returns the number that a TensorProto holds, NaN if that is not one."""
    for numbers in (tensor.float_val, tensor.double_val):
        if len(numbers) == 1:
            return float(numbers[0])
    kind = {4: "<f", 8: "<d"}.get(len(tensor.tensor_content))
    return math.nan if kind is None else float(struct.unpack(kind, tensor.tensor_content)[0])


def _list(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more if names else "none"


# -- Files to records, in one pass: text, also compressed, CSV, JSON, runs of TensorBoard, MLflow

_MOST_BYTES = 1 << 30  # of all logs, decompressed
_MOST_DOCUMENT = 1 << 27  # of one JSON that is read as a whole, in characters
_MOST_RECORDS = 3_000_000
_LONGEST_LINE = 1 << 16
_CHUNK = 1 << 20
_HEAD = 1 << 16
_XZ_MEMORY = 1 << 28
_STEP_COLUMNS = ("step", "global_step", "_step", "iteration", "iter")
_LOSS_COLUMNS = ("loss", "train_loss", "lm loss", "lm_loss")

CUT = "cut"  # a record's kind: people leave lines out of what they post


@dataclass
class Log:
    """What all lines say, in order."""

    records: list[Record] = field(default_factory=list)
    losses: Losses = field(default_factory=Losses)
    notes: list[str] = field(default_factory=list)
    unbounded: bool = False  # the scales bound no gradient

    def note(self, text: str) -> None:
        """Adds a remark, once."""
        if text not in self.notes:
            self.notes.append(text)


def name_of(path: str) -> str:
    """Returns the name of an input for a message, of printable characters."""
    text = "standard input" if path == "-" else path
    return "".join(c if c.isprintable() else "?" for c in text)


class _Text:
    """The text of one input, decompressed and decoded piece by piece."""

    def __init__(self, path: str, raw: io.BufferedReader, budget: list[int]) -> None:
        self.place = name_of(path)
        self._budget = budget
        unpacked = self._unpacked(raw)
        first = next(unpacked, b"")
        self._decoder = codecs.getincrementaldecoder(_encoding_of(first))(errors="replace")
        self._pieces = chain([first], unpacked)
        text = ""
        while len(text) < _HEAD and (piece := self._decoded()):
            text += piece
        self.head = text.removeprefix("\ufeff")

    def _unpacked(self, raw: io.BufferedReader) -> Iterator[bytes]:
        problem = "cannot be read"
        try:
            head, source = raw.peek(6)[:6], _pieces_of(raw)
            kind = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
            problem = problem if kind is None else "cannot be decompressed"
            if kind == "gzip":
                source = _pieces_of(gzip.GzipFile(fileobj=raw))
            elif kind == "bzip2":
                source = _pieces_of(bz2.BZ2File(raw))
            elif kind == "xz":
                source = _xz_pieces(raw)
            elif kind is not None:
                raise InputError(
                    f"{self.place}: compressed as {kind}, expected text, gzip, bzip2 or xz"
                )
            for piece in source:
                self._budget[0] -= len(piece)
                if self._budget[0] < 0:
                    raise InputError(f"{self.place}: too large, expected at most 1 GiB of text")
                yield piece
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            raise InputError(f"{self.place}: {problem}: {error}") from error

    def _decoded(self) -> str:
        for piece in self._pieces:
            if text := self._decoder.decode(piece):
                return text
        return self._decoder.decode(b"", final=True)

    def _chunks(self) -> Iterator[str]:
        yield self.head
        while text := self._decoded():
            yield text

    def whole(self) -> str:
        """Returns the text; raises InputError for one that is too long to be read as a whole."""
        parts, length = [], 0
        for part in self._chunks():
            parts.append(part)
            length += len(part)
            if length > _MOST_DOCUMENT:
                raise InputError(f"{self.place}: too large for one JSON, expected at most 128 MiB")
        return "".join(parts)

    def lines(self) -> Iterator[str]:
        """Yields the lines, without their ends at LF; of a long one only the beginning."""
        rest = ""
        for part in self._chunks():
            *done, rest = (rest + part).split("\n")
            yield from done
            if len(rest) > _LONGEST_LINE and "\r" not in rest[_LONGEST_LINE:]:
                rest = rest[:_LONGEST_LINE]
            elif len(rest) > _LONGEST_LINE:  # a progress bar, redrawn by CR
                drawn, _, rest = rest.rpartition("\r")
                yield drawn + "\r"
        if rest:
            yield rest


# How compressed files begin.
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}


def _pieces_of(stream: Any) -> Iterator[bytes]:
    return iter(lambda: stream.read(_CHUNK), b"")


def _xz_pieces(stream: io.BufferedReader) -> Iterator[bytes]:
    """As LZMAFile reads them, but with a limit of the memory that a file asks for."""
    unpacker, data = lzma.LZMADecompressor(memlimit=_XZ_MEMORY), b""
    while True:
        if unpacker.eof:
            data = unpacker.unused_data.lstrip(b"\0") or stream.read(_CHUNK)
            if not data:
                return
            unpacker = lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
        elif unpacker.needs_input:
            data = stream.read(_CHUNK)
            if not data:
                raise EOFError("the file ends too early")
        else:
            data = b""
        yield unpacker.decompress(data, _CHUNK)


def _encoding_of(head: bytes) -> str:
    """UTF-16 has a mark at its beginning, or a zero byte in each character of ASCII."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    sample = head[:4096]
    zeros = sample[1::2].count(0), sample[0::2].count(0)
    if zeros[0] * 2 > 0.8 * len(sample) > 0 and zeros[1] == 0:
        return "utf-16-le"
    if zeros[1] * 2 > 0.8 * len(sample) > 0 and zeros[0] == 0:
        return "utf-16-be"
    return "utf-8"


def _parse(place: str, text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise InputError(f"{place}: bad JSON: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{place}: bad JSON: {error}") from None


class _Reader:
    """Reads logs one after the other; line numbers go on."""

    def __init__(self) -> None:
        self.log = Log()
        self.line = 1  # of the first line of the next file
        self._budget = [_MOST_BYTES]

    def read(self, path: str, tag: str | None) -> None:
        """Reads one file, or the directory of a run."""
        if path == "-":
            self._read_text(path, open(sys.stdin.fileno(), "rb", closefd=False))
        elif is_event_log(path):
            rows = (f"{step},{scale!r}" for step, scale in scales_of(path, tag))
            table = chain(["step,loss_scale"], rows)
            self._read_table(path, table, _Columns(step=0, scale=1), header=1)
        elif os.path.isdir(path):
            self._read_text(*self._metric_of(path))
        else:
            try:
                raw = open(path, "rb")
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                raise InputError(f"{name_of(path):.256}: cannot be opened: {why}") from error
            with raw:
                self._read_text(path, raw)

    def _metric_of(self, path: str) -> tuple[str, io.BufferedReader]:
        """Returns the file of MLflow with the scales of a run."""
        found = []
        for file in sorted(Path(path).glob("metrics/**/*"))[:10000]:
            if file.is_file() and is_scale_name(file.name):
                found.append(file)
        if len(found) == 1:
            return str(found[0]), open(found[0], "rb")
        known = ", ".join(map(str, found[:5])) or "none"
        raise InputError(
            f"{name_of(path)}: is a directory, expected a log, or the directory of one run of "
            f"TensorBoard or MLflow with one loss scale, got {known}"
        )

    def _read_text(self, path: str, raw: io.BufferedReader) -> None:
        text = _Text(path, raw, self._budget)
        start = text.head.lstrip()[:1]
        if start == "{" and '"log_history"' in text.head:
            self._read_document(text)
        elif start == "[" and re.match(r"\[\s*\{", text.head.lstrip()):
            self._read_document(text)
        elif _METRIC.match(text.head) and is_scale_name(os.path.basename(path)):
            columns = _Columns(step=2, scale=1, delimiter=" ")  # MLflow: time, value, step
            self._read_table(path, text.lines(), columns)
        elif found := _Columns.of(text.head.partition("\n")[0], text.place):
            self._read_table(path, text.lines(), found, header=1)
        else:
            self._read_lines(text.lines())

    def _add(self, record: Record) -> None:
        if len(self.log.records) >= _MOST_RECORDS:
            raise InputError(
                f"line {record.line}: too many lines with a scale, expected at most "
                f"{_MOST_RECORDS}, such as each tenth of them"
            )
        self.log.records.append(record)

    # JSON documents.

    def _read_document(self, text: _Text) -> None:
        document = _parse(text.place, text.whole())
        entries = document.get("log_history") if isinstance(document, dict) else document
        entries = entries if isinstance(entries, list) else []
        records = []
        for entry in entries:
            record = json_record(entry, "trainer-state") if isinstance(entry, dict) else None
            if record is not None:
                records.append(record)
        # Entries without a scale count only where none has one, for their losses.
        if any(record.used or record.next for record in records):
            records = [r for r in records if r.used or r.next or r.overflow]
        for record in records:
            record.free = False
            record.wording = "trainer-state"
            self._add(record)
            self._add_loss(record, FINITE)
        self.line += 1

    def _add_loss(self, record: Record, over: str) -> None:
        if record.loss is None:
            return
        loss = Loss(record.loss, line=record.line, over=over, step=record.number)
        loss.norm_is_bad = over == FINITE and bool(record.overflow)
        self.log.losses.printed.append(loss)

    # Tables.

    def _read_table(
        self, path: str, lines: Iterable[str], columns: _Columns, header: int = 0
    ) -> None:
        """Reads a table, of which `header` lines name the columns."""
        place = name_of(path)
        read: list[Record] = []
        count = header
        try:
            clean = (line.replace("\0", "") for line in islice(lines, header, None))
            rows = csv.reader(clean, delimiter=columns.delimiter)
            for row in rows:
                count = rows.line_num + header
                record = columns.record(row, place, count)
                if record is not None:
                    record.line = self.line + count - 1
                    read.append(record)
                if len(read) > _MOST_RECORDS:
                    break
        except csv.Error as error:
            raise InputError(f"{place}:{count + 1}: bad CSV: {error}") from error
        name = os.path.basename(path)
        if "Train_Samples_" in name or "vs samples" in name or "vs_samples" in name:
            unit = math.gcd(*(record.number or 0 for record in read))
            for record in read if unit > 1 else ():
                record.number = (record.number or 0) // unit
            if unit > 1:
                self.log.note(f"the axis counts samples: {unit} of them are taken for one step")
        for record in read:
            self._add(record)
            self._add_loss(record, ALL if record.stack == "guided-diffusion" else STEP)
        self.line += count

    # Lines of text.

    def _read_lines(self, lines: Iterator[str]) -> None:
        number, table = self.line, _GuidedTable()
        for row in lines:
            if "\r" in row:
                for drawn in row.split("\r"):
                    self._read_line(drawn, number, table)
            else:
                self._read_line(row, number, table)
            number += 1
        self.line = number

    def _read_line(self, line: str, at: int, table: _GuidedTable) -> None:
        # Most lines of a log are others: these words are all that is sought in them.
        says_scale = (
            "cale" in line
            or "verflow" in line
            or "skip" in line
            or "CALE" in line
            or "cost-scaling" in line
            or "outputs are" in line
            or "| step " in line
        )
        says_loss = "oss" in line or "nan iterations" in line or "outputs are" in line
        if not says_scale and not says_loss:
            if "..." in line and _CUT.match(line) and self.log.records:
                self._add(Record(CUT, "", at))
            return
        if "\x1b" in line:
            line = _ESCAPES.sub("", line)
        if len(line) > _LONGEST_LINE:
            line = line[:_LONGEST_LINE]
        record = self._record_of(line, table) if says_scale else None
        if says_loss:
            number = record.number if record is not None and record.kind == STEPS else None
            loss = loss_in(line, number)
            if loss is not None:
                loss.line = at
                self.log.losses.printed.append(loss)
        if record is not None:
            record.line = at
            self._add(record)

    @staticmethod
    def _record_of(line: str, table: _GuidedTable) -> Record | None:
        record = table.add(line) or message_of(line)
        if record is None and not prints_settings(line):
            record = _line_of_json(line) or free_record(line)
        return record


# A line that stands for those that were left out: "...", "[...]", "(... 300 lines ...)".
_CUT = re.compile(r"\s*[\[(<]?\s*\.{3,}(?:[^=:]{0,60}\.{3,})?\s*[\])>]?\s*\Z")
_ESCAPES = re.compile(r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)?|\[[0-?]*[ -/]*[@-~]?|.)?")
_METRIC = re.compile(r"\d{10,16} \S{1,60} \d{1,15}\s")


def _line_of_json(line: str) -> Record | None:
    start, end = line.find("{"), line.rfind("}")
    if start < 0 or end < start or '"' not in line or line.find("scale", start) < 0:
        return None
    try:
        entry = json.loads(line[start : end + 1])
    except (ValueError, RecursionError):
        return None
    record = json_record(entry) if isinstance(entry, dict) else None
    if record is None or not (record.used or record.next):
        return None
    record.free = record.wording == "free"
    return record


class _GuidedTable:
    """guided-diffusion, logger.py, HumanOutputFormat: rows in the order of the alphabet."""

    def __init__(self) -> None:
        self._log2: Printed | None = None

    def add(self, line: str) -> Record | None:
        """Returns the record that ends with this row."""
        if "|" not in line or not line.lstrip(" ").startswith("|"):
            return None
        cells = [cell.strip() for cell in line.split("|", 3)[:3]]
        if len(cells) < 3:
            return None
        if cells[1] == "lg_loss_scale":
            self._log2 = read_number(cells[2])
        elif cells[1] == "step" and self._log2 is not None:
            number, log2 = count_of(read_number(cells[2])), self._log2
            self._log2 = None
            return log2_record(number, log2) if number is not None else None
        return None


@dataclass
class _Columns:
    """Where a table has what."""

    step: int
    scale: int
    delimiter: str = ","
    skipped: int | None = None
    loss: int | None = None
    least: int | None = None  # W&B's __MIN and __MAX of the steps that a row stands for
    most: int | None = None
    key: int | None = None  # of tables with a row for each metric, its name
    bare: bool = False
    is_log2: bool = False

    @classmethod
    def of(cls, header: str, place: str) -> _Columns | None:
        """Returns the columns of a table by its header; None without a step and a scale."""
        if len(header) > _LONGEST_LINE:
            return None
        delimiter = max(",;\t", key=re.sub(r'"[^"]*"', "", header).count)
        try:
            names = [
                name.strip().lower()
                for name in next(csv.reader([header.strip("\r")], delimiter=delimiter), [])
            ]
        except csv.Error:
            return None
        last = [re.split(r"[/ ]", name)[-1] for name in names]

        def find(*known: str) -> int | None:
            return next((last.index(name) for name in known if name in last), None)

        step, value = find(*_STEP_COLUMNS), find("value")
        named = [i for i, name in enumerate(names) if is_scale_name(name)]
        bare = [i for i, name in enumerate(names) if is_bare_name(name)]
        log2 = [i for i, name in enumerate(last) if name == "lg_loss_scale"]
        scales = named or bare or log2
        key = find("key", "metric", "name") if value is not None and not scales else None
        is_tag = not scales and value is not None and "wall time" in names and _is_scale_tag(place)
        if is_tag or key is not None:
            scales = [value or 0]
        if step is None or not scales:
            return None
        if len(scales) > 1:  # W&B has a column for each run of a plot
            raise InputError(
                f"{place}: the scales of several runs, expected a file of one run, got "
                f"{names[scales[0]]!r} and {names[scales[1]]!r}"
            )
        found = cls(step, scales[0], delimiter, key=key)
        found.skipped = find(*SKIP_KEYS)
        # Not "train/loss", by which Hugging Face's Trainer and others name a mean.
        found.loss = next((i for i, name in enumerate(names) if name in _LOSS_COLUMNS), None)
        found.bare = scales is bare and found.skipped is None
        found.is_log2 = scales is log2
        scale = names[scales[0]]
        found.least = names.index(f"{scale}__min") if f"{scale}__min" in names else None
        found.most = names.index(f"{scale}__max") if f"{scale}__max" in names else None
        return found

    def _cell(self, row: Sequence[str], at: int | None) -> str:
        text = row[at].strip() if at is not None and at < len(row) else ""
        return text.replace(",", ".") if self.delimiter == ";" else text

    def _number(self, row: Sequence[str], at: int | None, place: str, line: int) -> Printed:
        number = whole_number(self._cell(row, at))
        if number is None:
            got = self._cell(row, at)[:80]
            raise InputError(
                f"{place}:{line}: not a number, expected a number in each column, got {got!r}"
            )
        return number

    def record(self, row: Sequence[str], place: str, line: int) -> Record | None:
        """Returns what a row says; None for one without a step or a scale."""
        if not self._cell(row, self.step) or not self._cell(row, self.scale):
            return None
        if self.key is not None and not is_scale_name(self._cell(row, self.key)):
            return None
        step = self._number(row, self.step, place, line)
        if not abs(step.value) < 2**53:
            raise InputError(f"{place}:{line}: not a step, expected an integer, got {step.value}")
        used = self._number(row, self.scale, place, line)
        loss = whole_number(self._cell(row, self.loss))
        if self.is_log2:
            record = log2_record(int(step.value), used)
        else:
            record = Record(STEPS, "table", number=int(step.value), used=used, bare=self.bare)
        if record is None:
            return None
        record.loss = loss.value if loss is not None else None
        record.wording = "table"
        if self.skipped is not None:
            record.overflow = self._cell(row, self.skipped).lower() not in _FALSE
        record.least = whole_number(self._cell(row, self.least))
        record.most = whole_number(self._cell(row, self.most))
        return record


_FALSE = ("", "0", "0.0", "false")


def _is_scale_tag(path: str) -> bool:
    """Whether a file is TensorBoard's "run-NAME-tag-train_loss_scale.csv"."""
    name = os.path.basename(path).lower()
    tag = name[max(name.rfind("tag-"), 0) :]
    return "lg_loss_scale" not in tag and any(word in tag for word in SCALE_NAMES)


def read_logs(paths: Sequence[str], tag: str | None = None) -> Log:
    """Reads the logs of one training in their order; `tag` is that of TensorBoard's scale."""
    reader = _Reader()
    for path in paths:
        if tag is not None and not is_event_log(path):
            raise UsageError(f"tag: expected an event log of TensorBoard, got {path!r}")
        reader.read(path, tag)
    return reader.log


def refuse_without_scale(paths: Sequence[str]) -> None:
    """Raises InputError for logs in which no scale is found."""
    raise InputError(
        f"{name_of(paths[0])}: no loss scale found, expected lines or CSV columns with a step and "
        "a scale, or a log of DeepSpeed, Apex, Megatron-LM or another stack of docs/explain.md"
    )
