# SPDX-License-Identifier: Apache-2.0
"""Whether a model's steps work in a format: by running them in it alongside float32.

Also with parts of the model kept in float32. On a CPU the rules of `_cuda_autocast` hold.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import random
import sys
import threading
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import variance
from types import FrameType, SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from .._compiled import Uncompiled
from .._core import Format
from .._errors import UsageError
from .._keep import KeptFloat32
from .._rounding import Tensor
from .._text import ROOT, some_of
from ..arrays._dtypes import format_of
from ..recorder._again import Unfollowed
from ..recorder._tensors import rerun, tensors_in
from ._cuda_autocast import TYPES, CudaAutocast, operation_of

# -- Which operation of a forward pass breaks first in a format: by two passes, one in float32

_torch: Any = torch
_Mode: Any = TorchFunctionMode

Key = tuple[str, str, int]  # module, operation, and which of its calls in that module it is
_NOWHERE = math.nan, math.nan
_OWN = Path(__file__).parents[1], Path(torch.__file__).parent
OF_LOSS = "(loss)"  # what runs outside of the model


@dataclass(frozen=True)
class Culprit:
    """An operation that breaks in a format: its result is not finite, as in float32 it is.

    Its operands are what they are in float32, too, so that it is where something begins, and not
    where it is passed on. `module` is the innermost one that runs, "(root)" the model itself,
    "(loss)" none; `call` counts the calls of the operation in it, from 0. `operands` and `result`
    are the largest magnitudes that these have in float32, NaN if the operation does not run there.
    `error` is the first line of what it raised, or empty; `source` the line of the model that
    calls it.
    """

    module: str
    operation: str
    call: int
    operands: float
    result: float
    error: str = ""
    source: str = ""

    def __str__(self) -> str:
        call = f" (call {self.call})" if self.call else ""
        place = f"{self.operation}{call} in {self.module}"
        if self.error or math.isnan(self.result):
            return place
        sizes = f"{self.operands:.6g} and results up to {self.result:.6g}"
        return f"{place}, in float32 with operands up to {sizes}"


class Watch:
    """Looks at the results of all operations within it, as functions of PyTorch are called.

    In the thread that enters it: others may run the model meanwhile.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        # Of operands and results; infinity: some are not finite.
        self.magnitudes: dict[Key, tuple[float, float]] = {}
        self.returned: list[str] = []  # modules, as they do
        self.wide: set[str] = set()  # those that return float32
        self.error: tuple[Key, str, str] | None = None  # with the line
        self._model = model
        # With what made its operands, and the line.
        self._broken: list[tuple[Key, list[Key], str]] = []
        self._made: dict[int, tuple[Any, Key]] = {}  # by the identity of a result
        self._calls: Counter[tuple[str, str]] = Counter()
        self._modules = [OF_LOSS]
        self._undo = ExitStack()

    def __enter__(self) -> Watch:
        self._thread = threading.get_ident()
        for name, module in self._model.named_modules():
            if not isinstance(module, _torch.jit.ScriptModule):
                before, after = self._hooks(name or ROOT)
                self._undo.callback(module.register_forward_pre_hook(before).remove)
                self._undo.callback(module.register_forward_hook(after).remove)
        self._undo.enter_context(_Functions(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def culprits(self, in_float32: Watch) -> list[Culprit]:
        """Returns where this pass breaks and another, in float32, does not; in order."""
        found: list[Culprit] = []
        wrong: set[Key] = set()
        for key, operands, source in self._broken:
            expected = in_float32.magnitudes.get(key, _NOWHERE)
            passed_on = not wrong.isdisjoint(operands)
            if passed_on or expected[1] != math.inf:
                wrong.add(key)
                if not passed_on:
                    found.append(Culprit(*key, *expected, "", source))
        if self.error is not None:
            key, message, source = self.error
            expected = in_float32.magnitudes.get(key, _NOWHERE)
            found.append(Culprit(*key, *expected, message, source))
        return found

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a function, and looks at its results."""
        operation = operation_of(getattr(func, "__name__", ""))
        place = self._modules[-1], operation
        key = *place, self._calls[place]
        # What works in place has one tensor before and after.
        given = [one for one in tensors_in((args, kwargs)) if one.is_floating_point()]
        makers = [self._maker_of(one) for one in given]
        largest_given = max(map(_largest, given), default=0.0)
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            if self.error is None:
                message = f"{type(error).__name__}: {error}".splitlines()[0]
                self.error = key, message, _line_of_caller()
            raise
        made = [one for one in tensors_in(result) if one.is_floating_point()]
        if not made or operation == "get":  # of an attribute
            return result
        self._calls[place] += 1
        largest = max(map(_largest, made))
        self.magnitudes[key] = largest_given, largest
        if largest == math.inf:
            known = [one for one in makers if one is not None]
            self._broken.append((key, known, _line_of_caller()))
        for one in made:
            self._made[id(one)] = weakref.ref(one), key
        return result

    def _maker_of(self, tensor: Tensor) -> Key | None:
        reference, key = self._made.get(id(tensor), (lambda: None, None))
        return key if reference() is tensor else None

    def _hooks(self, name: str) -> tuple[Any, Any]:
        def before(*_: Any) -> None:
            if threading.get_ident() == self._thread:
                self._modules.append(name)

        def after(_module: Any, _given: Any, output: Any) -> None:
            if threading.get_ident() != self._thread:
                return
            if name not in self.returned:
                self.returned.append(name)
            if any(one.dtype == torch.float32 for one in tensors_in(output)):
                self.wide.add(name)
            while name in self._modules:  # what an exception has left, too, that the model caught
                if self._modules.pop() == name:
                    break

        return before, after


class _Functions(_Mode):  # type: ignore[misc]
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self._watch.call(func, args, kwargs or {})


def _largest(tensor: Tensor) -> float:
    """Returns the largest magnitude, infinity if something is not finite."""
    if tensor.numel() == 0:
        return 0.0
    values = tensor.detach().float()
    return float(values.abs().amax()) if bool(torch.isfinite(values).all()) else math.inf


def _line_of_caller() -> str:
    """Returns "file.py:12" of the innermost function outside of PyTorch and this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if not any(one in _OWN for one in path.parents):
            return f"{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


# -- Whether a model's steps work in a format: by running them in it alongside float32


try:
    from torch.utils.flop_counter import FlopCounterMode  # type: ignore[import-not-found, unused-ignore]
except ModuleNotFoundError:  # before PyTorch 2.1
    FlopCounterMode = None

_T = TypeVar("_T")

# Of docs/check-plan.md, which says what they were tried on.
BAD_SHARE = 0.2  # of the steps that may be not finite
# That the mean loss may differ by, unless gradients agree: a loss may be next to nothing.
LOSS_DIFFERENCE, AGREES = 0.05, 0.01
# Of the mean gradient of a row, in the mean over rows and parameters; and where steps are few.
GRADIENT_ERROR, FEW_STEPS, GRADIENT_ERROR_OF_FEW = 0.03, 4, 0.2
# Of the largest row of a matrix: what is smaller is not compared. Of the largest gradient: what is
# smaller may be rounding errors alone, which are others at another scale.
LIVE, OTHER_SCALE, NOISE = 1e-6, 1.1, 0.01
# Of a matrix as many elements are compared, in at least so many columns of some rows; of all
# matrices together as many.
SAMPLED, COLUMNS, SAMPLED_OF_ALL = 1 << 15, 64, 1 << 21
TORCH_START, LEAST_SCALE, MOST_BINADES = 2.0**16, 2.0**-24, 40

MOST_CONTAINERS = 10_000  # in attributes of a module, that are restored
_OF_MODULES = frozenset((*vars(torch.nn.Module()), "forward"))  # KeptFloat32 sets the latter
_MISSING = "not implemented for"  # PyTorch's words where a CPU has no kernel for 16 bits


@dataclass(frozen=True)
class CheckedStep:
    """A step in a format, and the same step in float32.

    `gradient_norm` is that of all gradients together, divided by the loss `scale`; NaN if backward
    did not run. `error` is the first line of what the step raised, or empty. `overflows_above`
    names the first module, from the loss on, whose gradients overflow at the next larger scale that
    was tried; empty if none was.
    """

    loss: float
    float32_loss: float
    gradient_norm: float
    float32_gradient_norm: float
    scale: float
    error: str = ""
    overflows_above: str = ""

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
    row, averaged over the finite steps, is from float32's, less what chance makes of that, in the
    mean over its rows: by the norm of float32's and of what chance leaves of that average, at most
    1. `culprits` are the operations
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
        """How far the mean loss of the finite steps is from float32's, by its mean magnitude.

        Less what chance makes of that.
        """
        finite = [one for one in self.steps if one.counts and one.finite]
        changes = [one.loss - one.float32_loss for one in finite]
        chance = len(finite) * variance(changes) if len(finite) > 1 else 0.0
        change = math.sqrt(max(sum(changes) ** 2 - chance, 0.0))
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
        differs by 5 %, or if mean gradients of rows do by 3 %, over all rows and parameters; by
        20 % where less than four steps are finite.
        """
        return not self.reason()

    def reason(self, *, whole: bool = True) -> str:
        """Returns why the format does not serve: "not finite", "loss", "gradients", or nothing.

        The loss counts if the steps are `whole`.
        """
        counted = sum(one.counts for one in self.steps)
        if len(self.bad_steps) > BAD_SHARE * counted:
            return "not finite"
        agrees = bool(self.gradient_errors) and self.gradient_error < AGREES
        if whole and not agrees and not self.loss_difference < LOSS_DIFFERENCE:
            return "loss"
        return "" if self.gradient_error < self._most_error else "gradients"

    @property
    def _most_error(self) -> float:
        """The error of gradients at which a format fails; few steps do not tell it from noise."""
        finite = sum(one.counts and one.finite for one in self.steps)
        return GRADIENT_ERROR if finite >= FEW_STEPS else GRADIENT_ERROR_OF_FEW

    def wrong_modules(self) -> list[str]:
        """Returns the modules whose mean gradients are wrong, the worst first."""
        errors = self.gradient_errors
        worst = sorted(errors, key=lambda name: -errors[name])
        most = self._most_error
        return [*dict.fromkeys(_module_of(one) for one in worst if errors[one] > most)]

    def __str__(self) -> str:
        kept = f" with {some_of(self.keep_float32)} in float32" if self.keep_float32 else ""
        counted = sum(one.counts for one in self.steps)
        bad, reason = self.bad_steps, self.reason()
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
                text += ", most in " + some_of(self.wrong_modules())
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
    gradients, attributes of modules and random numbers are afterwards as before, but not what a
    model keeps elsewhere. It takes the memory of a step, three times that of the parameters, and
    64 MiB. Raises UsageError where nothing can be compared.
    """
    searched = scale is None and getattr(keep_float32, "scale", None) is None
    run = _shadow_of(model, loss_of, keep_float32, format, scale, searched=searched)
    with _unchanged(model) as restore:
        for batch in batches:
            reference = run.reference(batch, restore)
            run.alongside(reference)
            reference.go_on()
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
        fitted: bool = False,
    ) -> None:
        """Takes checked arguments of dlsim.shadow; a searched scale falls as far as it has to.

        A fitted one begins in each step where gradients of parameters have two binades of room.
        """
        self._model, self._loss_of, self._format, self._names = model, loss_of, format, names
        self._scale, self._searched, self._fitted = scale, searched, fitted
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point() and parameter.element_size() != 4:
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
        matrices = sum(one.dim() > 1 for one in model.parameters())
        self._most = max(min(SAMPLED, SAMPLED_OF_ALL // max(matrices, 1)), 1 << 10)
        self._steps: list[CheckedStep] = []
        self._older: list[CheckedStep] = []  # of before the last call of `turn`
        self._rows: dict[str, _Rows] = {}  # by the parameter's name
        self._older_rows: dict[str, _Rows] = {}
        self._culprits: tuple[Culprit, ...] = ()
        self._broken_gradients: tuple[str, ...] = ()
        self._checked: PlanCheck | None = None  # what was found since the last change

    def step(self, batch: Any) -> CheckedStep:
        """Runs a step with the weights that the model has now, and leaves all as it was."""
        with in_float32(self, batch) as reference:
            return self.alongside(reference)

    def check(self) -> PlanCheck:
        """Returns what was found so far; UsageError if no step was finite in float32."""
        if self._checked is not None:
            return self._checked
        steps = (*self._older, *self._steps)
        if not any(one.counts for one in steps):
            raise UsageError(
                "batches: nothing to compare, expected at least one with a finite loss and finite "
                f"gradients in float32, got {len(steps)} without"
            )
        both = self._older_rows, self._rows
        errors = {
            name: _Rows.error_of([rows[name] for rows in both if name in rows])
            for name in dict.fromkeys(itertools.chain(*both))
        }
        self._checked = PlanCheck(
            self._format.name,
            self._names,
            steps,
            {name: error for name, error in errors.items() if error is not None},
            self._culprits,
            self._broken_gradients,
        )
        return self._checked

    def survey(self, reference: Reference) -> Survey:
        """Runs the forward pass in float32 and in the format, and describes the model's parts."""
        counts: Mapping[str, Mapping[Any, int]] = {}
        reference.again()
        with suppress(Exception):  # it cannot count in models that differentiate themselves
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                self._loss_of(self._model, reference.batch)
            counts = counter.get_flop_counts()
        reference.restore()
        reference.again()
        watch = self._under_rules(lambda forward: self._watch(reference.batch, forward))
        reference.restore()
        products = {
            name.partition(".")[2] or ROOT: sum(of_name.values())
            for name, of_name in counts.items()
            if name != "Global"
        }
        callers = [*dict.fromkeys(module for module, _, _ in watch.magnitudes)]
        return Survey(tuple(watch.returned), tuple(callers), frozenset(watch.wide), products)

    def turn(self) -> None:
        """Forgets the steps before the last call, so that `check` reports the latest ones only."""
        self._checked = None
        self._older, self._older_rows = self._steps, self._rows
        self._steps, self._rows = [], {}

    def reference(self, batch: Any, restore: Callable[[], None]) -> Reference:
        """Runs a step in float32, and once more if that tells noise; `restore` is _unchanged's."""
        again = _random_numbers()
        loss, norm = self._run(batch, 1.0, nullcontext())
        trained = [(name, one, one.grad) for name, one in self._trained() if one.grad is not None]
        largest = max((float(g.abs().amax()) for *_, g in trained if g.numel()), default=0.0)
        norms = {name: math.sqrt(_energy(gradient)) for name, _, gradient in trained}
        gradients = {
            name: _sampled(gradient, self._most) for name, one, gradient in trained if one.dim() > 1
        }
        go_on = _random_numbers()
        restore()
        least = LIVE * max(norms.values(), default=0.0)
        small = {name for name in gradients if norms[name] < least}
        if small:
            again()
            self._drop_noise(batch, gradients, small)
            restore()
        return Reference(batch, loss, norm, largest, gradients, again, go_on, restore)

    def _drop_noise(self, batch: Any, gradients: dict[str, torch.Tensor], small: set[str]) -> None:
        """Drops small gradients that other rounding errors in backward make others."""
        self._run(batch, OTHER_SCALE, nullcontext())
        for name, one in self._trained():
            if name in small and one.grad is not None:
                change: Any = _sampled(one.grad, self._most) / OTHER_SCALE - gradients[name]
                if not _energy(change) < NOISE**2 * _energy(gradients[name]):
                    del gradients[name]

    def alongside(self, reference: Reference) -> CheckedStep:
        """Runs a step in the format that has run in float32."""
        broken: tuple[str, ...] = ()
        with KeptFloat32(self._model, self._kept()):
            for scale in self._scales(reference):
                self._scale = scale
                reference.again()
                step = self._in_format(reference)
                reference.restore()
                if not step.overflows:
                    break
                broken = self._broken_modules()
            if step.finite and broken:
                step = replace(step, overflows_above=broken[-1])
            if step.counts and step.finite:
                self._compare(reference)
            elif step.counts and not self._culprits and not self._broken_gradients:
                if step.overflows:
                    self._broken_gradients = self._broken_modules()
                else:
                    self._look(reference)
        if step.overflows and not self._searched:
            self._scale /= 2
        self._steps.append(step)
        self._checked = None
        return step

    def _trained(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                yield name, parameter

    def _scales(self, reference: Reference) -> Iterator[float]:
        """Yields the loss scales that the step is to run at until its gradients are finite."""
        scale = self._scale
        if self._fitted:
            if self._format.exponent_bits < 8 and 0 < reference.largest < math.inf:
                room = math.log2(self._format.max_finite / reference.largest)
                scale = 2.0 ** max(min(math.floor(room) - 2, MOST_BINADES), -MOST_BINADES)
        yield scale
        if self._searched and self._fitted and self._overflowed:
            yield min(scale, 1.0)  # as it did not help the step before
            return
        for fall in itertools.chain([1] * 6, itertools.repeat(4 if self._fitted else 1)):
            scale /= 2.0**fall
            if not self._searched or scale < LEAST_SCALE ** (3 if self._fitted else 1):
                return
            yield scale

    @property
    def _overflowed(self) -> bool:
        """Whether no scale helped the last step."""
        return bool(self._steps) and self._steps[-1].overflows

    def _in_format(self, reference: Reference) -> CheckedStep:
        loss = norm = math.nan
        message = ""
        try:
            loss, norm = self._under_rules(
                lambda forward: self._run(reference.batch, self._scale, forward)
            )
        except (torch.cuda.OutOfMemoryError, Unfollowed):
            raise
        except Exception as error:  # whatever a model raises in 16 bits
            message = f"{type(error).__name__}: {error}".splitlines()[0]
        return CheckedStep(loss, reference.loss, norm, reference.norm, self._scale, message)

    def _compare(self, reference: Reference) -> None:
        """Adds how the gradients, which carry the scale, differ from float32's."""
        for name, parameter in self._trained():
            expected = reference.gradients.get(name)
            if expected is not None:
                found = parameter.grad
                missing = torch.zeros_like(expected)
                scaled: Any = (
                    missing if found is None else _sampled(found, self._most) / self._scale
                )
                self._rows.setdefault(name, _Rows()).add(expected, scaled)

    def _broken_modules(self) -> tuple[str, ...]:
        """Returns the modules that have gradients which are not finite, from the input on."""
        broken = (
            _module_of(name)
            for name, parameter in self._trained()
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all())
        )
        return tuple(dict.fromkeys(broken))

    def look(self, reference: Reference) -> None:
        """Looks for operations that break in a step, also if its loss is finite."""
        if not self._culprits:
            with KeptFloat32(self._model, self._kept()):
                self._look(reference)

    def _look(self, reference: Reference) -> None:
        reference.again()
        in_float32 = self._watch(reference.batch, nullcontext())
        reference.restore()
        reference.again()
        in_format = self._under_rules(lambda forward: self._watch(reference.batch, forward))
        reference.restore()
        self._culprits = tuple(in_format.culprits(in_float32))
        self._checked = None

    def _kept(self) -> list[str]:
        return [name for name in self._names if name != OF_LOSS]

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
            if not scaled.requires_grad:
                return value, 0.0
            with _kept_gradients(_leaves_of(scaled) - set(parameters)):
                scaled.backward()
        for parameter in parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        squares = [_energy(one.grad) / scale**2 for one in parameters if one.grad is not None]
        return value, math.sqrt(sum(squares)) if squares else math.nan


@contextmanager
def in_float32(shadow: Shadow, batch: Any) -> Iterator[Reference]:
    """Runs a step in float32; within the context shadows of its model may run it alongside."""
    with _unchanged(shadow._model) as restore:
        yield shadow.reference(batch, restore)


_PRODUCTS = ("*", "matmul", "bmm", "einsum", "scaled_dot_product_attention", "baddbmm", "linear")


@dataclass(frozen=True)
class Survey:
    """The parts of a model: modules by name, "(root)" the model itself.

    `order` has them as they return, `callers` those that call operations themselves ("(loss)" where
    no module runs), `wide` those that return float32 under the format's rules, and `products` the
    multiplications in each.
    """

    order: tuple[str, ...]
    callers: tuple[str, ...]
    wide: frozenset[str]
    products: Mapping[str, int]

    def holds(self, module: str, other: str) -> bool:
        return _is_in(other, module)

    def is_leaf(self, module: str) -> bool:
        return not any(_is_in(one, module) for one in self.order)

    def share(self, names: Iterable[str]) -> float | None:
        """Returns the share of the multiplications in some parts of the model; None if unknown."""
        if not self.products.get(ROOT):
            return None
        kept = [*dict.fromkeys(names)]
        total = 0
        for name in kept:
            module, _, operation = name.partition("/")
            if any(_is_in(module, other) for other in kept) or (operation and module in kept):
                continue
            whole = self.products.get(module, 0)
            inner = sum(
                count
                for other, count in self.products.items()
                if _is_in(other, module) and _parent(other, self.products) == module
            )
            total += whole if not operation else (whole - inner) * (operation in _PRODUCTS)
        return total / self.products[ROOT]


def _is_in(module: str, other: str) -> bool:
    return module != other and (other == ROOT or module.startswith(f"{other}."))


def _parent(module: str, known: Iterable[str]) -> str:
    """Returns the innermost of the known modules that hold a module."""
    inside = (one for one in known if _is_in(module, one) and one != ROOT)
    return max(inside, key=len, default=ROOT)


@dataclass(frozen=True)
class Reference:
    """A step in float32: norm and largest magnitude of all gradients, and samples of matrices.

    `again` has its random numbers drawn again, `go_on` those that come after it; `restore` makes
    the model what it was before.
    """

    batch: Any
    loss: float
    norm: float
    largest: float
    gradients: Mapping[str, torch.Tensor]
    again: Callable[[], None]
    go_on: Callable[[], None]
    restore: Callable[[], None]

    @property
    def counts(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.norm)


def _sampled(gradient: torch.Tensor, most: int) -> torch.Tensor:
    """Returns rows and columns of a matrix in float32, evenly taken if it has more elements."""
    rows = gradient.detach().flatten(1)
    columns = min(COLUMNS, rows.shape[1])
    some = rows[:: max(math.ceil(rows.shape[0] * columns / most), 1)]
    taken: torch.Tensor = some[:, :: max(math.ceil(some.numel() / most), 1)].float().clone()
    return taken


class _Rows:
    """Sums over steps of a matrix's gradients, and of their differences from float32's."""

    def __init__(self) -> None:
        self._steps = 0
        self._sums: list[torch.Tensor] = []

    def add(self, expected: torch.Tensor, found: torch.Tensor) -> None:
        difference = found - expected
        new = [expected.clone(), expected.square(), difference, difference.square()]
        sums = self._sums or [torch.zeros_like(one) for one in new]
        self._sums = [a.add_(b) for a, b in zip(sums, new, strict=True)]
        self._steps += 1

    @staticmethod
    def error_of(rows: Sequence[_Rows]) -> float | None:
        """Returns PlanCheck.gradient_errors of the parameter; None without a gradient."""
        steps = sum(one._steps for one in rows)
        sums = zip(*(one._sums for one in rows), strict=True)
        totals = (sum(one[1:], one[0].double()) for one in sums)
        mean, squares, difference, noise = (one / steps for one in totals)
        size = squares.sum(1).sqrt()
        live = size > LIVE * size.max()
        if not bool(live.any()):
            return None

        def chance(squares: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
            # Unbiased, divided by the number of steps; of one step nothing is known.
            noise: Any = (squares - mean.square()).clamp(min=0) / max(steps - 1, 1)
            of_rows: torch.Tensor = noise.sum(1)
            return of_rows

        known = mean.norm(dim=1) + chance(squares, mean).sqrt()
        wrong = (difference.square().sum(1) - chance(noise, difference)).clamp(min=0).sqrt()
        shares: Any = wrong[live] / known[live]
        return float(shares.clamp(max=1).mean())


def _module_of(parameter: str) -> str:
    return parameter.rpartition(".")[0] or ROOT


def _energy(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64).square())


@contextmanager
def _unchanged(model: torch.nn.Module) -> Iterator[Callable[[], None]]:
    """Gives a function that restores a model's parameters and buffers, and restores all at the end.

    Hooks on gradients of parameters do not run, nor does communication of gradients.
    """
    parameters: list[Any] = list(model.parameters())
    modules = [(one, one.training, dict(one._buffers)) for one in model.modules()]
    saved = [(one, one.detach().clone()) for one in [*parameters, *model.buffers()]]
    scripted = _torch.jit.ScriptModule
    known = {id(one) for one in (*model.modules(), *parameters, *model.buffers())}
    attributes = [
        _Attributes(one, known) for one in model.modules() if not isinstance(one, scripted)
    ]
    uncompiled = Uncompiled()

    def restore() -> None:
        for module, training, buffers in modules:
            module.training = training
            if isinstance(module._buffers, dict):  # not in TorchScript
                module._buffers.clear()
                module._buffers.update(buffers)
        for one in attributes:
            one.restore()
        for tensor, before in saved:
            if tensor.layout is torch.strided:
                _put_back(tensor, before)

    with ExitStack() as undo, getattr(model, "no_sync", nullcontext)(), rerun():
        undo.callback(uncompiled.hold, False)
        uncompiled.hold(True)
        undo.callback(_random_numbers())
        for parameter in parameters:
            undo.callback(setattr, parameter, "grad", parameter.grad)
            for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                hooks = getattr(parameter, kind, None)
                if hooks:
                    # Emptied, since not all are gone that are no attribute any more.
                    undo.callback(setattr, parameter, kind, hooks)
                    undo.callback(hooks.update, dict(hooks))
                    hooks.clear()
                    setattr(parameter, kind, None)
        undo.callback(restore)
        undo.enter_context(_torch.autograd.set_detect_anomaly(False))
        yield restore


def _leaves_of(tensor: torch.Tensor) -> set[torch.Tensor]:
    """Returns the tensors whose gradients a backward pass from here on adds to."""
    seen, left, leaves = {tensor.grad_fn}, [tensor.grad_fn], set()
    while left:
        node = left.pop()
        if node is None:
            continue
        leaf = getattr(node, "variable", None)  # of what accumulates
        if leaf is not None:
            leaves.add(leaf)
        new = [end[0] for end in node.next_functions if end[0] not in seen]
        seen.update(new)
        left += new
    return leaves


@contextmanager
def _kept_gradients(leaves: Iterable[torch.Tensor]) -> Iterator[None]:
    """Leaves the gradients of tensors that are no part of the model as they are."""
    with ExitStack() as undo:
        for leaf in leaves:
            undo.callback(setattr, leaf, "grad", leaf.grad)
            leaf.grad = None
        yield


def _put_back(tensor: torch.Tensor, before: torch.Tensor) -> None:
    """Gives a tensor the values that it had before, of which autograd counts no change."""
    if not torch.equal(tensor, before):
        preserve = getattr(_torch.autograd, "_unsafe_preserve_version_counter", nullcontext)
        with torch.no_grad(), preserve(tensor):
            tensor.detach().copy_(before)


_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)


def _is_same(container: Any, before: Any) -> bool:
    """Returns whether a container holds the very objects that it held before."""
    if len(container) != len(before):
        return False
    if isinstance(container, dict):
        pairs = zip(container.items(), before.items(), strict=True)
        return all(key == old and value is kept for (key, value), (old, kept) in pairs)
    if isinstance(container, set):
        return {id(one) for one in container} == {id(one) for one in before}
    return all(one is other for one, other in zip(container, before, strict=True))


class _Attributes:
    """What a module keeps besides parameters and buffers, such as a counter or a cache.

    Values themselves, the elements of lists, dictionaries and sets, also nested, the values of
    tensors and arrays, modules that are not registered, and the states of random generators.
    """

    def __init__(self, module: torch.nn.Module, known: set[int]) -> None:
        self._module = module
        self._before = {
            name: value for name, value in vars(module).items() if name not in _OF_MODULES
        }
        self._containers: list[tuple[Any, Any]] = []
        self._tensors: list[tuple[Any, Any]] = []
        self._states: list[Callable[[], Any]] = []
        left = [*self._before.values()]
        while left and len(self._containers) < MOST_CONTAINERS:
            left += self._keep(left.pop(), known)

    def _keep(self, value: Any, known: set[int]) -> Iterable[Any]:
        """Keeps a value; returns what is in it."""
        if id(value) in known:
            return ()
        known.add(id(value))
        if isinstance(value, np.ndarray):
            self._tensors.append((value, value.copy()))
        elif isinstance(value, torch.Tensor):
            if value.layout is torch.strided:
                self._tensors.append((value, value.detach().clone()))
        elif isinstance(value, (torch.Generator, np.random.RandomState)):
            generator: Any = value
            self._states.append(functools.partial(generator.set_state, generator.get_state()))
        elif isinstance(value, random.Random):
            self._states.append(functools.partial(value.setstate, value.getstate()))
        elif isinstance(value, np.random.Generator):
            bits, state = value.bit_generator, copy.deepcopy(value.bit_generator.state)
            self._states.append(functools.partial(setattr, bits, "state", state))
        elif type(value) in _CONTAINERS:  # others may refuse what restores them
            self._containers.append((value, copy.copy(value)))
            return [*(value.values() if isinstance(value, dict) else value)]
        elif isinstance(value, (torch.nn.Module, SimpleNamespace)):  # the former not registered
            self._containers.append((vars(value), dict(vars(value))))
            return [*vars(value).values()]
        return ()

    def restore(self) -> None:
        now = vars(self._module)
        for name in [name for name in now if name not in _OF_MODULES and name not in self._before]:
            del now[name]
        now.update(self._before)
        for container, before in self._containers:
            if not _is_same(container, before):
                container.clear()
                ordered = isinstance(container, (list, deque))
                (container.extend if ordered else container.update)(before)
        for state in self._states:
            state()
        for tensor, before in self._tensors:
            if isinstance(tensor, np.ndarray):
                tensor[...] = before
            else:
                _put_back(tensor, before)


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
