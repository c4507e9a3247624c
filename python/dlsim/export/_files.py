# SPDX-License-Identifier: Apache-2.0
"""Tables of results as files: Parquet or CSV, one or a directory of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from .._errors import InputError, UsageError
from .._files import replacing, replacing_directory, require_no_input
from .._text import counted
from ..results import Result, table_names
from ._arrow import PathText, arrow_table, chosen_tables, need, result_of
from ._csv import opened_csv, schema_of

SUFFIXES = (".parquet", ".csv")
_BATCHES_PER_GROUP = 8


@dataclass(frozen=True)
class Exported:
    """What an export has written: `rows` by the paths of its files."""

    path: Path
    rows: Mapping[Path, int]

    def __str__(self) -> str:
        lines = [f"{path}: {counted(rows, 'rows')}" for path, rows in self.rows.items()]
        return "\n".join(lines)


def export(
    source: Result | Mapping[str, Any] | PathText,
    output: PathText,
    *,
    tables: str | Sequence[str] = (),
    force: bool = False,
) -> Exported:
    """Writes tables of a result as OUTPUT.parquet, OUTPUT.csv, or a directory of Parquet files.

    `source` is a Result, its JSON data, the path of its JSON file, or that of the CSV of replay or
    summaries, which may have any size. A file takes one table, by default the principal one; a
    directory takes `tables`, by default all. Integers and truth values may be missing in a row;
    names are dictionaries (categories in pandas). What exists is an InputError unless `force`.
    Raises InputError, UsageError, and ModuleNotFoundError without pyarrow.
    """
    need("pyarrow.parquet")
    path = Path(output)
    names = [tables] if isinstance(tables, str) else list(tables)
    is_file = path.suffix in SUFFIXES
    if not is_file and path.suffix:
        raise UsageError(f"output: expected *.parquet, *.csv or a directory, got {path.name!r}")
    if is_file and len(names) > 1:
        raise UsageError(f"output: a file takes one table, expected one, got {len(names)}")
    _check_free(path, force=force, is_file=is_file)
    require_no_input(path, [source])
    if _is_csv(source):
        return _export_rows(Path(source), path, names, is_file=is_file)  # type: ignore[arg-type]
    result = result_of(source)
    known = table_names(result.data)
    chosen = chosen_tables(result, names) or list(known[:1] if is_file else known)
    if is_file:
        return Exported(path, {path: _write(result, chosen[0], path)})
    with replacing_directory(path) as temporary:
        rows = {
            path / f"{name}.parquet": _write(result, name, temporary / f"{name}.parquet")
            for name in chosen
        }
    return Exported(path, rows)


def _is_csv(source: object) -> bool:
    return isinstance(source, (str, os.PathLike)) and Path(source).suffix.lower() == ".csv"


def _check_free(path: Path, *, force: bool, is_file: bool) -> None:
    if not os.path.lexists(path):
        return
    if not force:
        raise InputError(f"{path}: exists already, expected a new name or --force")
    if path.is_dir() == is_file:
        kind = "a directory" if is_file else "no directory"
        raise InputError(f"{path}: is {kind}, so it is not replaced")
    if not is_file:
        others = [item.name for item in path.iterdir() if item.suffix != ".parquet"]
        if others:
            raise InputError(f"{path}: holds more than tables ({others[0]}), so it is not replaced")


def _write(result: Result, name: str, path: Path) -> int:
    table = arrow_table(result, name)
    with replacing(path) as temporary:
        if path.suffix == ".csv":
            need("pyarrow.csv").write_csv(_plain(table), temporary)
        else:
            need("pyarrow.parquet").write_table(table, temporary)
    return int(table.num_rows)


def _plain(table: Any) -> Any:
    """Returns a table or batch without dictionaries and columns of nothing, for CSV."""
    arrow = need("pyarrow")
    plain = arrow.schema([_plain_field(arrow, field) for field in table.schema])
    return table.cast(plain)


def _plain_field(arrow: Any, field: Any) -> Any:
    is_text = arrow.types.is_dictionary(field.type) or arrow.types.is_null(field.type)
    return field.with_type(arrow.string()) if is_text else field


def _export_rows(source: Path, path: Path, names: Sequence[str], *, is_file: bool) -> Exported:
    """Writes a CSV as one table, block by block."""
    name = "rows"
    schema = schema_of(source)
    if names and list(names) != [name]:
        raise UsageError(f"table: a CSV has the table {name} only, got {names[0]!r}")
    if is_file:
        return Exported(path, {path: _stream(source, path, schema, name)})
    with replacing_directory(path) as temporary:
        rows = _stream(source, temporary / f"{name}.parquet", schema, name)
    return Exported(path, {path / f"{name}.parquet": rows})


def _stream(source: Path, path: Path, schema_name: str, name: str) -> int:
    rows = 0
    with opened_csv(source) as reader, replacing(path) as temporary:
        metadata = {b"dlsim.schema": schema_name, b"dlsim.table": name}
        schema = reader.schema.with_metadata(metadata)
        with _batch_writer(path.suffix, temporary, schema) as write:
            for batches in _groups(reader):
                write(batches)
                rows += sum(batch.num_rows for batch in batches)
    return rows


def _groups(reader: Any) -> Iterator[list[Any]]:
    """Yields a few record batches at once: a row group of a Parquet file."""
    while batches := list(islice(reader, _BATCHES_PER_GROUP)):
        yield batches


@contextmanager
def _batch_writer(suffix: str, path: Path, schema: Any) -> Iterator[Callable[[list[Any]], None]]:
    arrow = need("pyarrow")
    if suffix == ".csv":
        plain = arrow.schema([_plain_field(arrow, field) for field in schema])
        with need("pyarrow.csv").CSVWriter(path, plain) as writer:
            yield lambda batches: writer.write(_plain(arrow.Table.from_batches(batches)))
        return
    with need("pyarrow.parquet").ParquetWriter(path, schema) as writer:
        yield lambda batches: writer.write_table(
            arrow.Table.from_batches(batches).replace_schema_metadata(schema.metadata)
        )
