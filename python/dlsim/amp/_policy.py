# SPDX-License-Identifier: Apache-2.0
"""A scaler's arguments turned into the policy of the C++ library that decides for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real

import numpy as np
import torch

from .._core import LossScaler
from .._errors import UsageError


def number(place: str, value: object) -> float:
    """Returns a real number or a scalar tensor or array as float; refuses text, bool, NaN, inf."""
    item = getattr(value, "item", None)
    plain = item() if callable(item) and getattr(value, "ndim", None) == 0 else value
    if isinstance(plain, bool) or not isinstance(plain, Real):
        raise TypeError(f"{place}: wrong type, expected a number, got {type(value).__name__}")
    try:
        result = float(plain)
    except OverflowError:  # an integer beyond float64
        result = math.inf
    if not math.isfinite(result):
        raise UsageError(
            f"{place}: not a finite number, expected one such as 2.0**15, got {result}"
        )
    return result


def is_dynamic(loss_scale: object) -> bool:
    """Returns whether `loss_scale` is "dynamic"; refuses any other text."""
    if isinstance(loss_scale, str) and loss_scale != "dynamic":
        raise UsageError(
            f"GradScaler.loss_scale: unknown text, expected 'dynamic' or a number, got "
            f"{loss_scale!r}"
        )
    return isinstance(loss_scale, str)


def make_policy(
    policy: str, loss_scale: object, arguments: Mapping[str, object], half_dtype: str
) -> LossScaler:
    """Returns the policy with its first state; arguments that are None have the code's defaults.

    The policy itself takes 0 for the default, as the original does. Raises PolicyRefusal, a
    ValueError with the original's message, where the original raises ValueError.
    """
    settings = {}
    if policy != "cerebras":
        settings["fp16_type"] = "float16" if half_dtype == "float32" else half_dtype
    if not is_dynamic(loss_scale):
        scale = 1.0 if loss_scale is None else number("GradScaler.loss_scale", loss_scale)
        settings["loss_scale"] = repr(scale)
    for name, value in arguments.items():
        if value is not None:
            settings[name] = repr(number(f"GradScaler.{name}", value))
    return LossScaler(policy, settings)


def checkpoint_values(state_dict: object, fields: Mapping[str, object]) -> dict[str, float]:
    """Returns those of `fields` that a checkpoint has, as numbers.

    Raises TypeError for what is no mapping and ValueError for values that cannot be right.
    """
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            "GradScaler.load_state_dict: wrong type, expected a dict, got "
            f"{type(state_dict).__name__}"
        )
    values = {
        name: number(f"GradScaler state {name}", state_dict[name])
        for name in fields
        if name in state_dict
    }
    if not 0.0 < float(torch.tensor(values.get("loss_scale", 1.0), dtype=torch.float32)) < math.inf:
        raise UsageError(
            "GradScaler state loss_scale: not a loss scale, expected a positive float32 number, "
            f"got {values['loss_scale']}"
        )
    return values


def checkpoint_tensors(policy: LossScaler) -> dict[str, torch.Tensor]:
    """Returns the state of a policy as the original's checkpoints hold it."""
    return {
        name: torch.tensor(value, dtype=torch.float32 if name == "loss_scale" else torch.int64)
        for name, value in policy.checkpoint().items()
    }


def inverse_of(scale: float) -> float:
    """Returns 1 / scale in float32; infinity for 0."""
    # Dividing float32 values in float64 and rounding is the same as dividing in float32.
    return float(np.float32(1.0 / scale if scale else math.inf))
