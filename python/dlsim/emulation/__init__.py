# SPDX-License-Identifier: Apache-2.0
"""Training as if modules computed in 16 bits: rounds activations and gradients on any machine."""

from __future__ import annotations

import fnmatch
import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

try:
    import torch
    from torch.nn.parameter import is_lazy
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "dlsim.emulation: PyTorch is missing, expected `pip install torch`", name="torch"
    ) from None

from .._compiled import Uncompiled, check_hooks_run
from .._core import Format
from .._errors import UsageError
from .._fast_paths import ClosedFastPaths
from .._rounding import Rounding, Tensor, map_tensors, round_gradient, straight_through
from .._text import some_of
from ..arrays._convert import TensorStats

__all__ = ["DEFAULT_MODULES", "AutocastEmulation", "autocast_emulation"]

Module = torch.nn.Module
Choice = type | str | re.Pattern[str]

_LOG = logging.getLogger("dlsim.emulation")

# What torch.autocast computes in 16 bits, as far as it is a module: its lists name linear, conv*,
# matmul, prelu and the RNN operations. Embedding is not among them.
DEFAULT_MODULES: tuple[type, ...] = (
    torch.nn.Linear,
    torch.nn.Bilinear,
    torch.nn.modules.conv._ConvNd,
    torch.nn.MultiheadAttention,
    torch.nn.RNNBase,
    torch.nn.RNNCellBase,
    torch.nn.PReLU,
)


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
    switches = {
        "activations": activations,
        "gradients": gradients,
        "parameter_gradients": gradients if parameter_gradients is None else parameter_gradients,
        "weights": weights,
        "statistics": statistics,
    }
    what = {name for name, on in switches.items() if on}
    how: dict[str, Any] = dict(
        rounding=rounding, overflow=overflow, subnormals=subnormals, seed=seed
    )
    checked = Rounding(format, **how).format
    return AutocastEmulation(model, _chosen_modules(model, modules), checked, how, what)


class AutocastEmulation:
    """A running emulation, as autocast_emulation starts it: what it counted, and how to end it.

    `format` is what is rounded to, `modules` are the names of the chosen modules.
    """

    def __init__(
        self,
        model: Module,
        modules: Mapping[str, Module],
        format: Format,
        how: dict[str, Any],
        what: set[str],
    ) -> None:
        """Starts in modules of a model; `how` and `what` are keywords of autocast_emulation."""
        self.format, self.modules = format, tuple(modules)
        self._how, self._what = how, what
        self._places: dict[str, dict[str, Rounding]] = {name: {} for name in modules}
        self._handles: list[Any] = []
        self._watched: dict[int, Tensor] = {}
        self._swaps: list[tuple[Module, ExitStack]] = []  # what gives modules their parameters back
        check_hooks_run([model])
        self._active = True
        self._called: set[str] = set()
        self._uncompiled = Uncompiled()
        self._fast_paths = ClosedFastPaths(model)
        for name, module in modules.items():
            self._attach(name, module)
        self._uncompiled.hold(True)

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
            self._swaps.pop()[1].close()
        self._fast_paths.reopen()

    def statistics(self) -> dict[str, dict[str, TensorStats]]:
        """Returns what rounding did, by module and by what was rounded, summed over all calls.

        That is `input`, `output`, `input.grad`, `output.grad`, and per parameter such as `weight`
        and `weight.grad`; each as returned by dlsim.measure.
        """
        return {
            name: {kind: one.stats for kind, one in list(places.items()) if one.stats is not None}
            for name, places in self._places.items()
        }

    def reset_statistics(self) -> None:
        """Sets all counts to zero."""
        for places in self._places.values():
            for one in places.values():
                one.stats = None

    def _log_idle(self) -> None:
        """Names the chosen modules that never ran, as far as no chosen one around them did."""
        idle = [
            name
            for name in self.modules
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
        if "weights" in self._what:
            self._swap_parameters(name, module)
        return None if works_in_place(module) else self._round(name, "input", inputs)

    def _after(self, name: str, module: Module, output: Any) -> Any:
        self._unwind(module)
        return self._round(name, "output", output)

    def _round(self, name: str, kind: str, values: Any) -> Any:
        forward = self._place(name, kind) if "activations" in self._what else None
        backward = self._place(name, f"{kind}.grad") if "gradients" in self._what else None
        if forward is None and backward is None:
            return None
        return map_tensors(values, lambda tensor: straight_through(tensor, forward, backward))

    def _place(self, module: str, kind: str) -> Rounding:
        places = self._places[module]
        if kind not in places:
            name = f"{module}.{kind}" if module else kind
            count = "statistics" in self._what
            places[kind] = Rounding(self.format, name, count=count, **self._how)
        return places[kind]

    def _watch_parameters(self, name: str, module: Module) -> None:
        if "parameter_gradients" not in self._what:
            return
        parameters: Iterable[tuple[str, Any]] = module.named_parameters()
        for key, parameter in parameters:
            # A rounded weight, in the place of a parameter meanwhile, is no leaf.
            trains = parameter.requires_grad and parameter.is_leaf and not is_lazy(parameter)
            if trains and id(parameter) not in self._watched:
                self._watched[id(parameter)] = parameter
                rule = self._place(name, f"{key}.grad")
                self._handles.append(parameter.register_hook(partial(round_gradient, rule=rule)))

    def _swap_parameters(self, name: str, module: Module) -> None:
        self._unwind(module)  # after an exception in forward they are still swapped
        undo = ExitStack()
        self._swaps.append((module, undo))
        for prefix, part in module.named_modules():
            for key, parameter in part._parameters.items():
                if isinstance(parameter, torch.nn.Parameter) and parameter.is_floating_point():
                    place = self._place(name, f"{prefix}.{key}" if prefix else key)
                    _set_parameter(part, key, straight_through(parameter, place, None))
                    undo.callback(_set_parameter, part, key, parameter)

    def _unwind(self, module: Module) -> None:
        while any(owner is module for owner, _ in self._swaps):
            self._swaps.pop()[1].close()


def _set_parameter(module: Module, key: str, value: Any) -> None:
    module._parameters[key] = value  # keeps the order; setattr refuses what is no Parameter
    if isinstance(module, torch.nn.RNNBase):
        module._flat_weights = [module._parameters.get(n) for n in module._flat_weights_names]


def works_in_place(module: Module) -> bool:
    """Returns whether `module` changes its input, with which its caller may go on."""
    return bool(getattr(module, "inplace", False))


def _chosen_modules(model: Module, modules: Choice | Iterable[Choice] | None) -> dict[str, Module]:
    """Returns the modules of `model` that a choice means, by name; a shared module once."""
    if not isinstance(model, Module):
        raise TypeError(f"model: bad type, expected torch.nn.Module, got {type(model).__name__}")
    several = isinstance(modules, Iterable) and not isinstance(modules, (type, str))
    given: Any = DEFAULT_MODULES if modules is None else modules if several else (modules,)
    choices = tuple(given)
    for choice in choices:
        if not isinstance(choice, (type, str, re.Pattern)):
            raise TypeError(
                "modules: bad choice, expected a type, a glob or a compiled regular expression, "
                f"got {type(choice).__name__}"
            )
    chosen = {
        name: module
        for name, module in model.named_modules()
        if any(_is_chosen(name, module, choice) for choice in choices)
    }
    if not chosen:
        names = (name for name, _ in model.named_modules())
        raise UsageError(
            "modules: no module is chosen, expected types, globs or regular expressions that match "
            f"one of model.named_modules() such as {some_of(names)}, got {modules!r}"
        )
    return chosen


def _is_chosen(name: str, module: Module, choice: Choice) -> bool:
    if isinstance(choice, type):
        return isinstance(module, choice)
    if isinstance(choice, str):
        return fnmatch.fnmatchcase(name, choice)
    return choice.search(name) is not None
