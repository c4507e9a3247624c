# SPDX-License-Identifier: Apache-2.0
"""Names of parameters and modules without those of wrappers, and which of them are recorded."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import median
from typing import Any

from .._compiled import Uncompiled, check_hooks_run
from .._errors import UsageError
from .._text import ROOT, some_of
from .._values import whole_number

# -- Which steps are recorded: those that are stated, or as many as a share of the time allows

# The steps before this one whose forward pass is recorded by default are powers of two, later ones
# its multiples: what a model begins with is far from what it ends with.
FORWARD_EVERY = 50

AUTO = "auto"
BUDGET = 0.03  # of the training's time
_ALL = range(10**18)  # the steps that a file can have
# Every step is recorded until recording has taken FREE_SECONDS, and at least FIRST_STEPS: so a
# short run is recorded whole, and a long one where the model changes fastest.
FREE_SECONDS = 60.0
FIRST_STEPS = 16
FIRST_OF_ALL = 1000  # steps, where processes must record the same ones
# Each divides the next, so that runs that were recorded at different distances share steps.
DISTANCES = (1, 5, 10, FORWARD_EVERY, 100, 500, 1000)
_NOT_MEASURED = 2  # recorded steps at the beginning, in which outputs are opened and memory grows
_ENOUGH = 5  # steps that show how long the training takes alone
_ROOM = 1.25  # how far a share must be off before another distance is chosen


def _is_early(step: int) -> bool:
    """Returns whether a step is 0, 1, 2, 4, ..., 32, the first ones that are recorded."""
    return step < FORWARD_EVERY and step & (step - 1) == 0


@dataclass(frozen=True)
class ForwardSteps:
    """The steps whose forward pass is recorded; `every` None = those of the default, 0 = none."""

    every: int | None = 0

    def includes(self, step: int) -> bool:
        """Returns whether the forward pass of a recorded step is recorded, too."""
        if self.every is not None:
            return self.every > 0 and step % self.every == 0
        return _is_early(step) or step % FORWARD_EVERY == 0

    @property
    def any(self) -> bool:
        return self.every != 0


def forward_steps(every: int | None, *, profile: bool) -> ForwardSteps:
    """Returns what an argument selects; by default something in a profile alone."""
    if every is None:
        return ForwardSteps(None if profile else 0)
    return ForwardSteps(whole_number("forward_every", every, 0))


def _times() -> deque[float]:
    return deque(maxlen=31)  # the last ones, of which the median counts


class Costs:
    """Seconds of steps: of the training, and what is added by recording them.

    Recorded steps are of two kinds, with their forward pass or without. Each adds what the
    recorder's calls, hooks and thread take, all as if the training waited for them, and as much
    longer as the rest of it takes than a step that is not recorded.
    """

    def __init__(self) -> None:
        self._alone = _times()  # the training's in steps that nothing disturbs
        self._recorded = {False: _times(), True: _times()}  # and in recorded ones, by kind
        self._own = {False: _times(), True: _times()}  # the recorder's in these
        self._open: dict[int, tuple[bool, float]] = {}  # steps on which a thread may be at work
        self._worked: dict[int, float] = {}  # what it took for steps

    def training(self, seconds: float, forward: bool | None, *, disturbed: bool) -> None:
        """Adds the training's time of a step; `forward` is None unless it was recorded.

        The step is `disturbed` if the one before is still worked on.
        """
        if forward is not None and (not disturbed or not self._alone):
            self._recorded[forward].append(seconds)
        elif forward is None and not disturbed:
            self._alone.append(seconds)

    def recorded(self, step: int, forward: bool, seconds: float) -> None:
        """Adds the recorder's time of a step in the training's thread."""
        self._open[step] = (forward, seconds)
        for earlier in list(self._open)[:-2]:  # the thread is done with them
            kind, own = self._open.pop(earlier)
            self._own[kind].append(own + self._worked.pop(earlier, 0.0))
        for earlier in list(self._worked):
            if earlier < min(self._open):  # of a step that failed
                del self._worked[earlier]

    def worked(self, step: int, seconds: float) -> None:
        """Adds that of the recorder's thread, which alone calls this."""
        self._worked[step] = self._worked.get(step, 0.0) + seconds

    def share(self, every: int, forward_every: int) -> float:
        """Returns the share of the training's time that recording takes at these distances."""
        both = math.lcm(every, forward_every) if forward_every else math.inf
        gradients = self._added(forward=False) * (1 / every - 1 / both)
        return (gradients + self._added(forward=True) / both) / self._step()

    def _step(self) -> float:
        recorded = self._recorded[False] or self._recorded[True]
        return median(self._alone if len(self._alone) >= _ENOUGH else recorded or (math.inf,))

    def _added(self, *, forward: bool) -> float:
        kind = forward if self._own[forward] else not forward  # as good as is known
        own, training = self._own[kind], self._recorded[kind]
        slower = median(training) - self._step() if training else 0.0
        return median(own or (0.0,)) + max(0.0, slower)


class Pace:
    """Chooses of `steps` those that are recorded: all, unless there is a `budget`.

    That is a share of the training's time. `chosen` is called with a distance and the step from
    which it holds. With `fixed` the distance is that of forward passes, from a fixed step on and
    whatever recording takes: processes that each record must record the same steps.
    """

    def __init__(
        self, steps: range, budget: float | None, forward: ForwardSteps, *, fixed: bool = False
    ) -> None:
        self._given, self._budget, self.forward, self._fixed = steps, budget, forward, fixed
        self.chosen: Callable[[int, int], None] | None = None
        self.every = 1
        self._costs = Costs()
        self._steps = 0  # recorded so far
        self._spent = 0.0  # seconds, on recording them
        self._at_first = budget is not None  # all steps are recorded still
        self._hooks = 0.0  # seconds since the last call
        self._waits = self._aside = 0.0
        self._ended: float | None = None  # when that was
        self._taken: tuple[int, bool] | None = None  # the step of the last call, if recorded

    def includes(self, step: int) -> bool:
        if self._budget is None or self._at_first:
            return step in self._given
        return _is_early(step) or step % self.every == 0

    def description(self) -> dict[str, str]:
        """Returns what an output says of the choice, if there is one."""
        return (
            {} if self._budget is None else {"every": f"chosen for {self._budget:.3g} of the time"}
        )

    def in_hook(self, seconds: float) -> None:
        self._hooks += seconds

    def aside(self, seconds: float) -> None:
        """Leaves out what running steps again takes, whose steps are few and have their budget."""
        self._aside += seconds

    def waited(self, seconds: float) -> None:
        """Adds how long the training's thread waited for the other one, which `worked` reports."""
        self._waits += seconds

    def worked(self, step: int, seconds: float) -> None:
        """Adds what another thread took for a step."""
        if self._budget is not None and not self._fixed:
            self._costs.worked(step, seconds)
            self._spent += seconds

    @contextmanager
    def call(self) -> Iterator[None]:
        """Measures the call that takes a step, and what the training did before it."""
        if self._budget is None or self._fixed:
            yield
            return
        began, hooks, before = time.perf_counter(), self._hooks, self._taken
        training = None if self._ended is None else began - self._ended - hooks - self._waits
        self._taken, self._waits = None, 0.0
        try:
            yield
        finally:
            self._ended = time.perf_counter()
            own = hooks + self._ended - began - self._waits - self._aside
            self._hooks = self._waits = self._aside = 0.0
            self._spent += own
            if training is not None and not (self._taken and self._steps <= _NOT_MEASURED):
                self._note(training, own, disturbed=before is not None)

    def _note(self, training: float, own: float, *, disturbed: bool) -> None:
        """Takes the seconds of the call's step, those of the training and the recorder's."""
        forward = None if self._taken is None else self._taken[1]
        self._costs.training(training, forward, disturbed=disturbed)
        if self._taken is not None:
            self._costs.recorded(*self._taken, own)

    def took(self, step: int, *, forward: bool) -> None:
        """Says, within a call, that its step is recorded; may choose another distance."""
        self._steps += 1
        self._taken = (step, forward)
        if self._budget is None or self._is_free():
            return
        every = FORWARD_EVERY if self._fixed else self._choice(self._budget)
        self._at_first = False
        if every != self.every:
            self.every = every
            if self.chosen is not None:
                self.chosen(every, step + 1)

    def _is_free(self) -> bool:
        """Returns whether all steps are recorded, whatever that takes."""
        if self._fixed:
            return self._steps < FIRST_OF_ALL
        return self._steps < FIRST_STEPS or self._spent < FREE_SECONDS

    def _choice(self, budget: float) -> int:
        """Returns the least distance that keeps the budget, or the one that holds if it is near."""
        forward = self.forward.every
        shares = {
            every: self._costs.share(every, FORWARD_EVERY if forward is None else forward)
            for every in DISTANCES
        }
        if not self._at_first and shares[self.every] <= budget * _ROOM:
            finer = [every for every in DISTANCES if every < self.every]
            return next((one for one in finer if shares[one] * _ROOM <= budget), self.every)
        return next((one for one in DISTANCES if shares[one] <= budget), DISTANCES[-1])


def pace_of(
    every: int | range | float | str | None,
    forward: ForwardSteps,
    *,
    default: int | str,
    fixed: bool,
) -> Pace:
    """Returns what chooses the steps that an argument states, `default` for None.

    Raises UsageError and TypeError for wrong arguments.
    """
    given = default if every is None else every
    if isinstance(given, range):
        if not given:
            raise UsageError(f"every: no steps, expected such as range(100, 500, 10), got {given}")
        return Pace(given, None, forward)
    if isinstance(given, str) and given != AUTO:
        raise UsageError(f"every: expected a number, a range or {AUTO!r}, got {given!r}")
    if isinstance(given, (str, float)):
        share = BUDGET if isinstance(given, str) else given
        if not 0 < share < 1:
            raise UsageError(
                "every: out of range, expected a share of the time between 0 and 1, or a whole "
                f"number of steps, got {share}"
            )
        return Pace(_ALL, share, forward, fixed=fixed)
    return Pace(range(0, _ALL.stop, whole_number("every", given, 1)), None, forward)


# -- Names of parameters and modules without those of wrappers, and which of them are recorded

Pattern = str | re.Pattern[str]
Patterns = Pattern | Iterable[Pattern] | None


# -- A model's own names


def models_of(model: Any) -> dict[str, Any]:
    """Returns a model, or several by name, as models by prefix of their names."""
    try:
        from torch.nn import Module
    except ModuleNotFoundError:
        raise ModuleNotFoundError("dlsim.Recorder needs PyTorch: pip install torch") from None

    if isinstance(model, Module):
        return {"": model}
    if isinstance(model, Mapping) and all(
        isinstance(name, str) and isinstance(item, Module) for name, item in model.items()
    ):
        return dict(model)
    raise TypeError(
        f"model: expected a torch.nn.Module or several by name, got {type(model).__name__}"
    )


# What wrappers put before the names of a model's own parameters and modules.
_WRAPPERS = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")
_WRAPPER_CLASSES = (
    "CheckpointWrapper",
    "DataParallel",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "OptimizedModule",
)


def _own_name(name: str, *, wrapped: bool) -> str:
    parts = name.split(".") if name else []
    if wrapped and parts and parts[0] == "module":
        parts = parts[1:]
    return ".".join(part for part in parts if part not in _WRAPPERS)


def class_of(model: Any) -> str:
    """Returns the name of a model's own class, without wrappers."""
    while type(model).__name__ in _WRAPPER_CLASSES:
        model = next(getattr(model, one) for one in (*_WRAPPERS, "module") if hasattr(model, one))
    # fully_shard makes a class of its own, which inherits the model's.
    sharded = "FSDPModule" in (base.__name__ for base in type(model).__mro__)
    own = [base.__name__ for base in type(model).__mro__[int(sharded) :]]
    return next(name for name in own if name != "FSDPModule")


def _prefixed(models: Mapping[str, Any], kind: str) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for prefix, model in models.items():
        for name, item in getattr(model, kind)():
            if id(item) in seen:
                continue
            seen.add(id(item))
            wrapped = type(model).__name__ in ("DistributedDataParallel", "DataParallel")
            own = _own_name(name, wrapped=wrapped)
            yield ".".join(part for part in (prefix, own) if part), item


def parameters_of(models: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters, also those that are frozen now, by their names without wrappers."""
    return dict(_prefixed(models, "named_parameters"))


def modules_of(models: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the modules by their names without wrappers; a model itself is its prefix or ''."""
    found: dict[str, Any] = {}
    for name, module in _prefixed(models, "named_modules"):
        found[name] = module  # a wrapper's name is that of what it wraps, which comes later
    return found


def smallest_of(parameters: Mapping[str, Any], elements: int = 0) -> str | None:
    """Returns the smallest trained parameter that has at least this number of elements."""
    sizes = {name: one.numel() for name, one in parameters.items() if one.requires_grad}
    large = (name for name, size in sizes.items() if size >= elements)
    return min(large, key=sizes.__getitem__, default=None)


# -- What patterns choose of them


def _chosen(argument: str, given: Patterns, kind: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of `named` that patterns choose, none for None.

    A pattern is a glob over the whole name (`*`, `?`, `[...]`), with "!" before it to leave out
    what it matches, or a compiled regular expression, which is searched for.
    """
    patterns = _listed(argument, given)
    left_out = [one[1:] for one in patterns if isinstance(one, str) and one.startswith("!")]
    wanted = [one for one in patterns if not (isinstance(one, str) and one.startswith("!"))]
    if left_out and not wanted:
        wanted = ["*"]
    found = {
        name: item
        for name, item in named.items()
        if _any_matches(wanted, name) and not _any_matches(left_out, name)
    }
    if patterns and patterns != ["*"] and not found:
        texts = ", ".join(repr(one if isinstance(one, str) else one.pattern) for one in patterns)
        raise UsageError(
            f"{argument}: nothing matches, expected names of {kind} such as {some_of(named)}, "
            f"got {texts}"
        )
    return found


def _listed(argument: str, given: Patterns) -> list[Pattern]:
    """Returns one pattern, several or none as a list; raises TypeError for anything else."""
    patterns: list[Any] = [] if given is None else [given]
    if not isinstance(given, (str, re.Pattern)) and isinstance(given, Iterable):
        patterns = list(given)
    for one in patterns:
        if not isinstance(getattr(one, "pattern", one), str):
            raise TypeError(
                f"{argument}: expected globs or compiled regular expressions, "
                f"got {type(one).__name__}"
            )
    return patterns


def _any_matches(patterns: Iterable[Pattern], name: str) -> bool:
    names = (name,) if name else ("", ROOT)
    return any(
        fnmatchcase(one, pattern) if isinstance(pattern, str) else bool(pattern.search(one))
        for pattern in patterns
        for one in names
    )


class Choice:
    """The parameters and modules of a model that are chosen, and what of them a step records."""

    def __init__(
        self,
        models: Mapping[str, Any],
        gradients: Patterns,
        activations: Patterns,
        pace: Pace,
        *,
        inference: bool,
    ) -> None:
        self.inference = inference  # whether there are only forward passes to record
        parameters, self.all_modules = parameters_of(models), modules_of(models)
        self.parameters = _chosen("gradients", gradients, "parameters", parameters)
        self.modules = _chosen("activations", activations, "modules", self.all_modules)
        self.models = frozenset(models)  # the names of the models themselves among their modules
        trained = not inference and any(one.requires_grad for one in self.parameters.values())
        if not trained and not self.modules:
            raise UsageError("gradients, activations: nothing matches, expected names of the model")
        if self.modules:
            check_hooks_run(models.values())
        self.uncompiled = Uncompiled()
        self._pace = pace
        self.records = False  # whether the step records anything
        self.forward = False  # whether it records its forward pass
        self.again = False  # whether it is to be run again
        self.due: Callable[[int], bool] = lambda _: False  # that, of a step that is recorded

    @property
    def takes_forward(self) -> bool:
        """Whether there are steps that record their forward pass."""
        return self._pace.forward.any

    def begin(self, step: int | None) -> None:
        """Makes `step` the one that the other methods answer for; None for one that may be any."""
        forward = self._pace.forward
        self.records = step is None or self._pace.includes(step)
        self.forward = self.records and (forward.any if step is None else forward.includes(step))
        self.again = self.records and self.due(step or 0)
        self.uncompiled.hold(self.again or (self.records and bool(self.modules)))

    def end(self) -> None:
        self.records = self.forward = self.again = False
        self.uncompiled.hold(False)

    def parameter(self, name: str) -> bool:
        """Returns whether the step records the parameter's gradient, or the parameter itself."""
        return self.records and name in self.parameters

    def module(self, name: str) -> bool:
        """Returns whether the step records the gradient of the module's output, or the output."""
        return self.records and name in self.modules
