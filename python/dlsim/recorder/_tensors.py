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


def is_plain(tensor: Any) -> bool:
    """Returns whether a tensor is dense, and none that stands for others, as a DTensor does."""
    import torch

    return tensor.layout is torch.strided and not hasattr(tensor, "to_local")


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
