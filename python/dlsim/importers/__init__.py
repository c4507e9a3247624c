# SPDX-License-Identifier: Apache-2.0
"""Dumps of other tools to dlsim's traces and profiles: what `dlsim import` does."""

from __future__ import annotations

from ._numbering import Position
from ._pt import import_pt
from ._runs import Imported

__all__ = ["Imported", "Position", "import_pt"]
