# SPDX-License-Identifier: Apache-2.0
"""How numbers and lists are written in messages and tables, as the commands in C++ write them."""

from __future__ import annotations

TYPE_CHECKING = False  # as in __init__.py
if TYPE_CHECKING:
    from collections.abc import Iterable


def some_of(names: Iterable[str], most: int = 5) -> str:
    """Returns the first names of several for a message; the empty one is that of a model."""
    known = [name or "(root)" for name in names]
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def bytes_text(count: float) -> str:
    """Returns "12.3 MiB": in the largest binary unit that leaves at least 1, at least KiB."""
    units = ["KiB", "MiB", "GiB", "TiB"]
    count /= 1024
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.1f} {units[0]}"


def counted(count: int, things: str) -> str:
    """Returns a count with its noun, which is given in the plural: "1 step", "2 steps"."""
    return f"{count} {things.removesuffix('s') if count == 1 else things}"
