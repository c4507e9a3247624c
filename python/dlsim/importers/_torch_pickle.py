# SPDX-License-Identifier: Apache-2.0
"""Reads the pickle of a torch.save archive as data: an unpickler that finds no class or function.

What PyTorch would call (rebuild a tensor, an OrderedDict) is recognized by its name and noted down;
every other name is refused, or kept as a name. So no torch is needed, and no hostile file can run
code or make PyTorch's loader (CVE-2025-32434, CVE-2026-24747) do so. Only the opcodes that
torch.save writes are taken, and not too many of them.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_MOST_OPCODES = 10_000_000
_MOST_NAMES = 10_000


# What a damaged pickle raises.
BAD_PICKLE = (
    *(ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError),
    *(EOFError, pickle.UnpicklingError),
)


class Refused(ValueError):
    """The pickle holds something other than tensors, containers, numbers and text."""


class _Plain:
    """What the pickle has no say in: attributes that it gives, as BUILD does, are dropped."""

    @classmethod
    def __setstate__(cls, *_: object) -> None: ...


class Name(_Plain):
    """A class or function that the pickle names; a call of it gives what stands for its result."""

    full = ""
    keeps_foreign = False

    def __new__(cls, *arguments: Any) -> Any:
        """Returns what a call would have made, without calling."""
        if cls.full == "torch._tensor._rebuild_from_type_v2":
            return _name(arguments[0])(*_of(tuple, arguments[2]))
        if cls.full in _CALLS:
            return _CALLS[cls.full](arguments)
        if cls.full.startswith("torch._utils._rebuild_"):
            return OtherTensor(cls.full.removeprefix("torch._utils._rebuild_"))
        if cls.keeps_foreign:
            return Foreign(cls.full)
        raise Refused(f"it refers to {cls.full}")


class _Dict(_Plain, dict[Any, Any]):
    """An OrderedDict without its attributes, such as _metadata of a state dict."""


@dataclass(frozen=True)
class Foreign(_Plain):
    """An object of a class that is not PyTorch's; its content is dropped."""

    kind: str


@dataclass(frozen=True)
class Storage(_Plain):
    """A file of the archive that holds `elements` values, of a type such as FloatStorage."""

    key: str
    kind: str
    elements: int


@dataclass(frozen=True)
class StoredTensor(_Plain):
    """A view of a storage. `dtype` is given if the storage does not know it."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str | None = None


@dataclass(frozen=True)
class OtherTensor(_Plain):
    """A tensor that is no plain array of values: sparse, quantized or without data."""

    kind: str


_OPCODES = frozenset(
    "NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE "
    "BINUNICODE8 SHORT_BINBYTES BINBYTES SHORT_BINSTRING EMPTY_DICT EMPTY_LIST EMPTY_TUPLE "
    "EMPTY_SET TUPLE TUPLE1 TUPLE2 TUPLE3 MARK APPEND APPENDS ADDITEMS SETITEM SETITEMS BINPUT "
    "LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD BINPERSID "
    "PROTO FRAME STOP".split()
)
_PUTS = frozenset(("BINPUT", "LONG_BINPUT"))


def read_pickle(data: bytes, *, keeps_foreign: bool) -> Any:
    """Returns what `data` describes: containers, numbers, text, and the classes above.

    Objects of other classes are Foreign if `keeps_foreign`, else Refused is raised, as it is for
    what torch.save does not write. Other damage is one of BAD_PICKLE.
    """
    _check_opcodes(data)
    return _Unpickler(data, keeps_foreign).load()


def _check_opcodes(data: bytes) -> None:
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if count >= _MOST_OPCODES:
            raise Refused("too many opcodes")
        if opcode.name not in _OPCODES:
            raise Refused(f"opcode {opcode.name}")
        # Numbers are given in order; memory is taken for all up to the largest.
        if opcode.name in _PUTS and (argument or 0) > count:
            raise Refused(f"number {argument} of an object, expected at most {count}")


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, keeps_foreign: bool) -> None:
        super().__init__(io.BytesIO(data), encoding="latin-1")
        self._keeps_foreign = keeps_foreign
        self._names: dict[str, type[Name]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Returns a name for any class or function, and never that itself."""
        full = f"{module}.{name}"
        if full not in self._names:
            if len(self._names) >= _MOST_NAMES:
                raise Refused("too many names")
            given = {"full": full, "keeps_foreign": self._keeps_foreign}
            self._names[full] = type("Name", (Name,), given)
        return self._names[full]

    def persistent_load(self, identifier: Any) -> Storage:
        """Returns the storage that a tensor refers to."""
        what, kind, key, _, elements = _of(tuple, identifier)
        module, _, storage = _name(kind).full.rpartition(".")
        if what != "storage" or module not in ("torch", "torch.storage"):
            raise Refused("a reference to something other than a storage")
        return Storage(_of(str, key), storage, _of(int, elements))


def _name(value: Any) -> type[Name]:
    if isinstance(value, type) and issubclass(value, Name):
        return value
    raise Refused(f"a {type(value).__name__} where a Name must be")


def _of(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:
        raise Refused(f"a {type(value).__name__} where a {kind.__name__} must be")
    return value


def _whole_numbers(values: Any) -> tuple[int, ...]:
    return tuple(_of(int, value) for value in _of(tuple, values))


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
    "collections.OrderedDict": lambda arguments: _Dict(*arguments[:1]),
    "torch.Size": lambda arguments: _of(tuple, arguments[0]),
    "torch._utils._rebuild_parameter": lambda arguments: arguments[0],
    "torch._utils._rebuild_parameter_with_state": lambda arguments: arguments[0],
    "torch._utils._rebuild_tensor": lambda arguments: _tensor(arguments[:4]),
    "torch._utils._rebuild_tensor_v2": lambda arguments: _tensor(arguments[:4]),
    "torch._utils._rebuild_tensor_v3": lambda arguments: _tensor(
        arguments[:4], _name(arguments[6]).full
    ),
}
