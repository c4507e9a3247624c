# SPDX-License-Identifier: Apache-2.0
"""Records gradients and forward passes of a training loop as a trace or a profile."""

from ._order import SkippedSteps
from ._output import RecordedTensor, Report
from ._recorder import Recorder
from ._watch import AlertStop, Watch

__all__ = [
    "AlertStop",
    "RecordedTensor",
    "Recorder",
    "Report",
    "SkippedSteps",
    "Watch",
]
