# SPDX-License-Identifier: Apache-2.0
"""Results of the command: the JSON as it is, and as flat tables."""

from __future__ import annotations

import html
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._errors import InputError, UsageError
from .._files import replacing
from .._text import counted
from ._columns import Table
from ._diagnosis import Diagnosis, diagnosis_of
from ._expectations import Expectation, expectations_of
from ._forward import (
    FirstOverflow,
    ForwardOverflow,
    ForwardVerdict,
    NonfiniteTensor,
    VanishingTensor,
)
from ._tables import table_names, tables
from ._verdict import (
    Change,
    FormatVerdict,
    PathInWindows,
    RefusedSteps,
    StepWindow,
    TensorAtRisk,
    Verdict,
    verdict_of,
)

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects

__all__ = [
    "Change",
    "Diagnosis",
    "Expectation",
    "FirstOverflow",
    "FormatVerdict",
    "ForwardOverflow",
    "ForwardVerdict",
    "JudgedResult",
    "NonfiniteTensor",
    "PathInWindows",
    "RefusedSteps",
    "Result",
    "StepWindow",
    "Table",
    "TensorAtRisk",
    "VanishingTensor",
    "Verdict",
    "read_result",
    "table_names",
    "tables",
]


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What a command of dlsim found.

    `data` is the JSON of docs/results.md, where numbers that are not finite are the texts "inf",
    "-inf" and "nan"; `report` is the text that the command prints; `notes` are remarks that it
    made on the way; `command` can be pasted into a shell, quoted.
    """

    command: tuple[str, ...]
    data: dict[str, Any]
    notes: tuple[str, ...] = ()
    report: str = ""

    @property
    def schema(self) -> str:
        """The name of the JSON's form, such as "dlsim.replay/1"."""
        return str(self.data["schema"])

    @property
    def verdict(self) -> Verdict | None:
        """The answer of replay and tune; None for other commands, and for files that lack it."""
        return verdict_of(self.data)

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Forward or backward, of explain; None for other commands, and for files that lack it."""
        return diagnosis_of(self.data)

    @property
    def expectations(self) -> tuple[Expectation, ...]:
        """What came of the keyword `expect`; empty without it."""
        return expectations_of(self.data)

    @property
    def table_names(self) -> tuple[str, ...]:
        """The names of the tables, the principal one first."""
        return table_names(self.data)

    def to_frame(self, table: str | None = None) -> pandas.DataFrame:
        """Returns one of the tables (default: the principal one) as a pandas data frame."""
        try:
            import pandas
        except ImportError as error:
            raise ModuleNotFoundError(
                "to_frame needs pandas: pip install 'dlsim-numerics[frames]'", name="pandas"
            ) from error
        names = self.table_names
        chosen = names[0] if table is None else table
        if chosen not in names:
            raise UsageError(f"table: expected one of {', '.join(names)}, got {table!r}")
        return pandas.DataFrame(tables(self.data, only=chosen)[chosen])

    def plot(self) -> plotly.graph_objects.Figure:
        """Returns a figure of a replay or tune: safe loss scales of each step, scales of the runs.

        It has a row for each format. Raises UsageError for results of other commands.
        """
        from ..report.figures import figure_of

        return figure_of(self.data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the JSON, which `dlsim report` reads."""
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            json.dump(self.data, file, separators=(",", ":"), ensure_ascii=False)
            file.write("\n")

    def __repr__(self) -> str:
        return "\n".join([*self._lines(), f"<dlsim.Result {self.schema}: {self._extent()}>"])

    def _repr_html_(self) -> str:
        lines = self._lines()
        said = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
        text = _without(self.report, lines) or self._extent()
        return (
            f"{said}<p><b>{html.escape(self.schema)}</b>: {html.escape(self._extent())}</p>"
            f"<pre>{html.escape(text)}</pre>"
        )

    def _lines(self) -> tuple[str, ...]:
        """Returns those of the verdict or of a diff; none of one that cannot be read."""
        try:
            said = self.data.get("lines", ())
            return tuple(map(str, said)) if self.verdict is None else self.verdict.lines
        except InputError:
            return ()

    def _extent(self) -> str:
        return ", ".join(counted(len(rows), name) for name, rows in _lists(self.data).items())


class JudgedResult(Result):
    """What `dlsim.replay` and `dlsim.tune` found: a Result that has a verdict."""

    @property
    def verdict(self) -> Verdict:
        """The answer: which format trains, at which loss scales, and what is at risk."""
        found = super().verdict
        if found is None:
            raise InputError(f"{self.schema}: no verdict in this result")
        return found


def read_result(path: str | os.PathLike[str]) -> Result:
    """Reads JSON that the command or `Result.save` has written.

    Raises InputError if the file cannot be read or is no result of dlsim.
    """
    data = read_json(path)
    if not isinstance(data, dict) or not str(data.get("schema", "")).startswith("dlsim."):
        raise InputError(f"{Path(path)}: expected a result of dlsim with a schema, got other JSON")
    return Result((), data)


def read_json(path: str | os.PathLike[str]) -> Any:
    """Reads a file of JSON; raises InputError if it is none."""
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not JSON, byte {error.start} is not UTF-8") from error
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name}: not JSON, or cut off: {message}") from error


def _reject_constant(text: str) -> float:
    raise ValueError(f"the number {text}")


def _without(report: str, lines: tuple[str, ...]) -> str:
    """Returns a report without the lines that it begins with, wrapped."""
    first, _, rest = report.partition("\n\n")
    return rest if first.split() == " ".join(lines).split() else report


def _lists(data: dict[str, Any]) -> dict[str, list[Any]]:
    return {key: value for key, value in data.items() if isinstance(value, list) and value}
