# SPDX-License-Identifier: Apache-2.0
"""Whether gradients are still those that backward left when a step is recorded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from .._errors import Error
from ._changes import CLEARED, PLACE, Changes
from ._hooks import Guard
from ._leftovers import Leftovers
from ._metadata import (
    has_scaled_nothing,
    is_in_use,
    scale_of,
    scaler_at_work,
    unscaled_in,
)
from ._names import smallest_of
from ._ranks import Ranks, changes_gradients, kinds_of_sharding
from ._skipped import WatchedUpdate, tells_skips
from ._tensors import in_backward


class StepOrder:
    """Notices a step that is recorded too late, and gradients that hold more than the step's.

    It knows the parameters that got a gradient since `clear`, and that optimizers of theirs have
    stepped after it; then it calls `restart`, since what comes is another step, and `revoke` if
    what optimizers are given shows that the last step was recorded wrongly. Only what it has seen
    counts: where no hook runs, nothing is wrong. With `compares` it keeps the gradient of a small
    parameter to tell clipping from other changes in place, such as rounding.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        wanted: Callable[[str], bool],
        guard: Guard,
        restart: Callable[[], None],
        *,
        revoke: Callable[[Error], None],
        scaler: Any = None,
        compares: bool = True,
    ) -> None:
        self._wanted, self._guard, self._restart = wanted, guard, restart
        self._revoke = revoke
        self._scaler = scaler
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()  # scalers that call the optimizers
        self._parameters = dict(parameters)
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._frozen = dict(parameters)  # those without a hook: torch refuses it
        self._handles: list[Any] = []
        self._update: WatchedUpdate | None = None
        self._given: set[str] = set()  # what backward has left
        self._used: set[str] = set()  # of those, what an optimizer has taken
        self._descends: bool | None = None  # None: no optimizer has stepped yet
        self._leftovers = Leftovers()
        self._optimizers: dict[int, weakref.ref[Any]] = {}  # that have stepped, by id
        self._looks = False  # whether the coming step is recorded
        self._sums: set[str] = set()  # what holds more than the step has given
        self._recorded = self._repeats = False  # whether this step, or the one before, was recorded
        self._changes = Changes(parameters if compares else {}, scaler)

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
                held._guard(lambda: held._use(held._given))

        module: Any = optimizer  # whose types lack the function before PyTorch 2.1
        self._handles.append(module.register_optimizer_step_post_hook(stepped))
        if tells_skips(self._scaler):
            self._update = WatchedUpdate(self._scaler, updated)
        self._add_hooks()
        smallest = smallest_of(self._parameters)
        if smallest is not None:
            coming = _before_of(smallest, order)
            self._handles.append(self._parameters[smallest].register_hook(coming))

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
        self._leftovers.given(name, gradient)
        if name == self._changes.name:
            self._changes.given(gradient)

    @property
    def descends(self) -> bool:
        """Whether all optimizers that have stepped move all parameters by gradients at one rate."""
        return bool(self._descends)

    def _take(self, optimizer: Any) -> None:
        names = list(self._of_optimizer(optimizer))
        if names:
            self._descends = self._descends is not False and _descends(optimizer)
        self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        scaler = scaler_at_work() if names else None
        if scaler is not None:
            self._seen.add(scaler)
        self._use(names, scaler)

    def _of_optimizer(self, optimizer: Any) -> Iterator[str]:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._names.get(id(parameter))
                if name is not None:
                    yield name

    def _use(self, names: Collection[str], scaler: Any = None) -> None:
        """Notes that an optimizer has used the gradients of these parameters, or skipped them."""
        name = self._changes.name
        if name is not None and name in names:  # of the step before, which was recorded
            gradient = self._parameters[name].grad
            try:
                self._changes.used(gradient, None if scaler is None else scale_of(None, scaler))
            except Error as error:
                self._revoke(error)
        if not self._looks:
            return
        for name in names:
            if self._parameters[name].grad is not None:
                self._leftovers.held(name, self._parameters[name].grad, used=True)
        self._used.update(self._given.intersection(names))
        if self._given and self._used.issuperset(self._given) and not in_backward():
            self._restart()

    def begin(self) -> None:
        """Begins a step."""
        self._looks = bool(self._handles) and any(map(self._wanted, self._parameters))
        self._leftovers.begin()
        for name, parameter in self._parameters.items() if self._looks else ():
            if parameter.grad is not None:
                self._leftovers.held(name, parameter.grad, used=False)

    def check_scale(self, scale: float | None) -> None:
        """Raises Error if `scale` contradicts the recorder's scaler, or one that was seen at work.

        `scale` is None where the caller leaves it to the scaler.
        """
        scaler = self._scaler
        if scaler is None and len(self._seen) == 1:
            scaler = next(iter(self._seen))
        unscaled = [one for one in unscaled_in(scaler) if self._concerns(one)]
        if scale is None and unscaled:
            raise Error(
                "unscale_() or step() of the scaler was called before, expected that after "
                "Recorder.step, or scale=1.0 to be stated"
            )
        if scale is None and has_scaled_nothing(scaler):
            raise Error(
                "scaler: has scaled no loss, expected scaler.scale(loss).backward(), or scale= to "
                "be stated"
            )
        if scale is not None and not unscaled and is_in_use(scaler):
            own = scale_of(None, scaler)
            if own != float(scale):
                raise Error(
                    f"scale: the scaler has unscaled no gradients yet, expected "
                    f"{'' if self._scaler is None else 'none or '}{own:g}, got {float(scale):g}"
                )

    def _concerns(self, optimizer: Any) -> bool:
        """Returns whether an optimizer, or one with this id, may have gradients of the step."""
        if isinstance(optimizer, int):
            stepped = self._optimizers.get(optimizer)
            optimizer = None if stepped is None else stepped()
        if optimizer is None or not self._given:
            return True
        own = self._given.intersection(self._of_optimizer(optimizer))
        return bool(own - self._used - self._leftovers.sums(self._given)) or own == self._given

    def check(self, scale: float) -> None:
        """Raises Error if the gradients are no longer those that backward has left."""
        given = {name: self._parameters[name].grad for name in self._given if self._wanted(name)}
        if not given:
            if self._repeats and self._is_as_before():
                self._recorded = True  # still
                raise Error(
                    "no backward pass since the step before, expected one call of Recorder.step "
                    "for each"
                )
            return
        self._sums = self._leftovers.sums(given)
        if self._used.issuperset(given):
            raise Error(f"an optimizer has stepped since backward, {PLACE}")
        if all(gradient is None for gradient in given.values()):
            raise Error(CLEARED)
        if self._sums.issuperset(given):
            raise Error(
                "the gradients were added to older ones, expected zero_grad() before, and one call "
                "of Recorder.step for each step of the optimizer, or micro_steps=True"
            )
        self._changes.check(given, scale)
        self._recorded = True

    def _is_as_before(self) -> bool:
        """Returns whether nobody has changed a gradient since the step before was recorded."""
        gradients = {name: one.grad for name, one in self._parameters.items() if self._wanted(name)}
        present = {name: one for name, one in gradients.items() if one is not None}
        return bool(present) and all(
            self._leftovers.is_unchanged(name, one) for name, one in present.items()
        )

    def left_out(self, name: str) -> str | None:
        """Returns why a gradient does not belong to the step, or None if it does."""
        gradient = self._parameters[name].grad if self._given else None
        if name not in self._given and self._leftovers.is_unchanged(name, gradient):
            return "was left by an earlier step"
        return "was added to that of an earlier step" if name in self._sums else None

    def clear(self) -> None:
        """Forgets what was seen; looks for parameters that are no longer frozen."""
        self._given.clear()
        self._used.clear()
        self._sums.clear()
        self._repeats, self._recorded = self._recorded, False
        self._changes.clear()
        if self._handles:
            self._add_hooks()

    def remove(self) -> None:
        """Removes all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._leftovers.clear()
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


def _before_of(name: str, order: weakref.ref[StepOrder]) -> Callable[[Any], None]:
    def hook(_: Any) -> None:
        held = order()
        if held is not None and held._wanted(name):
            gradient = held._parameters[name].grad
            held._guard(lambda: held._leftovers.coming(name, gradient))

    return hook


def order_of(
    models: Iterable[Any],
    parameters: Mapping[str, Any],
    wanted: Callable[[str], bool],
    guard: Guard,
    ranks: Ranks,
    *,
    restart: Callable[[], None],
    revoke: Callable[[Error], None],
    scaler: Any,
    active: bool,
) -> StepOrder:
    """Returns what looks at the gradients of `parameters`, at none if they are not in `.grad`."""
    models = list(models)
    active = active and not ranks.is_shard and not kinds_of_sharding(models)
    compares = ranks.kind == "single" and not changes_gradients(models)
    looked_at = parameters if active else {}
    return StepOrder(
        looked_at, wanted, guard, restart, revoke=revoke, scaler=scaler, compares=compares
    )
