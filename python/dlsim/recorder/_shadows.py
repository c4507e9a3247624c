# SPDX-License-Identifier: Apache-2.0
"""Some steps of a recorded training, run again in 16-bit formats (docs/verdict.md)."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .._core import Format
from .._errors import UsageError
from .._text import ROOT
from ..arrays._dtypes import format_of
from ._again import Closure, Step, Unfollowed
from ._selection import modules_of

FORMATS = ("fp16", "bf16", "cb16")

_DISTANCE = 1.5  # times the number of the last step, from which on the next is run
_TURN = 8  # steps after which those before the last as many are forgotten
_FREE_SECONDS, _BUDGET = 30.0, 0.03  # that running steps may take, and of the time besides
_PASSES, _FOLLOWED = 40, 8  # in search of a plan; of these, those that follow what breaks
_SEARCHES = 3  # in a recording, for each format
_MOST_KEPT = 0.98  # of the multiplications: more is no part of a model
_CEILINGS = 32  # latest steps that are written down
_NAMED = 8  # culprits and modules that are written down


def formats_of(given: Iterable[str] | str | None) -> tuple[str, ...]:
    """Returns the names of formats; raises UsageError for one that is not known."""
    names = () if given is None else (given,) if isinstance(given, str) else tuple(given)
    return tuple(dict.fromkeys(format_of(name).name for name in names))


class Shadows:
    """Runs steps of a model in formats, and says what that shows.

    `run` runs a step that `due` takes, in float32 and in all formats, and where a format fails
    looks for parts of the model that suffice to be kept in float32; `metadata` is what a reader
    needs. The last 9 to 16 steps count, but a format that has failed since results were not finite
    goes on to fail. `why` says why no step could be run; after an error none is run any more.
    """

    def __init__(self, models: Mapping[str, Any], formats: Sequence[str]) -> None:
        self._model = _one_of(models)
        self._names, self._formats = tuple(formats), dict[str, _OfFormat]()
        self._survey: Any = None
        recorded = {id(module): name or ROOT for name, module in modules_of(models).items()}
        self._recorded_as = {
            name or ROOT: recorded.get(id(module)) for name, module in self._model.named_modules()
        }
        self._last = -1  # the last step that ran
        self._steps = 0
        self._found = ""  # what is written down, since the last step that ran
        self._spent, self._cost = 0.0, 0.0  # seconds in all, and of the last step
        self._began = time.perf_counter()
        self.why = ""
        if self._names and not _has_float16():
            self._names, self.why = (), "PyTorch 2.3 or later is needed"

    def due(self, step: int) -> bool:
        elapsed = time.perf_counter() - self._began - self._spent
        if self._spent + self._cost > _FREE_SECONDS + _BUDGET * elapsed and self._steps:
            return False
        return bool(self._names) and step > self._last and step >= _DISTANCE * self._last

    def run(self, number: int, step: Step | Closure) -> None:
        """Runs a step again, once. Raises Unfollowed if that is not possible, and what fails."""
        from ..emulation._shadow import in_float32

        if number == self._last:  # a part of it has run
            return
        began = time.perf_counter()
        try:
            if not self._formats:
                self._begin()
            if self._steps and self._steps % _TURN == 0:
                for one in self._formats.values():
                    one.turn()
            shadows = [one for each in self._formats.values() for one in each.shadows()]
            with in_float32(shadows[0], step) as reference:
                for shadow in shadows:
                    shadow.alongside(reference)
                if not reference.counts:
                    return
                if self._survey is None:
                    self._survey = shadows[0].survey(reference)
                for one in self._formats.values():
                    one.judge(number, reference, self._survey)
            self._steps += 1
        except Unfollowed:
            raise
        except Exception:
            self._names = ()
            raise
        finally:
            self._last, self._found = number, ""
            self._cost = time.perf_counter() - began
            self._spent += self._cost

    def _begin(self) -> None:
        refused = ""
        for name in self._names:
            try:
                self._formats[name] = _OfFormat(self._model, name)
            except UsageError as error:  # such as CB16 on a GPU
                refused = str(error)
        if not self._formats:
            self._names = ()
            raise Unfollowed(refused)

    @property
    def seconds(self) -> float:
        return self._spent

    def metadata(self, forward: Iterable[str]) -> tuple[dict[str, str], set[str]]:
        """Returns what a reader needs, and which forward tensors have 32 bits under autocast."""
        if not self._steps:
            return ({"shadow": json.dumps({"why": self.why})} if self.why else {}), set()
        if not self._found:
            self._found = json.dumps({name: one.found() for name, one in self._formats.items()})
        modules = {self._recorded_as.get(name) for name in self._survey.wide}
        names = {name for name in forward if module_of(name) in modules}
        return {"shadow": self._found}, names


class _OfFormat:
    """What is known of a format, and of a plan in it."""

    def __init__(self, model: Any, format: str) -> None:
        self._model, self._format = model, format
        self._own = self._shadow(())
        self._plan: Any = None  # a shadow
        self._plan_steps = 0  # that it has run
        self._sources: dict[str, str] = {}  # of operations, the lines that call them
        self._part_of: Callable[[Any], str] = str
        self._names: tuple[str, ...] = ()  # that the plan keeps
        self._share: float | None = None  # of the multiplications, if known
        self._searches = _SEARCHES  # that are left
        self._whole = True  # whether the steps had their loss
        self._ceilings: list[dict[str, Any]] = []  # loss scales above which gradients overflow
        self._plan_ceilings: list[dict[str, Any]] = []
        self._broken: dict[str, Any] | None = None  # what was found when results were not finite

    def _shadow(self, names: Iterable[str]) -> Any:
        from ..emulation._shadow import OF_LOSS, TORCH_START, Shadow

        names = tuple(names)
        wide = OF_LOSS in names

        def loss_of(_model: Any, step: Step) -> Any:
            return step.loss(loss_in_float32=wide)

        known = Format(self._format)
        scaled = known.exponent_bits < 8
        start = TORCH_START if scaled else 1.0
        return Shadow(self._model, loss_of, known, names, start, searched=scaled, fitted=scaled)

    def shadows(self) -> list[Any]:
        return [self._own, *([] if self._plan is None else [self._plan])]

    def turn(self) -> None:
        for one in self.shadows():
            one.turn()

    def judge(self, number: int, reference: Any, survey: Any) -> None:
        """Looks at what was found with a step, and for a plan if the format fails."""
        from ..emulation._shadow import FEW_STEPS

        self._whole = self._whole and reference.batch.whole
        check = self._own.check()
        self._ceilings += _ceilings_of(check, number)
        reason = check.reason(whole=self._whole)
        if reason in ("loss", "gradients"):
            self._own.look(reference)
        if reason == "not finite" and len(check.steps) > 1:
            self._broken = self._described(check, reason)
        self._plan_steps += 1
        if self._plan is not None:
            self._plan_ceilings += _ceilings_of(self._plan.check(), number)
        self._part_of = lambda culprit: _part_of(culprit, survey)
        if self._plan is not None and self._plan.check().reason(whole=self._whole):
            self._plan = None  # it does not suffice any more
        known = reason == "not finite" or len(check.steps) >= FEW_STEPS
        if reason and known and self._plan is None and self._searches > 0:
            self._searches -= 1
            search = _Search(self._shadow, survey, self._names, reference)
            self._names = search.run()
            self._sources.update(search.sources)
            self._share = survey.share(self._names)
            if self._names:
                self._plan, self._plan_steps = self._shadow(self._names), 1
                self._plan_ceilings = _ceilings_of(search.step(self._plan), number)

    def found(self) -> dict[str, Any]:
        check = self._own.check()
        found = self._described(check, check.reason(whole=self._whole))
        if self._broken is not None and not found["fails"]:
            found = self._broken
        if not found["fails"] or self._plan is None:
            return found
        from ..emulation._shadow import OF_LOSS

        plan = self._plan.check()
        kept = {
            "keep_float32": [name for name in self._names if name != OF_LOSS],
            "sources": [self._sources.get(one, "") for one in self._names if one != OF_LOSS],
            "loss_in_float32": OF_LOSS in self._names,
            "steps": self._plan_steps,
            "scale": plan.steps[-1].scale,
            "ceilings": self._plan_ceilings[-_CEILINGS:],
            "share": self._share,
        }
        return {**found, "plan": kept}

    def _described(self, check: Any, reason: str) -> dict[str, Any]:
        bad = check.bad_steps
        broken = [*reversed(check.broken_gradients)]
        return {
            "fails": reason,
            "steps": sum(one.counts for one in check.steps),
            "bad": len(bad),
            "overflows": sum(check.steps[i].overflows for i in bad),
            "error": check.steps[bad[0]].error if bad else "",
            "loss": _number(check.loss_difference) if self._whole else None,
            "gradients": _number(check.gradient_error),
            "scale": check.steps[-1].scale,
            "ceilings": self._ceilings[-_CEILINGS:],
            "culprits": [
                {
                    "part": self._part_of(one),
                    "module": one.module,
                    "operation": one.operation,
                    "operands": _number(one.operands),
                    "result": _number(one.result),
                }
                for one in check.culprits[:_NAMED]
            ],
            "modules": (broken if reason == "not finite" else check.wrong_modules())[:_NAMED],
        }


class _Search:
    """Looks for parts of a model with which, kept in float32, a step holds in a format.

    What breaks is kept, one after the other: what a kept part returns may break the next one. Where
    nothing breaks, but the loss or gradients are wrong, some parts are tried, and at last all. Then
    what is not needed is left out, but for `names`, which sufficed at other steps.
    """

    def __init__(self, shadow: Any, survey: Any, names: Sequence[str], reference: Any) -> None:
        self._shadow, self._survey, self._names = shadow, survey, names
        self._reference, self._step = reference, reference.batch
        self._leaves = [name for name in survey.order if survey.is_leaf(name)]
        callers = [name for name in survey.callers if name not in ("(loss)", *self._leaves)]
        self._own = [f"{name}/*" for name in callers]
        self.sources: dict[str, str] = {}  # of operations, the lines that call them
        self._left = _PASSES

    def step(self, shadow: Any) -> Any:
        shadow.alongside(self._reference)
        return shadow.check()

    def run(self) -> tuple[str, ...]:
        """Returns the parts; none if none short of the whole model are found."""
        names = self._follow() or self._try()
        if "(loss)" in names and self._leaves:
            last = [*dict.fromkeys(self._leaves[-1] if one == "(loss)" else one for one in names)]
            names = last if self._holds(last) else names
        names = self._simplified(self._reduced(names))
        return tuple(names) if (self._survey.share(names) or 0) <= _MOST_KEPT else ()

    def _simplified(self, names: list[str]) -> list[str]:
        """Puts a module in the place of all modules in it."""
        for module in self._survey.order:
            inside = [one for one in self._leaves if self._survey.holds(module, one)]
            if module != ROOT and len(inside) > 1 and set(inside) <= set(names):
                rest = [one for one in names if one.partition("/")[0] != module]
                names = [module, *(one for one in rest if one not in inside)]
        return names

    def _holds(self, names: Sequence[str]) -> bool:
        self._left -= 1
        return not self.step(self._shadow(names)).reason(whole=self._step.whole)

    def _follow(self) -> list[str]:
        names = list(self._names)
        for _ in range(_FOLLOWED):
            shadow = self._shadow(names)
            check = self.step(shadow)
            if not check.reason(whole=self._step.whole):
                return names
            shadow.look(self._reference)
            check = shadow.check()
            new = [name for name in self._next(check) if name not in names]
            if not new:
                break
            names += new
        return []

    def _next(self, check: Any) -> list[str]:
        """Returns what to keep in float32 of what breaks first."""
        if check.culprits:
            parts = {_part_of(one, self._survey): one.source for one in check.culprits}
            self.sources.update(parts)
            return [one for one in parts if one != "(loss)" or self._step.separates]
        if not check.bad_steps:
            wrong: list[str] = check.wrong_modules()
            return wrong[:1]
        return [*reversed(check.broken_gradients)][:1]

    def _try(self) -> list[str]:
        """Returns the first of some sets of parts that suffices."""
        first, last = self._leaves[:1], self._leaves[-1:]
        sets = first, last, [*first, *last], self._own, [*self._leaves, *self._own]
        for new in sets:
            names = [*dict.fromkeys([*self._names, *new])]
            if new and self._holds(names):
                return names
        return []

    def _reduced(self, names: list[str]) -> list[str]:
        """Leaves out what is not needed: halves, then smaller shares, while passes are left."""
        before = [name for name in names if name in self._names]
        new = [name for name in names if name not in before]
        size = max(len(new) // 2, int(len(new) > 0))
        while size:
            for at in reversed(range(0, len(new), size)):
                rest = new[:at] + new[at + size :]
                if self._left > 0 and before + rest and self._holds(before + rest):
                    new = rest
            size //= 2
        return before + new


def _ceilings_of(check: Any, number: int) -> list[dict[str, Any]]:
    """Returns the scale of the latest step, if gradients overflow above it, as a list."""
    latest = check.steps[-1]
    if not latest.overflows_above:
        return []
    return [{"step": number, "scale": latest.scale, "module": latest.overflows_above}]


def _part_of(culprit: Any, survey: Any) -> str:
    """Returns what holds an operation: a module, if no other runs in it, or the operation in it."""
    if culprit.module == "(loss)" or survey.is_leaf(culprit.module):
        return str(culprit.module)
    return f"{culprit.module}/{culprit.operation}"


def _has_float16() -> bool:
    """Returns whether autocast on a CPU takes float16, as from PyTorch 2.3 on."""
    import torch

    return hasattr(torch.amp, "GradScaler")


def _one_of(models: Mapping[str, Any]) -> Any:
    """Returns one module of which all models are parts; the one model without its wrappers."""
    import torch

    if list(models) == [""]:
        model = models[""]
        while True:
            inner = model._modules.get("_orig_mod")
            if inner is None and type(model).__name__ == "DataParallel":
                inner = model.module
            if inner is None:
                return model
            model = inner
    whole = torch.nn.Module()
    whole._modules.update(models)  # also by names that a ModuleDict refuses
    return whole


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def module_of(tensor: str) -> str:
    """Returns the module of `<module>.call1.out1.act`, or `<module>.<parameter>.value`."""
    stem, _, role = tensor.rpartition(".")
    if role == "value":
        return stem.rpartition(".")[0] or ROOT
    parts = stem.split(".")
    while len(parts) > 1 and parts[-1].startswith(("call", "out")) and parts[-1][-1].isdigit():
        parts.pop()
    return ".".join(parts)
