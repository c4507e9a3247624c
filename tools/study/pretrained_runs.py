# SPDX-License-Identifier: Apache-2.0
"""Forward passes really run in 16 bits, and the first operation of each that is not finite.

torch.autocast and model.half() are PyTorch's own. CB16 is emulated: as autocast would have it by
`real.Emulated`, and by `Halved` with all weights and results in 16 bits.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from real import Emulated, computing_in, is_one_of, mapped
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dlsim.emulation import quantize
from dlsim.recorder._tensors import tensors_in

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Halved(TorchFunctionMode):
    """Rounds the results of all functions to a format, as if tensors had it."""

    def __init__(self, format: str) -> None:
        super().__init__()
        self.format = format

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Calls the function and rounds what it returns."""
        kwargs = kwargs or {}
        given = list(tensors_in((args, kwargs)))
        return mapped(
            func(*args, **kwargs),
            lambda one: one if is_one_of(one, given) else rounded(one, self.format),
        )


def rounded(tensor: Tensor, format: str) -> Tensor:
    """Returns a tensor rounded to a format, if it has floating point."""
    return quantize(tensor, format) if tensor.is_floating_point() else tensor


def converted(tensor: Tensor, format: str) -> Tensor:
    """Returns a tensor in PyTorch's type of a format, if it has floating point."""
    return tensor.to(TYPES[format]) if tensor.is_floating_point() else tensor


@dataclass
class Run:
    """A forward pass: its output and, of each function that ran, the place as `module/function`.

    `finite` has for each of them whether all its results are.
    """

    output: Tensor | None = None
    places: list[str] = field(default_factory=list)
    finite: list[bool] = field(default_factory=list)

    def first_failure(self, float32: Run) -> str | None:
        """Returns the place whose results are not finite though they are in float32."""
        assert self.places == float32.places
        for place, finite, before in zip(self.places, self.finite, float32.finite, strict=True):
            if before and not finite:
                return place
        return None

    def error(self, float32: Run) -> float:
        """Returns the norm of the output's error divided by that of the output in float32."""
        difference = self.output.double() - float32.output.double()
        return float(difference.norm() / float32.output.double().norm())


class Watching(TorchFunctionMode):
    """Notes of each function where it ran, as `module/function`, and whether it gave infinities."""

    def __init__(self, network: nn.Module, run: Run) -> None:
        super().__init__()
        self.names = {module: name or "(root)" for name, module in network.named_modules()}
        self.run, self.within = run, ["(root)"]

    def __enter__(self):
        """Follows which module runs."""
        hooks = nn.modules.module
        self.hooks = [
            hooks.register_module_forward_pre_hook(self._begin),
            hooks.register_module_forward_hook(self._end),
        ]
        return super().__enter__()

    def __exit__(self, *error):
        """Follows it no longer."""
        super().__exit__(*error)
        for hook in self.hooks:
            hook.remove()

    def _begin(self, module: nn.Module, inputs: Any) -> None:
        self.within.append(self.names.get(module, self.within[-1]))

    def _end(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        self.within.pop()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Calls the function and looks at its results."""
        result = func(*args, **(kwargs or {}))
        found = list(_floating(result))
        if found:
            self.run.places.append(f"{self.within[-1]}/{getattr(func, '__name__', '')}")
            self.run.finite.append(all(bool(one.isfinite().all()) for one in found))
        return result


def _floating(value: Any) -> Iterator[Tensor]:
    return (one for one in tensors_in(value) if one.is_floating_point())


@torch.no_grad()
def run(
    network: nn.Module,
    inputs: Tensor,
    recipe: str = "",
    format: str = "",
    *,
    emulated: bool = False,
) -> Run:
    """Returns the forward pass of a network in a format under a recipe, or in float32.

    `emulated` emulates what PyTorch has itself, which before 2.4 it has not on a CPU.
    """
    emulated = emulated or format not in TYPES
    result = Run()
    with ExitStack() as stack:
        if any(isinstance(module, nn.LSTM) for module in network.modules()):
            # oneDNN's has no fp16, and bf16 not on every machine.
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        if recipe == "half":
            change = functools.partial(rounded if emulated else converted, format=format)
            network, inputs = _changed(network, change), change(inputs)
        if emulated and format:
            stack.enter_context((Halved if recipe == "half" else Emulated)(format))
        elif recipe != "half":
            stack.enter_context(computing_in(format))
        stack.enter_context(Watching(network, result))
        output = network(inputs)
    result.output = output.float()
    return result


def _changed(network: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    """Returns a network with its weights and conversions in 16 bits."""
    network = copy.deepcopy(network)._apply(change)
    for module in network.modules():
        if getattr(module, "torch_dtype", None) is torch.float32:  # a conversion of onnx2torch
            module.torch_dtype = change(torch.zeros(())).dtype
    return network


@contextmanager
def enlarged(module: nn.Module, binades: int) -> Iterator[None]:
    """Within it, the weights of a layer are larger by a power of two, and so are its outputs."""
    kept = [(one, one.detach().clone()) for one in module.parameters(recurse=False)]
    _fill(kept, 2.0**binades)
    yield
    _fill(kept, 1.0)


@torch.no_grad()
def _fill(kept: list[tuple[Tensor, Tensor]], factor: float) -> None:
    for one, before in kept:
        one.copy_(before * factor)
