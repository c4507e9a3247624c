# SPDX-License-Identifier: Apache-2.0
"""The CSV of `dlsim replay` and `dlsim summaries`, of any size, read block by block."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._errors import InputError
from ._arrow import NAMES, need

# The first columns tell which command wrote a file.
_FIRST_COLUMNS = {
    ("format", "policy", "step", "micro"): "dlsim.replay/1",
    ("step", "micro", "tensor", "role"): "dlsim.summaries/1",
}
_WHOLE = frozenset(
    "step micro elements zeros denormals nan inf underflow subnormal overflow lowest_exponent "
    "median_exponent highest_exponent".split()
)
_TRUTHS = frozenset(("skipped", "exact"))
# The reader holds some 32 blocks at once.
_BLOCK = 1 << 20


@contextmanager
def opened_csv(path: Path) -> Iterator[Any]:
    """Gives a reader of record batches with the types of docs/results.md.

    Raises InputError for a file that is no CSV of dlsim, also while it is read.
    """
    arrow, arrow_csv = need("pyarrow"), need("pyarrow.csv")
    names = _header(path)
    types = {name: _type_of(arrow, name) for name in names}
    convert = arrow_csv.ConvertOptions(
        column_types=types, null_values=[""], strings_can_be_null=False
    )
    try:
        yield arrow_csv.open_csv(
            path,
            read_options=arrow_csv.ReadOptions(block_size=_BLOCK),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
            convert_options=convert,
        )
    except (arrow.ArrowInvalid, arrow.ArrowKeyError, arrow.ArrowNotImplementedError) as error:
        text = str(error).splitlines()[0][:200]
        raise InputError(f"{path}: cannot be read: {text}") from error


def schema_of(path: Path) -> str:
    """Returns which result a CSV is, such as dlsim.replay/1. Raises InputError."""
    return _FIRST_COLUMNS[tuple(_header(path)[:4])]  # type: ignore[index]


def _header(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            names = next(csv.reader([file.readline(1 << 16)]), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if tuple(names[:4]) not in _FIRST_COLUMNS:
        raise InputError(
            f"{path}: expected the CSV of dlsim replay or dlsim summaries, "
            f"got columns {', '.join(names[:4])[:80]!r}"
        )
    return names


def _type_of(arrow: Any, name: str) -> Any:
    if name in _WHOLE:
        return arrow.int64()
    if name in _TRUTHS:
        return arrow.bool_()
    if name in NAMES:
        return arrow.dictionary(arrow.int32(), arrow.string())
    return arrow.float64()
