# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a step: what modules return, and how to run it again."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ._again import Again
from ._hooks import SPILLED_FROM, Guard, ModuleHook, Outputs, name_of_output
from ._modes import is_rerun, is_transformed, outside
from ._tensors import computed_in, floats_in, in_backward, is_loss, is_mask, is_plain, tensors_in


class ForwardPass:
    """Outputs of modules in the forward passes of a step, and the calls that make them again.

    Recorded is what runs with gradients before the first backward pass: with accumulation, the
    first batch; what checkpointing computes again is not. Outputs are `<module>.act`, with `.call1`
    and `.out1` as gradients of activations have them. They are copied, for models go on to change
    them in place, and put aside by `spill` if they take much memory. An inference has passes with
    gradients or without.
    """

    def __init__(
        self,
        modules: Mapping[str, Any],
        parameters: Mapping[str, Any],
        wanted: Callable[[str], bool],
        guard: Guard,
        *,
        models: Collection[str],
        inference: bool,
        spill: Callable[[], None],
    ) -> None:
        self._modules, self._models = modules, models
        self._wanted, self._guard = wanted, guard
        self._inference, self._spill = inference, spill
        self._noise = Noise(parameters, guard)
        self.again = Again(inference=inference)
        self._handles: list[Any] = []
        self._running: list[str] = []  # the modules that run now, innermost last
        self._ran: set[str] = set()  # those that did in the step
        self._counts = False  # whether the pass that runs, or ran last, is to be recorded
        self._keeps = False  # whether outputs of the step are recorded
        self._done = True  # whether a backward pass has begun, or no step is recorded
        self._trains: int | None = None  # the thread that calls `end`, if models ran there
        self._takes: dict[str, int] = {}  # the thread whose modules are looked at in the step
        self._sees = False  # whether a forward pass was seen
        self._values: dict[str, Any] = {}
        self._outputs = Outputs()
        self._types: set[str] = set()  # of 16 bits, in which modules compute
        self._rounding: list[str] = []  # gradients that are nothing but noise
        self._held = 0  # bytes

    @property
    def ran(self) -> bool:
        """Whether a forward pass has begun in the step."""
        return self._sees

    def begin(self, *, keeps: bool) -> None:
        """Begins a step whose forward pass is to be seen, and recorded if it `keeps` that."""
        self._keeps = keeps
        self._done = self._sees = False
        self._takes = {} if self._trains is None else {"thread": self._trains}
        self._types.clear()
        self._rounding.clear()
        self._ran.clear()
        self.again.begin()
        for name, module in self._modules.items():
            enter, leave = ModuleHook(self._enter, name), ModuleHook(self._leave, name)
            try:
                self._handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
                self._handles.append(module.register_forward_hook(leave))
            except TypeError:  # before PyTorch 2.0, which runs no step again either
                self._handles.append(module.register_forward_pre_hook(enter))
                self._handles.append(module.register_forward_hook(leave))
            except RuntimeError:  # modules of TorchScript refuse
                continue

    def end(self) -> None:
        """Ends the forward pass of a step."""
        self._done = True
        if self._handles:
            own = threading.get_ident()
            self._trains = own if self._sees and self._takes.get("thread") == own else None
        self.again.end()
        self._guard(lambda: self._rounding.extend(self._noise.names()))
        self._noise.clear()
        self._outputs.clear()
        self._running.clear()
        while self._handles:
            self._handles.pop().remove()

    def take(self) -> dict[str, Any]:
        """Returns the values by name, and forgets them."""
        values, self._values, self._held = self._values, {}, 0
        return values

    def clear(self) -> None:
        """Forgets everything."""
        self.end()
        self.again.begin()
        self.take()

    def buffers(self) -> dict[str, Any]:
        """Returns the floating-point buffers of modules that ran, by name; no masks.

        `model.half()` casts them, also those that are in no state_dict.
        """
        return {
            f"{name}.value": one.detach()
            for name, module, one in self._read()
            if self._wanted(module) and not is_mask(one.detach())
        }

    def _read(self) -> Iterator[tuple[str, str, Any]]:
        return (one for one in _buffers_of(self._modules) if one[1] in self._ran)

    def metadata(self) -> dict[str, str]:
        """Returns what a reader needs to know of the values of the step."""
        if not self._sees:
            return {}
        buffers = [f"{name}.value" for name, _, _ in self._read()]  # autocast leaves them
        found = {"autocast_float32": "\n".join(buffers)} if buffers else {}
        if self._types:
            found["computed_in"] = "\n".join(self._types)
        if self._rounding:
            found["noise"] = "\n".join(self._rounding)
        return found

    def _is_other_thread(self) -> bool:
        """Returns whether this thread is not the one that trains, but may evaluate the model.

        Before a step shows which one trains, it is the first that runs the model as training does.
        """
        own = threading.get_ident()
        if "thread" not in self._takes and not self._is_training():
            return True
        return self._takes.setdefault("thread", own) != own

    def _is_training(self) -> bool:
        import torch

        return self._inference or torch.is_grad_enabled()

    def _enter(self, name: str, _module: Any, *given: Any) -> None:
        if self._done or in_backward() or is_transformed() or is_rerun():
            return
        if self._is_other_thread():
            return
        if name in self._running:  # an exception has left it
            self._running.clear()
        self._ran.add(name)
        if not self._running:
            outside()
            self._counts = self._is_training()
            self._sees = self._sees or self._counts
            if self._counts and len(given) == 2:
                self._guard(lambda: self.again.enter(*given))
        self._running.append(name)

    def _leave(self, name: str, module: Any, _given: Any, output: Any) -> None:
        if name not in self._running or in_backward() or is_rerun() or self._is_other_thread():
            return
        while self._running.pop() != name:
            continue
        if self._counts and not self._done:
            self._guard(lambda: self._record(name, output))
        if not self._running:
            self._guard(lambda: self._end_pass(module, output))

    def _end_pass(self, module: Any, output: Any) -> None:
        own = weakref.ref(self)

        def ended(_gradient: Any) -> None:
            held = own()
            if held is not None and not is_rerun():
                held._done = True

        for tensor in tensors_in(output) if self._counts else ():
            if tensor.requires_grad:
                tensor.register_hook(ended)
                self._noise.add_output(tensor)
        if self._counts:
            self.again.leave(module, output)

    def _record(self, name: str, output: Any) -> None:
        """Records what a module has returned."""
        floats = floats_in(output)
        if not floats or not self._wanted(name):
            return
        if not self._types and (computed := computed_in(floats[0])) is not None:
            self._types.add(computed)
        # Those with gradients come first, so that names are those of their gradients.
        floats.sort(key=lambda one: not one.requires_grad)
        call = self._outputs.call(name)
        for i, tensor in enumerate(floats):
            if not is_loss(tensor, of_model=name in self._models):
                of_call = name_of_output(call, i)
                self._noise.name(f"{of_call}.act_grad", tensor)
                if self._keeps and self._outputs.is_new(tensor):
                    self._keep(of_call, tensor)

    def _keep(self, name: str, tensor: Any) -> None:
        self._held += tensor.numel() * tensor.element_size()
        if self._held > SPILLED_FROM:
            self._spill()
            self._held = tensor.numel() * tensor.element_size()
        self._values[f"{name}.act"] = tensor.detach().clone()


def _buffers_of(modules: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yields each floating-point buffer with dimensions once, with its name and its module's."""
    seen: set[int] = set()
    for module, owner in modules.items():
        for name, one in owner.named_buffers(recurse=False):
            if id(one) not in seen and one.is_floating_point() and one.dim() and is_plain(one):
                seen.add(id(one))
                yield f"{module}.{name}" if module else name, module, one


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
