# SPDX-License-Identifier: Apache-2.0
"""Records the gradients of a training loop as a trace or a profile, without disturbing it."""

from ._joining import join_shards
from ._recorder import Recorder
from ._report import RecordedTensor, Report
from ._selection import Selection, selections_of_config

__all__ = [
    "RecordedTensor",
    "Recorder",
    "Report",
    "Selection",
    "join_shards",
    "selections_of_config",
]
