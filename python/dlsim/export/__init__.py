# SPDX-License-Identifier: Apache-2.0
"""Results as Parquet, CSV and pandas tables with typed columns: what `dlsim export` does."""

from __future__ import annotations

from ._arrow import arrow_table, to_frame, to_frames
from ._files import Exported, export

__all__ = ["Exported", "arrow_table", "export", "to_frame", "to_frames"]
