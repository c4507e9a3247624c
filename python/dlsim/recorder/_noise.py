# SPDX-License-Identifier: Apache-2.0
"""Which gradients of a backward pass are nothing but the rounding errors of float32."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ._hooks import Guard
from ._modes import is_rerun

# Of what softmax's backward subtracts, the norm of what is left if that is rounding error: see
# docs/evidence.md.
_NOISE = 2.0**-18


class Noise:
    """Finds gradients of scores that cancel, as those of equal or single values do.

    The gradient of scores is p (g - sum(p g)) of the result p of a softmax and its gradient g. What
    is tiny against p g is rounding error, and so is all that backward makes of nothing else. The
    consumers of a tensor are those that autograd knows from the outputs of a model on.
    """

    def __init__(self, parameters: Mapping[str, Any], guard: Guard) -> None:
        self._parameters, self._guard = parameters, guard
        self._outputs: list[Any] = []  # nodes of autograd
        self._reached: set[Any] = set()  # from these
        self._named: list[tuple[str, Any, int]] = []  # name, node and which of its results
        self._softmaxes: list[Any] = []  # nodes
        self._shares: list[tuple[Any, Any]] = []  # of a softmax: its node, and how much is left

    def clear(self) -> None:
        """Forgets everything."""
        self._outputs.clear()
        self._reached.clear()
        self._named.clear()
        self._softmaxes.clear()
        self._shares.clear()

    def name(self, name: str, tensor: Any) -> None:
        """Says by which name the gradient of a tensor is recorded."""
        if tensor.grad_fn is not None:
            self._named.append((name, tensor.grad_fn, tensor.output_nr))

    def add_output(self, tensor: Any) -> None:
        """Says that a tensor is an output of a model; looks for softmaxes before it."""
        if tensor.grad_fn is not None:
            self._outputs.append(tensor.grad_fn)
            for node in _nodes_from(tensor.grad_fn, self._reached):
                if node.name().startswith("SoftmaxBackward"):
                    self._watch(node)

    def _watch(self, node: Any) -> None:
        """Looks at the gradient of the result of a softmax, when there is one."""
        own, at = weakref.ref(self), len(self._softmaxes)  # what it holds must not hold the node
        self._softmaxes.append(node)
        dim = node._saved_dim
        dim = dim - 2**64 if dim >= 2**63 else dim

        def hook(made: Any, given: Any) -> None:
            noise = own()
            if noise is not None and not is_rerun():
                noise._guard(lambda: noise._measure(at, dim, made[0], given[0]))

        node.register_hook(hook)

    def _measure(self, at: int, dim: int, made: Any, given: Any) -> None:
        import torch

        if made is None or given is None or torch.is_grad_enabled():
            return  # what differentiates again is no backward pass of a loss
        if at < len(self._softmaxes):
            # Of p g at least this, where p is the same for all; reading p might compute it again.
            whole = torch.linalg.vector_norm(given) / given.shape[dim]
            share = torch.linalg.vector_norm(made) / whole
            self._shares.append((self._softmaxes[at], share))

    def names(self) -> list[str]:
        """Returns the names of gradients that are noise."""
        found = {node for node, share in self._shares if float(share) < _NOISE}
        if not found:
            return []
        real, edges = self._consumers(found)
        names = [name for name, *end in self._named if edges[tuple(end)] and not real[tuple(end)]]
        known = {id(one): name for name, one in self._parameters.items()}
        for node, at in edges:
            name = known.get(id(getattr(node, "variable", None)))
            if name is not None and not real[node, at]:
                names.append(f"{name}.grad")
        return sorted(names)

    def _consumers(self, found: set[Any]) -> tuple[Counter[Any], Counter[Any]]:
        """Returns by result of a node how many gradients of consumers are no noise, and are all."""
        edges: Counter[Any] = Counter()
        waits: Counter[Any] = Counter()  # of a node
        nodes, left = set(self._outputs), list(self._outputs)
        while left:
            for end in left.pop().next_functions:
                if end[0] is None:
                    continue
                edges[end] += 1
                waits[end[0]] += 1
                if end[0] not in nodes:
                    nodes.add(end[0])
                    left.append(end[0])
        real = edges.copy()
        waits.update(self._outputs)  # a loss may be made of them
        left = [node for node in found if node in nodes]
        while left:
            for end in left.pop().next_functions:
                if end[0] is None:
                    continue
                real[end] -= 1
                waits[end[0]] -= 1
                if waits[end[0]] == 0:
                    left.append(end[0])
        return real, edges


def _nodes_from(node: Any, reached: set[Any]) -> Iterator[Any]:
    """Yields a node of autograd and those that its result was computed from, but for `reached`."""
    left = [node]
    while left:
        one = left.pop()
        if one is not None and one not in reached:
            reached.add(one)
            left += [end[0] for end in one.next_functions]
            yield one
