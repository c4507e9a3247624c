# SPDX-License-Identifier: Apache-2.0
"""The diagnosis of explain: whether a log's skipped step overflowed in forward or in backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .._errors import InputError

Side = Literal["forward", "backward", "unknown"]


@dataclass(frozen=True)
class Diagnosis:
    """Where the first skipped step of a log overflowed, as far as the logged losses show.

    `evidence` gives the reason; if `side` is "unknown", it says why the log does not decide.
    """

    side: Side
    evidence: str

    def __str__(self) -> str:
        return f"{self.side}: {self.evidence}"


def diagnosis_of(data: Mapping[str, Any]) -> Diagnosis | None:
    """Returns the diagnosis of a result's JSON, None if it has none.

    Raises InputError for one of another form.
    """
    found = data.get("diagnosis")
    if not isinstance(found, Mapping):
        return None
    for side in get_args(Side):
        if found.get("side") == side:
            return Diagnosis(side, str(found.get("evidence", "")))
    expected = ", ".join(get_args(Side))
    raise InputError(
        f"result: diagnosis: unknown side, expected {expected}, got {found.get('side')!r}"
    )
