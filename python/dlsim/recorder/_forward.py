# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a step: what modules return, and how to run it again."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from .._text import ROOT
from ._again import Again
from ._hooks import SPILLED_FROM, Guard, Noise
from ._modes import is_rerun, is_transformed, outside
from ._tensors import computed_in, floats_in, in_backward, is_loss, is_mask, is_plain, tensors_in


def _ignore(*_: Any) -> None:
    """Is the hook of a module that is not recorded."""


def _no_hook() -> Callable[..., None]:
    return _ignore


class _Hook:
    """What a module calls before or after it runs. Copies and pickles do nothing."""

    def __init__(self, called: Callable[..., None], name: str) -> None:
        self._called, self._name = weakref.WeakMethod(called), name

    def __call__(self, *values: Any) -> None:
        called = self._called()
        if called is not None:
            called(self._name, *values)

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_hook, ()


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
        self._returned: dict[int, tuple[weakref.ref[Any], int]] = {}  # by id, with the version
        self._types: set[str] = set()  # of 16 bits, in which modules compute
        self._rounding: list[str] = []  # gradients that are nothing but noise
        self._held = 0  # bytes
        self._calls: Counter[str] = Counter()

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
            enter, leave = _Hook(self._enter, name), _Hook(self._leave, name)
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
        self._returned.clear()
        self._running.clear()
        self._calls.clear()
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
        call = self._called(name or ROOT)
        for i, tensor in enumerate(floats):
            if not is_loss(tensor, of_model=name in self._models):
                of_call = f"{call}.out{i}" if i else call
                self._noise.name(f"{of_call}.act_grad", tensor)
                if self._keeps and not self._was_returned(tensor):
                    self._keep(of_call, tensor)

    def _was_returned(self, tensor: Any) -> bool:
        """Returns whether a module has returned this very tensor before, with these values."""
        held, version = self._returned.get(id(tensor), (None, None))
        now = 0 if tensor.is_inference() else tensor._version
        self._returned[id(tensor)] = weakref.ref(tensor), now
        return held is not None and version == now and held() is tensor

    def _called(self, name: str) -> str:
        """Returns a name with the number of the call in the step."""
        call = self._calls[name]
        self._calls[name] += 1
        return f"{name}.call{call}" if call else name

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
