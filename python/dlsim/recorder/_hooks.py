# SPDX-License-Identifier: Apache-2.0
"""Gradients that are seen while a backward pass computes them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from .._text import ROOT
from ._modes import is_rerun, is_transformed
from ._ranks import is_distributed
from ._tensors import computed_in, in_backward, is_loss, tensors_in

# -- Gradients that are seen while a backward pass computes them

Guard = Callable[[Callable[[], None]], None]

SPILLED_FROM = 64 << 20  # bytes that earlier batches of a step may keep in memory


class Seen:
    """Gradients that hooks have seen, by name.

    They are held, not copied. Autograd adds nothing to a gradient that somebody holds; should
    anything else change one in place, its version shows it.
    """

    def __init__(self) -> None:
        self._tensors: dict[str, tuple[Any, int]] = {}

    def add(self, name: str, gradient: Any) -> None:
        """Keeps a gradient, or adds it to that of the same name."""
        held = self._tensors.get(name)
        tensor = gradient if held is None else held[0].detach() + gradient.detach()
        self._tensors[name] = (tensor, tensor._version)

    def take(self) -> tuple[dict[str, Any], list[str]]:
        """Returns all by name, and the names of those that were changed; forgets them."""
        held, self._tensors = self._tensors, {}
        changed = [name for name, (tensor, seen) in held.items() if tensor._version != seen]
        return {
            name: tensor.detach() for name, (tensor, _) in held.items() if name not in changed
        }, changed

    def size(self) -> int:
        """Returns how much memory the gradients take."""
        return sum(one.numel() * one.element_size() for one, _ in self._tensors.values())

    def clear(self) -> None:
        """Forgets all."""
        self._tensors.clear()


class ParameterHooks:
    """The gradient of each backward pass alone, before it is added to that of the others."""

    def __init__(
        self,
        parameters: Mapping[str, Any],
        wanted: Callable[[str], bool],
        guard: Guard,
    ) -> None:
        self.seen = Seen()
        self._wanted = wanted
        self._guard = guard
        self._frozen = dict(parameters)  # those without a hook: torch refuses it
        self._handles: list[Any] = []
        self._add_hooks()

    def _add_hooks(self) -> None:
        for name, parameter in list(self._frozen.items()):
            if parameter.requires_grad:
                del self._frozen[name]
                self._handles.append(parameter.register_hook(self._hook(name)))

    def _hook(self, name: str) -> Callable[[Any], None]:
        own = weakref.ref(self)  # what torch keeps must not keep the recorder

        def hook(gradient: Any) -> None:
            hooks = own()
            if hooks is not None and hooks._wanted(name):
                hooks._guard(lambda: hooks.seen.add(f"{name}.grad", gradient))

        return hook

    @property
    def holds(self) -> bool:
        """Whether there are gradients that nobody has taken."""
        return self.seen.size() > 0

    def take(self) -> tuple[dict[str, Any], list[str]]:
        """Returns what Seen.take returns."""
        return self.seen.take()

    def clear(self) -> None:
        """Forgets what was seen; looks for parameters that are no longer frozen."""
        self.seen.clear()
        self._add_hooks()

    def remove(self) -> None:
        """Removes all hooks."""
        for handle in self._handles:
            handle.remove()


def _ignore(_module: Any, _inputs: Any, _output: Any) -> None:
    """Is the hook of a module that is not recorded."""


def _no_hook() -> Callable[[Any, Any, Any], None]:
    return _ignore


class _ForwardHook:
    """What a recorded module calls. Copies and pickles of the module get one that does nothing."""

    def __init__(self, hooks: ActivationHooks, name: str, wanted: Callable[[str], bool]) -> None:
        self._hooks = weakref.ref(hooks)
        self._name = name
        self._wanted = wanted

    def __call__(self, _module: Any, _inputs: Any, output: Any) -> None:
        hooks = self._hooks()
        if hooks is not None and self._wanted(self._name):
            hooks.called(self._name, output)

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_hook, ()


class ActivationHooks:
    """Gradients of the outputs of modules.

    The first call of a module in a step is `<module>.act_grad`, the next `<module>.call1.act_grad`;
    of an output with several tensors, those after the first have `.out1`, `.out2` before that. A
    tensor that several modules return, as a container does with what its last part returns, has the
    name of the first one. A loss has none: its gradient is no number that passes through the
    format, but the loss scale itself. `left_out` says which modules take no hook; `models` are the
    names of those that are no part of another. `types` are those of 16 bits in which modules
    compute, under autocast or by themselves. `spill` is called when a forward pass begins after
    the backward pass of another batch, if what that one has left takes much memory.
    """

    def __init__(
        self,
        modules: Mapping[str, Any],
        wanted: Callable[[str], bool],
        guard: Guard,
        models: Collection[str] = ("",),
        spill: Callable[[], None] | None = None,
    ) -> None:
        self.seen = Seen()
        self.types: set[str] = set()  # of 16 bits, in which modules compute
        self._spill = spill
        self._backward = False  # whether one has left something since the last look
        self.left_out: dict[str, str] = {}
        self._models = models
        self._calls: dict[str, int] = {}
        self._watched: dict[int, tuple[weakref.ref[Any], int]] = {}  # by id, with the version
        self._guard = guard
        self._idle: set[str] = set()  # modules that ran in no step
        self._handles = []
        for name, module in modules.items():
            # Before the hooks of tensor parallelism, which make plain tensors of distributed ones.
            parameters = module.parameters(recurse=False)
            first = {"prepend": True} if any(map(is_distributed, parameters)) else {}
            try:
                handle = module.register_forward_hook(_ForwardHook(self, name, wanted), **first)
            except RuntimeError:  # modules of TorchScript refuse
                self.left_out[f"{name or ROOT}.act_grad"] = "its module takes no hooks"
            else:
                self._handles.append(handle)
                if _is_called(module):
                    self._idle.add(name)

    def called(self, name: str, output: Any) -> None:
        """Watches for the gradients of what a module has returned."""
        self._idle.discard(name)
        if is_transformed():
            return
        # Checkpointing calls modules during backward.
        if self._backward and self._spill is not None and not in_backward():
            self._backward = False
            if self.seen.size() > SPILLED_FROM:
                self._guard(self._spill)
        self._guard(lambda: self._watch(name, output))

    def _watch(self, name: str, output: Any) -> None:
        tensors = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
        if not tensors:
            return
        if not self.types and (computed := computed_in(tensors[0])) is not None:
            self.types.add(computed)
        call = self._calls.get(name, 0)
        self._calls[name] = call + 1
        for i, tensor in enumerate(tensors):
            if self._is_watched(tensor) or is_loss(tensor, of_model=name in self._models):
                continue
            parts = (
                name or ROOT,
                f"call{call}" if call else "",
                f"out{i}" if i else "",
                "act_grad",
            )
            if tensor.grad_fn is not None and tensor._version > 0:
                # torch would add to the hooks on the values before a change in place. Those stay.
                tensor._backward_hooks = None
            tensor.register_hook(self._tensor_hook(".".join(filter(None, parts))))
            self._watched[id(tensor)] = (weakref.ref(tensor), tensor._version)

    def _is_watched(self, tensor: Any) -> bool:
        """Returns whether a module has returned this very tensor before, with these values."""
        held, version = self._watched.get(id(tensor), (None, None))
        return held is not None and version == tensor._version and held() is tensor

    def _tensor_hook(self, name: str) -> Callable[[Any], None]:
        own = weakref.ref(self)  # a loss that is kept keeps its graph, and that this hook

        def hook(gradient: Any) -> None:
            hooks = own()
            if hooks is not None:
                hooks._backward = True
                hooks._guard(lambda: hooks.seen.add(name, gradient))

        return hook

    def take(self) -> tuple[dict[str, Any], list[str]]:
        """Returns what Seen.take returns, and counts calls from 0 again."""
        self._forget_calls()
        return self.seen.take()

    def clear(self) -> None:
        """Forgets what was seen."""
        self._forget_calls()
        self.seen.clear()
        self.types.clear()

    def idle(self) -> list[str]:
        """Returns the names of the tensors of modules that never ran in a recorded step."""
        return [f"{name or ROOT}.act_grad" for name in sorted(self._idle)]

    def _forget_calls(self) -> None:
        self._calls.clear()
        self._watched.clear()

    def remove(self) -> None:
        """Removes all hooks."""
        for handle in self._handles:
            handle.remove()


def _is_called(module: Any) -> bool:
    """Returns whether a module is made to be called.

    A list is not, nor the part of an attention, nor Lightning's module without a forward.
    """
    forward = getattr(type(module), "forward", None)
    name = type(module).__name__
    return (
        getattr(forward, "__name__", "") != "_forward_unimplemented"
        and getattr(forward, "__qualname__", "") != "LightningModule.forward"
        and name != "NonDynamicallyQuantizableLinear"
    )


# -- Which gradients of a backward pass are nothing but the rounding errors of float32

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
