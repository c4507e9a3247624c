# SPDX-License-Identifier: Apache-2.0
"""What is recorded about a step: the loss scale, given or read from a scaler, and more."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

# Between an optimizer's hook and the scaler that calls it, wrappers may lie.
_FRAMES = 24

_NONE: Mapping[Any, Any] = {}


def scale_of(scale: Any, scaler: Any) -> float:
    """Returns the stated scale, or that of `scaler`; raises TypeError if there is neither.

    A scaler has `get_scale()` or `scale`, as those of torch, dlsim.amp and dlsim.LossScaler.
    """
    if scale is not None:
        return float(scale)
    if scaler is None:
        raise TypeError(
            "scale: missing, expected the loss scale that the gradients carry now: scale=1.0 if "
            "they are unscaled"
        )
    get_scale = getattr(scaler, "get_scale", None)
    return float(get_scale() if callable(get_scale) else scaler.scale)


def unscaled_in(scaler: Any) -> list[Any]:
    """Returns the optimizers, or their ids, whose gradients a GradScaler has unscaled in this step.

    Those of torch and of dlsim.amp say it; of others nothing is known.
    """
    found = []
    for optimizer, state in _states_of(scaler).items():
        stage = state.get("stage") if isinstance(state, Mapping) else state
        if getattr(stage, "name", "") in ("UNSCALED", "STEPPED"):
            found.append(optimizer)
    return found


def is_in_use(scaler: Any) -> bool:
    """Returns whether losses are multiplied by the scale of a GradScaler of torch or dlsim.amp."""
    return _states_of(scaler) is not _NONE and getattr(scaler, "_scale", None) is not None


def has_scaled_nothing(scaler: Any) -> bool:
    """Returns whether a GradScaler of torch is on, but has not multiplied any loss so far."""
    on = _states_of(scaler) is not _NONE and getattr(scaler, "_enabled", True)
    return bool(on) and hasattr(scaler, "_scale") and scaler._scale is None


def scaler_at_work() -> Any:
    """Returns the GradScaler of torch or dlsim.amp whose `step` runs in this thread, or None."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            break
        owner = frame.f_locals.get("self") if frame.f_code.co_name == "step" else None
        if _states_of(owner) is not _NONE and callable(getattr(owner, "get_scale", None)):
            return owner
        frame = frame.f_back
    return None


def _states_of(scaler: Any) -> Mapping[Any, Any]:
    states = getattr(scaler, "_per_optimizer_states", getattr(scaler, "_states", None))
    return states if isinstance(states, Mapping) else _NONE


def texts_of(metadata: Mapping[str, object]) -> dict[str, str]:
    """Returns metadata as text; numbers in tensors as those of Python. None is left out."""
    texts = {}
    for key, value in metadata.items():
        item = getattr(value, "item", None)
        known = item() if callable(item) else value
        if known is not None:
            texts[key] = str(known)
    return texts
