# SPDX-License-Identifier: Apache-2.0
"""Dumps of other tools to dlsim's traces and profiles: what `dlsim import` does."""

from __future__ import annotations

from ._act_dumps import import_act_dumps
from ._hdf5 import import_hdf5
from ._pt import import_pt, import_te
from ._steps import Imported

__all__ = ["Imported", "import_act_dumps", "import_hdf5", "import_pt", "import_te"]
