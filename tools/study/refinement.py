# SPDX-License-Identifier: Apache-2.0
"""Scales between the last one that harms a model and the first that does not."""

from __future__ import annotations

from itertools import pairwise

from evidence import Case, cases
from grid import Setting
from kept import Row


def refined(rows: list[Row]) -> dict[str, list[Setting]]:
    """Returns the settings to add, by model: halfway up from each harmed scale to a sound one."""
    lines: dict[tuple[str, str], dict[int, Case]] = {}
    for case in cases(rows):
        exponents = lines.setdefault((case.row.model, case.row.format), {})
        exponents[int(case.row.under[2:])] = case
    result: dict[str, list[Setting]] = {}
    for (model, format), found in lines.items():
        order = sorted(found)
        for low, high in pairwise(order):
            if found[low].harmed and not found[high].harmed and high - low > 2:
                middle = (low + high) // 2
                result.setdefault(model, []).append(Setting(format, f"2^{middle}"))
    return result
