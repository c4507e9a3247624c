# SPDX-License-Identifier: Apache-2.0
"""A step of a training, run again: the calls that its loop has made, from the model to the loss."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

from ._tensors import (
    FunctionMode,
    WeakHook,
    autocast_dtype,
    in_backward,
    is_transformed,
    leaves_in,
    mapped,
    tensors_in,
)

_CHANGED = "what the step was given was changed in place"
_SETTERS = ("__set__", "__setitem__", "__delitem__")


class Unfollowed(Exception):
    """Says why a step cannot be run again."""


class _Made:
    """Stands in arguments for a tensor that a call of the step makes."""

    def __init__(self, index: int) -> None:
        self.index = index


@dataclasses.dataclass
class _Call:
    function: Any
    args: Any
    kwargs: Any
    made: list[int]  # the tensors of the result, in order
    off: bool  # whether autocast was turned off around it
    of_model: bool
    differentiates: bool  # whether gradients were enabled
    left: list[tuple[Any, str, int]]  # tensors that it leaves in attributes of modules


class Step:
    """The calls of one step, which `loss` makes again.

    `whole` says whether they go on to the loss. If they do not, `loss` returns in its place the sum
    of the model's outputs times the gradients that they had: its gradients are those of the loss.
    In an inference, without gradients, it is the mean magnitude of outputs.
    """

    def __init__(
        self,
        calls: list[_Call],
        given: list[tuple[Any, int]],
        root: Any,
        gradients: Mapping[int, Any],
        device: str,
        *,
        partial: bool,
    ) -> None:
        self.whole, self.separates = root is not None and not partial, True
        self._generators = [(one, one.get_state()) for one in _generators_in(calls)]
        self._calls, self._given, self._root = calls, given, root
        self._gradients, self._device = dict(gradients), device

    def check(self) -> None:
        """Raises Unfollowed if something that the step was given has changed since."""
        if any(tensor._version != version for tensor, version in self._given):
            raise Unfollowed(_CHANGED)

    def loss(self, *, loss_in_float32: bool = False) -> Any:
        """Returns the loss, computed again; also what is called outside of modules in float32."""
        try:
            return self._loss(loss_in_float32=loss_in_float32)
        finally:
            for generator, state in self._generators:
                generator.set_state(state)

    def _loss(self, *, loss_in_float32: bool) -> Any:
        import torch

        made: dict[int, Any] = {}
        for call in self._calls:
            wide = call.off or (loss_in_float32 and not call.of_model)
            module: Any = torch
            off = module.autocast(self._device, enabled=False) if wide else nullcontext()
            # Gradients of outputs have all that comes after.
            apart = self._root is None and call.of_model
            known = {i: one.detach() for i, one in made.items()} if apart else made
            args, kwargs = _replaced((call.args, call.kwargs), known)
            if wide and not call.off:
                args, kwargs = mapped((args, kwargs), _is_tensor, _wide)
            with off, torch.set_grad_enabled(call.differentiates and torch.is_grad_enabled()):
                result = call.function(*args, **kwargs)
            tensors = list(tensors_in(result))
            if len(tensors) != len(call.made):
                raise Unfollowed("a call has other results than before")
            made.update(zip(call.made, tensors, strict=True))
            for module, name, index in call.left:
                if _is_tensor(vars(module).get(name)):
                    made[index] = vars(module)[name]
        if self._root is None and not self._gradients:
            outputs = [made[i] for call in self._calls if call.of_model for i in call.made]
            floats = [one.float() for one in outputs if one.is_floating_point() and one.numel()]
            return torch.stack([one.abs().mean() for one in floats]).mean()
        if self._root is None:
            parts = [
                (made[index].float() * gradient).sum()
                for index, gradient in self._gradients.items()
            ]
            return torch.stack(parts).sum()
        root, weight = self._root
        loss = made[root.index].float()
        return (loss * weight).sum()


class Closure:
    """A step that the loop itself says how to run again."""

    whole = True
    separates = False  # whether it tells the loss from the model

    def __init__(self, loss_of: Callable[[], Any]) -> None:
        self._loss_of = loss_of

    def loss(self, *, loss_in_float32: bool = False) -> Any:
        """Returns the loss. Raises Unfollowed for one in float32: what that is, is not known."""
        if loss_in_float32:
            raise Unfollowed("what is loss and what is model is not known")
        return self._loss_of()


class Again:
    """Follows the calls of a forward pass, of modules and of functions outside of them.

    A step is run again by the same calls in the same order. What they made is replaced by what they
    make then; everything else is what it was, and has no gradient unless it is a parameter. `begin`
    forgets all; `enter` and `leave` say that a module runs in no other one.
    """

    def __init__(self, *, inference: bool = False) -> None:
        self._inference = inference
        self._mode = FunctionMode(self._function)
        weakref.finalize(self, self._mode.leave).atexit = False
        self._clear()

    def _clear(self) -> None:
        self._calls: list[_Call] = []
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}  # what calls made, by identity
        self._given: dict[int, tuple[Any, int]] = {}  # by identity, with the version
        self._changed: dict[int, int] = {}  # of these, the number of calls before the last change
        self._closed = False  # whether a backward pass has begun
        self._cut = False  # whether the latest arguments have more than what is followed
        self._partial = False  # whether more than that makes the loss
        self._made = 0
        self._inside = False  # whether a module runs
        self._follows = False  # whether functions are followed
        self._follows_loss = True
        self._entered: tuple[Any, bool] | None = None
        self._root: _Made | None = None
        self._gradients: dict[int, Any] = {}
        self._nesting: int | None = None
        self._device = "cpu"
        self._why = ""

    def begin(self) -> None:
        self._mode.leave()
        self._clear()

    def end(self) -> None:
        self._follows = False
        self._mode.leave()

    def enter(self, args: Any, kwargs: Any) -> None:
        """Takes what a module is given that begins to run."""
        if self._closed:
            return
        if self._nesting is None:
            self._nesting = _nesting()
        if not self._follows:
            self._follows = True
            self._follows_loss = self._mode.enter() and self._follows_loss
        self._inside = True
        self._entered = None
        self._noting(lambda: self._enter(args, kwargs))

    def _enter(self, args: Any, kwargs: Any) -> None:
        self._changes()
        self._entered = self._known_as((args, kwargs)), self._is_off()

    def leave(self, module: Any, output: Any) -> None:
        """Takes what it returns."""
        self._inside = False
        entered, self._entered = self._entered, None
        if entered is not None:
            self._noting(lambda: self._leave(module, entered, output))
        if not self._follows_loss:
            self.end()

    def _leave(self, module: Any, entered: tuple[Any, bool], output: Any) -> None:
        (args, kwargs), off = entered
        made = self._add(module, args, kwargs, output, off, of_model=True)
        for part in module.modules() if self._calls else ():
            for name, value in vars(part).items():
                if _is_tensor(value) and value.grad_fn is not None:
                    if self._index_of(value) is None:
                        self._calls[-1].left.append((part, name, self._new(value)))
        for index, tensor in zip(made, tensors_in(output), strict=True):
            if tensor.requires_grad and tensor.is_floating_point():
                self._device = tensor.device.type
                tensor.register_hook(WeakHook(self._keep, index))

    def _keep(self, index: int, gradient: Any) -> None:
        self._gradients.setdefault(index, gradient)

    def step(self, loss: Any, scale: float) -> Step:
        """Ends the pass; returns how to run it again.

        `loss` is what the loop says that it is, and `scale` what the loss was multiplied by before
        backward. Raises Unfollowed if that cannot be.
        """
        self.end()
        if self._why:
            raise Unfollowed(self._why)
        if not self._calls:
            raise Unfollowed("no module ran in the thread that trains")
        root = None if self._root is None else (self._root, 1 / scale)
        if root is None and (found := self._index_of(loss)) is not None and loss.requires_grad:
            root = _Made(found), 1.0
        if root is not None and root[0].index not in self._of_models():
            root = None  # what leads to it was not seen
        if root is None and not self._gradients and not self._inference:
            raise Unfollowed("no output of the model has a gradient")
        gradients = {} if root else {i: one.detach() / scale for i, one in self._gradients.items()}
        calls, given = self._needed(None if root is None else root[0].index)
        step = Step(calls, given, root, gradients, self._device, partial=self._partial)
        step.check()
        return step

    def _of_models(self) -> set[int]:
        """Returns what was made by modules, and of that."""
        found: set[int] = set()
        for call in self._calls:
            if call.of_model or _inputs_of(call)[0] & found:
                found.update(call.made)
                found.update(index for _, _, index in call.left)
        return found

    def _function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._follows or self._inside or in_backward() or _is_unseen(func):
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "backward" or (name == "grad" and not kwargs.get("create_graph")):
            self._begin_backward(args)
        elif self._follows_loss and not self._closed:
            return self._followed(name, func, args, kwargs)
        return func(*args, **kwargs)

    def _followed(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._cut = False
        try:
            (known_args, known), off = self._known_as((args, kwargs)), self._is_off()
        except Exception:  # also of objects of the loop's own
            self._follows_loss = False
            return func(*args, **kwargs)
        cut, result = self._cut, func(*args, **kwargs)
        try:
            tensors = [*tensors_in(result)]
            if name in _SETTERS or tensors:
                self._add(func, known_args, known, result, off, of_model=False)
            else:
                self._changes()
            # Batch norm's running statistics change without a trace.
            self._follows_loss = name != "batch_norm"
        except Exception:
            self._follows_loss, tensors = False, []
        self._partial = self._partial or (cut and any(one.requires_grad for one in tensors))
        return result

    def _begin_backward(self, args: tuple[Any, ...]) -> None:
        losses = list(tensors_in(args[:1]))
        index = self._index_of(losses[0]) if len(losses) == 1 else None
        if self._closed:  # another part of the loss
            self._partial = self._partial or index is not None
        elif index is not None and self._follows_loss and losses[0].numel() == 1:
            self._root = _Made(index)
        self._closed = True

    def _noting(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Unfollowed as why:
            self._why = self._why or str(why)
        except Exception as error:  # of an object of the model's own
            self._why = self._why or f"{type(error).__name__}: {error}".splitlines()[0]

    def _add(
        self, function: Any, args: Any, kwargs: Any, result: Any, off: bool, *, of_model: bool
    ) -> list[int]:
        import torch

        if self._changes():  # of what is no part of the step, such as gradients that are cleared
            if of_model:
                raise Unfollowed(_CHANGED)
            return []
        made = []
        for tensor in tensors_in(result):
            index = self._index_of(tensor)  # known if it was changed in place, or passed on
            made.append(self._new(tensor) if index is None else index)
        call = _Call(function, args, kwargs, made, off, of_model, torch.is_grad_enabled(), [])
        self._calls.append(call)
        return made

    def _changes(self) -> bool:
        """Notes which given tensors have changed since the last call; returns whether any has."""
        changed = [key for key, (one, before) in self._given.items() if one._version != before]
        for key in changed:
            self._given[key] = self._given[key][0], self._given[key][0]._version
            self._changed[key] = len(self._calls)
        return bool(changed)

    def _needed(self, root: int | None) -> tuple[list[_Call], list[tuple[Any, int]]]:
        """Returns the calls that make a tensor, None for all, and what they are given."""
        needed = {root}
        calls: list[_Call] = []
        given: set[int] = set()
        for place, call in reversed([*enumerate(self._calls)]):
            made, leaves = _inputs_of(call)
            results = {*call.made, *(index for _, _, index in call.left)}
            # What has no result changes what it is given.
            if root is None or needed & (results or made):
                calls.insert(0, call)
                needed |= made
                given |= leaves & self._given.keys()
                if any(self._changed.get(one, 0) > place for one in leaves):
                    raise Unfollowed(_CHANGED)
        return calls, [self._given[one] for one in given]

    def _new(self, tensor: Any) -> int:
        self._known[id(tensor)] = weakref.ref(tensor), self._made
        self._made += 1
        return self._made - 1

    def _index_of(self, tensor: Any) -> int | None:
        reference, index = self._known.get(id(tensor), (lambda: None, -1))
        return index if _is_tensor(tensor) and reference() is tensor else None

    def _known_as(self, values: Any) -> Any:
        """Returns arguments with what calls made replaced; what is given besides is noted."""
        import torch

        if is_transformed():
            raise Unfollowed("it runs under torch.func")

        def known(tensor: Any) -> Any:
            index = self._index_of(tensor)
            if index is not None:
                return _Made(index)
            if not torch.is_inference_mode_enabled() and not tensor.is_inference():
                self._given.setdefault(id(tensor), (tensor, tensor._version))
            if tensor.grad_fn is None or not torch.is_grad_enabled():
                return tensor
            self._cut = True  # from what it was computed of
            return tensor.detach()

        return mapped(values, _is_tensor, known)

    def _is_off(self) -> bool:
        """Returns whether autocast was turned off around the caller, in the step."""
        if self._nesting is None or _nesting() <= self._nesting:
            return False
        return autocast_dtype("cpu") is None and autocast_dtype("cuda") is None


def _is_unseen(func: Any) -> bool:
    """Returns whether it is an attribute that is no part of a step, or changes without a trace."""
    import torch

    tensor: Any = torch.Tensor
    attribute = getattr(func, "__self__", None)
    return attribute is tensor.grad or attribute is tensor.data


def _inputs_of(call: _Call) -> tuple[set[int], set[int]]:
    """Returns what a call takes of what calls have made, and the identities of other tensors."""
    given = [*leaves_in((call.args, call.kwargs))]
    made = {one.index for one in given if isinstance(one, _Made)}
    return made, {id(one) for one in given if _is_tensor(one)}


def _generators_in(calls: Iterable[_Call]) -> list[Any]:
    import torch

    given = leaves_in([(call.args, call.kwargs) for call in calls])
    return [*{id(one): one for one in given if isinstance(one, torch.Generator)}.values()]


def _nesting() -> int:
    """Returns how many contexts of autocast are entered around the caller."""
    import torch

    entered = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return int(entered) - 1


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _wide(tensor: Any) -> Any:
    narrow = tensor.is_floating_point() and tensor.element_size() < 4
    return tensor.float() if narrow else tensor


def _replaced(value: Any, made: Mapping[int, Any]) -> Any:
    return mapped(value, lambda one: isinstance(one, _Made), lambda one: made[one.index])
