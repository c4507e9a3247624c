# SPDX-License-Identifier: Apache-2.0
"""What the operations of a forward pass give to one another, and in which type under autocast.

With it, a reader of the recording can tell what else changes if parts of the model stay in float32.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ._memory import ByMemory
from ._operators import Operator
from ._tensors import in_backward

_PARAMETER = -1  # or an input of the model: float32
_NARROW = -2  # of 16 bits, from where is not known
_OWN = str(Path(__file__).parents[1])  # this package


@dataclass
class _Node:
    """A result: how its type follows from those of its inputs, by their places, and of what it is.

    `kind` is n: it has 16 bits, w: 32, p: the widest of its inputs', f: that of its first input, i:
    the same, changed in place. In capitals if autocast copies what it is given in 16 bits.
    """

    kind: str
    inputs: list[int]
    module: str
    function: str  # of PyTorch, as the model calls it
    source: str  # the line of the model that calls it
    products: int  # multiplications
    name: str = ""  # by which it was recorded

    def line(self) -> str:
        """Returns it as one line of text."""
        inputs = ",".join(map(str, self.inputs))
        products = str(self.products) if self.products else ""
        parts = (self.kind, inputs, self.name, self.module, self.function, self.source, products)
        return "\t".join(parts).rstrip("\t")


class Graph:
    """Gathers the nodes of a step's forward pass. `module` returns the module that runs now."""

    def __init__(self, module: Callable[[], str]) -> None:
        self._module = module
        self._nodes: list[_Node] = []
        self._places: ByMemory[int] = ByMemory()
        self._function = self._source = ""

    def forget(self) -> None:
        """Forgets everything."""
        self._nodes.clear()
        self._places.clear()

    def calls(self, function: str) -> None:
        """Says which of PyTorch's functions the model calls now; "" for none."""
        self._function = function
        self._source = _line_of_model(sys._getframe(2)) if function else ""

    def computed(
        self,
        operator: Operator,
        policy: bool | None,
        given: Sequence[Any],
        results: Iterable[Any],
        narrow: Callable[[Any], bool],
        *,
        rounds: bool,
        as_first: bool,
    ) -> None:
        """Takes over an operator: with the policy that decides on the type of its results."""
        if in_backward():
            return
        kind = "f" if as_first else {True: "n", False: "w", None: "p"}[policy]
        kind = "i" if operator.in_place else kind
        floats = [one for one in given if one.is_floating_point()]
        # Tensors without dimensions decide on a type only among themselves.
        deciding = floats if rounds else [one for one in floats if one.dim() > 0] or floats
        inputs = [self._place(one, narrow) for one in deciding]
        products = _products(operator.operation, given, results) if rounds else 0
        self._add(kind.upper() if rounds else kind, inputs, results, products)

    def converted(self, given: Any, result: Any, narrow: Callable[[Any], bool]) -> None:
        """Takes over a conversion to the type that the result has by now."""
        self._add("n" if narrow(result) else "w", [self._place(given, narrow)], [result], 0)

    def derived(self, given: Any, result: Any, narrow: Callable[[Any], bool]) -> None:
        """Takes over what the recorder computes by itself of a tensor that operations are given."""
        self._add("p", [self._place(given, narrow)], [result], 0)

    def name(self, tensor: Any, name: str) -> None:
        """Says by which name the result is recorded that lies in a tensor's memory."""
        place = self._places.get(tensor)
        if place is not None:
            self._nodes[place].name = name

    def text(self) -> str:
        """Returns the nodes in order, one a line: tab-separated columns, see docs/traces.md."""
        return "\n".join(node.line() for node in self._nodes)

    def _place(self, tensor: Any, narrow: Callable[[Any], bool]) -> int:
        place = self._places.get(tensor)
        if place is not None:
            return place
        return _NARROW if narrow(tensor) else _PARAMETER

    def _add(self, kind: str, inputs: list[int], results: Iterable[Any], products: int) -> None:
        node = _Node(kind, inputs, self._module(), self._function, self._source, products)
        for one in results:
            self._places.set(one, len(self._nodes))
        self._nodes.append(node)


def _products(operation: str, given: Sequence[Any], results: Iterable[Any]) -> int:
    """Returns how many multiplications an operation does, about."""
    elements = sum(int(one.numel()) for one in results)
    weights = [one for one in given if one.dim() > 1]
    if operation == "matmul" and len(weights) > 1:
        return elements * int(weights[-2].shape[-1])
    if operation == "conv" and len(weights) > 1:
        return elements * int(weights[1].numel()) // max(1, int(weights[1].shape[0]))
    if operation == "scaled_dot_product_attention" and len(weights) > 2:
        return 2 * int(weights[0].numel()) * int(weights[1].shape[-2])
    if len(weights) > 1:  # of recurrent layers: each place meets each weight
        places = int(weights[0].numel()) // max(1, int(weights[0].shape[-1]))
        return places * sum(int(one.numel()) for one in weights[1:])
    return elements


def _line_of_model(frame: FrameType | None) -> str:
    """Returns the line of the innermost code that is neither PyTorch's nor dlsim's."""
    import torch

    library = str(Path(torch.__file__).parent)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((library, _OWN, "<")):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
