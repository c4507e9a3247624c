# SPDX-License-Identifier: Apache-2.0
"""Results of the commands, as docs/keys.md defines them.

An object of the JSON is a Record: its keys are attributes as well. A list of objects is a Table,
whose columns are NumPy arrays. Numbers that are not finite, which JSON has as texts, are floats.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ._errors import InputError, MissingKey, UsageError, needed
from ._files import replacing
from ._text import counted, table_text
from ._values import text_of

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects

    from ._values import FormatName

__all__ = ["FormatVerdict", "Record", "Result", "Table", "Verdict", "read_result"]

_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}

# Keys of what users name, in which and below which "nan" is a name.
_NAMES = frozenset(
    "because cause_tensor config description file float32 keep_float32 kept_in_float32 label "
    "metadata module modules name names noise_tensors options paths profile sources tensor "
    "worst_harm_tensor".split()
)

# Keys that name the owner of a list, which come first in the rows of the list.
_OWNERS = ("config", "format", "policy", "name", "step", "micro", "tensor", "role", "kept")

# Lists that are empty have no kind in a file: those of texts and numbers, not of objects.
_PLAIN_LISTS = frozenset(
    "because float32 keep_float32 kept_in_float32 lines looked_at modules noise_tensors notes "
    "shape skipped sources steps steps_a steps_b".split()
)

# Lists of lists as tables: the key of the list, and what is in each.
_PAIRED = {
    "windows": ("steps", ("step", "low", "high")),
    "scales": ("scale", ("scale", "steps")),
    "binades": ("histogram", ("exponent", "count")),
    "buckets": ("tensorflow_histogram", ("edge", "count")),
}

# Objects with tables of their own; what else a result has of them.
_APART = {"verdict": ("windows",), "verdicts_of_other_roundings": ()}

_SHOWN = 10  # rows of a table


class Record(dict[str, Any]):
    """An object of a result: a dictionary whose keys are attributes, too.

    A name that is no key stands for a table below: the rows of all lists under that key, each after
    what names the objects that the list is in, such as run, format and policy.
    """

    __slots__ = ()

    def __missing__(self, name: str) -> Any:
        found = list(_lists_of(self, name, {}))
        if not found:
            raise MissingKey("key", name, [*self.keys(), *self.tables])
        return Table(row for rows in found for row in rows)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            try:
                return self[name]
            except KeyError as error:
                raise AttributeError(str(error)) from None
        raise AttributeError(name)

    @property
    def values(self) -> Any:
        """The key, where there is one, else the method of dictionaries."""
        return self["values"] if "values" in self else super().values

    @property
    def tables(self) -> list[str]:
        """The names of the tables below."""
        names = sorted(dict.fromkeys(_tables_of(self)), key=_PAIRED.__contains__)
        return [name for name in names if isinstance(self.get(name, Table()), Table)]

    def to_dict(self) -> dict[str, Any]:
        """Returns the object of the JSON, in which numbers that are not finite are texts."""
        return cast("dict[str, Any]", _plain(self))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.keys(), *self.tables]

    def __repr__(self) -> str:
        return f"Record({', '.join(f'{key}={_short(value)}' for key, value in self.items())})"


class Table(list[Any]):
    """A list of Records; a text chooses a column: `table["scale"]`, or `table.scale`.

    Columns are arrays of numbers or truth values, in which a missing number is NaN, or of objects.
    Those of nested objects have names with dots: `table["summary.steps"]`, `table.summary.steps`.
    Names of methods of lists are no attributes: `table["count"]`. Without rows, columns are empty.
    """

    __slots__ = ()

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(_columns_of(self))

    def __getitem__(self, at: Any) -> Any:
        if hasattr(at, "__array__") and at.ndim == 1:  # rows by a mask, or by their places
            if at.dtype == bool and len(at) != len(self):
                raise IndexError(f"{len(at)} truth values, expected {len(self)}, one for each row")
            places = at.nonzero()[0] if at.dtype == bool else at
            return Table(super(Table, self).__getitem__(int(place)) for place in places)
        if not isinstance(at, str):
            found = super().__getitem__(at)
            return Table(found) if isinstance(at, slice) else found
        values = [row and row.get(at) for row in self]
        if any(isinstance(value, Record) for value in values):
            return Table(values)
        if not any(row and at in row for row in self):
            columns = _columns_of(self)
            if self and at not in columns:
                raise MissingKey("column", at, list(columns))
            values = columns.get(at, [])
        return _array(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(str(error)) from None

    def to_pandas(self) -> pandas.DataFrame:
        """Returns the table as a pandas data frame."""
        frames = needed("pandas", "to_pandas needs pandas: pip install 'dlsim-numerics[frames]'")
        return frames.DataFrame({k: _array(values) for k, values in _columns_of(self).items()})

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.columns]

    def __repr__(self) -> str:
        return f"{table_text(self._shown())}{counted(len(self), 'rows')}" if self else "[]"

    def _repr_html_(self) -> str:
        if not self:
            return "<p>no rows</p>"
        head, *rows = ("".join(f"<td>{escape(x)}</td>" for x in row) for row in self._shown(40))
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _shown(self, width: int = 12) -> list[list[str]]:
        """The first rows as texts, with as many columns as there is room for."""
        columns = _columns_of(self[:_SHOWN])
        texts = [[name, *map(_short, columns[name])] for name in list(columns)[:width]]
        used = [sum(max(map(len, text)) + 2 for text in texts[: i + 1]) for i in range(len(texts))]
        kept = texts[: max(1, sum(at <= 100 for at in used))]
        if len(kept) < len(columns):
            kept.append(["..."] * len(kept[0]))
        if len(self) > _SHOWN:
            kept = [[*text, "..."] for text in kept]
        return [list(row) for row in zip(*kept, strict=True)]


class FormatVerdict(Record):
    """The verdict on one format."""

    __slots__ = ()

    @property
    def serves(self) -> bool:
        """Whether the format can be used, with or without a loss scale."""
        return self["verdict"] in ("as is", "with a scale")


class Verdict(Record):
    """The answer: sentences in `lines`, which it prints as, and the figures behind.

    It iterates over the verdicts on the formats; `verdict["fp16"]` is that on one.
    """

    __slots__ = ()

    best: str
    formats: Table
    lines: list[str]

    def __init__(self, found: Mapping[str, Any]) -> None:
        super().__init__(found)
        if isinstance(found.get("formats"), Table):
            self["formats"] = Table(map(FormatVerdict, filter(None, found["formats"])))

    def __getitem__(self, name: FormatName) -> Any:
        return super().__getitem__(text_of("verdict", name))

    def __missing__(self, name: str) -> Any:
        known = {found["format"]: found for found in self.get("formats", ())}
        if name not in known:
            from . import _core

            with suppress(InputError, UsageError):  # an alias, such as half
                name = _core.Format(name).name
        if name in known:
            return known[name]
        try:
            return super().__missing__(name)
        except KeyError:
            known_names = [*known, *self.keys()]
            raise MissingKey("format or key", name, known_names, ", ".join(known)) from None

    def __iter__(self) -> Iterator[FormatVerdict]:  # type: ignore[override]
        return iter(self.get("formats", ()))

    def __len__(self) -> int:
        return len(self.get("formats", ()))

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, (str, type)):
            return any(name is found for found in self)
        try:
            return self[cast("FormatName", name)] is not None
        except (LookupError, UsageError):
            return False

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return "\n".join(map(str, self.get("lines", ())))

    def _repr_html_(self) -> str:
        lines = (escape(str(line)).replace("\n", "<br>") for line in self.get("lines", ()))
        return "".join(f"<p>{line}</p>" for line in lines)


class Result(Record):
    """What a command of dlsim found: the whole object of its JSON.

    `report` is the text that the command prints; `notes` are remarks that it made on the way;
    `command` can be pasted into a shell, quoted. It prints as its answer.
    """

    __slots__ = ("command", "notes", "report")

    schema: str

    def __init__(
        self,
        data: Mapping[str, Any],
        command: Sequence[str] = (),
        notes: Sequence[str] = (),
        report: str = "",
    ) -> None:
        super().__init__(data if type(data) is Record else _made(data))
        if isinstance(self.get("verdict"), Record):
            self["verdict"] = Verdict(self["verdict"])
        if isinstance(others := self.get("verdicts_of_other_roundings"), Table):
            self["verdicts_of_other_roundings"] = Table(map(Verdict, filter(None, others)))
        self.command, self.report = tuple(command), report
        found = self.get("notes")
        self.notes = tuple(notes or (found if isinstance(found, list) else ()))

    @property
    def verdict(self) -> Verdict:
        """The answer of a replay, sweep or tune."""
        return cast("Verdict", self.__getattr__("verdict"))

    @property
    def expectations(self) -> Table:
        """What came of the keyword `expect`; empty without it."""
        return cast("Table", self.get("expectations", Table()))

    def plot(self) -> plotly.graph_objects.Figure:
        """Returns a figure of a replay or tune: safe loss scales of each step, scales of the runs.

        It has a row for each format. Raises UsageError for results of other commands.
        """
        from .report.figures import figure_of

        return figure_of(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the JSON, which `dlsim report` reads."""
        import json

        text = json.dumps(self.to_dict(), separators=(",", ":"), ensure_ascii=False)
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.write(text + "\n")

    def __reduce__(self) -> tuple[object, ...]:  # a NaN that is sent becomes the same one again
        return Result, (self.to_dict(), self.command, self.notes, self.report)

    def __repr__(self) -> str:
        said = self._lines() or self.report.splitlines()
        return "\n".join([*said, f"<dlsim.Result {self['schema']}: {self._extent()}>"])

    def _repr_html_(self) -> str:
        lines = self._lines()
        said = "".join(f"<p>{escape(line)}</p>" for line in lines)
        text = _without(self.report, lines) or self._extent()
        head = f"<p><b>{escape(self['schema'])}</b>: {escape(self._extent())}</p>"
        return f"{said}{head}<pre>{escape(text)}</pre>"

    def _lines(self) -> list[str]:
        """Those of the verdict, else of the result, as of a diff."""
        found = self.get("verdict", self)
        lines = found.get("lines") if isinstance(found, Record) else None
        return list(map(str, lines)) if isinstance(lines, list) else []

    def _extent(self) -> str:
        lists = ((key, value) for key, value in self.items() if isinstance(value, list) and value)
        return ", ".join(counted(len(value), key) for key, value in lists)


def read_result(path: str | os.PathLike[str]) -> Result:
    """Reads JSON that the command or `Result.save` has written.

    Raises InputError if the file cannot be read or is no result of dlsim.
    """
    data = read_json(path)
    if not isinstance(data, dict) or not str(data.get("schema", "")).startswith("dlsim."):
        raise InputError(f"{Path(path)}: expected a result of dlsim with a schema, got other JSON")
    try:
        return Result(data)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise InputError(f"{Path(path)}: not of the form {data['schema']}: {cause}") from error


def read_json(path: str | os.PathLike[str]) -> Any:
    """Reads a file of JSON; raises InputError if it is none."""
    import json

    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not JSON, byte {error.start} is not UTF-8") from error
    except ValueError as error:  # a zero byte in the name
        raise InputError(f"{name!r}: cannot be read: {error}") from error
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name}: not JSON, or cut off: {message}") from error


def _reject_constant(text: str) -> float:
    raise ValueError(f"the number {text}")


def _made(value: Any, key: str = "") -> Any:
    """Returns a value of JSON as Records, Tables and numbers, as the engine makes them."""
    if isinstance(value, Mapping):
        return Record({k: _made(v, key if key in _NAMES else k) for k, v in value.items()})
    if isinstance(value, (list, tuple)):
        made = [_made(item, key) for item in value]
        kinds = {type(item) for item in made} - {type(None)}
        return Table(made) if kinds == {Record} or not (made or key in _PLAIN_LISTS) else made
    if isinstance(value, str) and key not in _NAMES:
        return _NOT_FINITE.get(value, value)
    return math.nan if isinstance(value, float) and math.isnan(value) else value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _lists_of(record: Mapping[str, Any], name: str, owners: Mapping[str, Any]) -> Iterator[Table]:
    """Yields the nearest lists of a table in each branch of an object, with the owners' cells.

    Rows without a name get their place in the list.
    """
    key, heads = _PAIRED.get(name, (name, ()))
    found = record.get(key)
    if heads and isinstance(found, list):
        if all(isinstance(row, list) for row in found):
            lists = [[float.fromhex(x) if isinstance(x, str) else x for x in row] for row in found]
            yield Table(Record(owners, **dict(zip(heads, row, strict=True))) for row in lists)
    elif not heads and isinstance(found, Table):
        rows = [row or Record() for row in found]
        named = any(one in row for row in rows for one in _OWNERS)
        yield Table(
            Record({**owners, **({} if named else _owner(key, i, {})), **row})
            for i, row in enumerate(rows)
        )
    else:
        for below, value in record.items():
            if not isinstance(value, (Record, Table)) or name not in _APART.get(below, (name,)):
                continue
            if isinstance(value, Record):
                yield from _lists_of(value, name, owners)
            else:
                for i, row in enumerate(row or Record() for row in value):
                    yield from _lists_of(row, name, {**owners, **_owner(below, i, row)})


def _owner(key: str, index: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what names an object of a list: its index or its own name of that kind, and names."""
    one = f"{key[:-3]}y" if key.endswith("ies") else key.removesuffix("s")
    names = {name: row[name] for name in _OWNERS if name in row}
    if isinstance(twin := row.get("resume"), Record):  # a run that was interrupted
        names |= {f"resume.{name}": value for name, value in twin.items()}
    return {one: index} | {k: v for k, v in names.items() if not isinstance(v, (dict, list))}


def _tables_of(record: Mapping[str, Any]) -> Iterator[str]:
    for key, value in record.items():
        if isinstance(value, Table) and any(value):
            yield key
        elif isinstance(value, list) and value and all(isinstance(row, list) for row in value):
            yield from (name for name, (of, _) in _PAIRED.items() if of == key)
        # Rows with the same keys and types have the same tables.
        rows = value if isinstance(value, Table) else [value]
        rows = [row for row in rows if isinstance(row, Record)]
        for row in {(*dict.keys(row), *map(type, dict.values(row))): row for row in rows}.values():
            yield from (name for name in _tables_of(row) if name in _APART.get(key, (name,)))


def _columns_of(rows: Sequence[Record | None], prefix: str = "") -> dict[str, list[Any]]:
    """Returns the columns of rows by name: those of nested objects, but no lists of objects."""
    columns: dict[str, list[Any]] = {}
    for name in dict.fromkeys(key for row in rows if row for key in dict.keys(row)):
        values = [row and row.get(name) for row in rows]
        kinds = set(map(type, values)) - {type(None)}
        if any(issubclass(kind, Record) for kind in kinds):
            columns |= _columns_of(values, f"{prefix}{name}.")
        elif kinds != {Table}:
            columns[prefix + name] = values
    return columns


def _array(values: Sequence[Any]) -> Any:
    """Returns a column: truth values, integers of 64 bits, floats, or objects."""
    import numpy as np

    types = {type(value) for value in values}
    exact = all(abs(value) <= 2**53 for value in values if type(value) is int)
    if types == {bool}:
        return np.array(values, np.bool_)
    if types == {int} and all(-(2**63) <= value < 2**63 for value in values):
        return np.array(values, np.int64)
    if types <= {int, float, type(None)} and exact:
        return np.array([math.nan if value is None else value for value in values], np.float64)
    column = np.empty(len(values), object)
    for i, value in enumerate(values):
        column[i] = value
    return column


def _short(value: Any) -> str:
    """Returns a value in at most 40 characters."""
    if isinstance(value, dict):
        return "{...}" if value else "{}"
    if isinstance(value, Table):
        return counted(len(value), "rows")
    text = f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
    text = " ".join(text.split())
    return text if len(text) <= 40 else f"{text[:37]}..."


def _without(report: str, lines: Iterable[str]) -> str:
    """Returns a report without the lines that it begins with, wrapped."""
    first, _, rest = report.partition("\n\n")
    return rest if first.split() == " ".join(lines).split() else report
