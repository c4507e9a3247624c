# SPDX-License-Identifier: Apache-2.0
"""Sees the steps of all optimizers of a process."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import MethodType
from typing import Any, Protocol


class Watcher(Protocol):
    """Receives the steps. Its methods raise only what must end the step."""

    def before(self, optimizer: Any, options: Any, *, again: bool) -> None:
        """An optimizer is about to read gradients, of its closure again in the same step."""

    def after(self, optimizer: Any) -> None:
        """It has stepped."""


class Steps:
    """Notifies `watcher`, which may return None when it is gone, until `remove`.

    An optimizer that is given a closure reads what that leaves: it is wrapped.
    """

    def __init__(self, watcher: Callable[[], Watcher | None]) -> None:
        self._watcher = watcher
        self._handles: list[Any] = []
        self._replaced: list[tuple[Any, Any]] = []  # optimizers, and their own `step` before
        self._searches = 2  # through all that exists; each takes a tenth of a second

    def add(self) -> None:
        """Begins to look; before PyTorch 2.1 at what exists now, and only there."""
        from torch.optim import optimizer

        module: Any = optimizer  # whose types lack the functions before PyTorch 2.1
        if hasattr(module, "register_optimizer_step_pre_hook"):
            if not self._handles:
                self._handles.append(module.register_optimizer_step_pre_hook(self._hook))
                self._handles.append(module.register_optimizer_step_post_hook(self._after))
        elif self._searches > 0 and not self._replaced:
            self._searches -= 1
            for one in _optimizers(module.Optimizer):
                self._replace(one)

    def remove(self) -> None:
        """Leaves all optimizers as they were."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        while self._replaced:
            one, before = self._replaced.pop()
            del one.step
            if before is not None:
                one.step = before

    def _hook(self, optimizer: Any, args: Any, options: Any) -> Any:
        changed = self._before(optimizer, args[1:], options)  # the first is the optimizer
        return None if changed is None else ((optimizer, *changed[0]), changed[1])

    def _before(self, optimizer: Any, args: Any, options: Any) -> Any:
        watcher = self._watcher()
        if watcher is None:
            return None
        closure = args[0] if args else options.get("closure")
        if closure is None:
            watcher.before(optimizer, options, again=False)
            return None
        calls = 0

        def followed() -> Any:
            nonlocal calls
            loss = closure()
            calls += 1
            watcher.before(optimizer, options, again=calls > 1)
            return loss

        return (
            ((followed, *args[1:]), options) if args else (args, {**options, "closure": followed})
        )

    def _after(self, optimizer: Any, *_: Any) -> None:
        watcher = self._watcher()
        if watcher is not None:
            watcher.after(optimizer)

    def _replace(self, optimizer: Any) -> None:
        step = optimizer.step

        def stepping(owner: Any, *args: Any, **options: Any) -> Any:
            args, options = self._before(owner, args, options) or (args, options)
            result = step(*args, **options)
            self._after(owner)
            return result

        self._replaced.append((optimizer, vars(optimizer).get("step")))
        if hasattr(step, "_with_counter"):  # as schedulers mark it
            stepping._with_counter = True  # type: ignore[attr-defined]
        optimizer.step = MethodType(stepping, optimizer)


def _optimizers(base: type) -> list[Any]:
    """Returns the optimizers that exist, without those that only wrap another."""
    found = [one for one in gc.get_objects() if issubclass(type(one), base)]
    return [one for one in found if not hasattr(one, "optimizer")]
