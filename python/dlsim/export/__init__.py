# SPDX-License-Identifier: Apache-2.0
"""Results as Parquet, CSV and pandas tables with typed columns: what `dlsim export` does.

`dlsim.export(...)` is `dlsim.export.export(...)`.
"""

from __future__ import annotations

import sys
from inspect import signature
from types import ModuleType

from ._arrow import arrow_table, to_frame, to_frames
from ._files import Exported, export

__all__ = ["Exported", "arrow_table", "export", "to_frame", "to_frames"]


class CallableExport(ModuleType):
    """This package, which may be called as its function."""

    Exported = Exported
    arrow_table = staticmethod(arrow_table)
    export = staticmethod(export)
    to_frame = staticmethod(to_frame)
    to_frames = staticmethod(to_frames)
    __call__ = staticmethod(export)


sys.modules[__name__].__class__ = CallableExport
__signature__ = signature(export)
