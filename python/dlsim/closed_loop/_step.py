# SPDX-License-Identifier: Apache-2.0
"""The gradients of one optimizer step under a loss scale: rounded, counted, judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .. import _core
from .._core import GradientFacts, stream_of
from ..arrays._convert import measure
from ..arrays._tensor_stats import TensorStats
from ..emulation._rounding import Rounding, Tensor, add_stats, readable, torch


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
        facts = [self._facts(test, name, unscaled[name]) for name in self.scaled]
        finite, cause, tensor, lower_scale_helps = _core.judge_step(test, facts)
        squares = 0.0
        for gradient in facts:  # sum() rounds otherwise from Python 3.12 on
            squares += gradient.sum_of_squares
        verdict = {"finite": finite, "grad_norm": math.sqrt(squares)}
        if finite:
            return verdict
        if cause == "input":
            lower_scale_helps = math.isfinite(self.loss)
        return {
            **verdict,
            "cause": cause,
            "cause_tensor": tensor,
            "lower_scale_helps": lower_scale_helps,
        }

    def _facts(self, test: str, name: str, unscaled: Tensor) -> GradientFacts:
        facts, stats, scaled = GradientFacts(), self.stats[name], self.scaled[name]
        facts.name = name
        facts.has_nonfinite_input = stats.nonfinite > 0
        facts.overflows = stats.nonfinite_outputs > stats.nonfinite
        facts.absmax = stats.absmax
        facts.is_scaled_finite = bool(scaled.isfinite().all())
        facts.sum_of_squares = _sum_of_squares(unscaled)
        if test == "scaled-norm":
            facts.scaled_sum_of_squares = _sum_of_squares(scaled)
        if test == "sum":
            facts.scaled_sum = scaled.double().sum().item()
        return facts

    def _measure(self, gradient: Tensor, name: str, micro: int) -> TensorStats:
        if self._rounding is not None:
            return self._rounding.measure(gradient, stream_of(name, self.number, micro))
        stats: TensorStats = measure(readable(gradient), "bf16")  # for the inputs' counters alone
        return replace(
            stats,
            underflow=0,
            subnormal=0,
            overflow=0,
            nonfinite_outputs=stats.nonfinite,
            error_sum_of_squares=0.0,
            underflow_sum_of_squares=0.0,
        )


def _sum_of_squares(tensor: Tensor) -> float:
    """Returns the float64 sum of the squares of all elements, in the order of docs/numerics.md."""
    stats: TensorStats = measure(readable(tensor), "bf16")  # of any format: it is of the elements
    return math.nan if stats.nan else math.inf if stats.inf else stats.sum_of_squares


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
        error_sum_of_squares=stats.error_sum_of_squares * inverse * inverse,
        underflow_sum_of_squares=stats.underflow_sum_of_squares * inverse * inverse,
    )
