# SPDX-License-Identifier: Apache-2.0
"""What the recorder asks of tensors that a model computes."""

from __future__ import annotations

import copy
import dataclasses
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ClassVar
from weakref import WeakMethod, WeakSet

from .. import _core
from .._errors import UsageError
from .._text import ROOT
from ..arrays import _dtypes

# -- What the recorder asks of tensors that a model computes

# What masks fill in is below minus this: -1e4 itself was chosen to fit fp16.
LEAST_MASK = 1e4

# Negative constants that differ by less are one: a mask may be added to other terms.
_SAME = 2.0**-20

# The same names and types come in every step.
role_of = lru_cache(maxsize=1 << 16)(_core.role_of)
name_of_dtype = lru_cache(maxsize=64)(_dtypes.name_of_dtype)


def leaves_in(value: Any) -> Iterator[Any]:
    """Yields what nested containers and dataclasses hold, in order; what is none by itself."""
    items: Iterable[Any]
    if isinstance(value, Mapping):
        items = value.values()
    elif isinstance(value, (tuple, list)):
        items = value
    elif is_record(value):
        items = [getattr(value, field.name) for field in dataclasses.fields(value)]
    else:
        yield value
        return
    for item in items:
        yield from leaves_in(item)


def mapped(value: Any, wanted: Callable[[Any], bool], change: Callable[[Any], Any]) -> Any:
    """Returns arguments with what is wanted in them changed; in containers of their own."""
    if wanted(value):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(one, wanted, change) for one in value))
    if isinstance(value, tuple):
        return tuple(mapped(one, wanted, change) for one in value)
    if isinstance(value, Mapping):
        items: Any = list(value.items())
    elif isinstance(value, list):
        items = enumerate(value)
    elif is_record(value):
        items = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    else:
        return value
    new = copy.copy(value)
    for key, one in items:
        found = mapped(one, wanted, change)
        if found is one:
            continue
        if isinstance(value, (Mapping, list)):
            new[key] = found
        else:
            object.__setattr__(new, key, found)
    return new


def is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def tensors_in(value: Any) -> Iterator[Any]:
    """Yields the tensors of what a module returns or is given, in order."""
    import torch

    return (one for one in leaves_in(value) if isinstance(one, torch.Tensor))


def floats_in(output: Any) -> list[Any]:
    """Returns the dense floating-point tensors of an output, in order."""
    import torch

    return [
        one for one in tensors_in(output) if one.is_floating_point() and one.layout is torch.strided
    ]


def is_plain(tensor: Any) -> bool:
    """Returns whether a tensor is dense, and none that stands for others, as a DTensor does."""
    import torch

    return tensor.layout is torch.strided and not hasattr(tensor, "to_local")


def is_loss(tensor: Any, *, of_model: bool) -> bool:
    """Returns whether backward starts from the output of a module, as far as its shape tells."""
    return tensor.dim() == 0 or (of_model and tuple(tensor.shape) == (1,))


def autocast_dtype(device: str) -> Any:
    """Returns the type in which autocast computes on a kind of device; None while it is off."""
    import torch

    module: Any = torch  # whose functions take no device before PyTorch 2.4
    if hasattr(module, "get_autocast_dtype"):
        return module.get_autocast_dtype(device) if module.is_autocast_enabled(device) else None
    if device == "cpu":
        return module.get_autocast_cpu_dtype() if module.is_autocast_cpu_enabled() else None
    return module.get_autocast_gpu_dtype() if module.is_autocast_enabled() else None


def computed_in(tensor: Any) -> str | None:
    """Returns "float16" or "bfloat16" if what has just made a tensor computes in it."""
    computed = autocast_dtype(tensor.device.type) or tensor.dtype
    name = str(computed).removeprefix("torch.")
    return name if name in ("float16", "bfloat16") else None


def in_backward() -> bool:
    """Returns whether autograd runs a backward pass; before PyTorch 2.0 nothing tells: False."""
    import torch

    module: Any = torch  # the stubs of older versions lack the function
    task = getattr(module._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


def is_mask(values: Any) -> bool:
    """Returns whether what is large in a tensor is one negative constant, several times or alone.

    Such a constant becomes minus infinity in 16 bits, and hides a score as before.
    """
    if not bool((values < -LEAST_MASK).any()):
        return False
    finite = values[values.isfinite()]
    large = finite[finite.abs() > LEAST_MASK].double()
    if large.numel() == 0:
        return False
    least, most = float(large.min()), float(large.max())
    repeated = large.numel() > 1 or large.numel() == int(finite.count_nonzero())
    return repeated and most < 0 and most - least <= -least * _SAME


# -- Which axis of the gradients of activations holds features, by what has made the activation

_NAME = re.compile(r"(?P<module>.*?)(?:\.call\d+)?(?P<later>\.out\d+)?\.act_grad")

_LAST = ("Bilinear", "Embedding", "EmbeddingBag", "LayerNorm", "Linear", "MultiheadAttention")
_SECOND = ("_BatchNorm", "GroupNorm")


def default_axis(dims: int) -> int:
    """Returns the axis that readers take for that of features, as LayoutOf in C++ does."""
    return 1 if dims >= 4 else dims - 1


class Features:
    """What the metadata of a step say of the gradients of its activations.

    Modules that do not say, such as an activation function, a container or a sum, are taken as
    readers take them, unless a module with as many axes has other features: then it is not known.
    """

    def __init__(self, modules: Mapping[str, Any]) -> None:
        self._modules = modules
        self._other: dict[str, int] = {}  # where it is not what readers take
        self._unsaid: dict[str, int] = {}  # tensors whose axes are all that is known: how many
        self._ambiguous: set[int] = set()  # numbers of axes

    def note(self, tensors: Iterable[tuple[str, Any]]) -> None:
        """Looks at tensors of a step, of which those matter that are gradients of activations."""
        for name, tensor in tensors:
            found = _NAME.fullmatch(name)
            if found is None or (dims := tensor.dim()) < 2:
                continue
            axis = self._axis(found, dims)
            if axis is None:
                self._unsaid[name] = dims
            elif axis != default_axis(dims):
                self._other[name] = axis
                self._ambiguous.add(dims)

    def _axis(self, found: re.Match[str], dims: int) -> int | None:
        if found["later"]:
            return None
        module = found["module"]
        axis = _axis_of(self._modules.get("" if module == ROOT else module), dims)
        return axis if axis is None else axis % dims

    def metadata(self) -> dict[str, str]:
        unknown = (name for name, dims in self._unsaid.items() if dims in self._ambiguous)
        lines = [f"{axis} {name}" for name, axis in self._other.items()]
        lines += [f"? {name}" for name in unknown]
        return {"feature_axes": "\n".join(sorted(lines))} if lines else {}

    def clear(self) -> None:
        self._other.clear()
        self._unsaid.clear()


def _axis_of(module: Any, dims: int) -> int | None:
    """Returns the axis of features of what a module returns; None if the module does not say."""
    if module is None:
        return None
    from torch import nn

    layers: Any = nn.modules
    if isinstance(module, layers.conv._ConvNd):
        return dims - 1 - len(module.kernel_size)  # without a batch the first
    if isinstance(module, layers.instancenorm._InstanceNorm):
        return dims - int(module._get_no_batch_dim())
    kinds = {kind.__name__ for kind in type(module).__mro__}
    if kinds.intersection(_SECOND):
        return 1
    recurrent = isinstance(module, (nn.RNNBase, nn.RNNCellBase))
    return -1 if recurrent or kinds.intersection(_LAST) or "RMSNorm" in kinds else None


# -- Tensors that are tabulated in the memory of the GPU that has them

# What a ProfileWriter takes: name, role, and an array of the host or element type, shape, tables.
NamedArray = tuple[str, str, Any]


def check_on_device(wanted: bool, *, profile: bool, scaled_formats: Iterable[str] = ()) -> None:
    """Raises UsageError if gradients are wanted to be counted where they are, but cannot."""
    if not wanted:
        return
    for format in scaled_formats:
        raise UsageError(
            f"on_device: {format} is measured in the host's memory, expected on_device=False"
        )
    if not profile:
        raise UsageError(
            "on_device: a trace needs the gradients themselves, expected a profile, such as "
            "run.profile"
        )


def device_of(tensor: Any) -> int | None:
    """Returns the GPU that has the tensor; None for memory of the host."""
    return int(tensor.device.index or 0) if tensor.is_cuda else None


def any_on_device(tensors: Iterable[Any]) -> bool:
    return any(device_of(tensor) is not None for tensor in tensors)


def named_arrays(
    tensors: Mapping[str, Any],
    scale: float,
    metadata: Mapping[str, str],
    mantissas: Iterable[float] = (),
) -> list[NamedArray]:
    """Returns tensors as a ProfileWriter takes them: those on a GPU are tabulated there."""
    on_device = {name: one for name, one in tensors.items() if device_of(one) is not None}
    tables = _tables(on_device, scale, metadata, list(mantissas)) if on_device else {}
    return [(name, role_of(name), tables.get(name, one)) for name, one in tensors.items()]


def _tables(
    tensors: Mapping[str, Any], scale: float, metadata: Mapping[str, str], mantissas: list[float]
) -> dict[str, Any]:
    from ..arrays._torch_arrays import channels_of, tabulate_on_device, times, unscaled

    gradients = [name for name in tensors if role_of(name) in ("grad", "act_grad")]
    others = [name for name in tensors if role_of(name) in ("act", "value")]  # carry no scale
    tables: dict[str, list[Any]] = {}
    for names, carried in ((gradients, scale), (others, 1.0)):
        found = tabulate_on_device([tensors[name] for name in names], carried)
        tables.update((name, [table]) for name, table in zip(names, found, strict=True))
    axes = _stated_axes(metadata)
    for name in gradients:
        values = unscaled(tensors[name], scale)
        axis = 0 if role_of(name) == "grad" else axes.get(name, default_axis(values.dim()))
        tables[name][0].set_channels(channels_of(values, axis))
        for mantissa in mantissas:
            tables[name] += tabulate_on_device([times(values, mantissa)], 1.0)
    return {
        name: (name_of_dtype(one.dtype), tuple(one.shape), tables[name])
        for name, one in tensors.items()
    }


def _stated_axes(metadata: Mapping[str, str]) -> dict[str, int | None]:
    """Returns the axes of features that the metadata of a step name, as FeatureAxes in C++."""
    lines = (line.partition(" ") for line in metadata.get("feature_axes", "").split("\n"))
    return {name: int(axis) if axis.isdigit() else None for axis, _, name in lines}


# -- PyTorch's modes, through which all its functions go while they are entered

# Takes a function, its arguments, and returns its result.
Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class WeakHook:
    """What torch calls of an object that it must not keep alive: a bound method, `given` first.

    Copies and pickles get one that does nothing.
    """

    def __init__(self, called: Callable[..., None], *given: Any) -> None:
        self._called, self._given = WeakMethod(called), given

    def __call__(self, *values: Any) -> None:
        called = self._called()
        if called is not None:
            called(*self._given, *values)

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_hook, ()


def _ignore(*_: Any) -> None:
    """Is the hook of a module that is not recorded."""


def _no_hook() -> Callable[..., None]:
    return _ignore


class _Thread(threading.local):
    recorders = 0  # within how many calls of recorders the thread is


_THREAD = _Thread()


@contextmanager
def in_recorder() -> Iterator[None]:
    """Within it, what this thread computes is a recorder's own: no recorder looks at it."""
    _THREAD.recorders += 1
    try:
        yield
    finally:
        _THREAD.recorders -= 1


def outside() -> None:
    """Says that no recorder is in a call in this thread: an interrupt may have cut one off."""
    _THREAD.recorders = 0


class FunctionMode:
    """Has `function`, a bound method, make the calls of torch's functions.

    Once its object is gone the calls are made as they are, as are those that recorders make
    themselves.
    """

    _waiting: ClassVar[WeakSet[FunctionMode]] = (
        WeakSet()
    )  # that are to be left and lie below others

    def __init__(self, function: Call) -> None:
        from torch.overrides import TorchFunctionMode

        own = WeakMethod(function)
        function_mode: Any = TorchFunctionMode  # whose type the stubs do not have

        class Functions(function_mode):  # type: ignore[misc]
            of_recorder = True

            def __torch_function__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                plain = is_transformed() or _THREAD.recorders
                call = None if plain else own()
                return (
                    func(*args, **kwargs or {}) if call is None else call(func, args, kwargs or {})
                )

        self._mode = Functions()
        self._is_entered = False

    def enter(self) -> bool:
        """Enters the mode, if it is not; returns whether it may stay beyond the caller.

        Modes are left in the order opposite to that in which they were entered, so they must not
        stay if somebody else's are entered around the caller. Those of other recorders may be.
        """
        self._waiting.discard(self)
        if self._is_entered:
            return False
        entered = [mode for stack in _stacks() for mode in stack]
        alone = all(getattr(mode, "of_recorder", False) is True for mode in entered)
        self._mode.__enter__()
        self._is_entered = True
        return alone

    def leave(self) -> None:
        """Leaves the mode, unless it lies below somebody else's: then another call leaves it.

        So it does with those of other recorders that are to be left.
        """
        self._waiting.add(self)
        while any([mode._leave() for mode in list(self._waiting)]):
            continue

    def _leave(self) -> bool:
        """Leaves the mode if it lies on top; returns whether it did."""
        functions = _stacks()[0]
        left = self._is_entered and bool(functions) and functions[-1] is self._mode
        if left:
            self._mode.__exit__(None, None, None)
            self._is_entered = False
        if not self._is_entered:
            self._waiting.discard(self)
        return left


def is_transformed() -> bool:
    """Returns whether a transformation of torch.func runs, whose tensors have no memory."""
    import torch

    module: Any = torch  # which does not export all that it has in PyTorch 1.13
    functorch: Any = getattr(module._C, "_functorch", None)
    stack = getattr(functorch, "peek_interpreter_stack", None)  # since PyTorch 2.0
    return stack is not None and stack() is not None


def _stacks() -> tuple[list[Any], list[Any]]:
    """Returns the modes of functions and of operators that this thread has entered."""
    from torch import overrides
    from torch.utils import _python_dispatch as dispatch

    functions: Any = overrides  # the stubs know neither
    operators: Any = dispatch
    return (
        list(functions._get_current_function_mode_stack()),
        list(operators._get_current_dispatch_mode_stack()),
    )


class _Rerun:
    count = 0  # of steps that are being run again, in any thread


@contextmanager
def rerun() -> Iterator[None]:
    """Within it, hooks of recorders do nothing: the step is not part of the training."""
    _Rerun.count += 1
    try:
        yield
    finally:
        _Rerun.count -= 1


def is_rerun() -> bool:
    return _Rerun.count > 0
