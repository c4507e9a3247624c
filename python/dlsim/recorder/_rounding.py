# SPDX-License-Identifier: Apache-2.0
"""What the loss of a forward pass would be if inputs and outputs were rounded to 16 bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._memory import ByMemory, elements_of, is_plain, view_like
from ._operators import Operator
from ._tensors import floats_in, replaced
from ._widths import Widths

# Bits of significand of bf16, CB16 and fp16.
_BITS = 8, 10, 11

# By this share a loss may grow before the next format is looked at, and it is reported.
_MUCH = 0.25

# Of the mean of the losses so far: what is added to each, so that a batch with hardly any loss does
# not count.
_SLIGHT = 0.01

# Elements that are computed again in a step: 64 MiB.
_MOST = 1 << 24

# What an operation in place need not read of what it changes.
_REPLACES = frozenset("copy fill zero".split())


class RoundedLosses:
    """Computes the loss of forward passes again, from inputs and outputs that 16 bits round.

    Inputs of the model, and what the loss is made of outside of it: `outside` tells whether no
    module runs. If the model returns the loss, what comes after the last operation that reads a
    parameter, as far as the pass before tells. What is rounded in between, training may learn to do
    without.

    The geometric mean of the last two passes counts if both grow much, else the smaller growth. A
    loss that grows little in bf16 grows less in formats that are more precise, which are not looked
    at then.
    """

    def __init__(self, widths: Widths, outside: Callable[[], bool]) -> None:
        self._widths, self._outside = widths, outside
        self._passes = [_Pass(widths, self._in_loss, bits) for bits in _BITS]
        self._looked_at = 1  # of these formats
        self._learned = 0  # operations of the pass that read parameters
        self._to_learn: int | None = None  # as many, if the model returns the loss
        self._within: bool | None = (
            None  # whether it has returned that of the pass, if there is one
        )

    def clear(self) -> None:
        """Forgets the pass."""
        self._learned, self._within = 0, None
        for one in self._passes:
            one.clear()

    def look(
        self, operator: Operator, called: tuple[Any, Any, Any], results: Sequence[Any]
    ) -> None:
        """Follows an operator that was called, with arguments of a list and by name."""
        given = floats_in(called[1:])
        for one in self._passes[: self._looked_at]:
            one.look(operator, called, results)
        self._learned += any(map(self._widths.is_parameter, given))
        if _may_be_loss(operator, given, results[0]):
            of_losses = all(one.dim() == 0 for one in given)
            self._within = not self._outside() or (of_losses and bool(self._within))

    def _in_loss(self) -> bool:
        """Returns whether what is computed now is the loss, or what it is made of."""
        return self._outside() or self._learned == self._to_learn

    def growth(self) -> dict[int, float]:
        """Ends a pass; returns by which share the loss grows, by bits, where it is or was much."""
        found: dict[int, float] = {}
        early = self._to_learn is not None and self._learned > self._to_learn
        if self._within is not None:
            self._to_learn = self._learned if self._within else None
        if early:
            return found
        for i, one in enumerate(self._passes[: self._looked_at]):
            growth = one.end()
            if growth is not None and one.much:
                found[_BITS[i]] = max(0.0, growth)
                self._looked_at = max(self._looked_at, min(i + 2, len(_BITS)))
        return found


def _may_be_loss(operator: Operator, given: Sequence[Any], result: Any) -> bool:
    """Returns whether backward may start from a result: the last such is the loss."""
    import torch

    learns = torch.is_grad_enabled() and any(one.requires_grad for one in given)
    return result.dim() == 0 and not operator.moves and learns


class _Pass:
    """A forward pass that is computed again with some bits of significand.

    Choices, such as masks and indices, stay those of float32, and so do random numbers.
    """

    def __init__(self, widths: Widths, in_loss: Callable[[], bool], bits: int) -> None:
        self.much = False  # whether a loss has grown much
        self._signed = False  # whether one was not positive, so that no share can be named
        self._widths, self._in_loss, self._dropped = widths, in_loss, 24 - bits
        self._again: ByMemory[Any] = ByMemory()  # all elements of a memory
        self._made: ByMemory[bool] = ByMemory()  # by operators, except for copies of inputs
        self._held, self._lost = 0, False
        self._loss: tuple[Any, Any] | None = None
        self._last = math.inf  # by which share the loss of the last pass grew
        self._losses, self._sum = 0, 0.0  # so far

    def clear(self) -> None:
        self._again.clear()
        self._made.clear()
        self._held, self._lost, self._loss = 0, False, None

    def end(self) -> float | None:
        """Ends a pass; returns by which share the loss grows, None if that is not known."""
        found, self._loss = self._loss, None
        if self._lost or found is None or self._signed:
            return None
        loss, again = map(float, found)
        if not loss > 0:
            self._signed = loss <= 0
            return None
        self._losses, self._sum = self._losses + 1, self._sum + loss
        known = loss + _SLIGHT * self._sum / self._losses
        before, self._last = self._last, (again - loss) / known
        growth = min(before, self._last)
        if _MUCH < growth and before < math.inf:
            growth = math.sqrt((1 + before) * (1 + self._last)) - 1
        self.much = self.much or growth > _MUCH
        return growth

    def look(
        self, operator: Operator, called: tuple[Any, Any, Any], results: Sequence[Any]
    ) -> None:
        """Computes results again; gives up where that is not possible."""
        if self._lost:
            return
        given = [one for one in floats_in(called[1:]) if one.element_size() == 4]
        rounds = self._widths.rounds(operator.operation)
        new = {id(one): made for one in given if (made := self._read(one, rounds)) is not None}
        if not (operator.moves and given and all(map(self._is_input, given))):
            for one in results:
                self._made.set(one, True)
        known = operator.in_place and self._again.get(results[0]) is not None
        if operator.random or operator.creates or not new:
            for one in results if known or not operator.in_place else ():
                self._again.forget(one)
            return
        gone = operator.in_place and not known and operator.operation not in _REPLACES
        if gone or operator.foreign:
            # What it was made of is gone, or it may do more than compute. If all was exact, as are
            # masks of dropout, nothing is lost.
            self._lost = any(self._again.get(one) is not None for one in given)
            return
        try:
            self._compute(operator, called, new, results)
        except (RuntimeError, TypeError, ValueError):
            self._lost = True
        if _may_be_loss(operator, given, results[0]) and not self._lost:
            self._loss = results[0].detach(), self._read(results[0], rounds=False)

    def _compute(
        self,
        operator: Operator,
        called: tuple[Any, Any, Any],
        new: Mapping[int, Any],
        results: Sequence[Any],
    ) -> None:
        func, *arguments = called
        copies = operator.in_place or "batch_norm" in operator.operation
        args, kwargs = replaced(arguments, new, copies=copies)
        made = floats_in(func(*args, **kwargs))
        self._held += sum(elements_of(one) for one in results)
        self._lost = self._held > _MOST or len(made) != len(results)
        for one, again in zip(results, made, strict=True) if not self._lost else ():
            self._set(one, again, in_place=operator.in_place)

    def _read(self, tensor: Any, rounds: bool) -> Any:
        """Returns what an operator would read of a tensor; None if that is the tensor."""
        if not is_plain(tensor) or tensor.numel() == 0:
            return None
        memory = self._again.get(tensor)
        if self._in_loss() or self._is_input(tensor):
            rounds = rounds or self._widths.narrow(tensor)
        else:
            rounds = False
        if memory is None and not rounds:
            return None
        value = tensor.detach() if memory is None else view_like(memory, tensor)
        return self._rounded(value) if rounds else value

    def _is_input(self, tensor: Any) -> bool:
        if tensor.requires_grad or self._made.get(tensor):
            return False
        return not self._widths.is_parameter(tensor) and not self._widths.is_watched(tensor)

    def _rounded(self, values: Any) -> Any:
        """Returns values with fewer bits of significand, to nearest, ties to even."""
        import torch

        codes, dropped = values.contiguous().view(torch.int32), self._dropped
        up = ((codes >> dropped) & 1) + ((1 << (dropped - 1)) - 1)
        nearest = (codes + up) & -(1 << dropped)
        return torch.where(values.isfinite(), nearest.view(torch.float32), values)

    def _set(self, tensor: Any, again: Any, *, in_place: bool) -> None:
        memory = self._again.get(tensor) if in_place else None
        if memory is None:
            memory = tensor.detach().as_strided((elements_of(tensor),), (1,), 0).clone()
            self._again.set(tensor, memory)
        view_like(memory, tensor).copy_(again)
