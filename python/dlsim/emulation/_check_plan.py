# SPDX-License-Identifier: Apache-2.0
"""Whether a model's steps work in a format, with parts of it kept in float32: by running them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .._compiled import Uncompiled
from .._core import Format
from .._errors import UsageError
from .._keep import KeptFloat32
from .._text import some_of
from ..arrays._dtypes import format_of
from ._autocast_rules import TYPES, CudaAutocast

__all__ = ["CheckedStep", "PlanCheck", "check_plan"]

# Whose types lack much in PyTorch 1.13.
_torch: Any = torch

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
            reference = run.in_float32(batch)
            expected = run.gradients()
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
        self._by_module = [
            (name or "(root)", one)
            for name, module in model.named_modules()
            for one in module.parameters(recurse=False)
            if one.requires_grad
        ]
        self._sums: dict[str, tuple[float, float]] = {}

    def in_float32(self, batch: Any) -> tuple[float, float]:
        """Returns the loss and the norm of the gradients."""
        return self._run(batch, 1.0, nullcontext())

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

    def gradients(self) -> list[torch.Tensor | None]:
        """Returns the gradients as they are now."""
        return [one.grad for _, one in self._by_module]

    def compare(self, expected: list[torch.Tensor | None], scale: float) -> None:
        """Adds to the errors how the gradients, of a loss with a scale, differ from float32's."""
        for (name, parameter), one in zip(self._by_module, expected, strict=True):
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
            return self._run(batch, scale, autocast)
        restart = _random_numbers()
        try:
            with CudaAutocast(self._format, carried=self._carried) as rules:
                return self._run(batch, scale, rules.forward())
        except (RuntimeError, NotImplementedError) as error:
            if self._carried or _MISSING not in str(error):
                raise
        self._carried = True  # what this CPU has no kernels for, CUDA may have
        restart()
        return self._in_format(batch, scale)

    def _run(self, batch: Any, scale: float, forward: Any) -> tuple[float, float]:
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
