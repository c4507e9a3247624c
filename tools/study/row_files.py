# SPDX-License-Identifier: Apache-2.0
"""Kept results as CSV files, whose rows are dataclasses of texts."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

Row = TypeVar("Row")


def write(path: Path, kind: type[Any], rows: Sequence[Any]) -> None:
    """Writes rows of a kind."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [one.name for one in fields(kind)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def read(path: Path, kind: type[Row]) -> list[Row]:
    """Returns the rows of a file that `write` has written."""
    with path.open(newline="") as file:
        return [kind(**record) for record in csv.DictReader(file)]
