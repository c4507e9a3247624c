# SPDX-License-Identifier: Apache-2.0
"""The gradients of one optimizer step under a loss scale: rounded, counted, judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ._arrays import measure
from ._finite_test import all_finite, is_finite, sum_of_squares
from ._tensor_stats import TensorStats
from ._torch_rounding import Rounding, Tensor, add_stats, readable, stream_of, torch


class EmulatedStep:
    """Gradients that carry `scale`, rounded as `rounding` says (None: not) and summed.

    `scaled` are the sums over micro-steps by name, `stats` what rounding did to each, with
    magnitudes in the unit of the gradients without the scale.
    """

    def __init__(self, number: int, scale: float, rounding: Rounding | None) -> None:
        self.number = number
        self.scale = scale
        self.loss = 0.0
        self.micro_steps = 0
        self.scaled: dict[str, Tensor] = {}
        self.stats: dict[str, TensorStats] = {}
        self._rounding = rounding

    def add(self, loss: float, gradients: Mapping[str, Tensor], micro: int = -1) -> None:
        """Rounds the gradients of a micro-step and adds them; the loss is without the scale."""
        self.loss += loss
        self.micro_steps += 1
        for name, raw in gradients.items():
            gradient = raw.detach().to_dense() if raw.is_sparse else raw.detach()
            stats = without_scale(self._measure(gradient, name, micro), self.scale)
            self.stats[name] = add_stats(self.stats.get(name), stats)
            if self._rounding is not None:
                gradient = self._rounding.round(gradient, stream_of(name, self.number, micro))
            before = self.scaled.get(name)
            self.scaled[name] = gradient if before is None else before + gradient

    def unscaled(self) -> dict[str, Tensor]:
        """Returns the gradients times the float32 reciprocal of the scale, as scalers unscale."""
        inverse = _reciprocal(self.scale)
        return {name: torch.mul(gradient, inverse) for name, gradient in self.scaled.items()}

    def judge(self, test: str, unscaled: Mapping[str, Tensor]) -> dict[str, Any]:
        """Returns `finite`, `grad_norm` and, if not finite, why, as in a step of dlsim.replay/1.

        An infinite or NaN gradient has the cause `input` although backward, run with the scale, may
        have made it so: then a lower scale can help where the loss itself is finite.
        """
        scaled, plain = list(self.scaled.values()), list(unscaled.values())
        verdict = {
            "finite": is_finite(test, scaled, plain),
            "grad_norm": math.sqrt(sum_of_squares(plain)),
        }
        if not verdict["finite"]:
            verdict.update(self._explain(test, unscaled))
        return verdict

    def _explain(self, test: str, unscaled: Mapping[str, Tensor]) -> dict[str, Any]:
        bad = [name for name, stats in self.stats.items() if stats.nonfinite]
        if bad:
            return _cause("input", bad[0], math.isfinite(self.loss))
        far = {name: stats.absmax for name, stats in self.stats.items() if stats.overflow}
        if far:
            return _cause("overflow", max(far, key=far.__getitem__), True)
        largest = max(unscaled, key=lambda name: sum_of_squares([unscaled[name]]), default="")
        if not all_finite(list(self.scaled.values())):
            return _cause("accumulation", largest, all_finite(list(unscaled.values())))
        if not all_finite(list(unscaled.values())):
            return _cause("unscaling", largest, False)
        if test == "sum":
            return _cause("sum", largest, True)
        return _cause("norm", largest, test == "scaled-norm")

    def _measure(self, gradient: Tensor, name: str, micro: int) -> TensorStats:
        if self._rounding is not None:
            return self._rounding.measure(gradient, stream_of(name, self.number, micro))
        stats: TensorStats = measure(readable(gradient), "bf16")  # for the inputs' counters alone
        return replace(stats, underflow=0, subnormal=0, overflow=0, underflow_sum_of_squares=0.0)


def _cause(cause: str, tensor: str, lower_scale_helps: bool) -> dict[str, Any]:
    return {"cause": cause, "cause_tensor": tensor, "lower_scale_helps": lower_scale_helps}


def _reciprocal(scale: float) -> float:
    # Of a float32 in float64, rounded to float32 where it meets a float32 tensor: the same as the
    # float32 division, because float64 has more than twice the bits.
    return 1.0 / scale if scale else math.inf


def without_scale(stats: TensorStats, scale: float) -> TensorStats:
    """Returns the counters of values that carry a scale, with magnitudes without it."""
    inverse = _reciprocal(scale)
    return replace(
        stats,
        scale=scale,
        absmax=stats.absmax * inverse,
        sum_of_squares=stats.sum_of_squares * inverse * inverse,
        underflow_sum_of_squares=stats.underflow_sum_of_squares * inverse * inverse,
    )
