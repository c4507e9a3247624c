# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a model are recorded, and what of them in the step that runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from .._compiled import Uncompiled, check_hooks_run
from .._errors import UsageError
from .._text import ROOT, some_of
from ._names import modules_of, parameters_of
from ._pace import Pace

Pattern = str | re.Pattern[str]
Patterns = Pattern | Iterable[Pattern] | None


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
