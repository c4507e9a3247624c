# SPDX-License-Identifier: Apache-2.0
"""Tables of results as Arrow tables and data frames: names as categories, counts as integers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._errors import UsageError
from ..results import Result, read_result, table_names, tables

if TYPE_CHECKING:
    import pandas
    import pyarrow

PathText = str | os.PathLike[str]

# Texts that repeat row by row.
NAMES = frozenset(
    "cause cause_tensor dtype format kind metric optimizer policy resume.kept role rounding "
    "run_name subnormals tensor type".split()
)
_SCHEMA_KEY, _TABLE_KEY = b"dlsim.schema", b"dlsim.table"


def need(module: str) -> Any:
    """Imports pyarrow or pandas. Raises ModuleNotFoundError that says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ModuleNotFoundError(
            f"tables need {package}: pip install 'dlsim-numerics[frames]'", name=package
        ) from error


def result_of(source: Result | Mapping[str, Any] | PathText) -> Result:
    """Returns a result of a run, its JSON data, or the path of its JSON file."""
    if isinstance(source, Result):
        return source
    if isinstance(source, Mapping):
        return Result((), dict(source))
    return read_result(source)


def chosen_tables(result: Result, names: Sequence[str]) -> list[str]:
    """Returns `names` if the result has such tables. Raises UsageError."""
    known = table_names(result.data)
    for name in names:
        if name not in known:
            raise UsageError(f"table: expected one of {', '.join(known)}, got {name!r}")
    return list(dict.fromkeys(names))


def arrow_table(
    source: Result | Mapping[str, Any] | PathText, table: str | None = None
) -> pyarrow.Table:
    """Returns a table of a result (default: the principal one) as an Arrow table.

    Integers, also where a row has none, are int64; names are dictionaries; numbers that are not
    finite are floats. The metadata of the schema hold the result's schema and the table's name.
    Raises UsageError, InputError, and ModuleNotFoundError without pyarrow.
    """
    arrow = need("pyarrow")
    result = result_of(source)
    name = table_names(result.data)[0] if table is None else table
    chosen_tables(result, [name])
    columns = tables(result.data, only=name)[name]
    made = arrow.table({key: _array(arrow, key, column) for key, column in columns.items()})
    return made.replace_schema_metadata({_SCHEMA_KEY: result.schema, _TABLE_KEY: name})


def to_frame(
    source: Result | Mapping[str, Any] | PathText, table: str | None = None
) -> pandas.DataFrame:
    """Returns a table of a result (default: the principal one) as a data frame.

    Names are categories; integers of which a row may have none, such as `micro`, are Int64.
    Raises UsageError, InputError, and ModuleNotFoundError without pandas or pyarrow.
    """
    need("pandas")
    return frame_of(arrow_table(source, table))


def to_frames(source: Result | Mapping[str, Any] | PathText) -> dict[str, pandas.DataFrame]:
    """Returns all tables of a result as data frames by their names."""
    result = result_of(source)
    return {name: to_frame(result, name) for name in table_names(result.data)}


def frame_of(table: pyarrow.Table) -> pandas.DataFrame:
    """Returns an Arrow table as a data frame with types that can be missing."""
    arrow, pandas = need("pyarrow"), need("pandas")
    frame = table.to_pandas()
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count and arrow.types.is_int64(column.type):
            frame[name] = pandas.array(column.to_pylist(), dtype="Int64")
        elif column.null_count and arrow.types.is_boolean(column.type):
            frame[name] = pandas.array(column.to_pylist(), dtype="boolean")
    return frame


def _array(arrow: Any, name: str, column: Sequence[object]) -> Any:
    kinds = {type(value) for value in column if value is not None}
    if kinds == {str} and name in NAMES:
        return arrow.array(column, arrow.string()).dictionary_encode()
    kind = {bool: arrow.bool_(), int: arrow.int64(), float: arrow.float64()}
    of_column = kind.get(next(iter(kinds)), arrow.string()) if kinds else arrow.null()
    return arrow.array(column, of_column)
