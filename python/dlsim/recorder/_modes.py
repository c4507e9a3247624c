# SPDX-License-Identifier: Apache-2.0
"""PyTorch's modes, through which all its functions go while they are entered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakMethod, WeakSet

# Takes a function, its arguments, and returns its result.
Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class _Thread(threading.local):
    recorders = 0  # within how many calls of recorders the thread is


_THREAD = _Thread()


@contextmanager
def in_recorder() -> Iterator[None]:
    """Within it, what this thread computes is a recorder's own: no recorder looks at it."""
    _THREAD.recorders += 1
    try:
        yield
    finally:
        _THREAD.recorders -= 1


def outside() -> None:
    """Says that no recorder is in a call in this thread: an interrupt may have cut one off."""
    _THREAD.recorders = 0


class FunctionMode:
    """Has `function`, a bound method, make the calls of torch's functions.

    Once its object is gone the calls are made as they are, as are those that recorders make
    themselves.
    """

    _waiting: ClassVar[WeakSet[FunctionMode]] = (
        WeakSet()
    )  # that are to be left and lie below others

    def __init__(self, function: Call) -> None:
        from torch.overrides import TorchFunctionMode

        own = WeakMethod(function)
        function_mode: Any = TorchFunctionMode  # whose type the stubs do not have

        class Functions(function_mode):  # type: ignore[misc]
            of_recorder = True

            def __torch_function__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                call = _plain_call if is_transformed() else _call_of(own)
                return call(func, args, kwargs or {})

        self._mode = Functions()
        self._is_entered = False

    def enter(self) -> bool:
        """Enters the mode, if it is not; returns whether it may stay beyond the caller.

        Modes are left in the order opposite to that in which they were entered, so they must not
        stay if somebody else's are entered around the caller. Those of other recorders may be.
        """
        self._waiting.discard(self)
        if self._is_entered:
            return False
        alone = all(_is_ours(mode) for stack in _stacks() for mode in stack)
        self._mode.__enter__()
        self._is_entered = True
        return alone

    def leave(self) -> None:
        """Leaves the mode, unless it lies below somebody else's: then another call leaves it.

        So it does with those of other recorders that are to be left.
        """
        self._waiting.add(self)
        while any([mode._leave() for mode in list(self._waiting)]):
            continue

    def _leave(self) -> bool:
        """Leaves the mode if it lies on top; returns whether it did."""
        functions = _stacks()[0]
        left = self._is_entered and bool(functions) and functions[-1] is self._mode
        if left:
            self._mode.__exit__(None, None, None)
            self._is_entered = False
        if not self._is_entered:
            self._waiting.discard(self)
        return left


def is_transformed() -> bool:
    """Returns whether a transformation of torch.func runs, whose tensors have no memory."""
    import torch

    module: Any = torch  # which does not export all that it has in PyTorch 1.13
    functorch: Any = getattr(module._C, "_functorch", None)
    stack = getattr(functorch, "peek_interpreter_stack", None)  # since PyTorch 2.0
    return stack is not None and stack() is not None


def _call_of(own: WeakMethod[Call]) -> Call:
    return _plain_call if _THREAD.recorders else own() or _plain_call


def _is_ours(mode: Any) -> bool:
    return getattr(mode, "of_recorder", False) is True


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


class _Rerun:
    count = 0  # of steps that are being run again, in any thread


@contextmanager
def rerun() -> Iterator[None]:
    """Within it, hooks of recorders do nothing: the step is not part of the training."""
    _Rerun.count += 1
    try:
        yield
    finally:
        _Rerun.count -= 1


def is_rerun() -> bool:
    """Returns whether a step is being run again."""
    return _Rerun.count > 0
