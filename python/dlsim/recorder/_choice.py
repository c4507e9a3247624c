# SPDX-License-Identifier: Apache-2.0
"""The parameters and modules of a model that are recorded, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._compiled import Uncompiled, check_hooks_run
from .._errors import UsageError
from .._text import some_of
from ._names import modules_of, parameters_of
from ._pace import Pace
from ._selection import ForwardSteps, Pattern, Selection

_NOTHING: frozenset[str] = frozenset()
_ALL_OR_NONE = (("*",), ())


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


def _no_match(
    argument: str, patterns: Iterable[Pattern], kind: str, names: Iterable[str]
) -> UsageError:
    given = ", ".join(repr(one if isinstance(one, str) else one.pattern) for one in patterns)
    return UsageError(
        f"{argument}: nothing matches, expected names of {kind} such as {some_of(names)}, "
        f"got {given}"
    )


class Choice:
    """What the selections choose of a model, and of that what one step records."""

    def __init__(
        self,
        models: Mapping[str, Any],
        selections: tuple[Selection, ...],
        forward: ForwardSteps,
        pace: Pace,
        *,
        inference: bool = False,
    ) -> None:
        self.inference = inference  # whether there are only forward passes to record
        parameters, modules = parameters_of(models), modules_of(models)
        self.all_modules = modules
        self.forward_steps = forward
        self._pace = pace
        self.models = frozenset(models)  # the names of the models themselves among their modules
        self._chosen = [
            (
                selection,
                frozenset(name for name in parameters if selection.parameter(name)),
                frozenset(name for name in modules if selection.module(name)),
            )
            for selection in selections
        ]
        # Of several selections, those of a configuration, one may be for other models.
        for selection, found, chosen in self._chosen if len(selections) == 1 else ():
            if selection.gradients not in _ALL_OR_NONE and not found:
                raise _no_match("gradients", selection.gradients, "parameters", parameters)
            if selection.activations not in _ALL_OR_NONE and not chosen:
                raise _no_match("activations", selection.activations, "modules", modules)
        wanted = _NOTHING.union(*(found for _, found, _ in self._chosen))
        self.parameters = {name: item for name, item in parameters.items() if name in wanted}
        wanted = _NOTHING.union(*(found for _, _, found in self._chosen))
        self.modules = {name: item for name, item in modules.items() if name in wanted}
        trained = not inference and any(one.requires_grad for one in self.parameters.values())
        if not trained and not self.modules:
            raise UsageError("gradients, activations: nothing matches, expected names of the model")
        if self.modules:
            check_hooks_run(models.values())
        self.uncompiled = Uncompiled()
        self._parameters_now = self._modules_now = _NOTHING
        self.step = 0
        self.forward = False  # whether the step records its forward pass
        self.again = False  # whether it is to be run again
        self.due: Callable[[int], bool] = lambda _: False  # that, of a step that is recorded

    def begin(self, step: int) -> None:
        """Makes `step` the one that the other methods answer for."""
        in_time = self._pace.includes(step)
        active = [one for one in self._chosen if in_time and one[0].includes(step)]
        self._parameters_now = _NOTHING.union(*(parameters for _, parameters, _ in active))
        self._modules_now = _NOTHING.union(*(modules for _, _, modules in active))
        self.step = step
        self.forward = self.any() and self.forward_steps.includes(step)
        self.again = self.any() and self.due(step)
        self.uncompiled.hold(bool(self._modules_now) or self.again)

    def end(self) -> None:
        """Records nothing from now on."""
        self._parameters_now = self._modules_now = _NOTHING
        self.forward = self.again = False
        self.uncompiled.hold(False)

    def any(self) -> bool:
        """Returns whether the step records anything."""
        return bool(self._parameters_now or self._modules_now)

    def parameter(self, name: str) -> bool:
        """Returns whether the step records the parameter's gradient, or the parameter itself."""
        return name in self._parameters_now

    def module(self, name: str) -> bool:
        """Returns whether the step records the gradient of the module's output, or the output."""
        return name in self._modules_now
