# SPDX-License-Identifier: Apache-2.0
"""Rows of named values turned into columns, each of one type.

A column has values of one type (bool, int, float or str) or None where a row has none. Numbers that
are not finite are floats.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]
Table = dict[str, list[Any]]

_NOT_FINITE = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}

# Columns of texts, in which "nan" is a name.
_TEXTS = frozenset(
    "cause cause_tensor file format kept label message name notes optimizer other policy reason "
    "refused role rounding run_name step_file sum tensor type verdict why worst_harm_tensor".split()
)


def columns_of(rows: Iterable[Row]) -> Table:
    """Turns rows into columns, in the order in which they first appear."""
    columns: Table = {}
    count = 0
    for row in rows:
        for name, value in row.items():
            column = columns.setdefault(name, [])
            if len(column) < count:
                column.extend([None] * (count - len(column)))
            column.append(value)
        count += 1
    for name, column in columns.items():
        column.extend([None] * (count - len(column)))
        columns[name] = _of_one_type(name, column)
    return columns


def _of_one_type(name: str, column: list[Any]) -> list[Any]:
    if name.rpartition(".")[2] not in _TEXTS and not name.startswith("metadata."):
        column = [_NOT_FINITE.get(v, v) if isinstance(v, str) else v for v in column]
    types = {type(value) for value in column if value is not None}
    if len(types) <= 1 and not _is_too_long(types, column):
        return column
    if types <= {int, float}:
        return [None if value is None else float(value) for value in column]
    return [value if value is None or isinstance(value, str) else _text(value) for value in column]


def _is_too_long(types: set[type], column: list[Any]) -> bool:
    """Whether a column of integers does not fit 64 bits."""
    return types == {int} and any(v is not None and not -(2**63) <= v < 2**63 for v in column)


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool) else repr(value)
