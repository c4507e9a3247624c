# SPDX-License-Identifier: Apache-2.0
"""Which operation of a forward pass breaks first in a format: by two passes, one in float32."""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .._rounding import Tensor
from .._text import ROOT
from ..recorder._tensors import tensors_in
from ._operations import operation_of

_torch: Any = torch
_Mode: Any = TorchFunctionMode

Key = tuple[str, str, int]  # module, operation, and which of its calls in that module it is
_NOWHERE = math.nan, math.nan
_OWN = Path(__file__).parents[1], Path(torch.__file__).parent
OF_LOSS = "(loss)"  # what runs outside of the model


@dataclass(frozen=True)
class Culprit:
    """An operation that breaks in a format: its result is not finite, as in float32 it is.

    Its operands are what they are in float32, too, so that it is where something begins, and not
    where it is passed on. `module` is the innermost one that runs, "(root)" the model itself,
    "(loss)" none; `call` counts the calls of the operation in it, from 0. `operands` and `result`
    are the largest magnitudes that these have in float32, NaN if the operation does not run there.
    `error` is the first line of what it raised, or empty; `source` the line of the model that
    calls it.
    """

    module: str
    operation: str
    call: int
    operands: float
    result: float
    error: str = ""
    source: str = ""

    def __str__(self) -> str:
        call = f" (call {self.call})" if self.call else ""
        place = f"{self.operation}{call} in {self.module}"
        if self.error or math.isnan(self.result):
            return place
        sizes = f"{self.operands:.6g} and results up to {self.result:.6g}"
        return f"{place}, in float32 with operands up to {sizes}"


class Watch:
    """Looks at the results of all operations within it, as functions of PyTorch are called.

    In the thread that enters it: others may run the model meanwhile.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        # Of operands and results; infinity: some are not finite.
        self.magnitudes: dict[Key, tuple[float, float]] = {}
        self.returned: list[str] = []  # modules, as they do
        self.wide: set[str] = set()  # those that return float32
        self.error: tuple[Key, str, str] | None = None  # with the line
        self._model = model
        # With what made its operands, and the line.
        self._broken: list[tuple[Key, list[Key], str]] = []
        self._made: dict[int, tuple[Any, Key]] = {}  # by the identity of a result
        self._calls: Counter[tuple[str, str]] = Counter()
        self._modules = [OF_LOSS]
        self._undo = ExitStack()

    def __enter__(self) -> Watch:
        self._thread = threading.get_ident()
        for name, module in self._model.named_modules():
            if not isinstance(module, _torch.jit.ScriptModule):
                before, after = self._hooks(name or ROOT)
                self._undo.callback(module.register_forward_pre_hook(before).remove)
                self._undo.callback(module.register_forward_hook(after).remove)
        self._undo.enter_context(_Functions(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def culprits(self, in_float32: Watch) -> list[Culprit]:
        """Returns where this pass breaks and another, in float32, does not; in order."""
        found: list[Culprit] = []
        wrong: set[Key] = set()
        for key, operands, source in self._broken:
            expected = in_float32.magnitudes.get(key, _NOWHERE)
            passed_on = not wrong.isdisjoint(operands)
            if passed_on or expected[1] != math.inf:
                wrong.add(key)
                if not passed_on:
                    found.append(Culprit(*key, *expected, "", source))
        if self.error is not None:
            key, message, source = self.error
            expected = in_float32.magnitudes.get(key, _NOWHERE)
            found.append(Culprit(*key, *expected, message, source))
        return found

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a function, and looks at its results."""
        operation = operation_of(getattr(func, "__name__", ""))
        place = self._modules[-1], operation
        key = *place, self._calls[place]
        # What works in place has one tensor before and after.
        given = [one for one in tensors_in((args, kwargs)) if one.is_floating_point()]
        makers = [self._maker_of(one) for one in given]
        largest_given = max(map(_largest, given), default=0.0)
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            if self.error is None:
                message = f"{type(error).__name__}: {error}".splitlines()[0]
                self.error = key, message, _line_of_caller()
            raise
        made = [one for one in tensors_in(result) if one.is_floating_point()]
        if not made or operation == "get":  # of an attribute
            return result
        self._calls[place] += 1
        largest = max(map(_largest, made))
        self.magnitudes[key] = largest_given, largest
        if largest == math.inf:
            known = [one for one in makers if one is not None]
            self._broken.append((key, known, _line_of_caller()))
        for one in made:
            self._made[id(one)] = weakref.ref(one), key
        return result

    def _maker_of(self, tensor: Tensor) -> Key | None:
        reference, key = self._made.get(id(tensor), (lambda: None, None))
        return key if reference() is tensor else None

    def _hooks(self, name: str) -> tuple[Any, Any]:
        def before(*_: Any) -> None:
            if threading.get_ident() == self._thread:
                self._modules.append(name)

        def after(_module: Any, _given: Any, output: Any) -> None:
            if threading.get_ident() != self._thread:
                return
            if name not in self.returned:
                self.returned.append(name)
            if any(one.dtype == torch.float32 for one in tensors_in(output)):
                self.wide.add(name)
            while name in self._modules:  # what an exception has left, too, that the model caught
                if self._modules.pop() == name:
                    break

        return before, after


class _Functions(_Mode):  # type: ignore[misc]
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self._watch.call(func, args, kwargs or {})


def _largest(tensor: Tensor) -> float:
    """Returns the largest magnitude, infinity if something is not finite."""
    if tensor.numel() == 0:
        return 0.0
    values = tensor.detach().float()
    return float(values.abs().amax()) if bool(torch.isfinite(values).all()) else math.inf


def _line_of_caller() -> str:
    """Returns "file.py:12" of the innermost function outside of PyTorch and this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if not any(one in _OWN for one in path.parents):
            return f"{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
