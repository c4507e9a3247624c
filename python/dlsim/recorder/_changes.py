# SPDX-License-Identifier: Apache-2.0
"""What was done to the values of gradients between backward and the optimizer's step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .._errors import Error
from ._names import smallest_of

_ENOUGH = 4  # elements that show a factor
_DOUBTS = 4  # steps that are compared: a scale that is forgotten is missing in all
_LEAST_SCALE = 2.0**-8  # that is told from other factors

PLACE = (
    "expected Recorder.step right after backward(), before unscale_(), clipping, optimizer.step(), "
    "update() and zero_grad()"
)
CLEARED = f"the gradients were cleared after backward, {PLACE}"


class Changes:
    """Distinguishes clipping and unscaling from other changes, such as rounding.

    It keeps the gradient of one small parameter, `name`. The scaler of dlsim.amp unscales in place,
    not always by a power of two.
    """

    def __init__(self, parameters: Mapping[str, Any], scaler: Any) -> None:
        self.name = smallest_of(parameters, _ENOUGH)
        self._unscales = hasattr(scaler, "_states")
        self._before: Any = None  # a copy of what backward has left
        self._recorded: tuple[Any, float] | None = None  # a copy of what was, and the stated scale
        self._doubts = _DOUBTS

    def given(self, gradient: Any) -> None:
        """Keeps what backward has left."""
        self._before = gradient.detach().clone()

    def check(self, given: Mapping[str, Any], scale: float) -> None:
        """Raises Error if gradients were cleared, clipped, or unscaled and `scale` is not 1."""
        self._recorded, gradient = None, given.get(self.name or "")
        if gradient is None or self._before is None:
            return
        # No version tells: PyTorch's scaler and, while operators are seen, clipping count none.
        before = self._before
        if not any(bool(one.any()) for one in given.values() if one is not None) and bool(
            before.any()
        ):
            raise Error(CLEARED)
        self._check_factor(_factor(before, gradient), before, scale)
        if self._doubts > 0:
            self._recorded = gradient.detach().clone(), scale

    def _check_factor(self, factor: float | None, before: Any, scale: float) -> None:
        if factor is None:
            return
        if scale != 1 and abs(factor * scale - 1) < _rounding(before):
            raise Error(
                f"{self.name}.grad: was divided by {scale:g} after backward, expected scale=1.0, "
                "or Recorder.step before unscale_()"
            )
        if not self._unscales and not _is_scale(factor, before):
            raise Error(
                f"{self.name}.grad: was multiplied by {factor:.3g} after backward, as clipping "
                f"does, {PLACE}"
            )

    def used(self, gradient: Any, divisor: float | None) -> None:
        """Raises Error if what the optimizer is given shows another scale than what was stated.

        `divisor` is the scale of the scaler that works for the optimizer, as far as one is seen.
        """
        recorded, self._recorded = self._recorded, None
        if recorded is None or gradient is None:
            return
        before, stated = recorded
        factor, near = _factor(before, gradient), _rounding(before)
        if divisor is not None and stated not in (1, divisor):  # clipping may hide the factor
            factor = 1 / divisor
        if factor is None:
            return
        carried = 1 / factor
        known = divisor is not None and abs(carried / divisor - 1) < near
        # Numbers of micro-steps and of ranks divide, too.
        far = not _LEAST_SCALE < carried / stated < 1 / _LEAST_SCALE and _is_scale(factor, before)
        if abs(carried / stated - 1) < near or not (known or far):
            self._doubts -= 1
            return
        raise Error(
            f"recorded with scale={stated:g}, but then the gradients were divided by {carried:g} "
            "for the optimizer: if that is the loss scale, say scale= or scaler="
        )

    def clear(self) -> None:
        """Forgets what backward has left."""
        self._before = None


def _factor(before: Any, now: Any) -> float | None:
    """Returns what all elements were multiplied by, if it is one factor below 1."""
    import torch

    if before.layout != torch.strided or now.layout != torch.strided:
        return None
    known = (before != 0) & before.isfinite() & now.isfinite()
    ratios = now.detach()[known].double() / before[known].double()
    if ratios.numel() < _ENOUGH:
        return None
    low, high = ratios.aminmax()
    if not 0 < low <= high < 1 or high - low > _rounding(now) * high:
        return None
    return float(ratios.median())


def _is_scale(factor: float, gradient: Any) -> bool:
    """Returns whether a factor is a power of two, as loss scales are."""
    return abs(factor / 2.0 ** round(math.log2(factor)) - 1) < _rounding(gradient)


def _rounding(gradient: Any) -> float:
    """Returns the relative error of a factor."""
    import torch

    return 4 * torch.finfo(gradient.dtype).eps
