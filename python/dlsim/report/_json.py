# SPDX-License-Identifier: Apache-2.0
"""JSON inside HTML: text that no browser takes for markup, and large parts in compressed form."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib

# Control characters, and those that change the order in which text is shown.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
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
    return base64.b64encode(zlib.compress(text.encode("ascii"), 9)).decode("ascii")
