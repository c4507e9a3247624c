# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a step: what modules and their operations return."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ._attention import may_be_repeated
from ._autocast import computed_in
from ._buffers import Buffers
from ._hooks import SPILLED_FROM, Guard, Seen
from ._memory import is_plain, memory_of
from ._modes import is_transformed, outside
from ._names import ROOT
from ._noise import Noise
from ._operations import Operations
from ._regions import Regions, nesting
from ._tensors import differences_of, floats_in, in_backward, is_loss, is_mask, tensors_in
from ._widths import Widths


def _ignore(*_: Any) -> None:
    """Is the hook of a module that is not recorded."""


def _no_hook() -> Callable[..., None]:
    return _ignore


class _Hook:
    """What a module calls before or after it runs. Copies and pickles do nothing."""

    def __init__(self, called: Callable[..., None], name: str) -> None:
        self._called, self._name = weakref.WeakMethod(called), name

    def __call__(self, _module: Any, *values: Any) -> None:
        called = self._called()
        if called is not None:
            called(self._name, *values[1:])

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_hook, ()


class ForwardPass:
    """Outputs of modules and results of operations in the forward passes of a step.

    Recorded is what runs with gradients before the first backward pass: with accumulation, the
    first batch; what checkpointing computes again is not. Outputs are `<module>.act`, with `.call1`
    and `.out1` as gradients of activations have them, and results of operations
    `<module>/<operation>.act`. They are copied, for models go on to change them in place, and
    put aside by `spill` if they take much memory. Gradients of operations are added to `gradients`;
    without that the passes are those of an inference, with gradients or not.
    """

    def __init__(
        self,
        modules: Mapping[str, Any],
        parameters: Mapping[str, Any],
        wanted: Callable[[str], bool],
        guard: Guard,
        *,
        models: Collection[str],
        gradients: Seen | None,
        spill: Callable[[], None],
        ops: bool,
    ) -> None:
        self._modules, self._models = modules, models
        self._wanted, self._guard = wanted, guard
        self._gradients, self._spill, self._ops = gradients, spill, ops
        self._regions = Regions(lambda: bool(self._running) or self._outermost)
        self._widths = Widths(parameters, self._regions)
        self._buffers = Buffers(modules, self._widths)
        self._noise = Noise(parameters, guard)
        self._operations = Operations(
            self._widths,
            self._is_active,
            self._computed,
            self._differentiated,
            guard,
            copied=self._copied,
            outside=lambda: not self._running,
            module=lambda: self._running[-1] if self._running else "",
            splits=self._splits_attention,
            noise=self._noise,
        )
        self._handles: list[Any] = []
        self._running: list[str] = []  # the modules that run now, innermost last
        self._outermost = False  # whether no context of autocast is entered around the model
        self._counts = False  # whether the pass that runs, or ran last, is to be recorded
        self._done = True  # whether a backward pass has begun, or no step is recorded
        self._trains: int | None = None  # the thread that calls `end`, if models ran there
        self._takes: dict[str, int] = {}  # the thread whose modules are looked at in the step
        self._stays = False  # whether operations after the model are seen, those of the loss
        self._sees = False  # whether operations were seen
        self._values: dict[str, Any] = {}
        self._wide: set[str] = set()  # of what was recorded in the step: 32 bits under autocast
        self._harmless: list[str] = []  # of what was recorded: overflows in fp16, to no effect
        self._graph = ""  # what operations of the step give to one another
        self._types: set[str] = set()  # of 16 bits, in which modules compute
        self._rounding: list[str] = []  # gradients that are nothing but noise
        self._held = 0  # bytes
        self._calls: Counter[str] = Counter()

    @property
    def ran(self) -> bool:
        """Whether a forward pass has begun in the step."""
        return self._sees

    def begin(self) -> None:
        """Begins a step whose forward pass is recorded."""
        self._done = self._sees = False
        self._takes = {} if self._trains is None else {"thread": self._trains}
        self._wide.clear()
        self._harmless.clear()
        self._types.clear()
        self._rounding.clear()
        self._buffers.begin()
        for name, module in self._modules.items():
            try:
                self._handles.append(module.register_forward_pre_hook(_Hook(self._enter, name)))
                self._handles.append(module.register_forward_hook(_Hook(self._leave, name)))
            except RuntimeError:  # modules of TorchScript refuse
                continue

    def end(self) -> None:
        """Ends the forward pass of a step."""
        self._done = True
        if self._handles:
            own = threading.get_ident()
            self._trains = own if self._sees and self._takes.get("thread") == own else None
        self._see_no_more()
        if self._gradients is not None:  # an inference reports every overflow
            self._harmless += [f"{name}.act" for name in self._operations.harmless_overflows()]
        self._guard(self._record_rounded_loss)
        self._graph = self._operations.graph() if self._sees else ""
        self._guard(lambda: self._rounding.extend(self._noise.names()))
        self._noise.clear()
        self._operations.forget()
        self._running.clear()
        self._calls.clear()
        while self._handles:
            self._handles.pop().remove()

    def _record_rounded_loss(self) -> None:
        import torch

        for bits, growth in self._operations.rounded_loss().items() if self._ops else ():
            self._values[f"{ROOT}/rounded_loss{bits}.act"] = torch.tensor([growth])

    def take(self) -> dict[str, Any]:
        """Returns the values by name, and forgets them."""
        values, self._values, self._held = self._values, {}, 0
        return values

    def clear(self) -> None:
        """Forgets everything."""
        self.end()
        self.take()
        self._buffers.clear()

    def buffers(self) -> dict[str, Any]:
        """Returns the buffers that were read, by name."""
        return self._buffers.values(self._wanted)

    def metadata(self) -> dict[str, str]:
        """Returns what a reader needs to know of the values of the step."""
        if not self._sees:
            return {}
        parameters = [f"{name}.value" for name in self._widths.wide_parameters()]
        wide = [*self._wide, *parameters, *self._buffers.names()]
        found = {"autocast_float32": "\n".join(sorted(wide))}
        if self._types:
            found["computed_in"] = "\n".join(self._types)
        if self._harmless:
            found["harmless_overflow"] = "\n".join(sorted(self._harmless))
        if self._graph:
            found["forward_graph"] = self._graph
        if self._rounding:
            found["noise"] = "\n".join(self._rounding)
        return found

    def _splits_attention(self) -> bool:
        return self._ops and (self._gradients is None or not may_be_repeated())

    def _is_active(self) -> bool:
        """Returns whether operations belong to the forward pass, as derivatives in it do."""
        return self._counts and not self._done and (bool(self._running) or not in_backward())

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

        return self._gradients is None or torch.is_grad_enabled()

    def _enter(self, name: str) -> None:
        if self._done or in_backward() or is_transformed() or self._is_other_thread():
            return
        if name in self._running:  # an exception has left it
            self._running.clear()
        if not self._running:
            self._begin_pass()
        self._running.append(name)

    def _begin_pass(self) -> None:
        outside()
        self._counts = self._is_training()
        if self._counts:
            self._guard(self._see)

    def _see(self) -> None:
        self._widths.begin()
        self._outermost = nesting() == 0
        self._regions.enter()
        self._stays = self._operations.enter() or self._stays
        self._sees = True

    def _see_no_more(self) -> None:
        self._operations.leave()
        self._regions.leave()

    def _leave(self, name: str, output: Any) -> None:
        if name not in self._running or in_backward() or self._is_other_thread():
            return
        while self._running.pop() != name:
            continue
        if self._is_active():
            self._guard(lambda: self._record(name, output))
        if not self._running:
            self._guard(lambda: self._end_pass(output))

    def _end_pass(self, output: Any) -> None:
        own = weakref.ref(self)

        def ended(_gradient: Any) -> None:
            held = own()
            if held is not None:
                held._done = True

        for tensor in tensors_in(output) if self._counts else ():
            if tensor.requires_grad:
                tensor.register_hook(ended)
                self._noise.add_output(tensor)
        if not self._stays:
            self._see_no_more()

    def _record(self, name: str, output: Any) -> None:
        """Records what a module has returned."""
        floats = floats_in(output)
        if not floats or not self._wanted(name):
            return
        if not self._types and (computed := computed_in(floats[0])) is not None:
            self._types.add(computed)
        # Those with gradients come first, so that names are those of their gradients.
        floats.sort(key=lambda one: not one.requires_grad)
        call = self._called(name or ROOT)
        for i, tensor in enumerate(floats):
            if not is_loss(tensor, of_model=name in self._models):
                of_call = f"{call}.out{i}" if i else call
                self._record_output(of_call, tensor)
                self._noise.name(f"{of_call}.act_grad", tensor)

    def _record_output(self, name: str, tensor: Any) -> None:
        found = self._operations.result_of(tensor)
        if found is None:
            self._keep(name, tensor)
            self._operations.note(name, tensor)
        elif not found.of_module and f"{found.name}.act" in self._values:
            with self._operations.looking():
                masked = is_mask(self._values[f"{found.name}.act"])
            if masked:
                return  # whether 16 bits can hold it depends on the operation
            value = self._values.pop(f"{found.name}.act")
            with self._operations.looking():
                same = tensor.is_contiguous()
                value = value.reshape(tensor.shape) if same else tensor.detach().clone()
            self._values[f"{name}.act"] = value
            if f"{found.name}.act" in self._wide:
                self._wide.remove(f"{found.name}.act")
                self._wide.add(f"{name}.act")
            self._operations.rename(found, name, tensor)

    def _computed(self, operation: str, tensor: Any, differentiable: bool) -> str | None:
        """Records the result of an operation; returns its name."""
        module = self._running[-1] if self._running else ""
        if not self._ops or not self._wanted(module) or not (self._running or differentiable):
            return None
        if is_loss(tensor, of_model=module in self._models):
            return None
        name = self._called(f"{module or ROOT}/{operation}")
        self._keep(name, tensor)
        return name

    def _copied(self, name: str | None, tensor: Any) -> None:
        """Records what autocast copies in 16 bits; what has a name counts by that."""
        if name is not None:
            self._wide.discard(f"{name}.act")
            return
        module = self._running[-1] if self._running else ""
        if self._ops and self._running and self._wanted(module) and not self._holds(module, tensor):
            name = self._called(f"{module or ROOT}/to")
            self._keep(name, tensor)
            self._wide.discard(f"{name}.act")
            with self._operations.looking():
                differences = None if tensor.requires_grad else differences_of(tensor)
            if differences is not None:
                name = self._called(f"{module or ROOT}/sample")
                self._keep(name, differences)
                self._wide.discard(f"{name}.act")

    def _holds(self, module: str, tensor: Any) -> bool:
        """Returns whether a tensor is a parameter that was gathered after the recorder was made."""
        place = memory_of(tensor)
        return any(
            is_plain(one) and memory_of(one) == place for one in self._modules[module].parameters()
        )

    def _called(self, name: str) -> str:
        """Returns a name with the number of the call in the step."""
        call = self._calls[name]
        self._calls[name] += 1
        return f"{name}.call{call}" if call else name

    def _keep(self, name: str, tensor: Any) -> None:
        self._make_room(tensor)
        with self._operations.looking():
            self._values[f"{name}.act"] = tensor.detach().clone()
        if not self._widths.narrow(tensor):
            self._wide.add(f"{name}.act")

    def _differentiated(self, name: str, gradient: Any) -> None:
        """Keeps the gradient of an operation's result; not that of a derivative within forward."""
        if self._running or self._gradients is None:
            return
        self._done = True
        self._make_room(gradient)
        self._gradients.add(f"{name}.act_grad", gradient)

    def _make_room(self, tensor: Any) -> None:
        self._held += tensor.numel() * tensor.element_size()
        if self._held > SPILLED_FROM:
            self._spill()
            self._held = tensor.numel() * tensor.element_size()
