# SPDX-License-Identifier: Apache-2.0
"""All tensors of the runs with their counters, for the table that sorts and filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ._inputs import Run
from ._json import digits, number, packed
from ._names import NameTable

# As tensor_table.js numbers them.
_ROLES = ("grad", "act_grad", "act", "value")

# Columns of tensor_table.js after name and role.
_COLUMNS = (
    "elements",
    "underflow",
    "underflow_fraction",
    "energy_lost",
    "worst_step_energy_lost",
    "subnormal",
    "overflow",
    "nonfinite",
    "absmax",
    "first_overflow_step",
)


def tensor_tables(runs: Sequence[Run], names: NameTable) -> str:
    """Returns packed tables, one per run, column by column."""
    return packed([_table(run.data["tensors"], names) for run in runs])


def _table(tensors: Sequence[Mapping[str, Any]], names: NameTable) -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = {
        "name": [names.index(tensor["name"]) for tensor in tensors],
        "role": [
            _ROLES.index(role) if (role := tensor.get("role")) in _ROLES else 0
            for tensor in tensors
        ],
        "open": [i for i, tensor in enumerate(tensors) if tensor.get("exact") is False],
    }
    for key in _COLUMNS:
        table[key] = [_digits(number(tensor.get(key))) for tensor in tensors]
    return table


def _digits(value: float | None) -> float | int | str | None:
    """A count keeps all its digits, other numbers four."""
    if value is not None and abs(value) < 2**53 and value.is_integer():
        return int(value)
    return digits(value, 4)
