# SPDX-License-Identifier: Apache-2.0
"""What a training log says of its loss scale, without a trace: `dlsim explain`.

`wordings` has a row for each wording of a stack, `reading` makes records of files, `facts` the path
of the scale, `policy` checks the stack's own scaler on it, and `conclusion` says what it means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._core import Alert, Format
from .._errors import UsageError
from .._files import replacing, require_no_input
from .._values import text_of
from ..results import Result

if TYPE_CHECKING:
    from .._values import FormatName, Names, Paths, PathText

__all__ = ["explain"]


def explain(
    logs: Paths,
    *,
    tag: str | None = None,
    format: FormatName | None = None,
    expect: Names | None = None,
    csv: PathText | None = None,
    quiet: bool = False,
) -> Result:
    """Tells what a training log says of its loss scale, without a trace; dlsim.explain/1.

    `logs` are the files that the command reads, or directories of runs of TensorBoard or MLflow,
    where `tag` is that of TensorBoard's scale (default: the one named so).

    Keywords:
      format: Number format of the gradients, from which their bounds follow (default fp16)
      expect: Check a figure of the result, such as 'skipped_steps<=20', one or several
      csv: Write the scale path as CSV, one row per step
      quiet: No report; errors only
    """
    from ..runs import paths_of as texts_of_paths
    from . import conclusion
    from .facts import paths_of
    from .reading import read_logs, refuse_without_scale

    paths = texts_of_paths("explain", logs)
    if not paths:
        raise UsageError("explain: no log, expected at least one")
    name = Format("fp16" if format is None else text_of("explain: format", format)).name
    if csv is not None:
        require_no_input(csv, paths)
    given = [] if expect is None else [expect] if isinstance(expect, str) else list(expect)
    expectations = [_expectation(text_of("explain: expect", text)) for text in given]
    log = read_logs(paths, tag)
    found = paths_of(log)
    if not found:
        fails = any(loss.is_bad or loss.norm_is_bad for loss in log.losses.printed)
        if not fails or expectations or csv is not None:
            refuse_without_scale(paths)
        from .facts import Path

        found = [Path(losses=log.losses)]
    explained = conclusion.explain_paths(found, name)
    data: dict[str, Any] = conclusion.document_of(explained)
    if expectations:
        figures = data["summary"] | {"divergence_from": data["skips"]["divergence_from"]}
        data["expectations"] = [_outcome(each, figures) for each in expectations]
    if csv is not None:
        _write(csv, conclusion.csv_of(explained))
    command = ("dlsim", "explain", *paths)
    return Result(data, command, report="" if quiet else conclusion.report_of(explained))


def _expectation(text: str) -> Alert:
    """Reads an expression about a figure, as --expect of the commands in C++."""
    from .conclusion import FIGURES

    if ":" in re.split("[<>=!]", text)[0]:
        raise UsageError(
            f"--expect: a log has no runs to choose from, expected a figure alone, got {text!r}"
        )
    expectation = Alert(text, "--expect")
    expectation.require(FIGURES)
    return expectation


def _outcome(expectation: Alert, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what came of an expectation, as in the JSON."""
    found = figures[expectation.figure]
    number = None if found is None else float(found)
    is_count = number is not None and number % 1 == 0 and abs(number) < 2**53
    return {
        "run": None,
        "expression": expectation.text,
        "found": int(found) if is_count else found,
        "holds": expectation.holds(number),
    }


def _write(path: PathText, lines: Any) -> None:
    import sys

    if str(path) == "-":
        sys.stdout.writelines(lines)
        return
    with replacing(path) as temporary, open(temporary, "w", encoding="ascii") as file:
        file.writelines(lines)
