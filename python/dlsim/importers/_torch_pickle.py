# SPDX-License-Identifier: Apache-2.0
"""Reads the pickle of a torch.save archive as data: a small interpreter that calls nothing.

What PyTorch would call (rebuild a tensor, an OrderedDict) is recognised by its name and noted down;
every other name is refused, or kept as a name. So no torch is needed, and no hostile file can run
code or make PyTorch's loader (CVE-2025-32434, CVE-2026-24747) do so. The opcodes are those that
torch.save writes, split by pickletools of the standard library.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_MOST_OPCODES = 10_000_000


class Refused(ValueError):
    """The pickle holds something other than tensors, containers, numbers and text."""


@dataclass(frozen=True)
class Name:
    """A class or function that the pickle names."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Foreign:
    """An object of a class that is not PyTorch's; its content is dropped."""

    kind: str


@dataclass(frozen=True)
class Storage:
    """A file of the archive that holds `elements` values, of a type such as FloatStorage."""

    key: str
    kind: str
    elements: int


@dataclass(frozen=True)
class StoredTensor:
    """A view of a storage. `dtype` is given if the storage does not tell it."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str | None = None


@dataclass(frozen=True)
class OtherTensor:
    """A tensor that is no plain array of values: sparse, quantized or without data."""

    kind: str


_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = frozenset(
    "BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "SHORT_BINBYTES BINBYTES SHORT_BINSTRING".split()
)
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": list,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = frozenset(("PROTO", "FRAME"))


def read_pickle(data: bytes, *, keeps_foreign: bool) -> Any:
    """Returns what `data` describes: containers, numbers, text, and the classes above.

    Objects of other classes are Foreign if `keeps_foreign`, else Refused is raised, as it is for
    what torch.save does not write. Other damage is a ValueError, KeyError, IndexError or TypeError.
    """
    return _Reader(keeps_foreign).read(data)


class _Reader:
    def __init__(self, keeps_foreign: bool) -> None:
        self._keeps_foreign = keeps_foreign
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def read(self, data: bytes) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if opcode.name == "STOP":
                break
            if count >= _MOST_OPCODES:
                raise Refused("too many opcodes")
            self._apply(opcode.name, argument)
        (value,) = self._stack
        return value

    def _apply(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _TUPLES:
            items = [self._pop() for _ in range(_TUPLES[name])]
            stack.append(tuple(items[::-1]))
        elif name == "TUPLE":
            stack.append(tuple(self._pop_to_mark()))
        else:
            self._build(name, argument)

    def _build(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in ("APPEND", "APPENDS", "ADDITEMS"):
            items = [self._pop()] if name == "APPEND" else self._pop_to_mark()
            _of(list, stack[-1]).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [self._pop(), self._pop()][::-1] if name == "SETITEM" else self._pop_to_mark()
            _of(dict, stack[-1]).update(zip(items[::2], items[1::2], strict=True))
        elif name == "GLOBAL":
            module, _, attribute = argument.partition(" ")
            stack.append(Name(module, attribute))
        elif name == "STACK_GLOBAL":
            attribute, module = self._pop(), self._pop()
            stack.append(Name(_of(str, module), _of(str, attribute)))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = self._pop(), self._pop()
            stack.append(self._called(function, _of(tuple, arguments)))
        elif name == "BUILD":
            self._pop()  # attributes, such as _metadata of a state dict
        elif name == "BINPERSID":
            stack.append(_storage(self._pop()))
        elif name not in _IGNORED:
            raise Refused(f"opcode {name}")

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise Refused("a mark without its end")
        return value

    def _pop_to_mark(self) -> list[Any]:
        items = []
        while (value := self._stack.pop()) is not _MARK:
            items.append(value)
        return items[::-1]

    def _called(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        """Returns what a call would have made, without calling."""
        name = str(_of(Name, function))
        if name == "torch._tensor._rebuild_from_type_v2":
            return self._called(arguments[0], _of(tuple, arguments[2]))
        if name in _CALLS:
            return _CALLS[name](arguments)
        if name.startswith("torch._utils._rebuild_"):
            return OtherTensor(name.removeprefix("torch._utils._rebuild_"))
        if self._keeps_foreign:
            return Foreign(name)
        raise Refused(f"it asks for {name}")


def _of(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:
        raise Refused(f"a {type(value).__name__} where a {kind.__name__} must be")
    return value


def _whole_numbers(values: Any) -> tuple[int, ...]:
    return tuple(_of(int, value) for value in _of(tuple, values))


def _storage(identifier: Any) -> Storage:
    what, kind, key, _, elements = _of(tuple, identifier)
    if what != "storage" or _of(Name, kind).module not in ("torch", "torch.storage"):
        raise Refused("a reference to something other than a storage")
    return Storage(_of(str, key), kind.name, _of(int, elements))


def _tensor(arguments: tuple[Any, ...], dtype: str | None = None) -> StoredTensor:
    storage, offset, shape, strides = arguments
    return StoredTensor(
        _of(Storage, storage),
        _of(int, offset),
        _whole_numbers(shape),
        _whole_numbers(strides),
        None if dtype is None else dtype.removeprefix("torch."),
    )


# What stands for the calls that torch.save writes.
_CALLS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "__builtin__.set": lambda arguments: list(arguments[0]) if arguments else [],
    "builtins.set": lambda arguments: list(arguments[0]) if arguments else [],
    "_codecs.encode": lambda arguments: _of(str, arguments[0]),
    "numpy._core.multiarray.scalar": lambda _: Foreign("a number of NumPy"),
    "numpy.core.multiarray.scalar": lambda _: Foreign("a number of NumPy"),
    "numpy.dtype": lambda _: Foreign("a type of NumPy"),
    "torch.serialization._get_layout": lambda arguments: _of(str, arguments[0]),
    "collections.OrderedDict": lambda arguments: dict(arguments[0]) if arguments else {},
    "torch.Size": lambda arguments: _of(tuple, arguments[0]),
    "torch._utils._rebuild_parameter": lambda arguments: arguments[0],
    "torch._utils._rebuild_parameter_with_state": lambda arguments: arguments[0],
    "torch._utils._rebuild_tensor": lambda arguments: _tensor(arguments[:4]),
    "torch._utils._rebuild_tensor_v2": lambda arguments: _tensor(arguments[:4]),
    "torch._utils._rebuild_tensor_v3": lambda arguments: _tensor(
        arguments[:4], str(_of(Name, arguments[6]))
    ),
}
