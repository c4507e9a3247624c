# SPDX-License-Identifier: Apache-2.0
"""PyTorch's modes, through which all its functions and operators go while they are entered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

# Takes a function, its arguments, and returns its result.
Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Modes:
    """Has `function` make the calls of torch's functions, `operator` those of its operators.

    Both are bound methods; once their object is gone the calls are made as they are.
    """

    def __init__(self, function: Call, operator: Call) -> None:
        from torch import is_inference_mode_enabled
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode

        own_function, own_operator = WeakMethod(function), WeakMethod(operator)

        function_mode: Any = TorchFunctionMode  # whose types the stubs do not have
        operator_mode: Any = TorchDispatchMode

        class Functions(function_mode):  # type: ignore[misc]
            def __torch_function__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                call = own_function() or _plain_call
                return call(func, args, kwargs or {})

        class Operators(operator_mode):  # type: ignore[misc]
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                if is_inference_mode_enabled():  # where PyTorch asks modes before it makes parts
                    with self:
                        result = func.decompose(*args, **(kwargs or {}))
                    if result is not NotImplemented:
                        return result
                call = own_operator() or _plain_call
                return call(func, args, kwargs or {})

        self._modes: tuple[Any, ...] = (Functions(), Operators())
        self._entered: list[Any] = []

    def enter(self) -> bool:
        """Enters them, if they are not; returns whether they may stay beyond the caller.

        Modes are left in the order opposite to that in which they were entered, so they must not
        stay if somebody else's are entered around the caller.
        """
        if self._entered:
            return False
        alone = not any(_stacks())
        for mode in self._modes:
            mode.__enter__()
            self._entered.append(mode)
        return alone

    def leave(self) -> None:
        """Leaves them, but for those that lie below somebody else's: those another call leaves."""
        tops = [stack[-1] for stack in _stacks() if stack]
        for mode in reversed(self._entered[:]):
            if any(mode is top for top in tops):
                mode.__exit__(None, None, None)
                self._entered.remove(mode)


def _plain_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


def _stacks() -> tuple[list[Any], list[Any]]:
    """Returns the modes of functions and of operators that this thread has entered."""
    from torch import overrides
    from torch.utils import _python_dispatch as dispatch

    functions: Any = overrides  # the stubs know neither
    operators: Any = dispatch
    return (
        list(functions._get_current_function_mode_stack()),
        list(operators._get_current_dispatch_mode_stack()),
    )
