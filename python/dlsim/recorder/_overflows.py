# SPDX-License-Identifier: Apache-2.0
"""Which overflows of a forward pass would change nothing in fp16."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ._memory import ByMemory, elements_of, is_plain, view_like
from ._operators import OF_TYPE, Operator
from ._tensors import floats_in, replaced

# What is larger is infinite in fp16.
LARGEST = 65504.0

# By this share of its energy a result may differ from that of float32.
_SLIGHT = 0.25

# Operations whose gradient is not made of what they are given, and those of whose result or input
# it is, where that gives zero for an infinite one.
_PASSES = frozenset(
    """
    abs add amax amin atan clamp clamp_max clamp_min cumsum elu erf hardsigmoid hardtanh leaky_relu
    log log10 log1p log2 masked_fill max maximum mean min minimum neg reciprocal relu rsqrt rsub
    sigmoid sign softplus sqrt sub sum tanh where
    """.split()
)
_PASSES_FINITE = frozenset("exp softmax".split())  # if their result is finite
_MULTIPLIES = frozenset("conv matmul mul".split())


class Named(Protocol):
    """What was recorded of a tensor."""

    name: str


class _Infinite:
    """A tensor with infinite values, as fp16 would have it: all elements of its memory."""

    def __init__(self, tensor: Any, value: Any, sources: list[Named]) -> None:
        self.sources, self.used, self.harmless = sources, False, True
        self._all = value.new_zeros(elements_of(tensor))
        self.of(tensor).copy_(value)

    def of(self, tensor: Any) -> Any:
        """Returns that of a view of the tensor."""
        return view_like(self._all, tensor)


class Overflows:
    """Follows values that overflow through the operators that are given them.

    Such a tensor is computed a second time, as fp16 would have it, with all that is computed from
    it. Its overflow changes nothing if all that it reaches becomes finite again, nearly as in
    float32, and no gradient is made of what is infinite: where a mean of squares is infinite, its
    reciprocal root is zero, and so is the gradient of that.
    """

    def __init__(self) -> None:
        self._infinite: ByMemory[_Infinite] = ByMemory()
        self._found: list[_Infinite] = []

    def clear(self) -> None:
        """Forgets everything."""
        self._infinite.clear()
        self._found.clear()

    def harmless(self) -> list[str]:
        """Returns the names of the tensors whose overflow changes nothing."""
        names: dict[str, bool] = {}
        for one in self._found:
            for source in one.sources:
                names[source.name] = names.get(source.name, True) and one.used and one.harmless
        return [name for name, harmless in names.items() if harmless]

    def look(
        self,
        operator: Operator,
        called: tuple[Any, Any, Any],
        results: Sequence[Any],
        recorded: Named | None,
    ) -> None:
        """Follows an operator that was called, with arguments of a list and by name.

        `recorded`: its result, if fp16 would have it and it has a name.
        """
        func, *arguments = called
        given, result = self._given(arguments), results[0].detach()
        if not operator.in_place:
            self._infinite.forget(result)
        if not (given or recorded) or not is_plain(result):
            return
        for one in given.values():
            one.used = True
        value = result
        if given:
            made = None
            if len(results) == 1 and _passes(operator, arguments, given):
                infinite = {
                    id(one): given[id(one)].of(one)
                    for one in floats_in(arguments)
                    if id(one) in given
                }
                args, kwargs = replaced(arguments, infinite, copies=operator.in_place)
                made = floats_in(func(*args, **kwargs))[0]
            if made is None or not _is_near(made, result, operator):
                for one in given.values():
                    one.harmless = False
                return
            value = made
        sources = [source for one in given.values() for source in one.sources]
        if recorded is not None and _overflows(result):
            fits = (value.abs() >= OF_TYPE) & value.isfinite()  # as another value
            infinite = (value.abs() > LARGEST) & ~fits
            value = value.where(~infinite, value.sign() * math.inf)
            value = value.where(~fits, value.clamp(-LARGEST, LARGEST))
            sources.append(recorded)
        if sources and bool(value.isinf().any()):
            found = _Infinite(result, value, sources)
            self._infinite.set(result, found)
            self._found.append(found)
        elif operator.in_place:
            self._infinite.forget(result)

    def _given(self, given: Any) -> dict[int, _Infinite]:
        """Returns what is infinite of what an operator is given, by the tensors' identities."""
        found: dict[int, _Infinite] = {}
        for one in floats_in(given) if self._found else ():
            if is_plain(one) and (infinite := self._infinite.get(one)) is not None:
                if bool(infinite.of(one).isinf().any()):
                    found[id(one)] = infinite
        return found


def _passes(operator: Operator, called: list[Any], given: Mapping[int, _Infinite]) -> bool:
    """Returns whether gradients of an operator are as in float32 although some of it is infinite.

    That of a factor is made of the other, and of a divisor of the quotient.
    """
    first = id(called[0][0])  # of the list
    if operator.foreign or (operator.in_place and first not in given):
        return False
    if operator.moves or operator.operation in _PASSES | _PASSES_FINITE:
        return True
    finite = [one for one in floats_in(called) if id(one) not in given]
    learns = any(one.requires_grad for one in finite)
    if operator.operation == "div":
        return first not in given or not learns
    return operator.operation in _MULTIPLIES and len(given) == 1 and not learns


def _overflows(tensor: Any) -> bool:
    if tensor.numel() == 0 or not float(tensor.abs().amax()) > LARGEST:
        return False
    return bool(((tensor.abs() > LARGEST) & (tensor.abs() < OF_TYPE)).any())


def _is_near(made: Any, result: Any, operator: Operator) -> bool:
    """Returns whether a result in fp16 is nearly that of float32, or infinite and may be so."""
    if bool(made.isnan().any()):
        return False
    if bool(made.isinf().any()):
        return operator.operation not in _PASSES_FINITE
    lost = (made - result).double().square().sum()
    return bool(lost <= _SLIGHT * result.double().square().sum())
