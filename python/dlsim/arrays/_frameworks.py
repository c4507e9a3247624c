# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy, PyTorch, JAX and others as C-contiguous bits, and results of the same kind."""

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
from .._errors import UsageError
from ._dtypes import BITS_DTYPE, PLAIN_RESULTS, SIZES, bad_element, check_shape

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
    try:
        import ml_dtypes
    except ImportError as error:
        raise ModuleNotFoundError(
            f"as_dtype: {element} needs ml_dtypes: pip install ml_dtypes", name="ml_dtypes"
        ) from error
    return bits.view(getattr(ml_dtypes, element))


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
