# SPDX-License-Identifier: Apache-2.0
"""Trains in 16 bits as torch.autocast on CUDA does, on a CPU: by torch's own, or emulated.

torch.autocast("cpu") leaves exp, softmax, pow, sums and norms in 16 bits, which that of CUDA runs
in float32. `CudaRules` gives such functions float32 inputs, as a model does that writes `.float()`.
PyTorch has no tensors of CB16: `Emulated` rounds float32 tensors where autocast would make 16-bit
ones, forward and backward, and follows which tensors those are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import models
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dlsim.emulation import quantize
from dlsim.recorder._autocast import as_first, policy_of
from dlsim.recorder._tensors import tensors_in

# cross_entropy is log_softmax, which CUDA runs in float32, and nll_loss; `grad` differentiates.
WIDE = frozenset({"cross_entropy", "grad", "float"})
NARROW_TYPES = (torch.float16, torch.bfloat16)
IN_A_ROW, SHARE = 40, 0.2  # skipped steps beyond which a training is lost


@dataclass
class Outcome:
    """How a training ended: the final error, infinite if it was lost, and the skipped steps."""

    loss: float
    skipped: int


def runs_narrow(function: str) -> bool | None:
    """Returns whether CUDA's autocast runs a function in 16 bits; None: as its inputs are."""
    return False if function in WIDE else policy_of(function)


class CudaRules(TorchFunctionMode):
    """Within torch.autocast("cpu"), converts what CUDA's autocast converts to float32."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Calls the function."""
        kwargs = kwargs or {}
        if runs_narrow(_name(func)) is False:
            args, kwargs = mapped((args, kwargs), _float32)
        return func(*args, **kwargs)


def _float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in NARROW_TYPES else tensor


class Emulated(TorchFunctionMode):
    """Rounds the inputs and results that CUDA's autocast has in 16 bits to a format."""

    def __init__(self, format: str) -> None:
        super().__init__()
        self.format = format

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Calls the function and marks its results."""
        kwargs, name = kwargs or {}, _name(func)
        narrow = runs_narrow(name)
        given = [one for one in tensors_in((args, kwargs)) if one.is_floating_point()]
        if narrow:
            args, kwargs = mapped((args, kwargs), self._rounded)
        elif narrow is None:
            deciding = [one for one in given if one.dim()] or given
            if as_first(name):
                deciding = deciding[:1]
            narrow = bool(deciding) and all(_is_narrow(one) for one in deciding)
        result = func(*args, **kwargs)
        if not narrow:
            return result
        return mapped(result, lambda one: one if is_one_of(one, given) else self._rounded(one))

    def _rounded(self, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or _is_narrow(tensor):
            return tensor
        result = quantize(tensor, self.format, gradient=self.format)
        result.is_narrow = True
        return result


def _name(func: Any) -> str:
    return getattr(func, "__name__", "")


def _is_narrow(tensor: Tensor) -> bool:
    return getattr(tensor, "is_narrow", False)


def is_one_of(tensor: Tensor, others: list[Tensor]) -> bool:
    """Tells whether a tensor is one of others, not only equal to it."""
    return any(tensor is other for other in others)


def mapped(value: Any, change: Any) -> Any:
    """Returns a value with its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(one, change) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(mapped(one, change) for one in value)
    return value


@contextmanager
def computing_in(format: str) -> Iterator[None]:
    """Within it, models compute as under autocast with a format: torch's own fp16 and bf16."""
    types = {"fp16": torch.float16, "bf16": torch.bfloat16}
    with ExitStack() as stack:
        if format in types:
            stack.enter_context(torch.autocast("cpu", types[format]))
            stack.enter_context(CudaRules())
        elif format:
            stack.enter_context(Emulated(format))
        yield


def train(training: models.Training, format: str, start: float) -> Outcome:
    """Trains in a format, none for float32, with torch's GradScaler unless its start is 1."""
    scaler = torch.amp.GradScaler("cpu", init_scale=start, enabled=start != 1)
    network, skipped, in_a_row = training.network, 0, 0
    network.train()
    for batch in training.batches():
        training.optimizer.zero_grad()
        with computing_in(format):
            loss = training.recipe.loss(network(batch[0]), batch[1])
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(training.optimizer)
        scaler.update()
        in_a_row = in_a_row + 1 if scaler.get_scale() < before else 0
        skipped += in_a_row > 0
        if in_a_row >= IN_A_ROW:
            return Outcome(math.inf, skipped)
    error = training.error()
    if skipped > SHARE * training.recipe.steps or not math.isfinite(error):
        return Outcome(math.inf, skipped)
    return Outcome(error, skipped)
