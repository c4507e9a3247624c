# SPDX-License-Identifier: Apache-2.0
"""GradScaler of cerebras.pytorch.amp on any device, with the 16-bit gradients that it implies."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from numbers import Real
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

from .._core import LossScaler
from .._errors import UsageError
from .._rounding import rounded_in_place
from ..arrays._convert import measure
from ..arrays._dtypes import FLOAT32_OVERFLOW
from ._autocast import FORMATS, rounding_dtype

# -- What a scaler does with losses and gradients: scale, round, sum the squares, clip

# Elements that are squared at a time: the float64 copy stays small.
_CHUNK = 1 << 22


def parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _stored(grad: torch.Tensor) -> torch.Tensor:
    # The values that a gradient holds, as a real tensor that shares their memory.
    if grad.layout == torch.sparse_coo:
        grad = grad._values()
    elif grad.layout != torch.strided:
        grad = grad.values()
    return torch.view_as_real(grad) if grad.is_complex() else grad


def plain_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Returns .grad, which is replaced first if its memory does not hold its values.

    That is so for a sparse one with duplicates, and where conjugation or a sign is put off.
    """
    grad: Any = parameter.grad
    plain: torch.Tensor = grad.resolve_conj().resolve_neg()
    if plain.layout == torch.sparse_coo and not plain.is_coalesced():
        plain = plain.coalesce()
    if plain is not grad:
        parameter.grad = plain
    return plain


def round_(grad: torch.Tensor, half_dtype: str) -> None:
    """Rounds a gradient to `half_dtype` and back, in place."""
    if half_dtype != "float32":
        rounded_in_place(_stored(grad.detach()), FORMATS[half_dtype])


def scale_(grad: torch.Tensor, factor: float) -> None:
    """Multiplies a gradient by a float32 value, in place and in the gradient's own type."""
    _stored(grad).mul_(factor)


def square_sum(grad: torch.Tensor) -> torch.Tensor | float:
    """Returns the float64 sum of the squares of a gradient, a scalar that stays on its device.

    It is inf or NaN if the gradient is not finite.
    """
    values = _stored(grad.detach())
    if values.device.type == "cpu" and values.dtype == torch.float32:
        stats = measure(values, "bf16")  # the sum does not depend on the format
        return stats.sum_of_squares if not stats.nonfinite else math.nan
    flat: Any = values.reshape(-1)
    parts = flat.split(_CHUNK)
    result: torch.Tensor = torch.stack([part.double().square().sum() for part in parts]).sum()
    return result


def total(sums: Iterable[torch.Tensor | float]) -> float:
    """Returns the sum of scalars, with one transfer from each device that has some."""
    result = 0.0
    devices: dict[torch.device, list[torch.Tensor]] = {}
    for scalar in sums:
        if isinstance(scalar, float):
            result += scalar
        else:
            devices.setdefault(scalar.device, []).append(scalar)
    return result + sum(float(torch.stack(scalars).sum()) for scalars in devices.values())


class QuantizeFirst:
    """Hooks on parameters that round what a backward pass adds to .grad while `active`."""

    def __init__(self, half_dtype: str) -> None:
        self.active = False
        self._half_dtype = half_dtype
        self._hooked: dict[int, weakref.ref[torch.Tensor]] = {}
        self.rounded: set[int] = set()  # parameters whose gradients consist of rounded parts

    def add(self, parameter: Any) -> None:
        """Puts a hook on `parameter` unless it has one or needs no gradient."""
        known = self._hooked.get(id(parameter))
        if parameter.requires_grad and (known is None or known() is not parameter):
            self._hooked[id(parameter)] = weakref.ref(parameter)
            parameter.register_hook(partial(self._round, id(parameter)))

    def _round(self, key: int, grad: torch.Tensor) -> torch.Tensor | None:
        # With create_graph a rounded copy would cut the graph of a gradient penalty.
        if not self.active or grad.requires_grad:
            return None
        self.rounded.add(key)
        whole = grad.coalesce() if grad.layout == torch.sparse_coo else grad
        copy: torch.Tensor = whole.detach().clone()
        round_(copy, self._half_dtype)
        return copy

    def finish(self) -> None:
        """Stops rounding until `active` is set again, and forgets what was rounded."""
        self.active = False
        self.rounded.clear()


def scaled(outputs: Any, scale: float) -> Any:
    """Returns a loss in float32 times `scale`; of lists, tuples and iterables, that of each item.

    Raises ValueError, with torch's message, for anything else.
    """
    if isinstance(outputs, torch.Tensor):
        return outputs.float() if scale == 1.0 else outputs.float() * scale
    if isinstance(outputs, (list, tuple)):
        return type(outputs)([scaled(output, scale) for output in outputs])
    if isinstance(outputs, Iterable) and not isinstance(outputs, (str, bytes)):
        return (scaled(output, scale) for output in outputs)
    raise ValueError("outputs must be a Tensor or an iterable of Tensors")


def check_limits(
    max_gradient_norm: float | None, max_gradient_value: float | None, *, zero_allowed: bool
) -> None:
    """Raises ValueError, with the original's message, for a limit that is no limit and for both."""
    for name, limit in (
        ("max_gradient_norm", max_gradient_norm),
        ("max_gradient_value", max_gradient_value),
    ):
        # Written so that NaN is refused, which the original accepts.
        if limit is not None and not (limit >= 0.0 if zero_allowed else limit > 0.0):
            kind = "non-negative" if zero_allowed else "positive"
            raise ValueError(f"{name} has to be a {kind} float. Got {limit}")
    if max_gradient_norm is not None and max_gradient_value is not None:
        raise ValueError(
            f"Gradients can be clipped by norm(={max_gradient_norm}) or by "
            f"value(={max_gradient_value}), but not both. "
            f"Do not set both `max_gradient_norm` and `max_gradient_value`."
        )


def clip_(
    parameters: Sequence[torch.Tensor],
    max_gradient_norm: float | None,
    max_gradient_value: float | None,
) -> None:
    """Clips the gradients of `parameters` in place with torch's functions, or not at all."""
    if max_gradient_norm is not None:
        clip_grad_norm_(parameters, max_gradient_norm)
    elif max_gradient_value is not None:
        clip_grad_value_(parameters, max_gradient_value)


# -- GradScaler of cerebras.pytorch.amp on any device, with the 16-bit gradients that it implies


def number(place: str, value: object) -> float:
    """Returns a real number or a scalar tensor or array as float; refuses text, bool, NaN, inf."""
    item = getattr(value, "item", None)
    plain = item() if callable(item) and getattr(value, "ndim", None) == 0 else value
    if isinstance(plain, bool) or not isinstance(plain, Real):
        raise TypeError(f"{place}: wrong type, expected a number, got {type(value).__name__}")
    try:
        result = float(plain)
    except OverflowError:  # an integer beyond float64
        result = math.inf
    if not math.isfinite(result):
        raise UsageError(
            f"{place}: not a finite number, expected one such as 2.0**15, got {result}"
        )
    return result


def is_dynamic(loss_scale: object) -> bool:
    """Returns whether `loss_scale` is "dynamic"; refuses any other text."""
    if isinstance(loss_scale, str) and loss_scale != "dynamic":
        raise UsageError(
            f"GradScaler.loss_scale: unknown text, expected 'dynamic' or a number, got "
            f"{loss_scale!r}"
        )
    return isinstance(loss_scale, str)


def make_policy(
    policy: str, loss_scale: object, arguments: Mapping[str, object], half_dtype: str
) -> LossScaler:
    """Returns the policy with its first state; arguments that are None have the code's defaults.

    The policy itself takes 0 for the default, as the original does. Raises PolicyRefusal, a
    ValueError with the original's message, where the original raises ValueError.
    """
    settings = {}
    if policy != "cerebras":
        settings["fp16_type"] = "float16" if half_dtype == "float32" else half_dtype
    if not is_dynamic(loss_scale):
        scale = 1.0 if loss_scale is None else number("GradScaler.loss_scale", loss_scale)
        settings["loss_scale"] = repr(scale)
    for name, value in arguments.items():
        if value is not None:
            settings[name] = repr(number(f"GradScaler.{name}", value))
    return LossScaler(policy, settings)


def checkpoint_values(state_dict: object, fields: Mapping[str, object]) -> dict[str, float]:
    """Returns those of `fields` that a checkpoint has, as numbers.

    Raises TypeError for what is no mapping and ValueError for values that cannot be right.
    """
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            "GradScaler.load_state_dict: wrong type, expected a dict, got "
            f"{type(state_dict).__name__}"
        )
    values = {
        name: number(f"GradScaler state {name}", state_dict[name])
        for name in fields
        if name in state_dict
    }
    if not 0.0 < float(torch.tensor(values.get("loss_scale", 1.0), dtype=torch.float32)) < math.inf:
        raise UsageError(
            "GradScaler state loss_scale: not a loss scale, expected a positive float32 number, "
            f"got {values['loss_scale']}"
        )
    return values


class OptState(Enum):
    """What has happened to an optimizer's gradients since the last update()."""

    READY = auto()
    SCALED = auto()
    UNSCALED = auto()
    STEPPED = auto()

    def is_unscaled(self) -> bool:
        """Returns whether the gradients are those of the unscaled loss."""
        return self == OptState.UNSCALED


_last_finite: WeakKeyDictionary[Optimizer, torch.Tensor] = WeakKeyDictionary()


def isfinite(optimizer: Optimizer) -> torch.Tensor | bool:
    """Returns whether the latest dynamic step of `optimizer` was taken; True before the first."""
    return _last_finite.get(optimizer, True)


def checked(optimizer: Optimizer) -> Optimizer:
    """Returns `optimizer`; raises TypeError unless it has parameter groups and a step()."""
    if not hasattr(optimizer, "param_groups") or not callable(getattr(optimizer, "step", None)):
        raise TypeError(
            f"GradScaler: wrong type, expected an optimizer, got {type(optimizer).__name__}"
        )
    return optimizer


# What a copy resets: it has seen no optimizer and no gradient.
_NOT_COPIED = ("_policy", "_states", "_square_sums", "_quantize_first", "_marks")


class GradScaler:
    """Scales losses, and rounds, tests and unscales gradients; dynamic or with a constant scale.

    Arguments, defaults and errors are those of cerebras_pytorch 2.10; 0 and None mean the default.
    After the asterisk:
      enabled      False makes all methods pass through, as in torch.
      half_dtype   what gradients are rounded to, "float16", "bfloat16", "cbfloat16" or "float32"
                   (not at all); by default that of set_half_dtype() at this moment.
      strict       step() of an optimizer that unscale_() has not seen raises, as in the original.
    """

    _policy_name = "cerebras-2.10"

    def __init__(  # noqa: PLR0917 - the original's arguments
        self,
        loss_scale: str | float | None = None,
        init_scale: float | None = None,
        steps_per_increase: int | None = None,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = None,
        overflow_tolerance: float = 0.0,
        max_gradient_norm: float | None = None,
        *,
        enabled: bool = True,
        half_dtype: str | None = None,
        strict: bool = False,
    ) -> None:
        """Checks the arguments; the scale is then that of the first step."""
        arguments = {
            "init_scale": init_scale,
            "steps_per_increase": steps_per_increase,
            "min_loss_scale": min_loss_scale,
            "max_loss_scale": max_loss_scale,
            "overflow_tolerance": overflow_tolerance,
        }
        self.half_dtype = rounding_dtype(half_dtype)
        self.dynamic = is_dynamic(loss_scale)
        self._made_of = (self._policy_name, loss_scale, arguments, self.half_dtype)
        self._policy = make_policy(*self._made_of)
        self._static_scale = 1.0 if self.dynamic else float(loss_scale or 1.0)
        self._max_gradient_norm = self._norm_or_none(max_gradient_norm)
        self._enabled = bool(enabled)
        self._strict = bool(strict)
        self._start()
        surprises = [note for note in self._policy.notes if "misprints" in note]
        if self._max_gradient_norm is not None:
            surprises.append(
                "Using global gradient clipping built into GradScaler is deprecated. Use "
                "torch.nn.utils.clip_grad_norm_"
            )
        for surprise in surprises:
            warnings.warn(surprise, stacklevel=2)

    def _start(self) -> None:
        self._non_clamped_scale: float | None = None
        self.global_norm: torch.Tensor | None = None
        self.isfinite: torch.Tensor | bool | None = None if self.dynamic else True
        self._states: WeakKeyDictionary[Optimizer, OptState] = WeakKeyDictionary()
        self._square_sums: list[torch.Tensor | float] | None = None  # None: nothing was tested
        self._skipped = 0  # optimizer steps since the last update()
        self._quantize_first = QuantizeFirst(self.half_dtype)

    def __getstate__(self) -> dict[str, Any]:
        if self.dynamic and (self._quantize_first.active or self._square_sums is not None):
            raise RuntimeError(
                "GradScaler: in the middle of a step, expected a copy after update()"
            )
        kept = {name: value for name, value in vars(self).items() if name not in _NOT_COPIED}
        return {**kept, "policy_state": self._policy.checkpoint()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = dict(state)
        policy_state = kept.pop("policy_state")
        vars(self).update(kept)
        self._start()
        vars(self).update(kept)
        self._policy = make_policy(*self._made_of)
        self._policy.restore(policy_state)

    def _norm_or_none(self, max_gradient_norm: float | None) -> float | None:
        if not max_gradient_norm or not self.dynamic:
            return None
        return number("GradScaler.max_gradient_norm", max_gradient_norm)

    @property
    def notes(self) -> list[str]:
        """Surprising effects of these arguments in the original, one line each."""
        return self._policy.notes

    @property
    def loss_is_scaled(self) -> bool:
        """Whether the scale is dynamic or not 1."""
        return self.dynamic or self._static_scale != 1.0

    @property
    def _scale(self) -> float:
        return self._policy.scale if self.dynamic else self._static_scale

    def is_enabled(self) -> bool:
        """Returns whether the scaler does anything."""
        return self._enabled

    def get_scale(self) -> torch.Tensor | float:
        """Returns the loss scale: a float32 scalar if dynamic, otherwise the given number."""
        if not self._enabled:
            return 1.0
        return torch.tensor(self._scale, dtype=torch.float32) if self.dynamic else self._scale

    def get_non_clamped_scale(self) -> torch.Tensor | float:
        """Returns what the scale would be after the last update() without min_loss_scale."""
        if not self._enabled or self._non_clamped_scale is None:
            return self.get_scale()
        return torch.tensor(self._non_clamped_scale, dtype=torch.float32)

    def get_num_skipped_steps(self) -> torch.Tensor:
        """Returns how many optimizer steps were skipped, an int64 scalar; one per optimizer."""
        return torch.tensor(self._num_skipped_steps(), dtype=torch.int64)

    def _num_skipped_steps(self) -> int:
        before = int(self._policy.checkpoint()["num_skipped_steps"]) if self.dynamic else 0
        return before + self._skipped

    def scale(self, outputs: Any) -> Any:
        """Returns the loss in float32 times the scale; of an iterable, the same of its items."""
        if not self._enabled:
            return outputs
        # As in the original, no loss may be scaled between unscale_() and update(); a constant
        # scale of 1 does without update().
        for optimizer, state in list(self._states.items()):
            if state in (OptState.UNSCALED, OptState.STEPPED) and self.loss_is_scaled:
                raise RuntimeError("Optimizer parameter gradients already scaled")
            self._states[optimizer] = OptState.SCALED
        self._quantize_first.active = True
        return scaled(outputs, self._scale)

    __call__ = scale  # the form of Model Zoo R1: scaler(loss).backward()

    def quantize_first(self, *optimizers: Optimizer) -> None:
        """Rounds the gradient of each scaled backward() before it is added to .grad.

        For gradient accumulation: otherwise the sum is rounded once, in unscale_(). Gradients made
        with create_graph=True are not rounded before unscale_().
        """
        for optimizer in optimizers:
            for parameter in parameters(checked(optimizer)):
                self._quantize_first.add(parameter)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Rounds the gradients of `optimizer` to the 16-bit type and divides them by the scale.

        A second call before update() does nothing. Raises RuntimeError after step().
        """
        state = self._states.get(checked(optimizer), OptState.READY)
        if not self._enabled or state == OptState.UNSCALED:
            return
        if state == OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        self._square_sums = self._square_sums or []
        with torch.no_grad():
            for parameter in parameters(optimizer):
                if parameter.grad is not None:
                    self._unscale_gradient(parameter)
        self._states[optimizer] = OptState.UNSCALED
        self.isfinite = None if self.dynamic else True

    def _unscale_gradient(self, parameter: torch.Tensor) -> None:
        grad = plain_gradient(parameter)
        if id(parameter) not in self._quantize_first.rounded:
            round_(grad, self.half_dtype)
        if self.loss_is_scaled:
            # Dividing float32 values in float64 and rounding is the same as dividing in float32.
            inverse = 1.0 / self._scale if self._scale else math.inf
            scale_(grad, float(np.float32(inverse)))
        if self.dynamic and self._square_sums is not None:
            self._square_sums.append(square_sum(grad))

    def clip_gradients_and_return_isfinite(self, optimizers: Iterable[Optimizer]) -> torch.Tensor:
        """Returns whether the norm of all gradients unscaled since the last update() is finite.

        With the deprecated max_gradient_norm it also clips the gradients of `optimizers`.
        """
        if self._square_sums is None:
            raise RuntimeError(
                "GradScaler: no gradients were tested since the last update(), expected "
                "unscale_() or step() of an optimizer"
            )
        squares = total(self._square_sums)
        self.global_norm = torch.tensor(math.sqrt(squares), dtype=torch.float32)
        self.isfinite = torch.tensor(squares < FLOAT32_OVERFLOW)
        if self._max_gradient_norm is not None:
            factor = self._max_gradient_norm / (self.global_norm + 1e-6)
            for parameter in (one for optimizer in optimizers for one in parameters(optimizer)):
                if parameter.grad is not None and factor < 1:
                    scale_(parameter.grad.detach(), float(factor))
        return self.isfinite

    def step_if_finite(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Calls optimizer.step(*args, **kwargs) unless the tested gradients were not finite.

        A step that is not taken leaves parameters and state alone and returns None. With a
        constant scale the step is always taken.
        """
        if not self._enabled or not self.dynamic:
            return optimizer.step(*args, **kwargs)
        if self.isfinite is None:
            unscaled = [o for o, state in self._states.items() if state == OptState.UNSCALED]
            self.clip_gradients_and_return_isfinite(unscaled)
        finite = torch.as_tensor(self.isfinite)
        _last_finite[optimizer] = finite
        if finite:
            return optimizer.step(*args, **kwargs)
        self._skipped += 1
        return None

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscales if unscale_() was not called, then does step_if_finite().

        All optimizers unscaled by now are tested together. Raises RuntimeError if called twice
        before update().
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        state = self._states.get(checked(optimizer), OptState.READY)
        if state == OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if self._strict and self._quantize_first.active and state != OptState.UNSCALED:
            raise RuntimeError("stack expects a non-empty TensorList")
        self.unscale_(optimizer)
        result = self.step_if_finite(optimizer, *args, **kwargs)
        self._states[optimizer] = OptState.STEPPED
        return result

    def update(self, new_scale: object = None) -> None:
        """Updates the scale from the outcome of this step, after all optimizers have stepped."""
        if new_scale:
            raise ValueError("cstorch.amp.GradScaler does not support providing a `new_scale`")
        if not self._enabled:
            return
        if self.dynamic:
            self._update_scale()
            self.isfinite = None
        self._square_sums = None
        self._quantize_first.finish()
        for optimizer in self._states:
            self._states[optimizer] = OptState.READY

    def _update_scale(self) -> None:
        if self.isfinite is None:
            self.clip_gradients_and_return_isfinite(())
        skipped = self._num_skipped_steps()
        decision = self._policy.next(overflow=not self.isfinite)
        # The policy counts one skipped step; here each optimizer counts, as in the original.
        self._policy.restore({"num_skipped_steps": skipped})
        self._skipped = 0
        event = decision["event"]
        non_clamped = float.fromhex(event["details"]["non_clamped"]) if event else self._scale
        self._non_clamped_scale = non_clamped

    def state_dict(self, destination: object = None) -> dict[str, Any]:
        """Returns the state for a checkpoint; copies, where the original hands out its own."""
        if not self._enabled:
            return {}
        if not self.dynamic:
            return {"loss_scale": self._static_scale}
        state = {
            name: torch.tensor(value, dtype=torch.float32 if name == "loss_scale" else torch.int64)
            for name, value in self._policy.checkpoint().items()
        }
        return {**state, "num_skipped_steps": self.get_num_skipped_steps()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from state_dict(); keys that are absent keep their values, others are ignored.

        Raises TypeError unless it is a mapping, and ValueError for impossible values.
        """
        values = checkpoint_values(state_dict, self._policy.checkpoint())
        if self.dynamic and self._enabled:
            self._policy.restore(values)
        elif self._enabled and "loss_scale" in values:
            self._static_scale = values["loss_scale"]


def _optimizers(optimizer: Any) -> list[Optimizer]:
    optimizers: list[Any] = [optimizer]
    if isinstance(optimizer, (list, tuple)):
        optimizers = list(optimizer)
    for i, one in enumerate(optimizers):
        if not isinstance(one, Optimizer):
            raise TypeError(
                f"Expected optimizer {i} to be a `torch.optim.Optimizer`. Got: `{type(one)}`"
            )
    return optimizers


def optimizer_step(
    loss: torch.Tensor,
    optimizer: Optimizer | Sequence[Optimizer],
    grad_scaler: GradScaler,
    max_gradient_norm: float | None = None,
    max_gradient_value: float | None = None,
    *,
    max_gradient_val: float | None = None,
) -> None:
    """Runs backward() and a step of one or several optimizers; then their gradients are zeroed.

    The order is scale, backward, unscale_, clip by norm or by value, step, update, zero_grad; the
    norm is that of all parameters of all optimizers. Everything is checked before the backward
    pass. `max_gradient_val` is what Cerebras' documentation calls `max_gradient_value`. Errors
    are the original's: ValueError for the loss and the limits, TypeError for the others.
    """
    if not isinstance(loss, torch.Tensor):
        raise ValueError(
            f"Expected the wrapped function to return a single loss tensor. Got: {type(loss)}"
        )
    optimizers = _optimizers(optimizer)
    if not isinstance(grad_scaler, GradScaler):
        raise TypeError(
            f"Expected grad_scaler to be a `dlsim.amp.GradScaler`. Got: `{type(grad_scaler)}`"
        )
    limit_value = max_gradient_value if max_gradient_val is None else max_gradient_val
    check_limits(max_gradient_norm, limit_value, zero_allowed=True)

    grad_scaler.scale(loss).backward()
    for one in optimizers:
        grad_scaler.unscale_(one)
    clip_(
        [parameter for one in optimizers for parameter in parameters(one)],
        max_gradient_norm,
        limit_value,
    )
    for one in optimizers:
        grad_scaler.step(one)
    grad_scaler.update()
    for one in optimizers:
        one.zero_grad()
