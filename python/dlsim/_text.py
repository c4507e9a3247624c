# SPDX-License-Identifier: Apache-2.0
"""How numbers and lists are written in messages and tables, as the commands in C++ write them."""

from __future__ import annotations

import math

TYPE_CHECKING = False  # as in __init__.py
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = "(root)"  # represents the model itself, which has no name among its modules


def some_of(names: Iterable[str], most: int = 5) -> str:
    """Returns the first names of several for a message; the empty one is that of a model."""
    known = [name or ROOT for name in names]
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
    one = f"{things[:-3]}y" if things.endswith("ies") else things.removesuffix("s")
    return f"{count} {one if count == 1 else things}"


def percent_text(fraction: float) -> str:
    """Returns a share as a percentage that tells "none" from "few"."""
    if fraction == 0:
        return "0"
    return f"{100 * fraction:.3g} %" if fraction >= 0.0001 else f"{100 * fraction:.1e} %"


def scale_text(scale: float) -> str:
    """Returns a scale as a power of two, "2^15" or "2^50.83"; 0, 1 and infinity as such."""
    if scale == 1 or not 0 < scale < math.inf:
        return f"{scale:g}"
    exponent = math.log2(scale)
    return f"2^{exponent:.0f}" if exponent == round(exponent) else f"2^{exponent:.2f}"


def wrapped(line: str) -> str:
    """Returns a line of a report in 80 columns, further lines indented."""
    from textwrap import fill

    more = " " * (len(line) - len(line.lstrip()) + 2)
    return fill(line, 80, subsequent_indent=more, break_on_hyphens=False) + "\n"


def table_text(rows: Sequence[Sequence[str]]) -> str:
    """Returns a table of texts: the first column to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = ""
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        text += "  ".join(["", row[0].ljust(widths[0]), *cells]).rstrip() + "\n"
    return text
