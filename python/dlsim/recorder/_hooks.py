# SPDX-License-Identifier: Apache-2.0
"""Gradients that are seen while a backward pass computes them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from .._text import ROOT
from ._modes import is_transformed
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


def _ignore(*_: Any) -> None:
    """Is the hook of a module that is not recorded."""


def _no_hook() -> Callable[..., None]:
    return _ignore


class ModuleHook:
    """What a module calls before or after it runs: a bound method, with the module's name first.

    Copies and pickles of the module get one that does nothing.
    """

    def __init__(self, called: Callable[..., None], name: str) -> None:
        self._called, self._name = weakref.WeakMethod(called), name

    def __call__(self, *values: Any) -> None:
        called = self._called()
        if called is not None:
            called(self._name, *values)

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_hook, ()


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
        """Begins a step."""
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
        self._outputs = Outputs()
        self._wanted, self._guard = wanted, guard
        self._idle: set[str] = set()  # modules that ran in no step
        self._handles = []
        for name, module in modules.items():
            # Before the hooks of tensor parallelism, which make plain tensors of distributed ones.
            parameters = module.parameters(recurse=False)
            first = {"prepend": True} if any(map(is_distributed, parameters)) else {}
            try:
                handle = module.register_forward_hook(ModuleHook(self.called, name), **first)
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
            tensor.register_hook(self._tensor_hook(f"{name_of_output(call, i)}.act_grad"))

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
        self._outputs.clear()
        return self.seen.take()

    def clear(self) -> None:
        """Forgets what was seen."""
        self._outputs.clear()
        self.seen.clear()
        self.types.clear()

    def idle(self) -> list[str]:
        """Returns the names of the tensors of modules that never ran in a recorded step."""
        return [f"{name or ROOT}.act_grad" for name in sorted(self._idle)]

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
