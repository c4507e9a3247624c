# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a float32 forward pass would have 16 bits under autocast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ._autocast import as_first, kept_in, policy_of
from ._memory import ByMemory, is_plain, memory_of
from ._regions import Regions
from ._tensors import tensors_in


class Widths:
    """Follows the types that tensors would have, by the memory that they lie in.

    What nothing is known of has 32 bits, as parameters and inputs have. `regions` tells where
    autocast is off: there types follow from those that operations are given.
    """

    def __init__(self, parameters: Mapping[str, Any], regions: Regions) -> None:
        self._regions = regions
        self._function: bool | None = None  # what the function that runs now makes of operators
        self._scores = False  # whether it is an attention that has only scores yet
        self._linear = False  # whether it calls others of them, such as `linear`
        self._keeps: frozenset[str] = frozenset()  # what it tells to keep the type that it is given
        self._narrow: ByMemory[bool] = ByMemory()
        self._all_parameters = parameters
        self._parameters: dict[int, str] = {}  # by memory
        self.begin()
        self._used: dict[str, bool] = {}  # parameters that were read, and whether rounded
        self._watched: set[int] = set()
        self._read: set[int] = set()  # of the watched

    def begin(self) -> None:
        """Begins a forward pass: looks where the parameters lie, which may have moved."""
        self._parameters = {
            memory_of(one): name for name, one in self._all_parameters.items() if is_plain(one)
        }

    def narrow(self, tensor: Any) -> bool:
        """Returns whether a tensor would have 16 bits."""
        if tensor.element_size() == 2:
            return True
        return is_plain(tensor) and bool(self._narrow.get(tensor))

    def is_parameter(self, tensor: Any) -> bool:
        """Returns whether a tensor is a parameter, or a part of one."""
        return is_plain(tensor) and memory_of(tensor) in self._parameters

    def watch(self, tensors: Iterable[Any]) -> None:
        """Says of which tensors to note that operators read them, from now on."""
        self._watched = {memory_of(one) for one in tensors}
        self._read = set()

    def is_watched(self, tensor: Any) -> bool:
        """Returns whether a tensor is one of those, or another in its memory."""
        return memory_of(tensor) in self._watched

    def was_read(self, tensor: Any) -> bool:
        """Returns whether an operator has read a watched tensor, or another in its memory."""
        return memory_of(tensor) in self._read

    def set(self, tensor: Any, narrow: bool) -> None:
        """Says what a tensor would have."""
        if is_plain(tensor):
            self._narrow.set(tensor, narrow)

    def computed(
        self,
        operation: str,
        given: Sequence[Any],
        results: Iterable[Any],
        *,
        in_place: bool,
        stated: bool | None = None,
    ) -> tuple[bool | None, bool]:
        """Follows an operator from the tensors that it was given to those that it has made.

        `stated`: whether it was told to make them of 16 bits, if it was told a type. Returns what
        decides on the type of these: whether 16 bits, or None if the widest type that it was given
        does; and whether the first tensor alone does.
        """
        policy = self._policy(operation)
        if policy is None and self._adds_bias(operation, given):
            policy = True
        self._note_reads(given, policy is True)
        if in_place:
            return None, True  # the tensor keeps its type
        first = policy is None and as_first(operation)
        decided = policy if policy is not None else False if self._regions.casts else None
        decided = decided if stated is None else stated
        narrow = self._widest(given[:1] if first else given) if decided is None else decided
        for result in results:
            self.set(result, narrow)
        return decided, first and decided is None

    @contextmanager
    def inside(self, function: str, given: Iterable[Any]) -> Iterator[None]:
        """Says which of torch's functions calls the operators of the block, with what.

        Fused attention has scores in float32, and their softmax in 16 bits.
        """
        outer = self._function, self._scores, self._linear, self._keeps
        if self._function is None:
            self._function = self._listed(function)
            self._scores = function == "scaled_dot_product_attention"
            if self._scores and self._regions.off:
                self._function = self._widest(list(tensors_in(given)))
            self._linear = function == "multi_head_attention_forward"
            self._keeps = kept_in(function)
        try:
            yield
        finally:
            self._function, self._scores, self._linear, self._keeps = outer

    def copies(self, called: str) -> bool:
        """Returns whether a function or an operation has autocast copy in 16 bits what it is given.

        What a function calls is given those copies.
        """
        return self._function is None and self._listed(called) is True

    def _adds_bias(self, operation: str, given: Sequence[Any]) -> bool:
        """Returns whether it is the second half of a `linear` within PyTorch's attention."""
        in_linear = self._linear and not self._regions.off and operation == "add"
        return in_linear and any(map(self.is_parameter, given)) and any(map(self.narrow, given))

    def rounds(self, operation: str) -> bool:
        """Returns whether the operation has what it is given in 16 bits."""
        return self._scores or self._policy(operation) is True

    def _policy(self, operation: str) -> bool | None:
        self._scores = self._scores and operation != "softmax"
        if self._scores:
            return False
        if operation in self._keeps:
            return None
        return self._listed(operation) if self._function is None else self._function

    def _listed(self, name: str) -> bool | None:
        return None if self._regions.off else policy_of(name)

    def _widest(self, given: Sequence[Any]) -> bool:
        """Returns whether the widest of tensors has 16 bits.

        Those without dimensions count only among themselves.
        """
        if self._regions.casts:
            return False
        floats = [one for one in given if one.is_floating_point()]
        deciding = [one for one in floats if one.dim() > 0] or floats
        return bool(deciding) and all(self.narrow(one) for one in deciding)

    def _note_reads(self, given: Iterable[Any], rounded: bool) -> None:
        for one in given:
            if not is_plain(one):
                continue
            place = memory_of(one)
            if place in self._watched:
                self._read.add(place)
            if (name := self._parameters.get(place)) is not None:
                self._used[name] = self._used.get(name, False) or rounded

    def wide_parameters(self) -> list[str]:
        """Returns the parameters that were read, and nowhere in 16 bits."""
        return [name for name, rounded in self._used.items() if not rounded]
