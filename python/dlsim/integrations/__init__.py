# SPDX-License-Identifier: Apache-2.0
"""Callbacks for trainers that have the training loop to themselves; each imported when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._huggingface import HuggingFaceRecorder as HuggingFaceRecorder

__all__ = ["HuggingFaceRecorder"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from . import _huggingface

        return getattr(_huggingface, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
