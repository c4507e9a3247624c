# SPDX-License-Identifier: Apache-2.0
"""What a step records of a model: gradients, as far as hooks see them, and its forward pass."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from .._errors import Error, UsageError
from .._text import ROOT
from ._again import Again, Closure, Unfollowed
from ._order import Guard, StepOrder
from ._output import NEVER_CALLED, HostCopies, Part, in_host_memory
from ._ranks import Pieces, Ranks, is_distributed
from ._selection import Choice
from ._shadows import Shadows, module_of
from ._tensors import (
    Features,
    WeakHook,
    computed_in,
    floats_in,
    in_backward,
    is_loss,
    is_mask,
    is_plain,
    is_rerun,
    is_transformed,
    outside,
    tensors_in,
)

# -- Gradients that are seen while a backward pass computes them

SPILLED_FROM = 64 << 20  # bytes that earlier batches of a step may keep in memory


class Seen:
    """Gradients that hooks have seen, by name.

    They are held, not copied. Autograd adds nothing to a gradient that somebody holds; should
    anything else change one in place, its version shows it.
    """

    def __init__(self) -> None:
        self._tensors: dict[str, tuple[Any, int]] = {}

    def add(self, name: str, gradient: Any) -> None:
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
        return sum(one.numel() * one.element_size() for one, _ in self._tensors.values())

    def clear(self) -> None:
        self._tensors.clear()


class ParameterHooks:
    """The gradient of each backward pass alone, before it is added to that of the others."""

    def __init__(self, choice: Choice, guard: Guard) -> None:
        self.seen = Seen()
        self._wanted, self._guard = choice.parameter, guard
        self._frozen = dict(choice.parameters)  # those without a hook: torch refuses it
        self._handles: list[Any] = []
        self._add_hooks()

    def _add_hooks(self) -> None:
        for name, parameter in list(self._frozen.items()):
            if parameter.requires_grad:
                del self._frozen[name]
                self._handles.append(parameter.register_hook(WeakHook(self._see, name)))

    def _see(self, name: str, gradient: Any) -> None:
        if self._wanted(name):
            self._guard(lambda: self.seen.add(f"{name}.grad", gradient))

    def clear(self) -> None:
        """Forgets what was seen; looks for parameters that are no longer frozen."""
        self.seen.clear()
        self._add_hooks()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


class Outputs:
    """What modules have returned in a step, each tensor by the name of the first that did."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._returned: dict[int, tuple[weakref.ref[Any], int]] = {}  # by id, with the version

    def call(self, module: str) -> str:
        """Returns the name of another call of a module: `x`, then `x.call1`."""
        name, call = module or ROOT, self._calls[module]
        self._calls[module] += 1
        return f"{name}.call{call}" if call else name

    def is_new(self, tensor: Any) -> bool:
        """Returns whether no module has returned this very tensor before, with these values."""
        held, version = self._returned.get(id(tensor), (None, None))
        now = 0 if tensor.is_inference() else tensor._version
        self._returned[id(tensor)] = weakref.ref(tensor), now
        return held is None or version != now or held() is not tensor

    def clear(self) -> None:
        self._calls.clear()
        self._returned.clear()


def name_of_output(call: str, i: int) -> str:
    """Returns the name of a tensor among those of one output: `x`, then `x.out1`."""
    return f"{call}.out{i}" if i else call


class ActivationHooks:
    """Gradients of the outputs of modules.

    The first call of a module in a step is `<module>.act_grad`, the next `<module>.call1.act_grad`;
    of an output with several tensors, those after the first have `.out1`, `.out2` before that. A
    tensor that several modules return, as a container does with what its last part returns, has the
    name of the first one. A loss has none: its gradient is no number that passes through the
    format, but the loss scale itself. `left_out` says which modules take no hook. `types` are those
    of 16 bits in which modules compute, under autocast or by themselves. `spill` is called when a
    forward pass begins after the backward pass of another batch, if what that one has left takes
    much memory.
    """

    def __init__(self, choice: Choice, guard: Guard, spill: Callable[[], None] | None) -> None:
        self.seen = Seen()
        self.types: set[str] = set()  # of 16 bits, in which modules compute
        self._spill = spill
        self._backward = False  # whether one has left something since the last look
        self.left_out: dict[str, str] = {}
        self._models = choice.models
        self._outputs = Outputs()
        self._wanted, self._guard = choice.module, guard
        self._idle: set[str] = set()  # modules that ran in no step
        self._handles = []
        for name, module in choice.modules.items():
            # Before the hooks of tensor parallelism, which make plain tensors of distributed ones.
            parameters = module.parameters(recurse=False)
            first = {"prepend": True} if any(map(is_distributed, parameters)) else {}
            try:
                handle = module.register_forward_hook(WeakHook(self.called, name), **first)
            except RuntimeError:  # modules of TorchScript refuse
                self.left_out[f"{name or ROOT}.act_grad"] = "its module takes no hooks"
            else:
                self._handles.append(handle)
                if _is_called(module):
                    self._idle.add(name)

    def called(self, name: str, _module: Any, _inputs: Any, output: Any) -> None:
        """Watches for the gradients of what a module has returned."""
        if not self._wanted(name):
            return
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
        call = self._outputs.call(name)
        for i, tensor in enumerate(tensors):
            if is_loss(tensor, of_model=name in self._models) or not self._outputs.is_new(tensor):
                continue
            if tensor.grad_fn is not None and tensor._version > 0:
                # torch would add to the hooks on the values before a change in place. Those stay.
                tensor._backward_hooks = None
            tensor.register_hook(WeakHook(self._see, f"{name_of_output(call, i)}.act_grad"))

    def _see(self, name: str, gradient: Any) -> None:
        self._backward = True
        self._guard(lambda: self.seen.add(name, gradient))

    def take(self) -> tuple[dict[str, Any], list[str]]:
        """Returns what Seen.take returns, and counts calls from 0 again."""
        self._outputs.clear()
        return self.seen.take()

    def clear(self) -> None:
        self._outputs.clear()
        self.seen.clear()
        self.types.clear()

    def idle(self) -> list[str]:
        """Returns the names of the tensors of modules that never ran in a recorded step."""
        return [f"{name or ROOT}.act_grad" for name in sorted(self._idle)]

    def remove(self) -> None:
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


# -- The forward pass of a step: what modules return, and how to run it again


class ForwardPass:
    """Outputs of modules in the forward passes of a step, and the calls that make them again.

    Recorded is what runs with gradients before the first backward pass: with accumulation, the
    first batch; what checkpointing computes again is not. Outputs are `<module>.act`, with `.call1`
    and `.out1` as gradients of activations have them. They are copied, for models go on to change
    them in place, and put aside by `spill` if they take much memory. An inference has passes with
    gradients or without.
    """

    def __init__(self, choice: Choice, guard: Guard, spill: Callable[[], None]) -> None:
        self._modules, self._models = choice.all_modules, choice.models
        self._wanted, self._guard = choice.module, guard
        self._inference, self._spill = choice.inference, spill
        self._noise = Noise(choice.parameters, guard)
        self.again = Again(inference=choice.inference)
        self._handles: list[Any] = []
        self._running: list[str] = []  # the modules that run now, innermost last
        self._ran: set[str] = set()  # those that did in the step
        self._counts = False  # whether the pass that runs, or ran last, is to be recorded
        self._keeps = False  # whether outputs of the step are recorded
        self._done = True  # whether a backward pass has begun, or no step is recorded
        self._trains: int | None = None  # the thread that calls `end`, if models ran there
        self._takes: dict[str, int] = {}  # the thread whose modules are looked at in the step
        self.ran = False  # whether a forward pass has begun in the step
        self._values: dict[str, Any] = {}
        self._outputs = Outputs()
        self._types: set[str] = set()  # of 16 bits, in which modules compute
        self._rounding: list[str] = []  # gradients that are nothing but noise
        self._held = 0  # bytes

    def begin(self, *, keeps: bool) -> None:
        """Begins a step whose forward pass is to be seen, and recorded if it `keeps` that."""
        self._keeps = keeps
        self._done = self.ran = False
        self._takes = {} if self._trains is None else {"thread": self._trains}
        self._types.clear()
        self._rounding.clear()
        self._ran.clear()
        self.again.begin()
        for name, module in self._modules.items():
            enter, leave = WeakHook(self._enter, name), WeakHook(self._leave, name)
            try:
                self._handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
                self._handles.append(module.register_forward_hook(leave))
            except TypeError:  # before PyTorch 2.0, which runs no step again either
                self._handles.append(module.register_forward_pre_hook(enter))
                self._handles.append(module.register_forward_hook(leave))
            except RuntimeError:  # modules of TorchScript refuse
                continue

    def end(self) -> None:
        self._done = True
        if self._handles:
            own = threading.get_ident()
            self._trains = own if self.ran and self._takes.get("thread") == own else None
        self.again.end()
        self._guard(lambda: self._rounding.extend(self._noise.names()))
        self._noise.clear()
        self._outputs.clear()
        self._running.clear()
        while self._handles:
            self._handles.pop().remove()

    def take(self) -> dict[str, Any]:
        values, self._values, self._held = self._values, {}, 0
        return values

    def clear(self) -> None:
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
        if not self.ran:
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
            self.ran = self.ran or self._counts
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
        for tensor in tensors_in(output) if self._counts else ():
            if tensor.requires_grad:
                tensor.register_hook(WeakHook(self._begin_backward))
                self._noise.add_output(tensor)
        if self._counts:
            self.again.leave(module, output)

    def _begin_backward(self, _gradient: Any) -> None:
        self._done = self._done or not is_rerun()

    def _record(self, name: str, output: Any) -> None:
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
        dim = node._saved_dim
        dim = dim - 2**64 if dim >= 2**63 else dim
        # By its number: what a node holds must not hold the node.
        node.register_hook(WeakHook(self._see, len(self._softmaxes), dim))
        self._softmaxes.append(node)

    def _see(self, at: int, dim: int, made: Any, given: Any) -> None:
        self._guard(lambda: self._measure(at, dim, made[0], given[0]))

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


# -- What a step records of a model: gradients, as far as hooks see them, and its forward pass


def gradients_of(
    gradient_of: Callable[[Any], Any] | None, *, micro_steps: bool
) -> Callable[[Any], Any]:
    """Returns what gives the gradient of a parameter; raises UsageError if hooks are to see it."""
    if gradient_of is None:
        return attrgetter("grad")
    if micro_steps:
        raise UsageError(
            "gradient_of: not with micro_steps, whose hooks see gradients by themselves"
        )
    if not callable(gradient_of):
        raise TypeError(f"gradient_of: expected a callable, got {type(gradient_of).__name__}")
    return gradient_of


def _own_elements(parameter: Any, gradient: Any) -> Any:
    """Returns the gradient of the elements of a FullyShardedDataParallel's own that are here.

    One that lies in other processes has no gradient here, but is none that is missing; one that was
    made of several is filled up with zeros.
    """
    if gradient is None:
        return parameter.detach() if parameter.numel() == 0 else None
    filling = getattr(parameter, "_shard_numel_padded", 0)
    return gradient[: gradient.numel() - filling] if filling else gradient


# Modules of PyTorch that return float32 under autocast, also where no step has shown it.
_IN_FLOAT32 = frozenset(
    "Embedding EmbeddingBag GroupNorm LayerNorm LogSoftmax RMSNorm Softmax Softmin".split()
)


def texts_of(metadata: Mapping[str, object]) -> dict[str, str]:
    """Returns metadata as text; numbers in tensors as those of Python. None is left out."""
    texts = {}
    for key, value in metadata.items():
        item = getattr(value, "item", None)
        known = item() if callable(item) else value
        if known is not None:
            texts[key] = str(known)
    return texts


@dataclass(eq=False)
class Sources:
    """All that one step records of a model, as far as it is chosen; `left_out` says what is not."""

    models: Collection[Any]
    choice: Choice
    gradient_of: Callable[[Any], Any]
    order: StepOrder
    guard: Guard
    micro_steps: bool
    count: Callable[[Error], None]
    spill: Callable[[], None]
    shadows: Shadows | None
    copies: HostCopies
    ranks: Ranks
    left_out: dict[str, str]

    def __post_init__(self) -> None:
        self._pieces = Pieces(self.models, self.choice.parameters, self.ranks)
        self._of_parameters: ParameterHooks | None = None
        self._of_activations: ActivationHooks | None = None
        self._forward: ForwardPass | None = None
        self._features = Features(self.choice.modules)
        self._sees_forward = False  # whether the step does
        self._forward_names: list[str] = []  # of the forward tensors taken last
        self._loss: Any = None  # of the step
        self._again: Callable[[], Any] | None = None
        self._values = False  # whether the parameters themselves are to be taken, too

    def add_hooks(self) -> None:
        """Adds what is needed besides the parameters' own gradients."""
        choice = self.choice
        self.order.add_hooks()
        if self.micro_steps:
            self._of_parameters = ParameterHooks(choice, self.guard)
        if choice.modules and not choice.inference:
            spill = None if self.micro_steps else self.spill  # a micro-step is one batch
            self._of_activations = ActivationHooks(choice, self.guard, spill)
            self.left_out.update(self._of_activations.left_out)
        if self.shadows is not None or (choice.modules and choice.takes_forward):
            self._forward = ForwardPass(choice, self.guard, self.spill)

    def begin(self) -> None:
        """Begins a step, which may record its forward pass."""
        self._values = self.choice.forward
        self.order.begin()
        self._begin_forward()

    def _begin_forward(self) -> None:
        forward, keeps = self._forward, self.choice.forward
        self._sees_forward = forward is not None and (keeps or self.choice.again)
        if forward is not None and self._sees_forward:
            self.guard(lambda: forward.begin(keeps=keeps))

    def restart(self) -> None:
        """Forgets what the step has left so far: it belongs to a step before."""
        self._features.clear()
        for hooks in (self._of_activations, self._forward):
            if hooks is not None:
                hooks.clear()
        self._begin_forward()

    def holds_micro_step(self) -> bool:
        """Returns whether backward has left gradients of parameters that nobody has taken."""
        return self._of_parameters is not None and self._of_parameters.seen.size() > 0

    def end_forward(self) -> None:
        """Ends the forward pass of the step: what runs from now on is none of it."""
        if self._forward is not None:
            self.guard(self._forward.end)

    def take(
        self, step: int, micro: int | None, grad_scale: str, metadata: Mapping[str, object]
    ) -> Part:
        """Returns a step, or a micro-step alone.

        Its tensors stay as they are until the next is taken, but those on a device. Raises Error if
        all gradients are missing, or if they are no longer those that backward has left; of an
        inference if there was no forward pass.
        """
        scale = float(grad_scale)
        if not self.choice.inference:
            self.order.check(scale)
            found = {**self._gradients(step), **self._forward_values()}
        elif self._forward is None or not self._forward.ran:
            raise Error("no forward pass, expected a call after the model has run")
        else:
            found = self._forward_values()
        self._run_again(step, scale)
        host = self.copies.take(self._pieces.own(found, self.left_out), self.left_out)
        texts = texts_of({"step": step, **metadata, "grad_scale": grad_scale})
        texts.update(self._pieces.metadata(self._metadata()))
        if micro is not None:
            texts["micro_step"] = str(micro)
        if self.ranks.kind == "separate":
            texts.update(rank=str(self.ranks.rank), ranks=str(self.ranks.ranks))
        return Part(micro, scale, texts, host)

    def _gradients(self, step: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._of_parameters is not None:
            found.update(self._unchanged(self._of_parameters.seen))
        else:
            for name, parameter in self.choice.parameters.items():
                if not self.choice.parameter(name):
                    continue
                if not parameter.requires_grad:  # it is frozen now
                    continue
                gradient = _own_elements(parameter, self.gradient_of(parameter))
                why = "has no gradient" if gradient is None else self.order.left_out(name)
                if why:
                    self.left_out.setdefault(f"{name}.grad", f"{why} in step {step}")
                else:
                    found[f"{name}.grad"] = gradient
        if self._of_activations is not None:
            found.update(self._of_modules(self._of_activations))
        if not found:
            raise Error("no gradients, expected a call after backward and before zero_grad")
        return found

    def _forward_values(self) -> dict[str, Any]:
        """Returns what the forward pass of the step has computed, and with what."""
        found = {} if self._forward is None else self._forward.take()
        values, self._values = self._values and self.choice.forward, False
        if not self.choice.forward:  # which its number has told
            found.clear()
        if values and self._forward is not None:
            found.update(self._forward.buffers())
        for name, parameter in self.choice.parameters.items() if values else ():
            if parameter.is_floating_point():
                found[f"{name}.value"] = _own_elements(parameter, parameter.detach())
        self._forward_names = list(found)
        return found

    def _metadata(self) -> dict[str, str]:
        """Returns what a reader needs to know of the tensors taken last."""
        metadata = self._features.metadata()
        if self.order.descends:
            metadata["descent"] = "SGD"
        if self._of_activations is not None and self._of_activations.types:
            metadata["computed_in"] = "\n".join(self._of_activations.types)
        if self._sees_forward and self._forward is not None:
            metadata.update(self._forward.metadata())
            wide = set(filter(None, metadata.get("autocast_float32", "").split("\n")))
            modules = self.choice.all_modules
            for name in self._forward_names:
                module = module_of(name)
                if type(modules.get("" if module == ROOT else module)).__name__ in _IN_FLOAT32:
                    wide.add(name)
            if self.shadows is not None:
                shadow, more = self.shadows.metadata(self._forward_names)
                metadata.update(shadow)
                wide |= more
            if wide:
                metadata["autocast_float32"] = "\n".join(sorted(wide))
        return metadata

    def take_early(self) -> dict[str, Any]:
        """Returns activations and their gradients that batches so far have left, in host memory.

        The next `take` gives the rest.
        """
        found = {} if self._forward is None else self._forward.take()
        if self._of_activations is not None:
            found.update(self._of_modules(self._of_activations.seen))
        return in_host_memory(self._pieces.own(found, self.left_out), self.left_out)

    def _of_modules(self, hooks: ActivationHooks | Seen) -> dict[str, Any]:
        found = self._unchanged(hooks)
        self._features.note(found.items())
        return found

    def _unchanged(self, hooks: ActivationHooks | Seen) -> dict[str, Any]:
        tensors, changed = hooks.take()
        for name in changed:
            self.count(Error(f"{name}: was changed in place after it was computed"))
        return tensors

    def runs_again(self, loss: Any, again: Callable[[], Any] | None) -> None:
        """Says what the loss of the step is, and how to run it again if the loop knows that."""
        self._loss, self._again = loss, again

    def _run_again(self, number: int, scale: float) -> None:
        """Runs the step again in 16-bit formats, if it is one of those."""
        shadows, forward = self.shadows, self._forward
        if shadows is None or forward is None or not self.choice.again:
            return
        try:
            again = self._again
            step = forward.again.step(self._loss, scale) if again is None else Closure(again)
            shadows.run(number, step)
        except Unfollowed as why:
            shadows.why = str(why)
        except Exception as error:
            shadows.why = f"{type(error).__name__}: {error}".splitlines()[0]
            self.count(Error(f"cannot be run in a format: {shadows.why}"))

    @property
    def seconds_again(self) -> float:
        return 0.0 if self.shadows is None else self.shadows.seconds

    def clear(self) -> None:
        self.order.clear()
        self._features.clear()
        for hooks in (self._of_parameters, self._of_activations, self._forward):
            if hooks is not None:
                hooks.clear()

    def note_idle(self) -> None:
        """Notes the chosen modules that never ran in a recorded step."""
        for name in self._of_activations.idle() if self._of_activations is not None else ():
            self.left_out.setdefault(name, NEVER_CALLED)

    def remove_hooks(self) -> None:
        self.order.clear()
        self.order.remove()
        if self._forward is not None:
            self._forward.clear()
        for hooks in (self._of_parameters, self._of_activations):
            if hooks is not None:
                hooks.clear()
                hooks.remove()
