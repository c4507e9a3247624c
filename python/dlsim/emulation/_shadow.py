# SPDX-License-Identifier: Apache-2.0
"""Whether a model's steps work in a format: by running them in it alongside float32.

Also with parts of the model kept in float32. On a CPU the rules of `_cuda_autocast` hold.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from .._compiled import Uncompiled
from .._core import Format
from .._errors import UsageError
from .._keep import KeptFloat32
from .._text import some_of
from ..arrays._dtypes import format_of
from ._cuda_autocast import TYPES, CudaAutocast
from ._culprits import Culprit, Watch

_torch: Any = torch  # whose types lack much of what is used here in PyTorch 1.13
_T = TypeVar("_T")

# Of docs/check-plan.md, which says what they were tried on.
BAD_SHARE = 0.2  # of the steps that may be not finite
LOSS_DIFFERENCE = 0.05  # that the mean loss may differ by
GRADIENT_ERROR = 0.2  # of the mean gradient of a row, in the mean over rows and parameters
LIVE_ROW = 1e-6  # of the largest row of a matrix; what is smaller is not compared
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
    """What a shadow found; `print` says it in a sentence or two.

    `gradient_errors` has, for each parameter of two or more dimensions, how far the gradient of a
    row, averaged over the finite steps, is from float32's, in the mean over its rows: by the norm
    of float32's and of what chance leaves of that average, at most 1. `culprits` are the operations
    at which the first bad step breaks, in the order in which they run; without any its forward pass
    is finite, and `broken_gradients` names the modules that have gradients which are not, from the
    input on.
    """

    format: str
    keep_float32: tuple[str, ...]
    steps: tuple[CheckedStep, ...]
    gradient_errors: Mapping[str, float]
    culprits: tuple[Culprit, ...] = ()
    broken_gradients: tuple[str, ...] = ()

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
        """The mean of `gradient_errors`: a small parameter counts as a large one does."""
        errors = self.gradient_errors.values()
        return sum(errors) / len(errors) if errors else 0.0

    @property
    def holds(self) -> bool:
        """Whether the format, with the plan, serves at these steps.

        It does not if more than a fifth of the steps raise or are not finite, if the mean loss
        differs by 5 %, or if mean gradients of rows do by 20 %, over all rows and parameters.
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
            text += self._where()
        else:
            text += f"all {counted} steps are finite"
        if len(bad) < counted:
            text += (
                ". The mean loss differs from float32's by "
                f"{100 * self.loss_difference:.2g} %, mean gradients of rows by "
                f"{100 * self.gradient_error:.2g} %"
            )
            if reason == "gradients":
                errors = self.gradient_errors
                worst = sorted(errors, key=lambda name: -errors[name])
                wrong = (_module_of(one) for one in worst if errors[one] > GRADIENT_ERROR)
                text += ", most in " + some_of(dict.fromkeys(wrong))
        return text + "."

    def _where(self) -> str:
        """Says where the first bad step breaks, as far as that is known."""
        if self.culprits:
            first = self.culprits[0]
            others = dict.fromkeys(
                one.module for one in self.culprits if one.module != first.module
            )
            return f": {first}" + (f"; also in {some_of(others)}" if others else "")
        if self.broken_gradients:
            # From the loss on: backward passes on to the input what is broken.
            return f": those of {some_of(reversed(self.broken_gradients))}"
        return ""

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

    All with the weights that the model has; dlsim.shadow runs alongside a training, and has these
    arguments, too. `loss_of(model, batch)` returns the loss, without autocast and without backward.
    `keep_float32` are names as for dlsim.keep_float32, or the `change` of a verdict, whose scale is
    used then. `scale` multiplies the loss before backward, and is halved after gradients that are
    not finite as by torch.amp.GradScaler. None: the largest from 2^16 on that a batch takes, but 1
    in formats with the exponents of float32.

    With the model on a CUDA device fp16 and bf16 run under torch.autocast, otherwise its rules are
    emulated on the CPU, where other formats are rounded to. No optimizer runs; parameters, buffers,
    gradients, training modes and random numbers are afterwards as before, but not what a model
    keeps elsewhere. It takes the memory of a step and six times that of the parameters, of which
    three are sums over the steps. Raises UsageError where nothing can be compared.
    """
    searched = scale is None and getattr(keep_float32, "scale", None) is None
    run = _shadow_of(model, loss_of, keep_float32, format, scale, searched=searched)
    with run._ready() as restore:
        for batch in batches:
            run._step(batch, restore)
    return run.check()


def shadow(
    model: torch.nn.Module,
    loss_of: Callable[[Any, Any], torch.Tensor],
    *,
    keep_float32: Any = (),
    format: str | Format = "fp16",
    scale: float | None = None,
) -> Shadow:
    """Returns a shadow of a training: `step(batch)` runs a step in `format` and in float32.

    `check()` returns what that has found so far. The arguments are those of dlsim.check_plan, but
    the steps are assumed to be far apart, so that a scaler would find a scale in between: the scale
    is halved within a step until the gradients are finite, and only a step that this does not help
    is bad.
    """
    return _shadow_of(model, loss_of, keep_float32, format, scale, searched=True)


def _shadow_of(
    model: torch.nn.Module,
    loss_of: Any,
    keep_float32: Any,
    format: str | Format,
    scale: float | None,
    *,
    searched: bool,
) -> Shadow:
    given = getattr(keep_float32, "keep_float32", keep_float32) or ()
    names = (given,) if isinstance(given, str) else tuple(given)
    known = format_of(format)
    start = scale or getattr(keep_float32, "scale", None)
    if scale is not None and not (scale > 0 and math.isfinite(scale)):
        raise UsageError(f"scale: bad number, expected a finite number above 0, got {scale}")
    if start is None:
        start = TORCH_START if known.exponent_bits < 8 else 1.0
        searched = searched and start > 1
    return Shadow(model, loss_of, known, names, start, searched=searched)


class Shadow:
    """Runs steps in a format alongside float32, as dlsim.shadow starts it."""

    def __init__(
        self,
        model: torch.nn.Module,
        loss_of: Any,
        format: Format,
        names: tuple[str, ...],
        scale: float,
        *,
        searched: bool,
    ) -> None:
        """Takes checked arguments of dlsim.shadow; a searched scale falls as far as it has to."""
        self._model, self._loss_of, self._format, self._names = model, loss_of, format, names
        self._scale, self._searched = scale, searched
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
        self._steps: list[CheckedStep] = []
        self._rows: dict[str, _Rows] = {}  # by the parameter's name
        self._culprits: tuple[Culprit, ...] = ()
        self._broken_gradients: tuple[str, ...] = ()

    def step(self, batch: Any) -> CheckedStep:
        """Runs a step with the weights that the model has now, and leaves all as it was."""
        with self._ready() as restore:
            return self._step(batch, restore)

    def check(self) -> PlanCheck:
        """Returns what was found so far; UsageError if no step was finite in float32."""
        if not any(one.counts for one in self._steps):
            raise UsageError(
                "batches: nothing to compare, expected at least one with a finite loss and finite "
                f"gradients in float32, got {len(self._steps)} without"
            )
        errors = {name: rows.error() for name, rows in self._rows.items()}
        return PlanCheck(
            self._format.name,
            self._names,
            tuple(self._steps),
            {name: error for name, error in errors.items() if error is not None},
            self._culprits,
            self._broken_gradients,
        )

    @contextmanager
    def _ready(self) -> Iterator[Callable[[], None]]:
        with _unchanged(self._model) as restore, KeptFloat32(self._model, list(self._names)):
            yield restore

    def _step(self, batch: Any, restore: Callable[[], None]) -> CheckedStep:
        """Runs a step; random numbers go on as after float32's."""
        before = _random_numbers()
        reference = self._run(batch, 1.0, nullcontext())
        expected = {name: one.grad for name, one in self._trained()}
        after = _random_numbers()
        restore()
        while True:
            before()
            step = self._in_format(batch, reference)
            restore()
            lower = self._searched and step.overflows and self._scale / 2 >= LEAST_SCALE
            if not lower:
                break
            self._scale /= 2
        if step.counts and step.finite:
            self._compare(expected)
        elif step.counts and not self._culprits and not self._broken_gradients:
            self._explain(batch, step, before, restore)
        if step.overflows and not self._searched:
            self._scale /= 2
        after()
        self._steps.append(step)
        return step

    def _trained(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                yield name, parameter

    def _in_format(self, batch: Any, reference: tuple[float, float]) -> CheckedStep:
        """Runs a step in the format."""
        loss = norm = math.nan
        message = ""
        try:
            loss, norm = self._under_rules(lambda forward: self._run(batch, self._scale, forward))
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a model raises in 16 bits
            message = f"{type(error).__name__}: {error}".splitlines()[0]
        return CheckedStep(loss, reference[0], norm, reference[1], self._scale, message)

    def _compare(self, expected: dict[str, torch.Tensor | None]) -> None:
        """Adds how the gradients, which carry the scale, differ from float32's."""
        for name, parameter in self._trained():
            one = expected[name]
            if one is not None and one.dim() > 1:
                found = parameter.grad
                scaled = torch.zeros_like(one) if found is None else found.float() / self._scale
                self._rows.setdefault(name, _Rows()).add(one, scaled)

    def _explain(
        self,
        batch: Any,
        step: CheckedStep,
        random_numbers: Callable[[], None],
        restore: Callable[[], None],
    ) -> None:
        """Finds out where the step that has just run breaks."""
        if step.overflows:
            broken = (
                _module_of(name)
                for name, parameter in self._trained()
                if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all())
            )
            self._broken_gradients = tuple(dict.fromkeys(broken))
            return
        random_numbers()
        in_float32 = self._watch(batch, nullcontext())
        restore()
        random_numbers()
        in_format = self._under_rules(lambda forward: self._watch(batch, forward))
        restore()
        self._culprits = tuple(in_format.culprits(in_float32))

    def _watch(self, batch: Any, forward: Any) -> Watch:
        watch = Watch(self._model)
        with torch.enable_grad(), forward, suppress(Exception), watch:  # which keeps the error
            self._loss_of(self._model, batch)
        return watch

    def _under_rules(self, run: Callable[[Any], _T]) -> _T:
        """Calls `run` with the context in which forward runs in the format."""
        if self._on_cuda:
            return run(_torch.autocast("cuda", dtype=TYPES[self._format.name]))
        restart = _random_numbers()
        try:
            with CudaAutocast(self._format, carried=self._carried) as rules:
                return run(rules.forward())
        except (RuntimeError, NotImplementedError) as error:
            if self._carried or _MISSING not in str(error):
                raise
        self._carried = True  # what this CPU has no kernels for, CUDA may have
        restart()
        return self._under_rules(run)

    def _run(self, batch: Any, scale: float, forward: Any) -> tuple[float, float]:
        """Returns the loss and the norm of the gradients."""
        parameters = [one for _, one in self._trained()]
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


class _Rows:
    """Sums over steps of a matrix's gradients, and of their differences from float32's."""

    def __init__(self) -> None:
        self._steps = 0
        self._sums: list[torch.Tensor] = []

    def add(self, expected: torch.Tensor, found: torch.Tensor) -> None:
        """Adds the gradients of one step."""
        one = expected.detach().flatten(1)
        new = [one.clone(), one.square(), found.detach().flatten(1) - one]
        sums = self._sums or [torch.zeros_like(one) for one in new]
        self._sums = [a.add_(b) for a, b in zip(sums, new, strict=True)]
        self._steps += 1

    def error(self) -> float | None:
        """Returns PlanCheck.gradient_errors of the parameter; None without a gradient."""
        mean, squares, difference = (one.double() / self._steps for one in self._sums)
        size = squares.sum(1).sqrt()
        live = size > LIVE_ROW * size.max()
        if not bool(live.any()):
            return None
        # Unbiased, divided by the number of steps; of one step nothing is known.
        variance = (squares - mean.square()).clamp(min=0) / max(self._steps - 1, 1)
        known = mean.norm(dim=1) + variance.sum(1).sqrt()
        return float((difference.norm(dim=1)[live] / known[live]).clamp(max=1).mean())


def _module_of(parameter: str) -> str:
    return parameter.rpartition(".")[0] or "(root)"


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
