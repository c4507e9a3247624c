# SPDX-License-Identifier: Apache-2.0
"""What a step records of a model: gradients, as far as hooks see them, and its forward pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any

from .._errors import Error, UsageError
from .._text import ROOT
from ._again import Closure, Unfollowed
from ._forward import ForwardPass
from ._hooks import ActivationHooks, Guard, ParameterHooks, Seen
from ._order import StepOrder
from ._output import Part
from ._ranks import Pieces, Ranks
from ._report import NEVER_CALLED
from ._selection import Choice
from ._shadows import Shadows, module_of
from ._snapshot import HostCopies, in_host_memory
from ._tensors import Features


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


# Modules of PyTorch that return float32 under autocast, also where no step has shown it.
_IN_FLOAT32 = frozenset(
    "Embedding EmbeddingBag GroupNorm LayerNorm LogSoftmax RMSNorm Softmax Softmin".split()
)


def texts_of(metadata: Mapping[str, object]) -> dict[str, str]:
    """Returns metadata as text; numbers in tensors as those of Python. None is left out."""
    texts = {}
    for key, value in metadata.items():
        item = getattr(value, "item", None)
        known = item() if callable(item) else value
        if known is not None:
            texts[key] = str(known)
    return texts


class Sources:
    """All that one step records of a model, as far as it is chosen; `left_out` says what is not."""

    def __init__(
        self,
        models: Collection[Any],
        choice: Choice,
        gradient_of: Callable[[Any], Any],
        order: StepOrder,
        guard: Guard,
        *,
        micro_steps: bool,
        count: Callable[[Error], None],
        spill: Callable[[], None],
        shadows: Shadows | None,
        copies: HostCopies,
        ranks: Ranks,
        left_out: dict[str, str],
    ) -> None:
        self._choice = choice
        self._gradient_of = gradient_of
        self._micro_steps = micro_steps
        self._order = order
        self._guard = guard
        self._count = count
        self._spill, self._shadows = spill, shadows
        self._copies, self._ranks, self._left_out = copies, ranks, left_out
        self._pieces = Pieces(models, choice.parameters, ranks)
        self._of_parameters: ParameterHooks | None = None
        self._of_activations: ActivationHooks | None = None
        self._forward: ForwardPass | None = None
        self._features = Features(choice.modules)
        self._sees_forward = False  # whether the step does
        self._forward_names: list[str] = []  # of the forward tensors taken last
        self._loss: Any = None  # of the step
        self._again: Callable[[], Any] | None = None
        self._values = False  # whether the parameters themselves are to be taken, too

    def add_hooks(self) -> None:
        """Adds what is needed besides the parameters' own gradients."""
        choice = self._choice
        self._order.add_hooks()
        if self._micro_steps:
            self._of_parameters = ParameterHooks(choice.parameters, choice.parameter, self._guard)
        if choice.modules and not choice.inference:
            spill = None if self._micro_steps else self._spill  # a micro-step is one batch
            self._of_activations = ActivationHooks(
                choice.modules, choice.module, self._guard, choice.models, spill
            )
            self._left_out.update(self._of_activations.left_out)
        if self._shadows is not None or (choice.modules and choice.takes_forward):
            self._forward = ForwardPass(
                choice.all_modules,
                choice.parameters,
                choice.module,
                self._guard,
                models=choice.models,
                inference=choice.inference,
                spill=self._spill,
            )

    def begin(self) -> None:
        """Begins a step, which may record its forward pass."""
        self._values = self._choice.forward
        self._order.begin()
        self._begin_forward()

    def _begin_forward(self) -> None:
        forward, keeps = self._forward, self._choice.forward
        self._sees_forward = forward is not None and (keeps or self._choice.again)
        if forward is not None and self._sees_forward:
            self._guard(lambda: forward.begin(keeps=keeps))

    def restart(self) -> None:
        """Forgets what the step has left so far: it belongs to a step before."""
        self._features.clear()
        for hooks in (self._of_activations, self._forward):
            if hooks is not None:
                hooks.clear()
        self._begin_forward()

    def holds_micro_step(self) -> bool:
        """Returns whether backward has left gradients of parameters that nobody has taken."""
        return self._of_parameters is not None and self._of_parameters.holds

    def check_scale(self, scale: float | None) -> None:
        """Raises Error if the scaler contradicts the stated scale, None for its own."""
        self._order.check_scale(scale)

    def end_forward(self) -> None:
        """Ends the forward pass of the step: what runs from now on is none of it."""
        if self._forward is not None:
            self._guard(self._forward.end)

    def take(
        self, step: int, micro: int | None, grad_scale: str, metadata: Mapping[str, object]
    ) -> Part:
        """Returns a step, or a micro-step alone.

        Its tensors stay as they are until the next is taken, but those on a device. Raises Error if
        all gradients are missing, or if they are no longer those that backward has left; of an
        inference if there was no forward pass.
        """
        scale = float(grad_scale)
        if not self._choice.inference:
            self._order.check(scale)
            found = {**self._gradients(step), **self._forward_values()}
        elif self._forward is None or not self._forward.ran:
            raise Error("no forward pass, expected a call after the model has run")
        else:
            found = self._forward_values()
        self._run_again(step, scale)
        host = self._copies.take(self._pieces.own(found, self._left_out), self._left_out)
        texts = texts_of({"step": step, **metadata, "grad_scale": grad_scale})
        texts.update(self._pieces.metadata(self._metadata()))
        if micro is not None:
            texts["micro_step"] = str(micro)
        if self._ranks.kind == "separate":
            texts.update(rank=str(self._ranks.rank), ranks=str(self._ranks.ranks))
        return Part(micro, scale, texts, host)

    def _gradients(self, step: int) -> dict[str, Any]:
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
                why = "has no gradient" if gradient is None else self._order.left_out(name)
                if why:
                    self._left_out.setdefault(f"{name}.grad", f"{why} in step {step}")
                else:
                    found[f"{name}.grad"] = gradient
        if self._of_activations is not None:
            found.update(self._of_modules(self._of_activations))
        if not found:
            raise Error("no gradients, expected a call after backward and before zero_grad")
        return found

    def _forward_values(self) -> dict[str, Any]:
        """Returns what the forward pass of the step has computed, and with what."""
        found = {} if self._forward is None else self._forward.take()
        values, self._values = self._values and self._choice.forward, False
        if not self._choice.forward:  # which its number has told
            found.clear()
        if values and self._forward is not None:
            found.update(self._forward.buffers())
        for name, parameter in self._choice.parameters.items() if values else ():
            if parameter.is_floating_point():
                found[f"{name}.value"] = _own_elements(parameter, parameter.detach())
        self._forward_names = list(found)
        return found

    def _metadata(self) -> dict[str, str]:
        """Returns what a reader needs to know of the tensors taken last."""
        metadata = self._features.metadata()
        if self._order.descends:
            metadata["descent"] = "SGD"
        if self._of_activations is not None and self._of_activations.types:
            metadata["computed_in"] = "\n".join(self._of_activations.types)
        if self._sees_forward and self._forward is not None:
            metadata.update(self._forward.metadata())
            wide = set(filter(None, metadata.get("autocast_float32", "").split("\n")))
            modules = self._choice.all_modules
            for name in self._forward_names:
                module = module_of(name)
                if type(modules.get("" if module == ROOT else module)).__name__ in _IN_FLOAT32:
                    wide.add(name)
            if self._shadows is not None:
                shadow, more = self._shadows.metadata(self._forward_names)
                metadata.update(shadow)
                wide |= more
            if wide:
                metadata["autocast_float32"] = "\n".join(sorted(wide))
        return metadata

    def take_early(self) -> dict[str, Any]:
        """Returns activations and their gradients that batches so far have left, in host memory.

        The next `take` gives the rest.
        """
        found = {} if self._forward is None else self._forward.take()
        if self._of_activations is not None:
            found.update(self._of_modules(self._of_activations.seen))
        return in_host_memory(self._pieces.own(found, self._left_out), self._left_out)

    def _of_modules(self, hooks: ActivationHooks | Seen) -> dict[str, Any]:
        found = self._unchanged(hooks)
        self._features.note(found.items())
        return found

    def _unchanged(self, hooks: ParameterHooks | ActivationHooks | Seen) -> dict[str, Any]:
        tensors, changed = hooks.take()
        for name in changed:
            self._count(Error(f"{name}: was changed in place after it was computed"))
        return tensors

    def runs_again(self, loss: Any, again: Callable[[], Any] | None) -> None:
        """Says what the loss of the step is, and how to run it again if the loop knows that."""
        self._loss, self._again = loss, again

    def _run_again(self, number: int, scale: float) -> None:
        """Runs the step again in 16-bit formats, if it is one of those."""
        shadows, forward = self._shadows, self._forward
        if shadows is None or forward is None or not self._choice.again:
            return
        try:
            again = self._again
            step = forward.again.step(self._loss, scale) if again is None else Closure(again)
            shadows.run(number, step)
        except Unfollowed as why:
            shadows.why = str(why)
        except Exception as error:
            shadows.why = f"{type(error).__name__}: {error}".splitlines()[0]
            self._count(Error(f"cannot be run in a format: {shadows.why}"))

    @property
    def seconds_again(self) -> float:
        """What running steps again has taken so far."""
        return 0.0 if self._shadows is None else self._shadows.seconds

    def clear(self) -> None:
        """Forgets what hooks have seen."""
        self._order.clear()
        self._features.clear()
        for hooks in (self._of_parameters, self._of_activations, self._forward):
            if hooks is not None:
                hooks.clear()

    def note_idle(self) -> None:
        """Notes the chosen modules that never ran in a recorded step."""
        for name in self._of_activations.idle() if self._of_activations is not None else ():
            self._left_out.setdefault(name, NEVER_CALLED)

    def remove_hooks(self) -> None:
        """Removes all hooks, and what they have seen."""
        self._order.clear()
        self._order.remove()
        if self._forward is not None:
            self._forward.clear()
        for hooks in (self._of_parameters, self._of_activations):
            if hooks is not None:
                hooks.clear()
                hooks.remove()
