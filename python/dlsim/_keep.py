# SPDX-License-Identifier: Apache-2.0
"""Parts of a model that compute in float32 although autocast computes the rest in 16 bits."""

from __future__ import annotations

import fnmatch
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ._errors import UsageError
from ._text import ROOT, some_of
from .emulation._cuda_autocast import operation_of
from .recorder._tensors import mapped, tensors_in

# Whose types lack the function and the class in PyTorch 1.13.
_torch: Any = torch
_Mode: Any = TorchFunctionMode

_LOG = logging.getLogger("dlsim.keep_float32")
_CALL = re.compile(r"\.call\d+$")  # a module's or an operation's further calls in a step

# Python's operators with a number on the left, by the operations that they are.
_PYTHON = {"rsub": "sub", "rdiv": "div", "rpow": "pow", "rmatmul": "matmul"}


def function_of(name: str) -> str:
    """Returns the operation that one of torch's functions is, such as `sub` of `__rsub__`."""
    plain = operation_of(name)
    return _PYTHON.get(plain, plain)


def keep_float32(model: torch.nn.Module, names: str | Iterable[str]) -> KeptFloat32:
    """Has parts of a model compute in float32 under torch.autocast, until the handle is removed.

    `names` are those of modules, as `model.named_modules()` and dlsim's verdicts have them, or
    globs of them; or operations that a module's own forward calls: "attn/matmul" are all matrix
    products of `attn` itself, not of modules in it ("(root)/matmul": of the model), "attn/*" all
    its operations, but for those in place, whose tensor keeps its type. Inputs are cast to float32,
    outputs are float32 as they come. Without autocast nothing changes. Call it before torch.compile
    and DistributedDataParallel; copies and pickles of the model keep it. Use it as a plain call or
    as a context manager.

    Raises UsageError for a name that fits no module, and for modules with 16-bit parameters, which
    autocast does not need.
    """
    return KeptFloat32(model, [names] if isinstance(names, str) else list(names))


class KeptFloat32:
    """What keep_float32 returns: `names` as they were given; `remove()` ends it."""

    def __init__(self, model: torch.nn.Module, names: list[str]) -> None:
        if not isinstance(model, torch.nn.Module):
            kind = type(model).__name__
            raise TypeError(f"model: bad type, expected torch.nn.Module, got {kind}")
        self.names = tuple(names)
        modules = _inside_wrappers(model)
        wholes: dict[str, torch.nn.Module] = {}
        operations: dict[str, set[str]] = {}
        for name in names:
            owner, slash, operation = name.partition("/")
            found = _matching(modules, owner)
            if slash:
                for one in found:
                    operations.setdefault(one, set()).add(function_of(_CALL.sub("", operation)))
            else:
                wholes |= {one: modules[one] for one in found}
        for name, module in wholes.items():
            _check_parameters(name, module)
        self._patched: list[tuple[torch.nn.Module, Any, Any]] = []  # module, patch, before
        self._own: list[_OwnOperations] = []
        for name, wanted in operations.items():
            self._keep_operations(name, modules[name], frozenset(wanted))
        for module in wholes.values():
            self._patch(module, partial(_in_float32, module, vars(module).get("forward")))

    def __enter__(self) -> KeptFloat32:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Leaves the model as it was; more calls do nothing."""
        while self._patched:
            module, patch, before = self._patched.pop()
            if vars(module).get("forward") is not patch:
                continue  # somebody has wrapped it again
            if before is None:
                del module.forward
            else:
                module.forward = before
        for own in self._own:
            own.note_missing()
        self._own.clear()

    def _keep_operations(self, name: str, module: torch.nn.Module, wanted: frozenset[str]) -> None:
        own = _OwnOperations(name or ROOT, wanted)
        self._own.append(own)
        for part in module.modules():
            # TorchScript calls no functions that could be kept.
            if part is not module and not isinstance(part, _torch.jit.ScriptModule):
                self._patch(part, partial(_outside, part, own, vars(part).get("forward")))
        self._patch(module, partial(_with_own, module, own, vars(module).get("forward")))

    def _patch(self, module: torch.nn.Module, patch: Any) -> None:
        self._patched.append((module, patch, vars(module).get("forward")))
        module.forward = patch


class _OwnOperations:
    """Which operations of a module's own forward are kept, and whether that runs now."""

    def __init__(self, name: str, wanted: frozenset[str]) -> None:
        self.name, self.wanted = name, wanted
        self.active = self.ran = False
        self.seen: set[str] = set()

    def takes(self, operation: str) -> bool:
        """Returns whether a function that is called now is to compute in float32."""
        if not self.active:
            return False
        found = [one for one in self.wanted if one in (operation, "*")]
        self.seen.update(found)
        return bool(found)

    @contextmanager
    def set(self, active: bool) -> Iterator[None]:
        """Within it, the module's own forward runs, or that of another module."""
        before, self.active = self.active, active
        try:
            yield
        finally:
            self.active = before

    def note_missing(self) -> None:
        """Says which operations never ran."""
        missing = sorted(self.wanted - self.seen)
        if self.ran and missing:
            _LOG.warning("%s itself has called no %s", self.name, some_of(missing))


class _Float32Mode(_Mode):  # type: ignore[misc]
    """Calls those of torch's functions in float32 that a module's own forward is to keep."""

    def __init__(self, own: _OwnOperations) -> None:
        super().__init__()
        self._own = own

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__") or not self._own.takes(function_of(name)):
            return func(*args, **kwargs)
        if name.endswith("_") and not name.endswith("__"):
            return func(*args, **kwargs)  # in place: the tensor keeps its type
        with _no_autocast((args, kwargs)):
            return func(*_cast(args), **_cast(kwargs))


# Functions of this file, not closures: a copy of the model, or a pickle, has its own.
def _in_float32(module: torch.nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    with _no_autocast((args, kwargs, *module.parameters(recurse=True))):
        return _call(module, forward, *_cast(args), **_cast(kwargs))


def _with_own(
    module: torch.nn.Module, own: _OwnOperations, forward: Any, *args: Any, **kwargs: Any
) -> Any:
    own.ran = True
    with own.set(True), _Float32Mode(own):
        return _call(module, forward, *args, **kwargs)


def _outside(
    module: torch.nn.Module, own: _OwnOperations, forward: Any, *args: Any, **kwargs: Any
) -> Any:
    with own.set(False):
        return _call(module, forward, *args, **kwargs)


def _call(module: torch.nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if forward is None:
        return type(module).forward(module, *args, **kwargs)
    return forward(*args, **kwargs)


def _no_autocast(values: Any) -> Any:
    """Returns a context in which autocast is off on the device that the first tensor lies on."""
    first = next(tensors_in(values), None)
    return _torch.autocast("cpu" if first is None else first.device.type, enabled=False)


def _cast(value: Any) -> Any:
    """Returns it with all floating-point tensors in float32, but those with 64 bits."""

    # Also those of float32: a recorder sees by it what training in 16 bits would do.
    def is_narrow(one: Any) -> bool:
        return isinstance(one, torch.Tensor) and one.is_floating_point() and one.element_size() < 8

    return mapped(value, is_narrow, lambda tensor: tensor.float())


def _inside_wrappers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Returns the modules by name, without what DistributedDataParallel or compile puts before."""
    while True:
        inner = model._modules.get("_orig_mod")
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model._modules.get("module")
        if inner is None:
            return dict(model.named_modules())
        model = inner


def _matching(modules: dict[str, torch.nn.Module], name: str) -> list[str]:
    plain = "" if name == ROOT else _CALL.sub("", name)
    if plain in modules:
        return [plain]
    found = fnmatch.filter(modules, plain)
    if not found:
        from difflib import get_close_matches

        close = get_close_matches(plain, list(modules), 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise UsageError(f"names: no module {name!r}{hint}, expected one of {some_of(modules)}")
    return found


def _check_parameters(name: str, module: torch.nn.Module) -> None:
    for key, parameter in module.named_parameters():
        if parameter.is_floating_point() and parameter.element_size() == 2:
            raise UsageError(
                f"{name}.{key}: bad type, expected float32 parameters, as autocast trains, got "
                f"{parameter.dtype}: convert the module first, module.float()"
            )
