# SPDX-License-Identifier: Apache-2.0
"""What the recorder asks of tensors that a model computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from .. import _core
from ..arrays import _dtypes

# What masks fill in is below minus this: -1e4 itself was chosen to fit fp16.
LEAST_MASK = 1e4

# Negative constants that differ by less are one: a mask may be added to other terms.
_SAME = 2.0**-20

# Of the energy of inputs, what differs between samples, where float32 has it and bf16 may lose it.
_SMALL_SHARES = 2.0**-40, 2.0**-15

_SAMPLES = 4, 64  # that are enough to see it, and that are looked at

# The same names and types come in every step.
role_of = lru_cache(maxsize=1 << 16)(_core.role_of)
name_of_dtype = lru_cache(maxsize=64)(_dtypes.name_of_dtype)


def tensors_in(output: Any) -> Iterator[Any]:
    """Yields the tensors of a module's output, in order: a tensor, or nested containers of them."""
    import torch

    if isinstance(output, torch.Tensor):
        yield output
        return
    items: Iterable[Any] = ()
    if isinstance(output, Mapping):
        items = output.values()
    elif isinstance(output, (tuple, list)):
        items = output
    for item in items:
        yield from tensors_in(item)


def floats_in(output: Any) -> list[Any]:
    """Returns the dense floating-point tensors of an output, in order."""
    import torch

    return [
        one for one in tensors_in(output) if one.is_floating_point() and one.layout is torch.strided
    ]


def replaced(value: Any, new: Mapping[int, Any], *, copies: bool) -> Any:
    """Returns arguments of an operator, with other tensors in the place of some, for another call.

    `new` has these by the identities of those that they replace. With `copies`, the operator writes
    to memory of its own.
    """
    if isinstance(value, (list, tuple)):
        return type(value)(replaced(one, new, copies=copies) for one in value)
    if isinstance(value, Mapping):
        return {key: replaced(one, new, copies=copies) for key, one in value.items()}
    if not hasattr(value, "detach"):
        return value
    value = new.get(id(value), value).detach()
    return value.clone() if copies else value


def is_loss(tensor: Any, *, of_model: bool) -> bool:
    """Returns whether backward starts from the output of a module, as far as its shape tells."""
    return tensor.dim() == 0 or (of_model and tuple(tensor.shape) == (1,))


def in_backward() -> bool:
    """Returns whether autograd runs a backward pass; before PyTorch 2.0 nothing tells: False."""
    import torch

    module: Any = torch  # the stubs of older versions lack the function
    task = getattr(module._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


def is_mask(values: Any) -> bool:
    """Returns whether what is large in a tensor is one negative constant, several times or alone.

    Such a constant becomes minus infinity in 16 bits, and hides a score as before.
    """
    if not bool((values < -LEAST_MASK).any()):
        return False
    finite = values[values.isfinite()]
    large = finite[finite.abs() > LEAST_MASK].double()
    if large.numel() == 0:
        return False
    least, most = float(large.min()), float(large.max())
    repeated = large.numel() > 1 or large.numel() == int(finite.count_nonzero())
    return repeated and most < 0 and most - least <= -least * _SAME


def differences_of(inputs: Any) -> Any:
    """Returns by how much samples differ from their mean, as shares of the root mean square.

    None if there are few samples, all are the same, or they differ enough for any format of 16
    bits. Features are the last axis, or the second of four or more.
    """
    if inputs.dim() < 2 or inputs.shape[0] < _SAMPLES[0] or inputs.numel() == 0:
        return None
    feature = 1 if inputs.dim() >= 4 else inputs.dim() - 1
    rest = [axis for axis in range(inputs.dim()) if axis != feature]
    values = inputs.detach()[: _SAMPLES[1]]
    shares = (values - values.mean(rest, keepdim=True)) / values.square().mean().sqrt()
    little, enough = _SMALL_SHARES
    return shares if little < float(shares.square().mean()) < enough else None
