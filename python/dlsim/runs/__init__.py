# SPDX-License-Identifier: Apache-2.0
"""The commands of `dlsim` as functions: each runs the C++ command and returns its result.

Keywords are the options of `dlsim COMMAND --help`; `help` of a function lists them. Traces and
profiles are paths, one or several. Errors are UsageError (wrong use), PolicyRefusal (a policy
refused its parameters; the result is in its `result`), InputError (a file) and TypeError.
"""

from __future__ import annotations

from .._values import FormatName, text_of
from ..results import Result
from ._bridge import progress_to
from ._calls import printed
from ._command_options import (
    diff,
    info,
    profile,
    replay,
    scaler,
    sweep,
    tune,
)

__all__ = [
    "diff",
    "formats",
    "info",
    "profile",
    "progress_to",
    "replay",
    "scaler",
    "sweep",
    "tune",
]


def formats(*names: FormatName) -> Result:
    """Describes number formats, all with a name if none is given; dlsim.formats/1."""
    return printed("formats", [], [text_of("formats", name) for name in names])
