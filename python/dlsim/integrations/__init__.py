# SPDX-License-Identifier: Apache-2.0
"""Recorders for trainers that have the training loop to themselves; each imported when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._accelerate import AccelerateRecorder as AccelerateRecorder
    from ._huggingface import HuggingFaceRecorder as HuggingFaceRecorder
    from ._lightning import LightningRecorder as LightningRecorder

__all__ = ["AccelerateRecorder", "HuggingFaceRecorder", "LightningRecorder"]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in __all__:
        trainer = name.removesuffix("Recorder").lower()
        return getattr(import_module(f"{__name__}._{trainer}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
