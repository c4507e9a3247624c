# SPDX-License-Identifier: Apache-2.0
"""The commands of `dlsim` as functions: each runs the C++ command and returns its result.

Keywords are the options of `dlsim COMMAND --help`; `help` of a function lists them. Traces and
profiles are paths, one or several. Errors are UsageError (wrong use), PolicyRefusal (a policy
refused its parameters; the result is in its `result`), InputError (a file) and TypeError.
"""

from __future__ import annotations

from .._values import FormatName, Paths, PathText, text_of
from ..results import Result
from . import _bridge
from ._bridge import progress_to
from ._calls import paths_of, printed
from ._command_options import (
    diff,
    explain,
    info,
    profile,
    replay,
    scaler,
    sweep,
    tune,
)

__all__ = [
    "diff",
    "explain",
    "formats",
    "info",
    "merge",
    "profile",
    "progress_to",
    "replay",
    "scaler",
    "sweep",
    "tune",
]


def merge(profiles: Paths, output: PathText, *, partial: bool = False) -> Result:
    """Merges profiles of parts of a trace into `output`; the result is its dlsim.info/1.

    With `partial`, profiles may hold the same steps.
    """
    path = text_of("merge: output", output)
    options = ["--partial"] if partial else []
    arguments = ["merge", f"--output={path}", *options, "--", *paths_of("merge", profiles)]
    merged = _bridge.run(arguments, writes_json=False)
    merged.check()
    facts = info(path)
    return Result(merged.command, facts.data, (*merged.notes, *facts.notes), merged.report)


def formats(*names: FormatName) -> Result:
    """Describes number formats, all with a name if none is given; dlsim.formats/1."""
    return printed("formats", [], [text_of("formats", name) for name in names])
