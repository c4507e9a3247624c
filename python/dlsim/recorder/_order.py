# SPDX-License-Identifier: Apache-2.0
"""Whether gradients are still those that backward left when a step is recorded."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._errors import Error
from ._hooks import Guard
from ._ranks import Ranks, changes_gradients, kinds_of_sharding
from ._skipped import WatchedUpdate, tells_skips

_ENOUGH = 4  # elements

_PLACE = (
    "expected Recorder.step right after backward(), before unscale_(), clipping, optimizer.step(), "
    "update() and zero_grad()"
)


class StepOrder:
    """Notices a step that is recorded too late.

    It knows the parameters that got a gradient since `clear`, and that optimizers of theirs have
    stepped after it. Only what it has seen counts: where no hook runs, nothing is wrong. With
    `compares` it keeps the gradient of a small parameter to tell clipping from other changes in
    place, such as rounding.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        wanted: Callable[[str], bool],
        guard: Guard,
        *,
        scaler: Any = None,
        compares: bool = True,
    ) -> None:
        self._wanted, self._guard = wanted, guard
        self._scaler = scaler
        self._parameters = dict(parameters)
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._frozen = dict(parameters)  # those without a hook: torch refuses it
        self._handles: list[Any] = []
        self._update: WatchedUpdate | None = None
        self._given: set[str] = set()  # what backward has left
        self._used: set[str] = set()  # of those, what an optimizer has taken
        self._descends: bool | None = None  # None: no optimizer has stepped yet
        self._small = _smallest(parameters) if compares else None
        self._before: tuple[int, Any] | None = None  # version and copy of the small one's gradient

    def add_hooks(self) -> None:
        """Begins to look, with PyTorch 2.1 or later."""
        import torch
        from torch.optim import optimizer

        if not self._parameters or not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
            self._frozen.clear()
            return
        order = weakref.ref(self)  # what torch keeps must not keep the recorder alive

        def stepped(optimizer: Any, *_: Any) -> None:
            held = order()
            if held is not None:
                held._guard(lambda: held._take(optimizer))

        def updated(_overflows: bool) -> None:
            held = order()
            if held is not None:
                held._used.update(held._given)

        module: Any = optimizer  # whose types lack the function before PyTorch 2.1
        self._handles.append(module.register_optimizer_step_post_hook(stepped))
        if tells_skips(self._scaler):
            self._update = WatchedUpdate(self._scaler, updated)
        self._add_hooks()

    def _add_hooks(self) -> None:
        for name, parameter in list(self._frozen.items()):
            if parameter.requires_grad:
                del self._frozen[name]
                hook = _hook_of(name, weakref.ref(self))
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def _give(self, name: str, gradient: Any) -> None:
        if gradient is None:  # another hook was first
            return
        self._used.discard(name)
        self._given.add(name)
        if name == self._small:
            self._before = gradient._version, gradient.detach().clone()

    @property
    def descends(self) -> bool:
        """Whether all optimizers that have stepped move all parameters by gradients at one rate."""
        return bool(self._descends)

    def _take(self, optimizer: Any) -> None:
        parameters = (one for group in optimizer.param_groups for one in group["params"])
        found = (self._names.get(id(parameter)) for parameter in parameters)
        names = {name for name in found if name is not None}
        if names:
            self._descends = self._descends is not False and _descends(optimizer)
        self._used.update(names & self._given)

    def check(self) -> None:
        """Raises Error if the gradients are no longer those that backward has left."""
        given = {name: self._parameters[name].grad for name in self._given if self._wanted(name)}
        if not given:
            return
        if self._used.issuperset(given):
            raise Error(f"an optimizer has stepped since backward, {_PLACE}")
        if all(gradient is None for gradient in given.values()):
            raise Error(f"the gradients were cleared after backward, {_PLACE}")
        self._check_values(given)

    def _check_values(self, given: Mapping[str, Any]) -> None:
        gradient = given.get(self._small or "")
        if gradient is None or self._before is None or self._before[0] == gradient._version:
            return
        if not any(bool(one.any()) for one in given.values() if one is not None) and bool(
            self._before[1].any()
        ):
            raise Error(f"the gradients were cleared after backward, {_PLACE}")
        # That of dlsim.amp unscales in place, not always by a power of two.
        factor = None if hasattr(self._scaler, "_states") else _factor(self._before[1], gradient)
        if factor is not None:
            raise Error(
                f"{self._small}.grad: was multiplied by {factor:.3g} after backward, as clipping "
                f"does, {_PLACE}"
            )

    def clear(self) -> None:
        """Forgets what was seen; looks for parameters that are no longer frozen."""
        self._given.clear()
        self._used.clear()
        self._before = None
        if self._handles:
            self._add_hooks()

    def remove(self) -> None:
        """Removes all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._update is not None:
            self._update.close()


def _descends(optimizer: Any) -> bool:
    from torch.optim import SGD

    rates = {float(group["lr"]) for group in optimizer.param_groups}
    return type(optimizer) is SGD and len(rates) == 1


def _hook_of(name: str, order: weakref.ref[StepOrder]) -> Callable[[Any], None]:
    def hook(parameter: Any) -> None:
        held = order()
        if held is not None and held._wanted(name):
            held._guard(lambda: held._give(name, parameter.grad))

    return hook


def _smallest(parameters: Mapping[str, Any]) -> str | None:
    """Returns the smallest of the parameters of which a few elements are significant."""
    sizes = {name: one.numel() for name, one in parameters.items() if one.requires_grad}
    return min(
        (name for name in sizes if sizes[name] >= _ENOUGH), key=sizes.__getitem__, default=None
    )


def _factor(before: Any, now: Any) -> float | None:
    """Returns what all elements were multiplied by, if it is one factor below 1.

    A power of two is not one: a loss scale was divided out.
    """
    import torch

    if before.layout != torch.strided or now.layout != torch.strided:
        return None
    known = (before != 0) & before.isfinite() & now.isfinite()
    ratios = now.detach()[known].double() / before[known].double()
    if ratios.numel() < _ENOUGH:
        return None
    low, high = ratios.aminmax()
    tolerance = 4 * torch.finfo(now.dtype).eps
    factor = float(ratios.median())
    nearest = 2.0 ** round(math.log2(factor)) if factor > 0 else 1.0
    if not 0 < low <= high < 1 or high - low > tolerance * high:
        return None
    return factor if abs(factor / nearest - 1) > tolerance else None


def order_of(
    models: Iterable[Any],
    parameters: Mapping[str, Any],
    wanted: Callable[[str], bool],
    guard: Guard,
    ranks: Ranks,
    *,
    scaler: Any,
    active: bool,
) -> StepOrder:
    """Returns what looks at the gradients of `parameters`, at none if they are not in `.grad`."""
    models = list(models)
    active = active and not ranks.is_shard and not kinds_of_sharding(models)
    compares = ranks.kind == "single" and not changes_gradients(models)
    looked_at = parameters if active else {}
    return StepOrder(looked_at, wanted, guard, scaler=scaler, compares=compares)
