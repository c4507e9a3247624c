# SPDX-License-Identifier: Apache-2.0
"""Numbers of the page as people read them, and cells of tables that hold them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from html import escape
from typing import Any

from .._text import bytes_text
from ._json import number, visible

_THIN = "\u202f"  # narrow space that does not break
_RAISED = str.maketrans(
    "0123456789-.", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b\u00b7"
)
_POWER = re.compile(r"\b2\^(-?\d+(?:\.\d+)?)")


def format_number(value: object, count: int = 3) -> str:
    """Returns a number with `count` significant digits."""
    found = number(value)
    return "" if found is None else f"{found:.{count}g}"


def format_count(value: object) -> str:
    """Returns an integer with its thousands apart."""
    found = number(value)
    if found is None or not math.isfinite(found):
        return "" if found is None else str(found)
    return f"{int(found):,}".replace(",", _THIN)


def format_scale(value: object) -> str:
    """Returns a loss scale as a power of two: 2^15, or 2^50.83 where it is none."""
    found = number(value)
    if found is None:
        return "\u2013"
    if not math.isfinite(found) or found <= 0:
        return f"{found:g}"
    exponent = f"{math.log2(found):.2f}".rstrip("0").rstrip(".")
    return "2" + ("0" if exponent == "-0" else exponent).translate(_RAISED)


def raise_powers(text: str) -> str:
    """Returns a sentence of the command with its powers of two as the page writes them."""
    return _POWER.sub(lambda found: "2" + found[1].translate(_RAISED), text)


def format_share(value: object) -> str:
    """Returns a share as a percentage; one far below a percent as a power of ten of a whole."""
    found = number(value)
    if found is None:
        return ""
    if found == 0:
        return "0"
    if not math.isfinite(found):
        return str(found)
    percent = 100 * found
    if percent >= 0.001:
        return f"{percent:.3g}{_THIN}%"
    digits, exponent = f"{percent:.1e}".split("e")
    return f"{digits}\u00b710{str(int(exponent)).translate(_RAISED)}{_THIN}%"


def number_cell(value: object, text: str) -> str:
    """Returns the cell of a table that shows the text and sorts by the value."""
    found = number(value)
    key = "" if found is None else format_number(found, 17)
    return f'<td class="number" data-value="{key}">{escape(visible(text))}</td>'


def likeliest(text: str, counters: Mapping[str, Any]) -> str:
    """Returns the text with a tilde if a profile leaves the counters open."""
    return f"~{text}" if counters.get("exact") is False else text


def format_bytes(value: object) -> str:
    """Returns a number of bytes in the largest binary unit that leaves at least 1."""
    return bytes_text(number(value) or 0.0).replace(" ", _THIN)
