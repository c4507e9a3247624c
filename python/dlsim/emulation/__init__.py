# SPDX-License-Identifier: Apache-2.0
"""Training as if modules computed in 16 bits: rounds activations and gradients on any machine."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .._compiled import Uncompiled, check_hooks_run
from .._core import Format
from .._text import some_of
from ..arrays._dtypes import format_of
from ..arrays._tensor_stats import TensorStats
from ._fast_paths import ClosedFastPaths
from ._module_choice import DEFAULT_MODULES, Choice, chosen_modules, works_in_place
from ._rounding import Place, Rounding, Tensor, map_tensors, round_gradient, straight_through, torch

__all__ = ["DEFAULT_MODULES", "AutocastEmulation", "autocast_emulation", "quantize"]

Module = torch.nn.Module
_LOG = logging.getLogger("dlsim.emulation")


@dataclass(frozen=True)
class What:
    """What an emulation rounds; see autocast_emulation."""

    activations: bool
    gradients: bool
    parameter_gradients: bool
    weights: bool
    statistics: bool


def quantize(
    x: Tensor,
    format: str | Format,
    *,
    gradient: str | Format | None = None,
    rounding: str = "rne",
    overflow: str = "inf",
    subnormals: str = "keep",
    seed: int = 0,
) -> Tensor:
    """Returns `x` rounded to `format` as dlsim.quantize does, with a gradient.

    The gradient is straight-through: that of the result, unchanged where values overflow or
    underflow. `gradient` names a format to which it is rounded in turn (None: it is not). Can be
    differentiated several times.
    """
    forward = rounding_of(format, rounding, overflow, subnormals, seed)
    backward = None
    if gradient is not None:
        how = rounding_of(gradient, rounding, overflow, subnormals, seed)
        backward = Place(how, "gradient", count=False)
    if not (isinstance(x, Tensor) and x.is_floating_point()):
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x: bad type, expected a floating-point torch.Tensor, got {kind}")
    return straight_through(x, forward.round, backward)


def autocast_emulation(
    model: Module,
    format: str | Format = "cb16",
    *,
    modules: Choice | Iterable[Choice] | None = None,
    activations: bool = True,
    gradients: bool = True,
    weights: bool = False,
    parameter_gradients: bool | None = None,
    rounding: str = "rne",
    overflow: str = "inf",
    subnormals: str = "keep",
    seed: int = 0,
    statistics: bool = True,
) -> AutocastEmulation:
    """Rounds what chosen modules of `model` compute with to `format`, until the handle is removed.

    `activations`: floating-point inputs and outputs, in forward. `gradients`: the gradients of
    these, in backward, as they flow, so with the loss scale. `parameter_gradients`: those of the
    parameters of these modules, before they are added to .grad (None: as `gradients`). `weights`:
    the modules compute with rounded parameters; the model keeps its own. `modules` are types, globs
    or compiled regular expressions of names (None: DEFAULT_MODULES, those that torch's autocast
    computes in 16 bits: linear layers, convolutions, attention, RNNs and their cells, PReLU).
    `statistics=False` leaves the counting out.

    Use it as a context manager, or call remove(). Raises UsageError if no module is chosen.
    """
    if parameter_gradients is None:
        parameter_gradients = gradients
    what = What(activations, gradients, parameter_gradients, weights, statistics)
    how = rounding_of(format, rounding, overflow, subnormals, seed)
    return AutocastEmulation(model, chosen_modules(model, modules), how, what)


class AutocastEmulation:
    """A running emulation, as autocast_emulation starts it: what it counted, and how to end it."""

    def __init__(
        self, model: Module, modules: Mapping[str, Module], rounding: Rounding, what: What
    ) -> None:
        """Starts in `modules` of a model, by name."""
        self._rounding = rounding
        self._what = what
        self._modules = tuple(modules)
        self._handles: list[Any] = []
        self._watched: dict[int, Tensor] = {}
        self._places: dict[tuple[str, str], Place] = {}
        self._swaps: list[tuple[Module, list[Swap]]] = []
        check_hooks_run([model])
        self._active = True
        self._called: set[str] = set()
        self._uncompiled = Uncompiled()
        self._fast_paths = ClosedFastPaths(model)
        for name, module in modules.items():
            self._attach(name, module)
        self._uncompiled.hold(True)

    @property
    def format(self) -> Format:
        """The format that is rounded to."""
        return self._rounding.format

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the chosen modules, as in model.named_modules()."""
        return self._modules

    def __enter__(self) -> AutocastEmulation:
        """Returns this emulation, which runs already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Removes the emulation, also after an error."""
        self.remove()

    def remove(self) -> None:
        """Ends the emulation and leaves the model as it was; its statistics can still be read."""
        if self._active:
            self._log_idle()
        self._active = False
        self._uncompiled.hold(False)
        while self._handles:
            self._handles.pop().remove()
        while self._swaps:
            _restore(self._swaps.pop()[1])
        self._fast_paths.reopen()

    def statistics(self) -> dict[str, dict[str, TensorStats]]:
        """Returns what rounding did, by module and by what was rounded, summed over all calls.

        That is `input`, `output`, `input.grad`, `output.grad`, and per parameter such as `weight`
        and `weight.grad`; each as returned by dlsim.measure.
        """
        result: dict[str, dict[str, TensorStats]] = {name: {} for name in self._modules}
        for (module, kind), place in list(self._places.items()):
            if place.stats is not None:
                result[module][kind] = place.stats
        return result

    def reset_statistics(self) -> None:
        """Sets all counts to zero."""
        for place in self._places.values():
            place.stats = None

    def _log_idle(self) -> None:
        """Names the chosen modules that never ran, as far as no chosen one around them did."""
        idle = [
            name
            for name in self._modules
            if not any(f"{name}.".startswith(f"{ran}.") or not ran for ran in self._called)
        ]
        if idle:
            _LOG.warning("dlsim emulation: rounded nothing in %s: never called", some_of(idle))

    def _attach(self, name: str, module: Module) -> None:
        # Closures, not bound methods: a copy of the model shares this emulation.
        def before(module: Module, inputs: tuple[Any, ...]) -> Any:
            return self._before(name, module, inputs) if self._active else None

        def after(module: Module, _: Any, output: Any) -> Any:
            return self._after(name, module, output) if self._active else None

        self._watch_parameters(name, module)
        self._handles.append(module.register_forward_pre_hook(before))
        self._handles.append(module.register_forward_hook(after))

    def _before(self, name: str, module: Module, inputs: tuple[Any, ...]) -> Any:
        self._called.add(name)
        self._watch_parameters(name, module)  # those that are new or no longer frozen
        if self._what.weights:
            self._swap_parameters(name, module)
        # The caller may go on with what such a module changes in place.
        if works_in_place(module):
            return None
        return self._round(name, "input", inputs)

    def _after(self, name: str, module: Module, output: Any) -> Any:
        if self._what.weights and any(owner is module for owner, _ in self._swaps):
            self._unwind(module)
        return self._round(name, "output", output)

    def _round(self, name: str, kind: str, values: Any) -> Any:
        forward = self._place(name, kind) if self._what.activations else None
        backward = self._place(name, f"{kind}.grad") if self._what.gradients else None
        if forward is None and backward is None:
            return None
        return map_tensors(values, lambda tensor: straight_through(tensor, forward, backward))

    def _place(self, module: str, kind: str) -> Place:
        key = (module, kind)
        if key not in self._places:
            name = f"{module}.{kind}" if module else kind
            self._places[key] = Place(self._rounding, name, count=self._what.statistics)
        return self._places[key]

    def _watch_parameters(self, name: str, module: Module) -> None:
        if not self._what.parameter_gradients:
            return
        parameters: Iterable[tuple[str, Any]] = module.named_parameters()
        for parameter_name, parameter in parameters:
            if id(parameter) in self._watched or not _has_gradient(parameter):
                continue
            self._watched[id(parameter)] = parameter
            place = self._place(name, f"{parameter_name}.grad")
            self._handles.append(parameter.register_hook(lambda g, p=place: round_gradient(g, p)))

    def _swap_parameters(self, name: str, module: Module) -> None:
        # After an exception in forward the parameters of that call are still swapped.
        self._unwind(module)
        swaps: list[Swap] = []
        for prefix, part in module.named_modules():
            for key, parameter in part._parameters.items():
                if isinstance(parameter, torch.nn.Parameter) and parameter.is_floating_point():
                    place = self._place(name, f"{prefix}.{key}" if prefix else key)
                    swaps.append((part, key, parameter, straight_through(parameter, place, None)))
        for part, key, _, rounded in swaps:
            _set_parameter(part, key, rounded)
        self._swaps.append((module, swaps))

    def _unwind(self, module: Module) -> None:
        while any(owner is module for owner, _ in self._swaps):
            _restore(self._swaps.pop()[1])


# A module, the name of a parameter of it, the parameter, and what replaces it meanwhile.
Swap = tuple[Module, str, Any, Tensor]


def _restore(swaps: list[Swap]) -> None:
    for part, key, parameter, _ in reversed(swaps):
        _set_parameter(part, key, parameter)


def _set_parameter(module: Module, key: str, value: Any) -> None:
    module._parameters[key] = value  # keeps the order; setattr refuses what is no Parameter
    if isinstance(module, torch.nn.RNNBase):
        module._flat_weights = [module._parameters.get(n) for n in module._flat_weights_names]


def _has_gradient(parameter: Any) -> bool:
    # A rounded weight, in the place of a parameter meanwhile, is no leaf.
    lazy = torch.nn.parameter.is_lazy(parameter)
    return bool(parameter.requires_grad and parameter.is_leaf and not lazy)


def rounding_of(
    format: str | Format,
    rounding: str = "rne",
    overflow: str = "inf",
    subnormals: str = "keep",
    seed: int = 0,
) -> Rounding:
    """Returns the rounding of these names; raises UsageError or TypeError for a bad one."""
    how = Rounding(format_of(format), rounding, overflow, subnormals, seed)
    how.round(torch.zeros(1))  # a misspelt name is an error now, not in the first step
    return how
