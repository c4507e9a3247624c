# SPDX-License-Identifier: Apache-2.0
"""Names of parameters and modules without those of wrappers, and which of them are recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from .._compiled import Uncompiled, check_hooks_run
from .._errors import UsageError
from .._text import ROOT, some_of
from ._pace import Pace

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


def _wraps(model: Any) -> bool:
    return type(model).__name__ in ("DistributedDataParallel", "DataParallel")


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
            own = _own_name(name, wrapped=_wraps(model))
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
        """Records nothing from now on."""
        self.records = self.forward = self.again = False
        self.uncompiled.hold(False)

    def parameter(self, name: str) -> bool:
        """Returns whether the step records the parameter's gradient, or the parameter itself."""
        return self.records and name in self.parameters

    def module(self, name: str) -> bool:
        """Returns whether the step records the gradient of the module's output, or the output."""
        return self.records and name in self.modules
