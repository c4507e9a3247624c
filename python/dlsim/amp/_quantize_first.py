# SPDX-License-Identifier: Apache-2.0
"""Gradients rounded as each backward pass makes them, before they are added up."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ._gradients import rounded_gradient


class QuantizeFirst:
    """Hooks on parameters that round what a backward pass adds to .grad while `active`."""

    def __init__(self, half_dtype: str) -> None:
        self.active = False
        self._half_dtype = half_dtype
        self._hooked: dict[int, weakref.ref[torch.Tensor]] = {}
        self._rounded: set[int] = set()

    def add(self, parameter: Any) -> None:
        """Puts a hook on `parameter` unless it has one or needs no gradient."""
        known = self._hooked.get(id(parameter))
        if parameter.requires_grad and (known is None or known() is not parameter):
            self._hooked[id(parameter)] = weakref.ref(parameter)
            parameter.register_hook(self._hook_of(id(parameter)))

    def _hook_of(self, key: int) -> Callable[[torch.Tensor], torch.Tensor | None]:
        def hook(grad: torch.Tensor) -> torch.Tensor | None:
            # With create_graph a rounded copy would cut the graph of a gradient penalty.
            if not self.active or grad.requires_grad:
                return None
            self._rounded.add(key)
            return rounded_gradient(grad, self._half_dtype)

        return hook

    def has_rounded(self, parameter: torch.Tensor) -> bool:
        """Returns whether the gradient of `parameter` consists of rounded parts."""
        return id(parameter) in self._rounded

    def finish(self) -> None:
        """Stops rounding until `active` is set again, and forgets what was rounded."""
        self.active = False
        self._rounded.clear()
