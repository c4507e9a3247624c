# SPDX-License-Identifier: Apache-2.0
"""Settings and states of an optimizer, as a probe holds them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._followed import Followed

_SAME = 1e-6  # what the division by a loss scale may change

Group = tuple[str, dict[str, float]]
State = tuple[int, int, dict[str, Any]]


def settings_of(optimizer: Any, group: Mapping[str, Any]) -> Group:
    """Returns the name of an optimizer and the settings of a group that are numbers.

    `cuda` is 1 if the parameters are on a CUDA device, and `tensor_betas` if betas are tensors:
    PyTorch rounds differently then. Adam of DeepSpeed and Apex keeps its kind of weight decay in an
    attribute.
    """
    values: dict[str, float] = {}
    if any(parameter.is_cuda for parameter in group["params"][:1]):
        values["cuda"] = 1.0
    for key, value in group.items():
        if type(value) is float:  # most are
            values[key] = value
        elif key != "params" and value is not None:
            values.update(_numbers(key, value))
    if any(hasattr(beta, "numel") for beta in group.get("betas", ())):
        values["tensor_betas"] = 1.0
    if hasattr(optimizer, "adam_w_mode"):
        values["decoupled_weight_decay"] = float(bool(optimizer.adam_w_mode))
    return type(optimizer).__name__.lower(), values


def _numbers(key: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, (tuple, list)):
        for i, one in enumerate(value, 1):
            yield from _numbers(f"{'beta' if key == 'betas' else key}{i}", one)
    elif isinstance(value, (bool, int, float)) or _is_number(value):
        yield key, float(value)


def _is_number(value: Any) -> bool:
    return getattr(value, "numel", int)() == 1 and not value.is_complex()


def states_of(optimizers: Sequence[Any], followed: Sequence[Followed]) -> list[State]:
    """Returns the states of the elements that are followed, of the first optimizer that has them.

    They are empty if it has not updated them yet.
    """
    owners: dict[int, Any] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                owners.setdefault(id(parameter), optimizer)
    found = []
    for i, one in enumerate(followed):
        if id(one.parameter) in owners:
            state = owners[id(one.parameter)].state.get(one.parameter) or {}
            found.append((i, _updates(state), dict(_elements(state, one))))
    return found


def _updates(state: Mapping[str, Any]) -> int:
    steps = state.get("step", 0)
    return int(steps) if isinstance(steps, int) or _is_number(steps) else 0


def _elements(state: Mapping[str, Any], one: Followed) -> Iterator[tuple[str, Any]]:
    import torch

    exact = (torch.float32, torch.float16, torch.bfloat16)
    for name, value in state.items():
        same = isinstance(value, torch.Tensor) and value.shape == one.parameter.shape
        if same and value.dtype in exact and name != "step":
            elements = one.of(value.detach()).reshape(-1)
            yield name, elements.to("cpu", torch.float32, copy=True).numpy()


def factor(read: Any, before: Any, scale: float, eps: float) -> float | None:
    """Returns what gradients that carried `scale` were multiplied with; None if by no one number.

    `eps` is that of their type.
    """
    import numpy as np

    known = np.isfinite(read) & np.isfinite(before) & (before != 0)
    ratios = read[known].astype(np.float64) * scale / before[known]
    if len(ratios) < 4:
        return None
    middle = float(np.median(ratios))
    if not math.isfinite(middle) or np.ptp(ratios) > 4 * eps * abs(middle) or middle <= 0:
        return None
    return 1.0 if np.all(np.abs(ratios - 1) < _SAME) else middle
