# SPDX-License-Identifier: Apache-2.0
"""Element types by name, and the formats that they are.

Names are those of NumPy and ml_dtypes, which PyTorch and JAX share: "float32", "bfloat16", ...
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._core import Format
from .._errors import UsageError, needed

# Types whose bits are the codes of a format.
FORMAT_OF_ELEMENT = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8-e4m3",
    "float8_e5m2": "fp8-e5m2",
    "float8_e4m3": "e4m3",
    "float8_e3m4": "e3m4",
}
ELEMENT_OF_FORMAT = {format: element for element, format in FORMAT_OF_ELEMENT.items()}

VALUES = ("float32", "float64", "float16", "bfloat16")
INTEGER_CODES = ("uint8", "uint16", "uint32", "int8", "int16", "int32")
CODES = (*INTEGER_CODES, *FORMAT_OF_ELEMENT)

# From here on a float64 rounds to an infinite float32 (docs/numerics.md, section 5).
FLOAT32_OVERFLOW = 2.0**128 - 2.0**103

# Bytes of an element.
SIZES = {"float64": 8, "float32": 4, "uint32": 4, "int32": 4} | {
    name: 1 if "8" in name.split("_")[0] else 2
    for name in ("uint8", "int8", "uint16", "int16", *FORMAT_OF_ELEMENT)
}
# The type that holds the bits of an element, by its size in bytes.
BITS_DTYPE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

# Types of results whose memory is made as such; others are views of their bits.
PLAIN_RESULTS = ("float32", "uint16", "uint32")


def bad_element(place: str, expected: tuple[str, ...], got: object) -> TypeError:
    """Returns the error of an array of a type that is not among `expected`."""
    names = f"{', '.join(expected[:-1])} or {expected[-1]}" if len(expected) > 1 else expected[0]
    return TypeError(f"{place}: bad element type, expected {names}, got {got}")


def check_shape(place: str, expected: tuple[int, ...], got: tuple[int, ...]) -> None:
    """Raises UsageError unless the shapes are equal."""
    if tuple(got) != tuple(expected):
        raise UsageError(f"{place}: wrong shape, expected {tuple(expected)}, got {tuple(got)}")


@lru_cache(maxsize=64)
def _format_of_name(name: str) -> Format:
    return Format(name)


def name_of_dtype(dtype: object) -> str:
    """Returns the name of a dtype of NumPy, ml_dtypes, JAX or PyTorch; "" for anything else."""
    if type(dtype).__module__.partition(".")[0] == "torch":
        return str(dtype).removeprefix("torch.")
    if dtype is None:
        return ""
    try:
        return np.dtype(dtype).name  # type: ignore[call-overload, no-any-return]
    except TypeError:
        return ""


def format_of(format: Any) -> Format:
    """Returns the format of a Format, of a name ("cb16", "fp8-e4m3", "e5m3") or of a dtype.

    Raises UsageError for an unknown name and TypeError for a dtype that is no format.
    """
    if isinstance(format, Format):
        return format
    if isinstance(format, str):
        return _format_of_name(format)
    name = FORMAT_OF_ELEMENT.get(name_of_dtype(format))
    if name is None:
        known = ", ".join(FORMAT_OF_ELEMENT)
        raise TypeError(
            f"format: no format, expected a Format, a name or a dtype among {known}, got {format!r}"
        )
    return _format_of_name(name)


def element_of_format(format: Format) -> str:
    """Returns the type whose bits are the codes of the format; raises UsageError without one."""
    element = ELEMENT_OF_FORMAT.get(format.name)
    if element is None:
        known = ", ".join(ELEMENT_OF_FORMAT)
        raise UsageError(f"as_dtype: no dtype holds {format.name}, expected one of {known}")
    return element


@lru_cache(maxsize=64)
def code_elements(format: Format) -> tuple[str, ...]:
    """Returns the element types that can hold codes of the format."""
    return tuple(
        name
        for name in CODES
        if FORMAT_OF_ELEMENT.get(name, format.name) == format.name
        and 8 * SIZES[name] >= format.bits
    )


def format_of_codes(element: str, format: Format | None) -> Format:
    """Returns the format of codes of an element type; `format` is what the caller said.

    Raises UsageError if that is not enough or wrong.
    """
    if element in FORMAT_OF_ELEMENT:
        own = format_of(FORMAT_OF_ELEMENT[element])
        if format is not None and format != own:
            raise UsageError(f"codes: are {element}, expected codes of {format.name}")
        return own
    if format is None:
        raise UsageError(f"format: missing, expected the format of the {element} codes")
    if 8 * SIZES[element] < format.bits:
        raise TypeError(
            f"codes: bad element type, expected {format.bits} bits or more, got {element}"
        )
    return format


# -- Arrays of NumPy, PyTorch, JAX and others as C-contiguous bits, and results of the same kind

Bits = NDArray[Any]

# XLA takes memory without a copy from this alignment on.
_ALIGNMENT = 64
_CPU_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost (pinned memory) of DLPack


@dataclass(frozen=True, slots=True)
class Source:
    """An array on the CPU: its elements, in C order, and what makes results of the same kind."""

    bits: Bits
    element: str
    wrap: Callable[[Bits, str], Any]  # (bits, name of the element type) -> array
    aligned: bool = False  # whether `wrap` needs aligned memory

    def empty(self, element: str) -> Bits:
        """Returns memory for as many elements of a type, of the same shape."""
        dtype = np.float32 if element == "float32" else BITS_DTYPE[SIZES[element]]
        if not self.aligned:
            return np.empty(self.bits.shape, dtype)
        size = self.bits.size * SIZES[element]
        memory = np.empty(size + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        return memory[start : start + size].view(dtype).reshape(self.bits.shape)


def is_torch(array: object) -> bool:
    """Whether an object is a tensor of PyTorch, without importing it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_cuda(array: Any) -> bool:
    """Whether an object is a tensor of PyTorch in the memory of a CUDA device."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor) and bool(array.is_cuda)


def source_of(array: Any, place: str, elements: tuple[str, ...]) -> Source:
    """Returns the elements of an array on the CPU.

    They are those of the array itself if it is C-contiguous, aligned and in native byte order, and
    a copy in C order if not. Raises TypeError for other element types than `elements`, and for what
    is no array; UsageError for an array on another device. `place` names the argument.
    """
    if type(array) is np.ndarray:
        return Source(*_of_numpy(array, place, elements), _numpy_array)
    if is_torch(array):
        from ._torch_arrays import bits_of_tensor, tensor_of_bits

        return Source(*bits_of_tensor(array, place, elements), tensor_of_bits)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        _check_jax(jax, array, place)
        return Source(*_of_dlpack(array, place, elements), _jax_array, aligned=True)
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{place}: masked array, expected one without a mask, as of .filled(value)")
    if not isinstance(array, np.ndarray | np.generic) and hasattr(array, "__dlpack__"):
        return Source(*_of_dlpack(array, place, elements), _importer_of(array), aligned=True)
    return Source(*_of_numpy(_of_numbers(array, place, elements), place, elements), _numpy_array)


def _of_numbers(numbers: Any, place: str, elements: tuple[str, ...]) -> Bits:
    """Returns lists and numbers as an array; whole ones get a type that holds them exactly."""
    try:
        converted = np.asarray(numbers)
    except ValueError as error:  # lists of different lengths
        raise TypeError(f"{place}: no array: {error}") from error
    if hasattr(numbers, "dtype") or converted.dtype.kind not in "iu":
        return converted
    as_values = "float64" in elements
    low, high = (-(2**53), 2**53) if as_values else (0, 2**32 - 1)
    if low <= int(converted.min()) and int(converted.max()) <= high:
        return converted.astype(np.float64 if as_values else np.uint32)
    return converted


def target_bits(
    out: Any, place: str, shape: tuple[int, ...], elements: tuple[str, ...]
) -> tuple[Bits, str]:
    """Returns the bits of an array that results can be written to, and its element type.

    It must be a C-contiguous, writable NumPy array or PyTorch tensor on the CPU. Raises TypeError
    for a wrong kind or element type, ValueError for a wrong shape, layout or device.
    """
    if is_torch(out):
        from ._torch_arrays import target_of_tensor

        return target_of_tensor(out, place, shape, elements)
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise TypeError(f"{place}: expected a NumPy array or a PyTorch tensor, got {_kind(out)}")
    element, own = _element_of_numpy(out.dtype)
    if element not in elements or not out.dtype.isnative:
        raise bad_element(place, elements, out.dtype)
    check_shape(place, shape, out.shape)
    if not out.flags.writeable:
        raise UsageError(f"{place}: read-only, expected a writable array")
    if not (out.flags.c_contiguous and out.flags.aligned):
        raise UsageError(f"{place}: bad layout, expected a C-contiguous, aligned array")
    bits = np.asarray(out)
    return bits if own else bits.view(BITS_DTYPE[SIZES[element]]), element


def check_overlap(place: str, source: Bits, target: Bits, *, same_allowed: bool) -> None:
    """Raises UsageError if the target shares memory with the source, other than all of it."""
    if not np.may_share_memory(source, target):
        return
    same = source.ctypes.data == target.ctypes.data and source.nbytes == target.nbytes
    if not (same and same_allowed):
        raise UsageError(f"{place}: overlaps the input, expected memory of its own")


@lru_cache(maxsize=64)
def _element_of_numpy(dtype: np.dtype[Any]) -> tuple[str, bool]:
    """Returns the name of a dtype, and whether its arrays convert to NumPy's own type.

    DLPack knows neither ml_dtypes' types nor other byte orders.
    """
    return dtype.name, dtype.isbuiltin == 1 and dtype.isnative


def _of_numpy(array: Bits, place: str, elements: tuple[str, ...]) -> tuple[Bits, str]:
    element, own = _element_of_numpy(array.dtype)
    if element not in elements:
        raise bad_element(place, elements, array.dtype)
    ordered = _in_c_order(array)
    return ordered if own else ordered.view(BITS_DTYPE[SIZES[element]]), element


def _in_c_order(array: Bits) -> Bits:
    flags = array.flags
    if flags.c_contiguous and flags.aligned and array.dtype.isnative:
        return array
    return np.array(array, array.dtype.newbyteorder("="), order="C")


def _of_dlpack(array: Any, place: str, elements: tuple[str, ...]) -> tuple[Bits, str]:
    if hasattr(array, "__dlpack_device__"):
        device = array.__dlpack_device__()
        if device[0] not in _CPU_DEVICES:
            raise UsageError(
                f"{place}: wrong device, expected the CPU, got DLPack device {int(device[0])}"
            )
    bits, element = _core.bits_of(array)
    if bits is None or element not in elements:
        raise bad_element(place, elements, element)
    return _in_c_order(bits), element


def _check_jax(jax: Any, array: Any, place: str) -> None:
    if isinstance(array, jax.core.Tracer):
        raise TypeError(f"{place}: traced by JAX, expected a concrete array, outside of jit")
    devices = array.devices()
    if len(devices) > 1 or next(iter(devices)).platform != "cpu":
        names = ", ".join(sorted(str(device) for device in devices))
        raise UsageError(f"{place}: wrong device, expected one CPU device, got {names}")


def _numpy_array(bits: Bits, element: str) -> Bits:
    if element in PLAIN_RESULTS:
        return bits
    if element == "float16":
        return bits.view(np.float16)
    why = f"as_dtype: {element} needs ml_dtypes: pip install ml_dtypes"
    return bits.view(getattr(needed("ml_dtypes", why), element))


def _jax_array(bits: Bits, element: str) -> Any:
    jax: Any = import_module("jax")
    array = jax.dlpack.from_dlpack(bits)
    if element in PLAIN_RESULTS:
        return array
    return jax.lax.bitcast_convert_type(array, jax.numpy.dtype(element))


def _importer_of(array: Any) -> Callable[[Bits, str], Any]:
    """Returns what makes arrays of the same library; without its from_dlpack, NumPy arrays."""
    namespace = getattr(array, "__array_namespace__", None)
    from_dlpack = getattr(namespace(), "from_dlpack", None) if namespace is not None else None
    if from_dlpack is None:
        return _numpy_array

    def wrap(bits: Bits, element: str) -> Any:
        if element not in PLAIN_RESULTS:
            raise UsageError(f"as_dtype: {element} is not supported for {_kind(array)}")
        return from_dlpack(bits)

    return wrap


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
