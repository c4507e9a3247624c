# SPDX-License-Identifier: Apache-2.0
"""JSON inside HTML: text that no browser takes for markup, and large parts in compressed form."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Mapping
from typing import Any

# Control characters, those that change the order in which text is shown, and those without width.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_MARKUP = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def visible(text: object) -> str:
    """Returns text whose control, direction and surrogate characters are written as \\uXXXX."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", str(text))


def number(value: object) -> float | None:
    """Returns a number of a result, where infinities and NaN are text; None if it is none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str) and value in ("inf", "-inf", "nan"):
        return float(value)
    return None


def integer(value: object) -> int:
    """Returns a count of a result; 0 where there is none that is finite."""
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) else 0


def objects(item: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Returns the objects of an array; none where there is no such array."""
    value = item.get(key)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def part(item: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Returns an object within an object; an empty one where there is none."""
    value = item.get(key)
    return value if isinstance(value, dict) else {}


def log2(value: object) -> float | None:
    """Returns the binary logarithm to 4 decimals; None where there is none that is finite."""
    magnitude = number(value)
    if magnitude is None or not math.isfinite(magnitude) or magnitude <= 0:
        return None
    return round(math.log2(magnitude), 4)


def digits(value: float | None, count: int = 4) -> float | str | None:
    """Returns a number with `count` significant digits; infinities and NaN become text."""
    if value is None:
        return None
    if not math.isfinite(value):
        return str(value)
    return float(f"{value:.{count}g}")


def embed(value: object) -> str:
    """Returns ASCII JSON that stays inert inside a script element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_MARKUP)


def packed(value: object) -> str:
    """Returns JSON as base64 of zlib, for parts of many numbers; page.js unpacks it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode("ascii"), 6)).decode("ascii")
