# SPDX-License-Identifier: Apache-2.0
"""Where gradients come from: the parameters, and what hooks have seen."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from .._errors import Error, UsageError
from ._choice import Choice
from ._hooks import ActivationHooks, Guard, ParameterHooks, Seen
from ._order import StepOrder
from ._report import NEVER_CALLED


def gradients_of(
    gradient_of: Callable[[Any], Any] | None, *, micro_steps: bool
) -> Callable[[Any], Any]:
    """Returns what gives the gradient of a parameter; raises UsageError if hooks are to see it."""
    if gradient_of is None:
        return attrgetter("grad")
    if micro_steps:
        raise UsageError(
            "gradient_of: not with micro_steps, whose hooks see gradients by themselves"
        )
    if not callable(gradient_of):
        raise TypeError(f"gradient_of: expected a callable, got {type(gradient_of).__name__}")
    return gradient_of


def _own_elements(parameter: Any, gradient: Any) -> Any:
    """Returns the gradient of the elements of a FullyShardedDataParallel's own that are here.

    One that lies in other processes has no gradient here, but is none that is missing; one that was
    made of several is filled up with zeros.
    """
    if gradient is None:
        return parameter.detach() if parameter.numel() == 0 else None
    filling = getattr(parameter, "_shard_numel_padded", 0)
    return gradient[: gradient.numel() - filling] if filling else gradient


class Sources:
    """All that one step records of a model, as far as it is chosen."""

    def __init__(
        self,
        choice: Choice,
        gradient_of: Callable[[Any], Any],
        order: StepOrder,
        guard: Guard,
        *,
        micro_steps: bool,
        count: Callable[[Error], None],
        spill: Callable[[], None],
    ) -> None:
        self._choice = choice
        self._gradient_of = gradient_of
        self._micro_steps = micro_steps
        self._order = order
        self._guard = guard
        self._count = count
        self._spill = None if micro_steps else spill  # a micro-step is one batch
        self._of_parameters: ParameterHooks | None = None
        self._of_activations: ActivationHooks | None = None

    def add_hooks(self, left_out: dict[str, str]) -> None:
        """Adds what is needed beside the parameters' own gradients; notes what has no hook."""
        choice = self._choice
        self._order.add_hooks()
        if self._micro_steps:
            self._of_parameters = ParameterHooks(choice.parameters, choice.parameter, self._guard)
        if choice.modules:
            self._of_activations = ActivationHooks(
                choice.modules, choice.module, self._guard, choice.models, self._spill
            )
            left_out.update(self._of_activations.left_out)

    def take(self, step: int, left_out: dict[str, str]) -> dict[str, Any]:
        """Returns the gradients by name; notes those that are missing.

        Raises Error if all are, or if they are no longer those that backward has left.
        """
        self._order.check()
        found: dict[str, Any] = {}
        if self._of_parameters is not None:
            found.update(self._unchanged(self._of_parameters))
        else:
            for name, parameter in self._choice.parameters.items():
                if not self._choice.parameter(name):
                    continue
                if not parameter.requires_grad:  # it is frozen now
                    continue
                gradient = _own_elements(parameter, self._gradient_of(parameter))
                if gradient is None:
                    left_out.setdefault(f"{name}.grad", f"has no gradient in step {step}")
                else:
                    found[f"{name}.grad"] = gradient
        if self._of_activations is not None:
            found.update(self._unchanged(self._of_activations))
        if not found:
            raise Error("no gradients, expected a call after backward and before zero_grad")
        return found

    def take_early(self) -> dict[str, Any]:
        """Returns the gradients of activations that the batches so far have left."""
        hooks = self._of_activations
        return {} if hooks is None else self._unchanged(hooks.seen)

    def _unchanged(self, hooks: ParameterHooks | ActivationHooks | Seen) -> dict[str, Any]:
        tensors, changed = hooks.take()
        for name in changed:
            self._count(Error(f"{name}: was changed in place after it was computed"))
        return tensors

    def clear(self) -> None:
        """Forgets what hooks have seen."""
        self._order.clear()
        for hooks in (self._of_parameters, self._of_activations):
            if hooks is not None:
                hooks.clear()

    def note_idle(self, left_out: dict[str, str]) -> None:
        """Notes the chosen modules that never ran in a recorded step."""
        for name in self._of_activations.idle() if self._of_activations is not None else ():
            left_out.setdefault(name, NEVER_CALLED)

    def remove_hooks(self) -> None:
        """Removes all hooks, and what they have seen."""
        self._order.clear()
        self._order.remove()
        for hooks in (self._of_parameters, self._of_activations):
            if hooks is not None:
                hooks.clear()
                hooks.remove()
