# SPDX-License-Identifier: Apache-2.0
"""Whether gradients are still those that backward left when a step is recorded."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FrameType
from typing import Any

from .._errors import Error, UsageError
from ._ranks import Ranks, changes_gradients, kinds_of_sharding
from ._selection import Choice, smallest_of
from ._tensors import WeakHook, in_backward

Guard = Callable[[Callable[[], None]], None]  # runs what a hook does

# -- What loss scalers say: their scale, what they have unscaled, and which steps they skip

# Between an optimizer's hook and the scaler that calls it, wrappers may lie.
_FRAMES = 24

_NONE: Mapping[Any, Any] = {}


def scale_of(scale: Any, scaler: Any) -> float:
    """Returns the stated scale, or that of `scaler`; raises TypeError if there is neither.

    A scaler has `get_scale()` or `scale`, as those of torch, dlsim.amp and dlsim.LossScaler.
    """
    if scale is not None:
        return float(scale)
    if scaler is None:
        raise TypeError(
            "scale: missing, expected the loss scale that the gradients carry now: scale=1.0 if "
            "they are unscaled"
        )
    get_scale = getattr(scaler, "get_scale", None)
    return float(get_scale() if callable(get_scale) else scaler.scale)


def unscaled_in(scaler: Any) -> list[Any]:
    """Returns the optimizers, or their ids, whose gradients a GradScaler has unscaled in this step.

    Those of torch and of dlsim.amp say it; of others nothing is known.
    """
    found = []
    for optimizer, state in _states_of(scaler).items():
        stage = state.get("stage") if isinstance(state, Mapping) else state
        if getattr(stage, "name", "") in ("UNSCALED", "STEPPED"):
            found.append(optimizer)
    return found


def is_in_use(scaler: Any) -> bool:
    """Returns whether losses are multiplied by the scale of a GradScaler of torch or dlsim.amp."""
    return _states_of(scaler) is not _NONE and getattr(scaler, "_scale", None) is not None


def has_scaled_nothing(scaler: Any) -> bool:
    """Returns whether a GradScaler of torch is on, but has not multiplied any loss so far."""
    on = _states_of(scaler) is not _NONE and getattr(scaler, "_enabled", True)
    return bool(on) and hasattr(scaler, "_scale") and scaler._scale is None


def scaler_at_work() -> Any:
    """Returns the GradScaler of torch or dlsim.amp whose `step` runs in this thread, or None."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            break
        owner = frame.f_locals.get("self") if frame.f_code.co_name == "step" else None
        if _states_of(owner) is not _NONE and callable(getattr(owner, "get_scale", None)):
            return owner
        frame = frame.f_back
    return None


def _states_of(scaler: Any) -> Mapping[Any, Any]:
    states = getattr(scaler, "_per_optimizer_states", getattr(scaler, "_states", None))
    return states if isinstance(states, Mapping) else _NONE


class SkippedSteps:
    """Counts the steps that a scaler skips, from now on.

    `scaler` is a GradScaler of torch or of dlsim.amp; it is read after each call of its `update`.
    `step_was_skipped` then says whether the last optimizer step was skipped, `count` is the number
    of skipped steps, `run` how many of the last steps were skipped in a row, and `longest_run` the
    largest such number. To keep a scheduler in step with its optimizer:

        scaler.update()
        if not skipped.step_was_skipped:
            scheduler.step()

    Raises UsageError for another scaler.
    """

    def __init__(self, scaler: Any) -> None:
        if not tells_skips(scaler):
            raise UsageError(
                "scaler: does not report skipped steps, expected a GradScaler of torch or of "
                f"dlsim.amp, got {type(scaler).__name__}"
            )
        self.step_was_skipped = False
        self.count = self.run = self.longest_run = 0
        self._scaler = scaler
        self._before = _own_count(scaler)
        self._update = WatchedUpdate(scaler, self._note)

    def close(self) -> None:
        """Leaves the scaler as it was."""
        self._update.close()

    def _note(self, overflows: bool) -> None:
        now = _own_count(self._scaler)
        self.step_was_skipped = overflows or now > self._before
        self._before = now
        self.count += self.step_was_skipped
        self.run = self.run + 1 if self.step_was_skipped else 0
        self.longest_run = max(self.run, self.longest_run)


class WatchedUpdate:
    """Calls `note` whenever the `update` of a scaler was called, until it is closed."""

    def __init__(self, scaler: Any, note: Callable[[bool], None]) -> None:
        self._scaler = scaler
        self._before = vars(scaler).get("update")  # that of another who looks
        self._ours = scaler.update = _Update(scaler, note)

    def close(self) -> None:
        if vars(self._scaler).get("update") is self._ours:
            del self._scaler.update
            if self._before is not None:
                self._scaler.update = self._before


class _Update:
    """The `update` of a scaler, looked at. Copies and pickles of the scaler have their own."""

    def __init__(self, scaler: Any, note: Callable[[bool], None]) -> None:
        self._scaler, self._update, self._note = scaler, scaler.update, note

    def __call__(self, *args: Any, **options: Any) -> Any:
        overflows = _overflows(self._scaler)  # update forgets them
        result = self._update(*args, **options)
        self._note(overflows)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._scaler, "update")


def tells_skips(scaler: Any) -> bool:
    """Returns whether SkippedSteps knows how a scaler says that it skipped."""
    return callable(getattr(scaler, "update", None)) and (
        hasattr(scaler, "_per_optimizer_states") or hasattr(scaler, "get_num_skipped_steps")
    )


def _own_count(scaler: Any) -> int:
    """Returns what a scaler has counted by itself: that of dlsim.amp, and Cerebras' own."""
    count = getattr(scaler, "get_num_skipped_steps", None)
    return int(count()) if callable(count) else 0


def _overflows(scaler: Any) -> bool:
    """Returns whether torch's scaler has found infinities or NaN in the gradients of the step."""
    states = getattr(scaler, "_per_optimizer_states", None)
    return any(
        bool(found.item())
        for state in (states.values() if isinstance(states, Mapping) else ())
        for found in state["found_inf_per_device"].values()
    )


# -- What was done to the values of gradients between backward and the optimizer's step

_ENOUGH = 4  # elements that show a factor
_DOUBTS = 4  # steps that are compared: a scale that is forgotten is missing in all
_LEAST_SCALE = 2.0**-8  # that is told from other factors

PLACE = (
    "expected Recorder.step right after backward(), before unscale_(), clipping, optimizer.step(), "
    "update() and zero_grad()"
)
CLEARED = f"the gradients were cleared after backward, {PLACE}"


class Changes:
    """Distinguishes clipping and unscaling from other changes, such as rounding.

    It keeps the gradient of one small parameter, `name`. The scaler of dlsim.amp unscales in place,
    not always by a power of two.
    """

    def __init__(self, parameters: Mapping[str, Any], scaler: Any) -> None:
        self.name = smallest_of(parameters, _ENOUGH)
        self._unscales = hasattr(scaler, "_states")
        self._before: Any = None  # a copy of what backward has left
        self._recorded: tuple[Any, float] | None = None  # a copy of what was, and the stated scale
        self._doubts = _DOUBTS

    def given(self, gradient: Any) -> None:
        self._before = gradient.detach().clone()

    def check(self, given: Mapping[str, Any], scale: float) -> None:
        """Raises Error if gradients were cleared, clipped, or unscaled and `scale` is not 1."""
        self._recorded, gradient = None, given.get(self.name or "")
        if gradient is None or self._before is None:
            return
        # No version tells: PyTorch's scaler and, while operators are seen, clipping count none.
        before = self._before
        if not any(bool(one.any()) for one in given.values() if one is not None) and bool(
            before.any()
        ):
            raise Error(CLEARED)
        self._check_factor(_factor(before, gradient), before, scale)
        if self._doubts > 0:
            self._recorded = gradient.detach().clone(), scale

    def _check_factor(self, factor: float | None, before: Any, scale: float) -> None:
        if factor is None:
            return
        if scale != 1 and abs(factor * scale - 1) < _rounding(before):
            raise Error(
                f"{self.name}.grad: was divided by {scale:g} after backward, expected scale=1.0, "
                "or Recorder.step before unscale_()"
            )
        if not self._unscales and not _is_scale(factor, before):
            raise Error(
                f"{self.name}.grad: was multiplied by {factor:.3g} after backward, as clipping "
                f"does, {PLACE}"
            )

    def used(self, gradient: Any, divisor: float | None) -> None:
        """Raises Error if what the optimizer is given shows another scale than what was stated.

        `divisor` is the scale of the scaler that works for the optimizer, as far as one is seen.
        """
        recorded, self._recorded = self._recorded, None
        if recorded is None or gradient is None:
            return
        before, stated = recorded
        factor, near = _factor(before, gradient), _rounding(before)
        if divisor is not None and stated not in (1, divisor):  # clipping may hide the factor
            factor = 1 / divisor
        if factor is None:
            return
        carried = 1 / factor
        known = divisor is not None and abs(carried / divisor - 1) < near
        # Numbers of micro-steps and of ranks divide, too.
        far = not _LEAST_SCALE < carried / stated < 1 / _LEAST_SCALE and _is_scale(factor, before)
        if abs(carried / stated - 1) < near or not (known or far):
            self._doubts -= 1
            return
        raise Error(
            f"recorded with scale={stated:g}, but then the gradients were divided by {carried:g} "
            "for the optimizer: if that is the loss scale, say scale= or scaler="
        )

    def clear(self) -> None:
        self._before = None


def _factor(before: Any, now: Any) -> float | None:
    """Returns what all elements were multiplied by, if it is one factor below 1."""
    import torch

    if before.layout != torch.strided or now.layout != torch.strided:
        return None
    known = (before != 0) & before.isfinite() & now.isfinite()
    ratios = now.detach()[known].double() / before[known].double()
    if ratios.numel() < _ENOUGH:
        return None
    low, high = ratios.aminmax()
    if not 0 < low <= high < 1 or high - low > _rounding(now) * high:
        return None
    return float(ratios.median())


def _is_scale(factor: float, gradient: Any) -> bool:
    """Returns whether a factor is a power of two, as loss scales are."""
    return abs(factor / 2.0 ** round(math.log2(factor)) - 1) < _rounding(gradient)


def _rounding(gradient: Any) -> float:
    import torch

    return 4 * torch.finfo(gradient.dtype).eps


# -- Gradients that are those of an earlier step, or sums with them


class Leftovers:
    """Which gradients nobody has cleared since a step was recorded, or an optimizer has stepped.

    `held` is called then, and `given` after each backward pass. A gradient is unchanged if it is
    the same tensor with the same version; backward adds in place and increments the version once.
    `p.grad.data.zero_()` leaves the version alone: once `coming`, called for one parameter before
    backward adds, has seen that, nothing counts as a sum.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[weakref.ref[Any], int, bool]] = {}
        self._sums: dict[str, bool] = {}  # whether an optimizer has used the older part
        self._counts = True  # whether clearing a gradient changes its version

    def begin(self) -> None:
        self._sums.clear()

    def held(self, name: str, gradient: Any, *, used: bool) -> None:
        """Notes a gradient that is recorded, or that an optimizer has `used`."""
        if used or not self.is_unchanged(name, gradient):
            self._held[name] = weakref.ref(gradient), gradient._version, used

    def coming(self, name: str, gradient: Any) -> None:
        """Looks at a gradient that backward is about to replace or to add to."""
        if self._counts and self.is_unchanged(name, gradient):
            self._counts = bool(gradient.any())

    def given(self, name: str, gradient: Any) -> None:
        if name not in self._held:
            return
        before, version, used = self._held[name]
        is_same = before() is gradient
        if not is_same:
            self._sums.pop(name, None)
        elif gradient._version == version + 1:
            self._sums[name] = used

    def is_unchanged(self, name: str, gradient: Any) -> bool:
        """Returns whether a gradient is still that of an earlier step."""
        if gradient is None or name not in self._held:
            return False
        before, version, _ = self._held[name]
        is_same = before() is gradient
        return is_same and gradient._version == version

    def sums(self, names: Collection[str]) -> set[str]:
        """Returns those of `names` whose gradients hold more than their step has given.

        If all do, as in a training that never clears its gradients, those that an optimizer has
        used before are right.
        """
        sums = {name for name in names if name in self._sums and self._counts}
        return sums if len(sums) < len(names) else {one for one in sums if not self._sums[one]}

    def clear(self) -> None:
        self._held.clear()
        self._sums.clear()


# -- Whether gradients are still those that backward left when a step is recorded


class StepOrder:
    """Notices a step that is recorded too late, and gradients that hold more than the step's.

    It knows the parameters that got a gradient since `clear`, and that optimizers of theirs have
    stepped after it; then it calls `restart`, since what comes is another step, and `revoke` if
    what optimizers are given shows that the last step was recorded wrongly. Only what it has seen
    counts: where no hook runs, nothing is wrong. Unless communication may change gradients, it
    keeps that of a small parameter to tell clipping from other changes in place, such as rounding.
    It looks at none of sharded parameters, or unless `active`.
    """

    def __init__(
        self,
        models: Collection[Any],
        choice: Choice,
        guard: Guard,
        ranks: Ranks,
        *,
        restart: Callable[[], None],
        revoke: Callable[[Error], None],
        scaler: Any,
        active: bool,
    ) -> None:
        looks = active and not ranks.is_shard and not kinds_of_sharding(models)
        parameters = dict(choice.parameters if looks else {})
        compares = ranks.kind == "single" and not changes_gradients(models)
        self._wanted, self._guard, self._restart = choice.parameter, guard, restart
        self._revoke = revoke
        self._scaler = scaler
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()  # scalers that call the optimizers
        self._parameters = parameters
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
        import torch
        from torch.optim import optimizer

        if not self._parameters or not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
            self._frozen.clear()
            return
        module: Any = optimizer  # whose types lack the function before PyTorch 2.1
        self._handles.append(module.register_optimizer_step_post_hook(WeakHook(self._stepped)))
        if tells_skips(self._scaler):
            self._update = WatchedUpdate(self._scaler, WeakHook(self._updated))
        self._add_hooks()
        smallest = smallest_of(self._parameters)
        if smallest is not None:
            coming = WeakHook(self._coming, smallest)
            self._handles.append(self._parameters[smallest].register_hook(coming))

    def _add_hooks(self) -> None:
        for name, parameter in list(self._frozen.items()):
            if parameter.requires_grad:
                del self._frozen[name]
                hook = WeakHook(self._left, name)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        self._guard(lambda: self._take(optimizer))

    def _updated(self, _overflows: bool) -> None:
        self._guard(lambda: self._use(self._given))

    def _coming(self, name: str, _: Any) -> None:
        if self._wanted(name):
            gradient = self._parameters[name].grad
            self._guard(lambda: self._leftovers.coming(name, gradient))

    def _left(self, name: str, parameter: Any) -> None:
        if self._wanted(name):
            self._guard(lambda: self._give(name, parameter.grad))

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
