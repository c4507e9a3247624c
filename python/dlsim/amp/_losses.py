# SPDX-License-Identifier: Apache-2.0
"""Losses in float32, scaled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def scaled(outputs: Any, scale: float) -> Any:
    """Returns a loss in float32 times `scale`; of lists, tuples and iterables, that of each item.

    Raises ValueError, with torch's message, for anything else.
    """
    if isinstance(outputs, torch.Tensor):
        return outputs.float() if scale == 1.0 else outputs.float() * scale
    if isinstance(outputs, (list, tuple)):
        return type(outputs)([scaled(output, scale) for output in outputs])
    if isinstance(outputs, Iterable) and not isinstance(outputs, (str, bytes)):
        return (scaled(output, scale) for output in outputs)
    raise ValueError("outputs must be a Tensor or an iterable of Tensors")
