# SPDX-License-Identifier: Apache-2.0
"""PyTorch's attention: its scores by themselves, and what autocast rounds for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib import import_module
from typing import Any

from ._tensors import tensors_in

# Scores of attention that are computed one by one: 64 MiB.
_DECOMPOSED_UP_TO = 1 << 24


def decomposed(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], allowed: Callable[[], bool]
) -> Any:
    """Returns a context in which attention computes its scores by themselves.

    If they are few, and it is `allowed`, which is asked only then.
    """
    if name not in ("scaled_dot_product_attention", "multi_head_attention_forward"):
        return nullcontext()
    if not allowed():
        return nullcontext()
    try:
        attention: Any = import_module("torch.nn.attention")
    except ImportError:  # before PyTorch 2.3
        return nullcontext()
    query, key = [one for one in _given(args, kwargs) if one.dim() >= 2][:2]
    if name == "scaled_dot_product_attention":
        scores = query.numel() // query.shape[-1] * key.shape[-2]
    else:  # places, batch and features; as many heads as the fifth argument says
        heads = kwargs.get("num_heads", args[4] if len(args) > 4 else 1)
        scores = query.numel() // query.shape[-1] * key.shape[0] * heads
    return (
        attention.sdpa_kernel(attention.SDPBackend.MATH)
        if scores <= _DECOMPOSED_UP_TO
        else nullcontext()
    )


def may_be_repeated() -> bool:
    """Returns whether backward may compute again what runs now, as in checkpointing.

    That works with hooks on saved tensors, or without gradients at first. What is computed again,
    outside of the forward pass, must be by the same kernels: others keep other tensors for
    backward, which is an error, and draw other numbers for dropout.
    """
    import torch

    if not torch.is_grad_enabled():
        return True
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks("in use"):
            return False
    except RuntimeError:  # there are some
        return True


def rounded_by(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Yields what a function has 16-bit copies of.

    Not the mask that attention adds: what overflows in it hides a score, as it should.
    """
    if name == "scaled_dot_product_attention":
        args, kwargs = args[:3], {key: kwargs[key] for key in kwargs if key != "attn_mask"}
    yield from tensors_in((args, kwargs))


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    yield from tensors_in((args, {key: kwargs[key] for key in ("query", "key") if key in kwargs}))
