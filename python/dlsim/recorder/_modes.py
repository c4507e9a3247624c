# SPDX-License-Identifier: Apache-2.0
"""PyTorch's modes, through which all its functions and operators go while they are entered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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


@contextmanager
def alone() -> Iterator[None]:
    """As `in_recorder`, and modes of others do not see it either.

    Selective checkpointing counts operators, and takes the results of some for those of a model.
    """
    with in_recorder():
        if all(map(_is_ours, _stacks()[1])):
            yield
            return
        from torch.utils import _python_dispatch as dispatch

        # There is none before PyTorch 2.0, and no selective checkpointing.
        with getattr(dispatch, "_disable_current_modes", nullcontext)():
            yield


class Modes:
    """Has `function` make the calls of torch's functions, `operator` those of its operators.

    Both are bound methods; once their object is gone the calls are made as they are, as those are
    that recorders make themselves.
    """

    _waiting: ClassVar[WeakSet[Modes]] = WeakSet()  # that are to be left and lie below others

    def __init__(self, function: Call, operator: Call | None) -> None:
        from torch import is_inference_mode_enabled
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode

        own_function = WeakMethod(function)
        own_operator = WeakMethod(operator or function)

        function_mode: Any = TorchFunctionMode  # whose types the stubs do not have
        operator_mode: Any = TorchDispatchMode

        class Functions(function_mode):  # type: ignore[misc]
            of_recorder = True

            def __torch_function__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                call = _plain_call if is_transformed() else _call_of(own_function)
                return call(func, args, kwargs or {})

        class Operators(operator_mode):  # type: ignore[misc]
            of_recorder = True

            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                if is_inference_mode_enabled():  # where PyTorch asks modes before it makes parts
                    with self:
                        result = func.decompose(*args, **(kwargs or {}))
                    if result is not NotImplemented:
                        return result
                call = _call_of(own_operator)
                return call(func, args, kwargs or {})

        self._modes: tuple[Any, ...] = (Functions(), Operators()) if operator else (Functions(),)
        self._entered: list[Any] = []

    def enter(self) -> bool:
        """Enters them, if they are not; returns whether they may stay beyond the caller.

        Modes are left in the order opposite to that in which they were entered, so they must not
        stay if somebody else's are entered around the caller. Those of other recorders may be.
        """
        self._waiting.discard(self)
        if self._entered:
            return False
        alone = all(_is_ours(mode) for stack in _stacks() for mode in stack)
        for mode in self._modes:
            mode.__enter__()
            self._entered.append(mode)
        return alone

    def leave(self) -> None:
        """Leaves them, but for those that lie below somebody else's: those another call leaves.

        Of other recorders, too.
        """
        self._waiting.add(self)
        while any([modes._leave() for modes in list(self._waiting)]):
            continue

    def _leave(self) -> bool:
        """Leaves what lies on top; returns whether anything did."""
        tops = [stack[-1] for stack in _stacks() if stack]
        left = [mode for mode in self._entered if any(mode is top for top in tops)]
        for mode in reversed(left):
            mode.__exit__(None, None, None)
            self._entered.remove(mode)
        if not self._entered:
            self._waiting.discard(self)
        return bool(left)


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
    """Within it, hooks of recorders do nothing: a step runs that is none of the training."""
    _Rerun.count += 1
    try:
        yield
    finally:
        _Rerun.count -= 1


def is_rerun() -> bool:
    """Returns whether a step is being run again."""
    return _Rerun.count > 0
