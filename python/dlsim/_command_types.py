# SPDX-License-Identifier: Apache-2.0
"""Types of the keywords of `dlsim.replay` and the others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from ._core import Format

if TYPE_CHECKING:
    import numpy as np

    class TorchDType(Protocol):
        """A dtype of PyTorch, which need not be installed."""

        @property
        def is_floating_point(self) -> bool:
            """Whether its elements are floats."""
            ...

    DType: TypeAlias = np.dtype[Any] | type | TorchDType
else:
    DType = type

PathText: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = PathText | Sequence[PathText]
Number: TypeAlias = float | str
FormatName: TypeAlias = str | Format | DType
FormatNames: TypeAlias = FormatName | Sequence[FormatName]
Names: TypeAlias = str | Sequence[str]
Settings: TypeAlias = Mapping[str, bool | float | str]


class Keyword(NamedTuple):
    """An option of the command, how its value is written, and its help."""

    flag: str
    kind: str
    help: str
