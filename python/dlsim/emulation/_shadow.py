# SPDX-License-Identifier: Apache-2.0
"""Whether a model's steps work in a format, with parts of it kept in float32: by running them.

On a CPU, CUDA's autocast is emulated in any format, by kernels in PyTorch's dispatcher, so that its
rules also hold inside composite and scripted functions, attention, and checkpoints that backward
computes again. Products take and give 16-bit values and sum in float32. fp16 and bf16 are PyTorch's
own tensors, which refuse what they refuse in reality. Of another format, `_Carrier` holds the
values in float32, rounded, under the name of a type that PyTorch knows.
"""

from __future__ import annotations

import functools
import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .._compiled import Uncompiled
from .._core import Format
from .._errors import UsageError
from .._keep import KeptFloat32
from .._rounding import Rounding, Tensor
from .._text import some_of
from ..arrays._dtypes import format_of
from ..recorder._autocast import as_first, operation_of, policy_of, promotes
from ..recorder._tensors import tensors_in

# Whose types lack much of what is used here in PyTorch 1.13.
_torch: Any = torch
_Mode: Any = TorchDispatchMode
_Base: Any = torch.Tensor

BAD_SHARE = 0.2  # of the steps that may be not finite
LOSS_DIFFERENCE = 0.05  # that the mean loss may differ by
GRADIENT_ERROR = 0.05  # of the gradients' energy, in the mean over modules
TORCH_START, LEAST_SCALE = 2.0**16, 2.0**-24

_MISSING = "not implemented for"  # PyTorch's words where a CPU has no kernel for 16 bits


@dataclass(frozen=True)
class CheckedStep:
    """A step in a format, and the same step in float32.

    `gradient_norm` is that of all gradients together, divided by the loss `scale`; NaN if backward
    did not run. `error` is the first line of what the step raised, or empty.
    """

    loss: float
    float32_loss: float
    gradient_norm: float
    float32_gradient_norm: float
    scale: float
    error: str = ""

    @property
    def finite(self) -> bool:
        """Whether the step ran, with a finite loss and finite gradients."""
        return not self.error and math.isfinite(self.loss) and math.isfinite(self.gradient_norm)

    @property
    def overflows(self) -> bool:
        """Whether the loss is finite, but not the gradients: a lower scale may help."""
        return not self.error and math.isfinite(self.loss) and not self.finite

    @property
    def counts(self) -> bool:
        """Whether the step is finite in float32."""
        return math.isfinite(self.float32_loss) and math.isfinite(self.float32_gradient_norm)


@dataclass(frozen=True)
class PlanCheck:
    """What check_plan found; `print` says it in a sentence or two.

    `gradient_errors` has, for each module with parameters of its own, the energy of the difference
    of their gradients from float32's, relative to theirs, at most 1, over the finite steps.
    """

    format: str
    keep_float32: tuple[str, ...]
    steps: tuple[CheckedStep, ...]
    gradient_errors: Mapping[str, float]

    @property
    def bad_steps(self) -> tuple[int, ...]:
        """The steps that raised or were not finite in the format, but in float32."""
        return tuple(i for i, one in enumerate(self.steps) if one.counts and not one.finite)

    @property
    def loss_difference(self) -> float:
        """How far the mean loss of the finite steps is from float32's, by its mean magnitude."""
        finite = [one for one in self.steps if one.counts and one.finite]
        change = abs(sum(one.loss - one.float32_loss for one in finite))
        size = sum(abs(one.float32_loss) for one in finite)
        if size:
            return change / size
        return math.nan if not finite else math.inf if change else 0.0

    @property
    def gradient_error(self) -> float:
        """The mean of `gradient_errors` over modules: a small one counts as a large one does."""
        errors = self.gradient_errors.values()
        return sum(errors) / len(errors) if errors else math.nan

    @property
    def holds(self) -> bool:
        """Whether the plan holds.

        It does not if more than a fifth of the steps raise or are not finite, if the mean loss
        differs by 5 %, or if 5 % of the gradients' energy is wrong in the mean over modules.
        """
        return not self._reason()

    def __str__(self) -> str:
        kept = f" with {some_of(self.keep_float32)} in float32" if self.keep_float32 else ""
        counted = sum(one.counts for one in self.steps)
        bad, reason = self.bad_steps, self._reason()
        text = f"{self.format} {'fails' if reason else 'holds'}{kept}: "
        if bad:
            first = self.steps[bad[0]]
            what = "gradients that are" if math.isfinite(first.loss) else "a loss that is"
            how = "raise" if first.error else f"have {what} not finite"
            text += f"{len(bad)} of {counted} steps {how}, first step {bad[0]}"
            text += f" ({first.error})" if first.error else ""
        else:
            text += f"all {counted} steps are finite"
        if len(bad) < counted:
            text += (
                ". The mean loss differs from float32's by "
                f"{100 * self.loss_difference:.2g} %, gradients by "
                f"{100 * self.gradient_error:.2g} % of their energy"
            )
            if reason == "gradients":
                errors = self.gradient_errors
                worst = sorted(errors, key=lambda name: -errors[name])
                text += ", most in " + some_of(one for one in worst if errors[one] > GRADIENT_ERROR)
        return text + "."

    def _reason(self) -> str:
        counted = sum(one.counts for one in self.steps)
        if len(self.bad_steps) > BAD_SHARE * counted:
            return "not finite"
        if not self.loss_difference < LOSS_DIFFERENCE:
            return "loss"
        return "" if self.gradient_error < GRADIENT_ERROR else "gradients"


def check_plan(
    model: torch.nn.Module,
    loss_of: Callable[[Any, Any], torch.Tensor],
    batches: Iterable[Any],
    *,
    keep_float32: Any = (),
    format: str | Format = "fp16",
    scale: float | None = None,
) -> PlanCheck:
    """Runs forward and backward for each batch in `format` and in float32, and compares them.

    `loss_of(model, batch)` returns the loss, without autocast and without backward. `keep_float32`
    are names as for dlsim.keep_float32, or the `change` of a verdict, whose scale is used then.
    `scale` multiplies the loss before backward, and is halved after gradients that are not finite
    as by torch.amp.GradScaler. None: the largest from 2^16 on that the first batch takes, but 1 in
    formats with the exponents of float32.

    With the model on a CUDA device fp16 and bf16 run under torch.autocast, otherwise its rules are
    emulated on the CPU, where other formats are rounded to. No optimizer runs; parameters, buffers,
    gradients, training modes and random numbers are afterwards as before, but not what a model
    keeps elsewhere. Raises UsageError where nothing can be compared.
    """
    given = getattr(keep_float32, "keep_float32", keep_float32) or ()
    names = (given,) if isinstance(given, str) else tuple(given)
    planned = getattr(keep_float32, "scale", None)
    known = format_of(format)
    searched = scale is None and planned is None and known.exponent_bits < 8
    if scale is None:
        scale = planned or (TORCH_START if searched else 1.0)
    if not (scale > 0 and math.isfinite(scale)):
        raise UsageError(f"scale: bad number, expected a finite number above 0, got {scale}")
    steps: list[CheckedStep] = []
    with _unchanged(model) as restore, KeptFloat32(model, list(names)):
        run = _Steps(model, loss_of, known)
        for batch in batches:
            before = _random_numbers()
            reference = run.run(batch, 1.0, nullcontext())
            expected = [one.grad for _, one in run.by_module]
            after = _random_numbers()
            restore()
            while True:
                before()
                step = run.in_format(batch, scale, reference)
                if step.counts and step.finite:
                    run.compare(expected, scale)
                restore()
                if not step.overflows:
                    searched = False
                    break
                scale /= 2
                if not searched or scale < LEAST_SCALE:
                    break
            after()
            steps.append(step)
    if not any(one.counts for one in steps):
        raise UsageError(
            "batches: nothing to compare, expected at least one with a finite loss and finite "
            f"gradients in float32, got {len(steps)} without"
        )
    return PlanCheck(known.name, names, tuple(steps), run.errors())


class _Steps:
    """Runs forward and backward of a model, in float32 or in a format, and compares gradients.

    By module, not by parameter: of a bias before a normalization they are noise of float32.
    """

    def __init__(self, model: torch.nn.Module, loss_of: Any, format: Format) -> None:
        self._model, self._loss_of, self._format = model, loss_of, format
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point() and parameter.element_size() < 4:
                raise UsageError(
                    f"{name}: bad type, expected float32, to compare with, got {parameter.dtype}: "
                    "convert the model first, model.float()"
                )
        device = next((one.device for one in model.parameters()), torch.device("cpu"))
        self._on_cuda = device.type == "cuda"
        self._carried = False
        if device.type not in ("cpu", "cuda") or (self._on_cuda and format.name not in TYPES):
            raise UsageError(
                f"model: bad device, expected the CPU, where {format.name} is emulated, got "
                f"{device}"
            )
        if not self._on_cuda:
            CudaAutocast(format)  # what it refuses is no failure of a step
        self.by_module = [
            (name or "(root)", one)
            for name, module in model.named_modules()
            for one in module.parameters(recurse=False)
            if one.requires_grad
        ]
        self._sums: dict[str, tuple[float, float]] = {}

    def in_format(self, batch: Any, scale: float, reference: tuple[float, float]) -> CheckedStep:
        """Runs a step in the format."""
        loss = norm = math.nan
        message = ""
        try:
            loss, norm = self._in_format(batch, scale)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a model raises in 16 bits
            message = f"{type(error).__name__}: {error}".splitlines()[0]
        return CheckedStep(loss, reference[0], norm, reference[1], scale, message)

    def compare(self, expected: list[torch.Tensor | None], scale: float) -> None:
        """Adds to the errors how the gradients, of a loss with a scale, differ from float32's."""
        for (name, parameter), one in zip(self.by_module, expected, strict=True):
            if one is not None:
                found = parameter.grad
                rest = one if found is None else found.float() / scale - one
                wrong, all_of_it = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = wrong + _energy(rest), all_of_it + _energy(one)

    def errors(self) -> dict[str, float]:
        """Returns the relative errors so far; modules without gradients have none."""
        return {
            name: min(1.0, wrong / all_of_it) if math.isfinite(wrong) else 1.0
            for name, (wrong, all_of_it) in self._sums.items()
            if all_of_it > 0
        }

    def _in_format(self, batch: Any, scale: float) -> tuple[float, float]:
        if self._on_cuda:
            autocast = _torch.autocast("cuda", dtype=TYPES[self._format.name])
            return self.run(batch, scale, autocast)
        restart = _random_numbers()
        try:
            with CudaAutocast(self._format, carried=self._carried) as rules:
                return self.run(batch, scale, rules.forward())
        except (RuntimeError, NotImplementedError) as error:
            if self._carried or _MISSING not in str(error):
                raise
        self._carried = True  # what this CPU has no kernels for, CUDA may have
        restart()
        return self._in_format(batch, scale)

    def run(self, batch: Any, scale: float, forward: Any) -> tuple[float, float]:
        """Returns the loss and the norm of the gradients."""
        parameters = [one for one in self._model.parameters() if one.requires_grad]
        for parameter in parameters:
            parameter.grad = None
        with torch.enable_grad():
            with forward:
                loss = self._loss_of(self._model, batch)
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                kind = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
                raise UsageError(f"loss_of: bad loss, expected a tensor of one number, got {kind}")
            value = float(loss.detach())
            if not math.isfinite(value):
                return value, math.nan
            scaled: Any = (loss.float() * scale).sum()
            scaled.backward()
        squares = [_energy(one.grad) / scale**2 for one in parameters if one.grad is not None]
        return value, math.sqrt(sum(squares)) if squares else math.nan


def _energy(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64).square())


@contextmanager
def _unchanged(model: torch.nn.Module) -> Iterator[Callable[[], None]]:
    """Gives a function that restores a model's parameters and buffers, and restores all at the end.

    Hooks on gradients that step an optimizer do not run, nor does communication of gradients.
    """
    parameters: list[Any] = list(model.parameters())
    modules = [(one, one.training, dict(one._buffers)) for one in model.modules()]
    saved = [(one, one.detach().clone()) for one in [*parameters, *model.buffers()]]
    uncompiled = Uncompiled()

    def restore() -> None:
        for module, training, buffers in modules:
            module.training = training
            module._buffers.clear()
            module._buffers.update(buffers)
        with torch.no_grad():
            for tensor, before in saved:
                if not torch.equal(tensor, before):
                    tensor.copy_(before)

    with ExitStack() as undo, getattr(model, "no_sync", nullcontext)():
        undo.callback(uncompiled.hold, False)
        uncompiled.hold(True)
        undo.callback(_random_numbers())
        for parameter in parameters:
            undo.callback(setattr, parameter, "grad", parameter.grad)
            hooks = getattr(parameter, "_post_accumulate_grad_hooks", None)
            if hooks is not None:
                undo.callback(setattr, parameter, "_post_accumulate_grad_hooks", hooks)
                parameter._post_accumulate_grad_hooks = None
        undo.callback(restore)
        yield restore


def _random_numbers() -> Callable[[], None]:
    """Returns a function after which the random numbers are drawn again that come now."""
    cpu, python, numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()
    cuda = torch.cuda.get_rng_state_all() if _torch.cuda.is_initialized() else None

    def restore() -> None:
        torch.set_rng_state(cpu)
        random.setstate(python)
        np.random.set_state(numpy)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)

    return restore


TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}

_REFUSES = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: use "
    "binary_cross_entropy_with_logits or BCEWithLogitsLoss"
)


class CudaAutocast:
    """Within it, `forward()` is CUDA's autocast in a format; backward belongs inside as well.

    Meanwhile `torch.autocast("cpu")` is CUDA's in all threads; with enabled=False it is float32, as
    always. `carried` holds fp16 and bf16 in float32, too: for operations that PyTorch does not have
    for 16-bit tensors on a CPU.
    """

    def __init__(self, format: str | Format, *, carried: bool = False) -> None:
        rounding = Rounding(format)
        name = rounding.format.name
        self.dtype = TYPES.get(name, torch.float16)
        if not _can_autocast(self.dtype):
            raise UsageError(
                f"format: bad format {name!r}, expected bf16 as autocast on a CPU has no float16 "
                f"before PyTorch 2.3, got it with {torch.__version__}"
            )
        self._mode = None
        if carried or name not in TYPES:
            self._mode = _Carried(rounding, self.dtype, refuses=name in TYPES)
        self._casts: dict[int, tuple[Tensor, Tensor]] = {}
        self._kernels: Any = None

    def __enter__(self) -> CudaAutocast:
        self._kernels = _torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"[\s\S]*[Oo]verrid")  # that is the purpose
            for operator, rule in _operators():
                self._kernels.impl(operator, functools.partial(rule, self, operator), "AutocastCPU")
        if self._mode is not None:
            self._mode.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._mode is not None:
            self._mode.__exit__(*error)
        kernels, self._kernels = self._kernels, None
        if hasattr(kernels, "_destroy"):  # before PyTorch 2.1 its end does that
            kernels._destroy()

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Within it, operations run as CUDA's autocast runs them."""
        try:
            with _torch.autocast("cpu", dtype=self.dtype):
                yield
        finally:
            self._casts.clear()

    def narrow(self, tensor: Tensor) -> Tensor:
        """Returns a floating-point tensor in 16 bits; a parameter's copy is shared meanwhile."""
        if not _eligible(tensor) or tensor.dtype == self.dtype:
            return tensor
        if not (tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled()):
            narrow: Tensor = tensor.to(self.dtype)
            return narrow
        if id(tensor) not in self._casts:
            self._casts[id(tensor)] = tensor, tensor.to(self.dtype)
        return self._casts[id(tensor)][1]


@functools.cache
def _can_autocast(dtype: torch.dtype) -> bool:
    """Returns whether autocast on a CPU takes a type; before PyTorch 2.3, not float16."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _torch.autocast("cpu", dtype=dtype):
                return bool(torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype == dtype)
        except RuntimeError:
            return False


def _eligible(tensor: Tensor) -> bool:
    return bool(tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.is_cpu)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if _eligible(tensor) else tensor


def _map(value: Any, cast: Callable[[Tensor], Tensor]) -> Any:
    """Applies `cast` to the tensors of an operator's arguments, each time that one occurs."""
    if isinstance(value, Tensor):
        return cast(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_map(one, cast) for one in value)
    if isinstance(value, dict):
        return {key: _map(one, cast) for key, one in value.items()}
    return value


def _without_rules() -> Any:
    """Returns a context in which no operation is autocast, for what a kernel calls."""
    key = getattr(_torch._C.DispatchKey, "AutocastCPU", None)
    if key is None:  # PyTorch 1.13
        return _torch.autocast("cpu", enabled=False)
    return _torch._C._ExcludeDispatchKeyGuard(_torch._C.DispatchKeySet(key))


def _in_16_bits(rules: CudaAutocast, operator: Any, *args: Any, **kwargs: Any) -> Any:
    with _without_rules():
        args, kwargs = _map((args, kwargs), lambda one: _wide(rules.narrow(one)))
        result = operator(*args, **kwargs)
        return _map(result, lambda one: one.to(rules.dtype) if _eligible(one) else one)


def _in_float32(_rules: CudaAutocast, operator: Any, *args: Any, **kwargs: Any) -> Any:
    with _without_rules():
        args, kwargs = _map((args, kwargs), _wide)
        return operator(*args, **kwargs)


def _in_widest(_rules: CudaAutocast, operator: Any, *args: Any, **kwargs: Any) -> Any:
    with _without_rules():
        if any(one.dtype == torch.float32 and one.is_cpu for one in tensors_in((args, kwargs))):
            args, kwargs = _map((args, kwargs), _wide)
        return operator(*args, **kwargs)


def _banned(_rules: CudaAutocast, _operator: Any, *_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError(_REFUSES)


@functools.cache
def _operators() -> tuple[tuple[Any, Any], ...]:
    """Returns the operators that autocast has rules for, with their rules."""
    found = []
    for schema in _torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        hidden = name.endswith(("_", "_backward")) or "out" in schema.overload_name
        if space != "aten" or hidden or not hasattr(_torch.ops.aten, name):
            continue
        operation = operation_of(name)
        policy = policy_of(operation)
        rule: Any = {True: _in_16_bits, False: _in_float32, None: _in_widest}[policy]
        if name == "binary_cross_entropy":
            rule = _banned
        elif policy is None and not promotes(operation):
            continue
        operator = getattr(getattr(_torch.ops.aten, name), schema.overload_name or "default", None)
        if operator is not None:
            found.append((operator, rule))
    return tuple(found)


class _Carrier(_Base):  # type: ignore[misc]
    """A tensor of a 16-bit type whose values, of another format, are in `values` in float32."""

    values: Tensor
    mode: _Carried

    @staticmethod
    def __new__(cls, values: Tensor, mode: _Carried) -> _Carrier:
        """Returns a tensor that has the shape of `values`, which are rounded already."""
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=mode.dtype,
            device=values.device,
        )
        made.values, made.mode = values, mode
        carrier: _Carrier = made
        return carrier

    def __repr__(self, **_: Any) -> str:
        return f"_Carrier({self.values!r})"

    __torch_function__ = _torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls an operator where no mode is active, as when a result is printed."""
        mode = next(one.mode for one in tensors_in((args, kwargs)) if isinstance(one, _Carrier))
        return mode.__torch_dispatch__(func, types, args, kwargs)


class _Carried(_Mode):  # type: ignore[misc]
    """Runs operators on the values of carriers, and rounds what would have 16 bits."""

    def __init__(self, rounding: Rounding, dtype: torch.dtype, *, refuses: bool) -> None:
        super().__init__()
        self.dtype = dtype
        self._rounding = rounding
        self._refuses = refuses

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls an operator of forward or backward."""
        kwargs = kwargs or {}
        given = [one for one in tensors_in((args, kwargs)) if one.is_floating_point()]
        if kwargs.get("dtype") != self.dtype and all(one.dtype != self.dtype for one in given):
            return func(*args, **kwargs)
        for argument, one in zip(func._schema.arguments, args, strict=False):
            if self._refuses and argument.name == "value" and isinstance(one, (int, float)):
                torch.empty((), dtype=self.dtype).fill_(one)  # raises what PyTorch would
        plain_args, plain = _map((args, kwargs), self._values)
        if plain.get("dtype") == self.dtype:
            plain["dtype"] = torch.float32
        result = func(*plain_args, **plain)
        for argument, one in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for changed in tensors_in(one):
                    if isinstance(changed, _Carrier):
                        changed.values.copy_(self._rounding(changed.values))
                    elif changed.dtype == self.dtype:
                        raise RuntimeError(f"{func}: changes a tensor that dlsim has not made")
        aliases = [one.alias_info for one in func._schema.returns]
        if aliases and aliases[0] is not None and aliases[0].is_write:
            return args[0]
        name = operation_of(func._schema.name)
        if not aliases or not self._is_narrow(name, kwargs, given):
            return result
        if not isinstance(result, (tuple, list)):
            return self._carrier(result, aliases[0])
        one_each = len(aliases) == len(result)
        # Of a norm, means and deviations have float32.
        count = 1 if name.endswith("norm") and len(given) > 1 else len(result)
        carriers = [
            self._carrier(one, aliases[i if one_each else 0]) if i < count else one
            for i, one in enumerate(result)
        ]
        return type(result)(carriers)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it would import the compiler, which takes seconds

    def _values(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, _Carrier):
            return tensor.values
        return tensor.float() if tensor.dtype == self.dtype else tensor

    def _carrier(self, result: Any, alias: Any) -> Any:
        if not (isinstance(result, Tensor) and result.dtype == torch.float32):
            return result
        return _Carrier(self._rounding(result) if alias is None else result, self)

    def _is_narrow(self, name: str, kwargs: dict[str, Any], given: list[Tensor]) -> bool:
        """Returns whether results have 16 bits, as PyTorch's rules for types have it."""
        if kwargs.get("dtype") is not None:
            return bool(kwargs["dtype"] == self.dtype)
        deciding = [one for one in given if one.dim()] or given
        return all(one.dtype == self.dtype for one in deciding[: 1 if as_first(name) else None])
