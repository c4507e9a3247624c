# SPDX-License-Identifier: Apache-2.0
"""Kept results of the trained networks, and the tables of docs/pretrained.md."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TypeVar

from tables import table

LOST = 0.5  # an error of the output that leaves nothing of what it says


@dataclass(frozen=True)
class Judged:
    """A network in a format under a recipe: what the command says, and how it really runs.

    `tensor` overflows first, or has the least head-room; `lost` is the largest share of its energy
    that one loses to underflow. `failed` is the first operation that is not finite, empty if all
    are; `error` is the relative error of the output.
    """

    network: str
    kind: str
    package: str
    license: str
    parameters: str
    recipe: str
    format: str
    state: str
    headroom: str
    tensor: str
    lost: str
    failed: str
    error: str


@dataclass(frozen=True)
class Scaled:
    """By how many binades inputs or weights are larger when the run in fp16 first fails.

    `said_below` and `said_at` are what the command says one binade below and there.
    """

    network: str
    recipe: str
    larger: str
    headroom: str
    failed_at: str
    failed: str
    said_below: str
    said_at: str
    tensor: str


R = TypeVar("R", Judged, Scaled)


def write(path: Path, rows: list[R]) -> None:
    """Writes rows as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [one.name for one in fields(rows[0])], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def read(path: Path, kind: type[R]) -> list[R]:
    """Returns the rows of a file that `write` has written."""
    with path.open(newline="") as file:
        return [kind(**record) for record in csv.DictReader(file)]


def is_at(tensor: str, place: str) -> bool:
    """Tells whether a recorded tensor is of the module where an operation ran."""
    module = place.rpartition("/")[0]
    return tensor.removesuffix(".act") == module or tensor.startswith((f"{module}/", f"{module}."))


def report(rows: list[Judged], larger: list[Scaled]) -> str:
    """Returns the tables of docs/pretrained.md."""
    return "\n\n".join([_networks(rows), _verdicts(rows), _larger(larger)])


def _networks(rows: list[Judged]) -> str:
    head = ["network", "what it does", "package", "license", "parameters"]
    found = {
        row.network: [row.network, row.kind, row.package, row.license, f"{int(row.parameters):,}"]
        for row in rows
    }
    return table(head, found.values())


def _verdicts(rows: list[Judged]) -> str:
    head = ["network", "recipe", "least head-room in fp16", "of", "fp16", "bf16", "cb16"]
    groups: dict[tuple[str, str], dict[str, Judged]] = {}
    for row in rows:
        groups.setdefault((row.network, row.recipe), {})[row.format] = row
    lines = []
    for (network, recipe), by_format in groups.items():
        fp16 = by_format["fp16"]
        cells = (_cell(by_format[one]) for one in ("fp16", "bf16", "cb16"))
        lines.append([network, recipe, fp16.headroom, f"`{_short(fp16.tensor)}`", *cells])
    return table(head, lines)


def _cell(row: Judged) -> str:
    """Returns whether all values are finite as predicted, and the error of the output."""
    if row.failed.startswith("not run"):
        return row.failed
    said, failed = row.state == "overflows", bool(row.failed)
    if row.tensor.endswith(".value"):  # which no operation computes
        right = said and float(row.error) > LOST
    else:
        right = said == failed and (not said or is_at(row.tensor, row.failed))
    how = "fails" if said else "fits"
    wrong = "" if right else f", but {f'fails in {_short(row.failed)}' if failed else 'is finite'}"
    if not wrong and not said and float(row.error) > LOST:
        wrong = ", but the output is lost"
    return f"{how}{wrong}; {row.error}"


def _larger(rows: list[Scaled]) -> str:
    head = [
        "network",
        "recipe",
        "larger",
        "head-room",
        "fails at",
        "in",
        "one below",
        "there",
    ]
    lines = [
        [row.network, row.recipe, _short(row.larger), row.headroom, *_failure(row)] for row in rows
    ]
    return table(head, lines)


def _failure(row: Scaled) -> list[str]:
    if not row.failed_at:
        return ["never", "", row.said_below, ""]
    return [f"2^{row.failed_at}", f"`{_short(row.failed)}`", row.said_below, _said_there(row)]


def _said_there(row: Scaled) -> str:
    if row.said_at != "overflows" or is_at(row.tensor, row.failed):
        return row.said_at
    return f"{row.said_at}: {_short(row.tensor)}"


def _short(name: str) -> str:
    """Returns a name without what all names of its network begin with."""
    return (
        name.removesuffix(".act")
        .removesuffix(".value")
        .rpartition("MagikaV2/")[2]
        .removeprefix("p2o/")
    )
