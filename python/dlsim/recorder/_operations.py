# SPDX-License-Identifier: Apache-2.0
"""The operations of a forward pass, as PyTorch's operators compute them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ._angles import Angles
from ._attention import decomposed, rounded_by
from ._graph import Graph
from ._hooks import Guard
from ._memory import ByMemory
from ._modes import Modes, alone
from ._noise import Noise
from ._operators import OF_TYPE, Operator, constant_of, described
from ._overflows import LARGEST, Overflows
from ._rounding import RoundedLosses
from ._tensors import LEAST_MASK, floats_in, in_backward, tensors_in
from ._widths import Widths

# Operations that have no value where one of their arguments is zero, and which.
_DIVIDES_BY = {"div": 1, "log": 0, "log10": 0, "log2": 0, "reciprocal": 0, "rsqrt": 0, "sqrt": 0}

# Operations whose result is as inexact as what they are given.
_AS_INEXACT = frozenset("abs add clamp clamp_min maximum relu".split())

# Operations whose gradient is zero where their result is the least, and that hand such on.
_CUTS, _KEEPS_CUT = frozenset("clamp clamp_min relu".split()), frozenset(("add", "amax"))

# The attribute of a tensor that a recorder has made in the place of one that was converted.
_CONVERTED = "_dlsim_converted"

# The smallest normal value of fp16: what is below may become zero.
_TINY = 2.0**-14


class Result:
    """What was recorded of a tensor, and the name.

    Its gradient is `rounded` if the tensor has 16 bits, or an operation has a copy of it in 16.
    """

    def __init__(
        self, name: str, tensor: Any, *, of_module: bool = False, rounded: bool = False
    ) -> None:
        self.name, self.of_module, self.rounded = name, of_module, rounded
        self._elements = tensor.numel()

    def is_of(self, tensor: Any) -> bool:
        """Returns whether a tensor in the same memory has all the elements of this one."""
        return bool(self._elements == tensor.numel())


class Operations:
    """Sees what operators compute while it is entered.

    `active` says whether a forward pass that is recorded runs now. `found` takes an operation, its
    result and whether that will have a gradient, and returns the name that it is recorded by, None
    for none; `differentiated` takes that name and the gradient. `outside` says whether no module
    runs, as where the loss is computed; `module` names the one that does, and
    `splits` says whether attention may be computed in parts.
    """

    def __init__(
        self,
        widths: Widths,
        active: Callable[[], bool],
        found: Callable[[str, Any, bool], str | None],
        differentiated: Callable[[str, Any], None],
        guard: Guard,
        *,
        copied: Callable[[str | None, Any], None],
        outside: Callable[[], bool],
        module: Callable[[], str],
        splits: Callable[[], bool],
        noise: Noise,
    ) -> None:
        self._graph, self._splits = Graph(module), splits
        self._widths, self._active, self._guard, self._noise = widths, active, guard, noise
        self._found, self._differentiated, self._copied = found, differentiated, copied
        self._known: dict[Any, Operator] = {}
        self._latest: ByMemory[Result] = ByMemory()
        self._copies: ByMemory[set[tuple[int, int]]] = ByMemory()  # first element, elements
        # Sizes of what operations round: whether it has 16 bits before.
        self._inputs: dict[bool, set[tuple[int, int]]] = {False: set(), True: set()}
        self._narrow_before: ByMemory[bool] = ByMemory()  # what was made float32 of 16 bits
        self._roots: ByMemory[Any] = ByMemory()  # of square roots, what they are taken of
        self._cut: ByMemory[bool] = ByMemory()  # what has no gradient where it is the least
        self._angles = Angles(widths)
        self._subtracted: ByMemory[Any] = ByMemory()  # of differences, the larger magnitudes
        self._overflows = Overflows()
        self._rounded = RoundedLosses(widths, outside)
        self._pending: list[tuple[Any, int, Result]] = []  # autograd knows them a little later
        self._softmaxes: list[Any] = []  # the same of results of softmax
        self._asked: bool | None = None  # the type that the last call asked for: whether 16 bits
        self._saved: bool | None = None  # the last one that this pass asked for
        self._stated: bool | None = None  # the type that the function that runs is told: 16 bits
        self._modes = Modes(self._function, self._operator)
        weakref.finalize(self, self._modes.leave).atexit = False

    def enter(self) -> bool:
        """Begins to see; returns whether that may go on when the caller is left."""
        self._asked = self._saved = None
        return self._modes.enter()

    def leave(self) -> None:
        """Ends seeing."""
        self._guard(self._watch_gradients)
        self._modes.leave()

    def forget(self) -> None:
        """Forgets what was computed."""
        self._latest.clear()
        self._graph.forget()
        self._copies.clear()
        for sizes in self._inputs.values():
            sizes.clear()
        self._narrow_before.clear()
        self._roots.clear()
        self._cut.clear()
        self._subtracted.clear()
        self._angles.clear()
        self._overflows.clear()
        self._rounded.clear()
        self._pending.clear()
        self._softmaxes.clear()

    def harmless_overflows(self) -> list[str]:
        """Returns the names of results that overflow in fp16 and change nothing."""
        return self._overflows.harmless()

    def rounded_loss(self) -> dict[int, float]:
        """Ends a pass; returns by which share its loss grows if rounded, by bits of significand."""
        with self.looking():
            return self._rounded.growth()

    def result_of(self, tensor: Any) -> Result | None:
        """Returns what was recorded of a tensor, or of one that it is a view of all elements of."""
        found = self._latest.get(tensor)
        return found if found is not None and found.is_of(tensor) else None

    def note(self, name: str, tensor: Any) -> None:
        """Says that a tensor was recorded as that of a module."""
        self._latest.set(tensor, Result(name, tensor, of_module=True))
        self._graph.name(tensor, name)

    def rename(self, found: Result, name: str, tensor: Any) -> None:
        """Says that what was recorded as the result of an operation is that of a module."""
        found.name, found.of_module = name, True
        self._graph.name(tensor, name)

    def graph(self) -> str:
        """Returns what the operations of the pass give to one another; see docs/traces.md."""
        return self._graph.text()

    def _watch_gradients(self) -> None:
        """Watches for the gradients of the results so far, if they are as they were computed."""
        softmaxes, self._softmaxes = self._softmaxes, []
        for tensor in softmaxes:
            self._noise.watch(tensor)
        pending, self._pending = self._pending, []
        for tensor, version, result in pending:
            if tensor.requires_grad and tensor.grad_fn is not None and tensor._version == version:
                tensor.register_hook(self._hook_of(result))
                self._noise.name(f"{result.name}.act_grad", tensor)

    def _hook_of(self, result: Result) -> Callable[[Any], None]:
        own = weakref.ref(self)  # a loss that is kept keeps its graph, and that this hook

        def hook(gradient: Any) -> None:
            operations = own()
            if operations is not None and result.rounded and not result.of_module:
                differentiated, name = operations._differentiated, result.name
                operations._guard(lambda: differentiated(name, gradient))

        return hook

    def _function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls one of torch's functions."""
        if not self._active():
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        asked, self._asked = self._asked, None
        if name == "__get__":
            result = func(*args, **kwargs)
            if _is_dtype(result) and result.is_floating_point:
                self._asked = self._saved = self._widths.narrow(args[0])
            return result
        if name in ("softmax", "log_softmax"):
            self._guard(lambda: self._find_masked_rows(*args[:2], **kwargs))
        if self._widths.copies(name):
            self._guard(lambda: self._copy(rounded_by(name, args, kwargs)))
        self._graph.calls(name)
        self._stated = bool(asked) if _is_dtype(kwargs.get("dtype")) else None
        with self._widths.inside(name, args), decomposed(name, args, kwargs, self._splits):
            result = func(*args, **kwargs)
        self._graph.calls("")
        self._stated = None
        if name in ("float", "to", "type", "type_as"):
            if not args[0].is_floating_point():
                self._made_of_integers(result, _asks_for_16_bits(args, kwargs, asked, self._widths))
                return result
            return self._converted(name, args, kwargs, result, asked)
        if asked and _is_dtype(kwargs.get("dtype")) and not list(tensors_in((args, kwargs))):
            self._widths.set(result, True)  # made in the type that was just asked for
        return result

    def _find_masked_rows(self, scores: Any, dim: Any = None, **_: Any) -> None:
        """Records the largest score of each row, if some rows have but masked ones.

        Those are a constant. Where that is minus infinity in 16 bits, the softmax of a row is NaN.
        """
        narrow = self._widths.narrow(scores) or bool(self._narrow_before.get(scores))
        if not isinstance(dim, int) or scores.numel() == 0:
            return
        with self.looking():
            largest = scores.detach().amax(dim)
            masked = -math.inf < float(largest.min()) < -LEAST_MASK
        if masked:
            self._widths.set(largest, narrow)
            self._derive("masked_rows", largest, scores)

    def _derive(self, what: str, tensor: Any, of: Any) -> None:
        """Records what follows from a tensor that an operation is given or has made."""
        name = self._found(what, tensor, True)
        if name is not None:
            self._graph.derived(of, tensor, self._widths.narrow)
            self._graph.name(tensor, name)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Within it, the recorder's own operators are not seen."""
        with alone():
            yield

    def _find_tiny_divisors(self, operation: str, args: tuple[Any, ...], result: Any) -> None:
        """Records what is divided by, or of what a logarithm is taken, if some of it is tiny.

        Of a square root that is divided by, what it is taken of; and of one that has a gradient,
        which divides by the root.
        """
        by = args[_DIVIDES_BY[operation]]
        if not floats_in(by) or by.dim() == 0:
            return
        divisors = self._roots.get(by) if operation in ("div", "reciprocal") else None
        if divisors is None:
            with self.looking():
                tiny = (by != 0) & (by.detach().abs() < _TINY)
                if not bool(tiny.any()):
                    return
                divisors = by.detach().clone()
            self._widths.set(divisors, self._widths.narrow(by))
        if operation == "sqrt":
            self._roots.set(result, divisors)
            if not by.requires_grad or self._cut.get(by):
                return
        self._derive("divisor", divisors, by)

    def _find_refused(self, operation: str, args: tuple[Any, ...], results: list[Any]) -> None:
        """Records a constant that fp16 cannot hold where PyTorch raises an error then.

        That of a single element, which PyTorch's newer versions accept, is left out.
        """
        constant = constant_of(operation, args)
        if constant is None or not results or results[0].numel() < 2:
            return
        if not self._widths.narrow(results[0]) or any(
            map(self._widths.narrow, floats_in(constant))
        ):
            return
        with self.looking():
            number = float(constant[1])
            if LARGEST < abs(number) < OF_TYPE:
                value = results[0].new_full((1, 1), number)
                self._widths.set(value, True)
                self._derive(f"refused_{constant[0]}", value, results[0])

    def _follow_difference(self, operation: str, args: tuple[Any, ...], result: Any) -> None:
        """Keeps of a difference of 16-bit values how large these are, and follows it."""
        if operation == "sub":
            given = floats_in(args[:2])
            if len(given) == 2 and any(map(self._widths.narrow, given)):
                with self.looking():
                    first, second = (one.detach().abs() for one in given)
                    self._subtracted.set(result, first.maximum(second))
        elif operation in _AS_INEXACT and floats_in(args[0]):
            larger = self._subtracted.get(args[0])
            if larger is not None and larger.shape == result.shape:
                self._subtracted.set(result, larger)

    def _find_inexact_divisors(self, operation: str, args: tuple[Any, ...]) -> None:
        """Records what is divided by as a share of what it is the difference of.

        16 bits round the latter, so that a small share is all rounding error: a variance as
        E[x^2] - E[x]^2.
        """
        by = args[_DIVIDES_BY[operation]]
        larger = self._subtracted.get(by) if floats_in(by) else None
        if larger is not None and larger.shape == by.shape:
            with self.looking():
                shares = by.detach().abs() / larger.clamp(min=_TINY)
            self._widths.set(shares, True)
            self._derive("difference", shares, by)

    def _made_of_integers(self, result: Any, narrow: bool) -> None:
        """Reports integers that 16-bit training would hold as 16-bit numbers."""
        if narrow and result.is_floating_point() and result.element_size() == 4 and result.dim():
            self._guard(lambda: self._copied(None, result))
            self._widths.set(result, True)

    def _converted(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, asked: Any
    ) -> Any:
        """Makes a tensor of its own of one that was converted to the type that it has already.

        In 16-bit training it would be another one. A type that was read from a tensor looks like
        float32, so the last call, or that of the module, shows what was meant.
        """
        given = args[0]
        made_here = result is given
        if not (made_here or getattr(result, _CONVERTED, False)):  # by another recorder
            return result
        if not result.is_floating_point() or result.element_size() != 4:
            return result
        before = self._widths.narrow(given)
        to = [*args[1:], *kwargs.values()]
        likes = [one for one in to if hasattr(one, "is_floating_point") and hasattr(one, "dim")]
        if likes:
            wanted = self._widths.narrow(likes[0])
        elif name == "float":
            wanted = False
        elif not any(map(_is_dtype, to)):
            return result
        elif asked is not None:
            wanted = asked
        else:
            wanted = bool(self._saved) and not before
        if wanted == before:
            return result
        if wanted:
            self._guard(lambda: self._copy([given]))
        converted = given.clone() if made_here else result
        setattr(converted, _CONVERTED, True)
        self._widths.set(converted, wanted)
        self._graph.converted(given, converted, self._widths.narrow)
        if before:
            self._narrow_before.set(converted, True)
        return converted

    def _operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls one of torch's operators."""
        if not self._active():
            return func(*args, **kwargs)
        if self._pending or self._softmaxes:
            self._guard(self._watch_gradients)
        result = func(*args, **kwargs)
        self._guard(lambda: self._look(func, args, kwargs, result))
        return result

    def _look(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        operator = self._known.get(func)
        if operator is None:
            operator = self._known[func] = described(func)
        if operator.view:
            return
        given = list(tensors_in((args, kwargs)))
        results = floats_in(result)
        widths = self._widths
        rounds = widths.rounds(operator.operation)
        if rounds and not in_backward():
            for one in given:
                self._inputs[widths.narrow(one)].add(_size_of(one))
        if widths.copies(operator.operation):
            self._copy(given)
        stated = self._stated if _is_dtype(kwargs.get("dtype")) else None
        policy, as_first = widths.computed(
            operator.operation, given, results, in_place=operator.in_place, stated=stated
        )
        self._graph.computed(
            operator, policy, given, results, widths.narrow, rounds=rounds, as_first=as_first
        )
        self._find_refused(operator.operation, args, results)
        for one in given if rounds else ():
            if (before := self._latest.get(one)) is not None:
                before.rounded = True
        self._renew(operator, given, results)
        if results and not operator.in_place:
            self._follow_difference(operator.operation, args, results[0])
        divides = operator.operation in _DIVIDES_BY  # others change in place what is looked at
        if divides and results and (operator.operation == "div" or not operator.in_place):
            self._find_tiny_divisors(operator.operation, args, results[0])
            self._find_inexact_divisors(operator.operation, args)
        taken = None
        if results and given and not operator.moves:
            taken = self._take(operator.operation, given, results[0], in_place=operator.in_place)
        if results and given:
            self._follow(operator, (func, args, kwargs), results, taken)
        if rounds and in_backward():
            self._widen(results)

    def _widen(self, results: list[Any]) -> None:
        """Makes float32 of derivatives of what was float32 before a copy in 16 bits, by their size.

        So does the derivative of the copy, which float32 training lacks.
        """
        for one in results:
            if _size_of(one) in self._inputs[False] - self._inputs[True]:
                self._widths.set(one, False)

    def _renew(self, operator: Operator, given: list[Any], results: list[Any]) -> None:
        """Forgets what was known of the memory of results, but for what still holds."""
        keeps_cut = operator.operation in _KEEPS_CUT and len(given) == 1
        cut = operator.operation in _CUTS or (keeps_cut and self._cut.get(given[0]))
        kept = self._subtracted.get(given[0]) if operator.in_place and given else None
        for one in results:
            self._latest.forget(one)
            self._copies.forget(one)
            self._narrow_before.forget(one)
            self._roots.forget(one)
            self._cut.forget(one)
            self._subtracted.forget(one)
            if cut:
                self._cut.set(one, True)
            if kept is not None and operator.operation in _AS_INEXACT:
                self._subtracted.set(one, kept)

    def _follow(
        self, operator: Operator, called: tuple[Any, Any, Any], results: list[Any], taken: Any
    ) -> None:
        """Follows overflows, rounding errors and angles, and gradients that may cancel."""
        if operator.operation == "softmax":
            self._softmaxes += results
        with self.looking():
            self._overflows.look(operator, called, results, taken)
            self._rounded.look(operator, called, results)
            turn = self._angles.look(operator, floats_in(called[1:]), results[0])
        if turn is not None:
            self._derive("angle", turn.angles, turn.of)

    def _copy(self, given: Iterable[Any]) -> None:
        """Reports the copies in 16 bits that autocast makes of tensors, each once."""
        for one in floats_in(list(given)):
            if self._widths.narrow(one) or self._widths.is_parameter(one):
                continue
            if (copies := self._copies.get(one)) is None:
                self._copies.set(one, copies := set())
            copy = one.data_ptr(), one.numel()
            if copy not in copies:
                copies.add(copy)
                before = self.result_of(one)
                self._copied(None if before is None else before.name, one)

    def _take(
        self, operation: str, given: list[Any], tensor: Any, *, in_place: bool
    ) -> Result | None:
        """Records a result; returns it if it has 16 bits."""
        import torch

        differentiable = torch.is_grad_enabled() and any(one.requires_grad for one in given)
        name = self._found(operation, tensor, differentiable)
        if name is None:
            return None
        narrow = self._widths.narrow(tensor)
        result = Result(name, tensor, rounded=narrow)
        self._latest.set(tensor, result)
        self._graph.name(tensor, name)
        if differentiable and not in_place:
            self._pending.append((tensor, tensor._version, result))
        return result if narrow else None


def _asks_for_16_bits(args: Any, kwargs: Any, asked: bool | None, widths: Widths) -> bool:
    """Returns whether a conversion is to a type that would have 16 bits, as far as that is seen."""
    likes = [one for one in tensors_in((args[1:], kwargs)) if one.is_floating_point()]
    return widths.narrow(likes[0]) if likes else bool(asked)


def _size_of(tensor: Any) -> tuple[int, int]:
    """Returns what flattening for a product leaves: the elements, and those of a row."""
    return tensor.numel(), tensor.shape[-1] if tensor.dim() else 1


def _is_dtype(value: Any) -> bool:
    import torch

    return isinstance(value, torch.dtype)
