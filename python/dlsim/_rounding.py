# SPDX-License-Identifier: Apache-2.0
"""PyTorch tensors rounded to a format: in place, or in a graph, with the gradient rounded, too."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from . import _core
from ._core import Format
from ._errors import UsageError
from .arrays._convert import TensorStats, measure, quantize
from .arrays._dtypes import format_of
from .recorder._tensors import mapped

Tensor = torch.Tensor
Rule = Callable[[Tensor], Tensor]

_CB16 = Format("cb16")
_CB16_DROPPED = 23 - _CB16.mantissa_bits  # of the mantissa of float32


class Rounding:
    """A place where tensors are rounded, and the counts of what that did, if asked.

    `how` are rounding, overflow, subnormals and seed, as of dlsim.quantize. Stochastic rounding
    draws other numbers in each call.
    """

    def __init__(self, format: Any, name: str = "", *, count: bool = False, **how: Any) -> None:
        """Begins without counts; raises UsageError or TypeError for a bad argument."""
        self.format: Format = format_of(format)
        self.stats: TensorStats | None = None
        self._name, self._count, self._how = name, count, how
        self._calls = 0
        self._lock = threading.Lock()  # on a GPU, backward runs on a thread of its own
        quantize(torch.zeros(1), self.format, **how)  # a misspelt name is an error now

    def __call__(self, tensor: Tensor) -> Tensor:
        """Returns the rounded values in a new tensor of the same type, without a graph."""
        if tensor.is_sparse:
            whole = tensor.coalesce()
            values = self(whole.values())
            sparse: Tensor = torch.sparse_coo_tensor(whole.indices(), values, whole.shape)
            return sparse
        values, how = tensor.detach(), self._how
        if not has_kernels(values.device):
            if not how and not self._count and self.format.name in ("fp16", "bf16", "cb16"):
                near: Tensor = rounded_by_torch(values.float(), self.format.name).to(tensor.dtype)
                return near
            values = values.cpu()
        with self._lock:
            if how.get("rounding") == "sr":
                how = {**how, "stream": _core.stream_of(self._name, self._calls)}
            self._calls += 1
            if self._count:
                self.stats = _sum_of(self.stats, measure(values, self.format, **how))
        rounded: Tensor = quantize(values, self.format, **how).to(tensor.device, tensor.dtype)
        return rounded


def rounded_in_place(values: Tensor, format: str) -> None:
    """Rounds real values in place, of any type, shape, layout in memory and device.

    To nearest even; subnormals are kept, overflow gives infinity and NaN stays NaN.
    """
    if values.is_cpu and values.dtype == torch.float32 and values.is_contiguous():
        quantize(values, format, out=values)
    else:
        values.copy_(Rounding(format)(values))


@functools.cache
def has_kernels(device: torch.device) -> bool:
    """Returns whether this dlsim rounds tensors on a device."""
    if device.type != "cuda" or torch.version.hip is not None:
        return device.type == "cpu"
    try:
        _core.require_cuda("values", device.index)
    except UsageError:
        return False
    return True


def rounded_by_torch(values: Tensor, format: str) -> Tensor:
    """Returns what the codec does of float32 in fp16, bf16 or cb16, but for the payload of NaN."""
    if format != "cb16":
        kept: Tensor = values.to(torch.float16 if format == "fp16" else torch.bfloat16).float()
        return kept
    bits = values.view(torch.int32)
    # To nearest even: a carry out of the mantissa goes into the exponent. NaN may leave its range.
    odd = (bits >> _CB16_DROPPED) & 1
    half = (1 << (_CB16_DROPPED - 1)) - 1
    normal = ((bits + half + odd) & -(1 << _CB16_DROPPED)).view(torch.float32)
    normal = torch.where(normal.abs() <= _CB16.max_finite, normal, torch.sign(values) * torch.inf)
    # Both products are exact but for the rounding of torch.round, which is to even and keeps -0.
    steps = torch.mul(values, 1 / _CB16.min_positive)
    subnormal = steps.round() * _CB16.min_positive
    rounded = torch.where(values.abs() < _CB16.min_normal, subnormal, normal)
    return torch.where(values.isnan(), values, rounded)


def _sum_of(total: TensorStats | None, part: TensorStats) -> TensorStats:
    """Returns the counters of two tensors together."""
    if total is None:
        return part
    added = {
        field.name: getattr(total, field.name) + getattr(part, field.name)
        for field in dataclasses.fields(part)
        if field.name not in ("format", "scale", "absmax")
    }
    return dataclasses.replace(part, **added, absmax=max(total.absmax, part.absmax))


class _StraightThrough(torch.autograd.Function):
    """Rounds in forward; its gradient is the gradient of its output, rounded by a rule if given.

    Differentiable any number of times: the rounding of a gradient has the same rule again.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, forward: Rule | None, backward: Rule | None) -> Tensor:
        ctx.rule = backward
        return values.clone() if forward is None else forward(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return round_gradient(gradients[0], ctx.rule), None, None


def straight_through(values: Tensor, forward: Rule | None, backward: Rule | None) -> Tensor:
    """Returns values rounded by `forward`, whose gradient `backward` rounds; None: not at all."""
    result: Tensor = _StraightThrough.apply(values, forward, backward)
    return result


def round_gradient(gradient: Tensor, rule: Rule | None) -> Tensor:
    """Returns the gradient rounded by `rule`, differentiable where a graph is being recorded."""
    if rule is None:
        return gradient
    return rule(gradient) if gradient.is_sparse else straight_through(gradient, rule, rule)


def map_tensors(value: Any, function: Rule) -> Any:
    """Applies `function` to every floating-point tensor in nested containers; keeps the rest.

    Containers are tuples, named tuples, lists, mappings and dataclasses; they are copied. A tensor
    that occurs several times is mapped once, so that it stays one tensor.
    """
    done: dict[int, Tensor] = {}

    def once(tensor: Tensor) -> Tensor:
        if id(tensor) not in done:
            done[id(tensor)] = function(tensor)
        return done[id(tensor)]

    return mapped(value, lambda one: isinstance(one, Tensor) and one.is_floating_point(), once)
