# SPDX-License-Identifier: Apache-2.0
"""Rounding of PyTorch tensors to a format, in forward and backward, with counts of what it did."""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

try:
    import torch
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "dlsim.emulation: PyTorch is missing, expected `pip install torch`", name="torch"
    ) from None

from .. import _core
from .._core import Format, stream_of
from .._errors import UsageError
from ..arrays import _convert
from ..arrays._tensor_stats import TensorStats

__all__ = [
    "Place",
    "Rounding",
    "Tensor",
    "add_stats",
    "map_tensors",
    "readable",
    "round_gradient",
    "straight_through",
    "torch",
]

Tensor = torch.Tensor
Rule = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Rounding:
    """How values are rounded; the names are those of `dlsim replay`."""

    format: Format
    rounding: str = "rne"
    overflow: str = "inf"
    subnormals: str = "keep"
    seed: int = 0

    def round(self, tensor: Tensor, stream: int = 0) -> Tensor:
        """Returns the rounded values in a new tensor of the same type, without a graph."""
        if tensor.is_sparse:
            whole = tensor.coalesce()
            values = self.round(whole.values(), stream)
            sparse: Tensor = torch.sparse_coo_tensor(whole.indices(), values, whole.shape)
            return sparse
        values = readable(tensor)
        rounded: Tensor = _convert.quantize(values, self.format, **self._options(stream))
        typed: Tensor = rounded.to(tensor.device, tensor.dtype)
        return typed

    def measure(self, tensor: Tensor, stream: int = 0) -> TensorStats:
        """Returns what `round` does to the elements of a tensor."""
        values = tensor.coalesce().values() if tensor.is_sparse else tensor
        stats: TensorStats = _convert.measure(
            readable(values), self.format, **self._options(stream)
        )
        return stats

    def _options(self, stream: int) -> dict[str, Any]:
        return {
            "rounding": self.rounding,
            "overflow": self.overflow,
            "subnormals": self.subnormals,
            "seed": self.seed,
            "stream": stream,
        }


def readable(tensor: Tensor) -> Tensor:
    """Returns the tensor without a graph, on the CPU where dlsim has no kernels for its device."""
    plain = tensor.detach()
    return plain if plain.is_cuda and _runs_on_cuda(plain.device.index) else plain.cpu()


@functools.cache
def _runs_on_cuda(device: int) -> bool:
    try:
        _core.require_cuda("values", device)
    except UsageError:
        return False
    return torch.version.hip is None


class Place:
    """A place in a model where tensors are rounded, and the counts of what that did."""

    def __init__(self, rounding: Rounding, name: str, *, count: bool) -> None:
        self._rounding = rounding
        self._name = name
        self._count = count
        self._calls = 0
        self._lock = threading.Lock()  # on a GPU, backward runs on a thread of its own
        self.stats: TensorStats | None = None

    def __call__(self, tensor: Tensor) -> Tensor:
        """Returns the rounded tensor, without a graph, and counts."""
        with self._lock:
            stochastic = self._rounding.rounding == "sr"
            stream = stream_of(self._name, self._calls) if stochastic else 0
            self._calls += 1
            if self._count:
                self.stats = add_stats(self.stats, self._rounding.measure(tensor, stream))
        return self._rounding.round(tensor, stream)


def add_stats(total: TensorStats | None, part: TensorStats) -> TensorStats:
    """Returns the counters of two tensors together."""
    if total is None:
        return part
    added = {
        field.name: getattr(total, field.name) + getattr(part, field.name)
        for field in dataclasses.fields(part)
        if field.name not in ("format", "scale", "absmax")
    }
    return dataclasses.replace(part, **added, absmax=max(total.absmax, part.absmax))


class StraightThrough(torch.autograd.Function):
    """Rounds in forward; its gradient is the gradient of its output, rounded by a rule if given.

    Differentiable any number of times: the rounding of a gradient has the same rule again.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, forward: Rule | None, backward: Rule | None) -> Tensor:
        """Returns the rounded values; without a rule, a copy."""
        ctx.rule = backward
        return values.clone() if forward is None else forward(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Passes the gradient on, rounded if there is a rule."""
        (gradient,) = gradients
        return round_gradient(gradient, ctx.rule), None, None


def straight_through(values: Tensor, forward: Rule | None, backward: Rule | None) -> Tensor:
    """Applies StraightThrough: `forward` rounds the values, `backward` their gradient."""
    result: Tensor = StraightThrough.apply(values, forward, backward)
    return result


def round_gradient(gradient: Tensor, rule: Rule | None) -> Tensor:
    """Returns the gradient rounded by `rule`, differentiable where a graph is being recorded."""
    if rule is None:
        return gradient
    if gradient.is_sparse:
        return rule(gradient)
    return straight_through(gradient, rule, rule)


def map_tensors(value: Any, function: Rule) -> Any:
    """Applies `function` to every floating-point tensor in nested containers; keeps the rest.

    Containers are tuples, named tuples, lists, mappings and dataclasses; they are copied. A tensor
    that occurs several times is mapped once, so that it stays one tensor.
    """
    return _map(value, function, {})


def _map(value: Any, function: Rule, done: dict[int, tuple[Any, Any]]) -> Any:
    if id(value) in done:
        return done[id(value)][1]
    result = value
    if isinstance(value, Tensor):
        result = function(value) if value.is_floating_point() else value
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        result = type(value)(*(_map(item, function, done) for item in value))
    elif isinstance(value, (tuple, list)):
        result = type(value)(_map(item, function, done) for item in value)
    elif isinstance(value, dict):
        result = copy.copy(value)
        for key, item in value.items():
            result[key] = _map(item, function, done)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        result = copy.copy(value)
        for field in dataclasses.fields(value):
            item = _map(getattr(value, field.name), function, done)
            object.__setattr__(result, field.name, item)
    done[id(value)] = (value, result)  # keeps `value` alive, so that its id stays its own
    return result
