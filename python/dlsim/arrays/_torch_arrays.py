# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch as bits; codes are int16 or int32, as older versions have no uint16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import _core
from .._core import Conversion, Format
from .._errors import UsageError
from .._rounding import has_kernels
from ._dtypes import (
    CODES,
    PLAIN_RESULTS,
    SIZES,
    VALUES,
    bad_element,
    check_shape,
    code_elements,
    format_of_codes,
)

_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # torch has always had uint8
_SIGNED_NUMPY = {1: np.uint8, 2: np.int16, 4: np.int32}


def element_of_tensor(tensor: torch.Tensor, place: str, elements: tuple[str, ...]) -> str:
    """Returns the name of a dense tensor's element type; raises TypeError if not in `elements`."""
    if tensor.layout != torch.strided or getattr(tensor, "is_nested", False):
        raise TypeError(f"{place}: bad layout, expected a dense tensor, got {tensor.layout}")
    element = str(tensor.dtype).removeprefix("torch.")
    if element not in elements:
        raise bad_element(place, elements, tensor.dtype)
    return element


def in_c_order(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor, or a contiguous copy of it, without its gradient."""
    ordered: torch.Tensor = tensor.detach().resolve_neg().contiguous()
    return ordered


def integer_view(tensor: torch.Tensor, element: str) -> torch.Tensor:
    """Returns the same memory as integers that NumPy knows; float32 and float64 stay."""
    if element in ("float32", "float64"):
        return tensor
    integers: torch.Tensor = tensor.view(_SIGNED[SIZES[element]])
    return integers


def bits_of_tensor(
    tensor: torch.Tensor, place: str, elements: tuple[str, ...]
) -> tuple[NDArray[Any], str]:
    """Returns the elements of a CPU tensor in C order, without a copy if they are, and their type.

    Raises TypeError for other element types than `elements` and for tensors that are not dense,
    UsageError for another device.
    """
    _check_cpu(tensor, place)
    element = element_of_tensor(tensor, place, elements)
    return integer_view(in_c_order(tensor), element).numpy(), element


def tensor_of_bits(bits: NDArray[Any], element: str) -> torch.Tensor:
    """Returns a tensor over the same memory; unsigned codes become signed ones."""
    if element == "float32":
        return torch.from_numpy(bits)
    tensor: torch.Tensor = torch.from_numpy(bits.view(_SIGNED_NUMPY[bits.itemsize]))
    return tensor if element in PLAIN_RESULTS else tensor.view(dtype_of_element(element))


def dtype_of_element(element: str) -> torch.dtype:
    """Returns PyTorch's dtype; raises UsageError if this version has none of that name."""
    dtype = getattr(torch, element, None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"as_dtype: torch {torch.__version__} has no {element}")
    return dtype


def check_target(
    out: torch.Tensor, place: str, shape: tuple[int, ...], elements: tuple[str, ...]
) -> str:
    """Returns the element type of a tensor that can be written to; raises as target_bits does."""
    element = element_of_tensor(out, place, elements)
    check_shape(place, shape, tuple(out.shape))
    if not out.is_contiguous() or out.is_neg():
        raise UsageError(f"{place}: bad layout, expected a contiguous tensor")
    if out.requires_grad:
        raise UsageError(f"{place}: requires a gradient, expected a tensor that does not")
    return element


def mark_written(bits: torch.Tensor) -> None:
    """Tells autograd that the memory of a tensor has changed, as an operation in place does."""
    bits.view(-1)[:0].zero_()


def target_of_tensor(
    out: torch.Tensor, place: str, shape: tuple[int, ...], elements: tuple[str, ...]
) -> tuple[NDArray[Any], str]:
    """Returns the memory of a CPU tensor to write to, and its element type."""
    _check_cpu(out, place)
    element = check_target(out, place, shape, elements)
    bits = integer_view(out.detach(), element)
    mark_written(bits)
    return bits.numpy(), element


def _check_cpu(tensor: torch.Tensor, place: str) -> None:
    if tensor.device.type != "cpu":
        raise UsageError(f"{place}: wrong device, expected the CPU, got {tensor.device}")


# -- Tensors of PyTorch in the memory of a CUDA device, on its current stream: nothing waits

# A dlsim that was built without CUDA refuses in one line.

_KERNEL_CODES = {2: torch.int16, 4: torch.int32}


def _queue(tensor: torch.Tensor) -> tuple[int, int]:
    device = tensor.device.index
    return device, torch.cuda.current_stream(device).cuda_stream


def _read(tensor: torch.Tensor, place: str, elements: tuple[str, ...]) -> tuple[torch.Tensor, str]:
    _core.require_cuda(place, tensor.device.index)
    if torch.version.hip is not None:
        raise UsageError(f"{place}: on a ROCm device, expected the CPU or a CUDA device")
    element = element_of_tensor(tensor, place, elements)
    return in_c_order(tensor), element


def _check_out(
    out: Any, like: torch.Tensor, elements: tuple[str, ...], *, same_allowed: bool = False
) -> str:
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"out: expected a tensor on {like.device}, got {type(out).__name__}")
    if out.device != like.device:
        raise UsageError(f"out: wrong device, expected {like.device}, got {out.device}")
    element = check_target(out, "out", tuple(like.shape), elements)
    begin, end = _range(out)
    first, last = _range(like)
    same = (begin, end) == (first, last)
    if begin < last and first < end and not (same and same_allowed):
        raise UsageError("out: overlaps the input, expected memory of its own")
    return element


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    begin = tensor.data_ptr()
    return begin, begin + tensor.numel() * tensor.element_size()


def _launch_encode(
    tensor: torch.Tensor,
    element: str,
    conversion: Conversion,
    draws: tuple[float, int, int],
    codes: torch.Tensor,
) -> None:
    memory = (tensor.data_ptr(), tensor.numel(), element)
    _core.encode_on_device(_queue(tensor), memory, conversion, draws, codes.data_ptr())


def encode(
    values: torch.Tensor,
    format: Format,
    conversion: Conversion,
    draws: tuple[float, int, int],
    *,
    element: str,
    out: torch.Tensor | None,
) -> torch.Tensor:
    """Does what dlsim.encode does; `element` is the type of the result without `out`."""
    tensor, type_of_values = _read(values, "values", VALUES)
    if out is not None:
        element = _check_out(out, tensor, code_elements(format))
    size = 2 if format.bits <= 16 else 4
    if out is not None and SIZES[element] == size:
        codes = integer_view(out.detach(), element)
    else:
        codes = torch.empty(tensor.shape, dtype=_KERNEL_CODES[size], device=tensor.device)
    _launch_encode(tensor, type_of_values, conversion, draws, codes)
    if out is None:
        return _as_element(codes, element)
    if SIZES[element] != size:
        integer_view(out.detach(), element).copy_(codes)
    return _written(out)


def _as_element(codes: torch.Tensor, element: str) -> torch.Tensor:
    if element in ("uint16", "uint32"):
        return codes
    sized = codes.to(torch.uint8) if SIZES[element] == 1 else codes
    own: torch.Tensor = sized.view(dtype_of_element(element))
    return own


def decode(codes: torch.Tensor, format: Format | None, out: torch.Tensor | None) -> torch.Tensor:
    tensor, element = _read(codes, "codes", CODES)
    chosen = format_of_codes(element, format)
    size = 2 if chosen.bits <= 16 else 4
    bits = integer_view(tensor, element)
    if SIZES[element] != size:
        bits = bits.to(_KERNEL_CODES[size])
    values = _floats(out, tensor)
    _core.decode_on_device(
        _queue(tensor), bits.data_ptr(), chosen, values.data_ptr(), tensor.numel()
    )
    return values if out is None else _written(out)


def quantize(
    values: torch.Tensor,
    format: Format,
    conversion: Conversion,
    draws: tuple[float, int, int],
    *,
    unscale: bool,
    out: torch.Tensor | None,
) -> torch.Tensor:
    tensor, element = _read(values, "values", VALUES)
    size = 2 if format.bits <= 16 else 4
    codes = torch.empty(tensor.shape, dtype=_KERNEL_CODES[size], device=tensor.device)
    _launch_encode(tensor, element, conversion, draws, codes)
    results = _floats(out, tensor, same_allowed=element == "float32")
    _core.decode_on_device(
        _queue(tensor), codes.data_ptr(), format, results.data_ptr(), tensor.numel()
    )
    if unscale and draws[0] != 1:
        results.mul_(torch.tensor(draws[0], dtype=torch.float32).reciprocal().item())
    return results if out is None else _written(out)


def _floats(
    out: torch.Tensor | None, like: torch.Tensor, *, same_allowed: bool = False
) -> torch.Tensor:
    if out is None:
        return torch.empty(like.shape, dtype=torch.float32, device=like.device)
    _check_out(out, like, ("float32",), same_allowed=same_allowed)
    floats: torch.Tensor = out.detach()
    return floats


def _written(out: torch.Tensor) -> torch.Tensor:
    mark_written(integer_view(out.detach(), str(out.dtype).removeprefix("torch.")))
    return out


# -- Tables of PyTorch's tensors on a device: by dlsim's kernel, or by PyTorch's integer operations

# Both give the bits of _core.tabulate_array.

_FEW = 512  # TensorTable::kMostValues: tensors of no more elements are listed

_CHUNK = 1 << 24  # elements that are sorted at once, for memory

# As in src/table/tabulate.h.
_FIRST_BIT, _LAST_BIT, _MOST_BITS, _FEWEST_TAIL_BITS = 12, 22, 11, 7

_INFINITY = 0x7F800000

# The first magnitude of each exponent from -149 on, then infinity and the first NaN, as bits.
_EDGES = [*(1 << k for k in range(23)), *(e << 23 for e in range(1, 256)), _INFINITY + 1]


def tabulate_on_device(
    tensors: Sequence[torch.Tensor], grad_scale: float
) -> list[_core.TensorTable]:
    """Returns the tables of tensors of one device, which carry a loss scale; waits for them."""
    if not tensors:
        return []
    dense = [one.contiguous() for one in tensors]
    if not has_kernels(dense[0].device) or dense[0].device.type != "cuda":
        return [tabulate_torch(one, grad_scale) for one in dense]
    device = dense[0].device.index
    queue = (device, torch.cuda.current_stream(device).cuda_stream)
    memories = [
        (one.data_ptr(), one.numel(), str(one.dtype).removeprefix("torch.")) for one in dense
    ]
    return list(_core.tabulate_on_device(queue, memories, grad_scale))


def unscaled(tensor: torch.Tensor, grad_scale: float) -> torch.Tensor:
    """Returns the float32 values of a tensor without the loss scale that they carry."""
    values = tensor.float()
    return values if grad_scale == 1 else times(values, np.float32(1) / np.float32(grad_scale))


def times(values: torch.Tensor, factor: float | np.float32) -> torch.Tensor:
    product: torch.Tensor = values.mul(float(factor))
    return product


def tabulate_torch(tensor: torch.Tensor, grad_scale: float = 1.0) -> _core.TensorTable:
    """Returns the table of a tensor, counted by PyTorch's integer operations where it is."""
    values = unscaled(tensor.detach(), grad_scale).reshape(-1)
    if values.numel() <= _FEW:
        return _core.tabulate_array(values.cpu().numpy(), "float32")
    begins = range(0, values.numel(), _CHUNK)
    tables = [_table_of(values[begin : begin + _CHUNK]) for begin in begins]
    for piece in tables[1:]:
        tables[0].add(piece)
    return tables[0]


def _table_of(values: torch.Tensor) -> _core.TensorTable:
    """Tabulates float32 values: sorted by magnitude, each exponent is a range."""
    signed = values.view(torch.int32)
    largest = int(torch.where(signed < _INFINITY, signed, 0).amax().clamp(min=0))
    bits = (signed & 0x7FFFFFFF).sort().values
    edges = torch.tensor(_EDGES, dtype=torch.int32, device=bits.device)
    at = torch.searchsorted(bits, edges)
    zeros, finite, infinite = (int(at[i]) for i in (0, -2, -1))
    absmax = int(bits[finite - 1]) if finite else 0
    bits, at = bits[zeros:finite], at[:-1] - zeros
    # A subnormal magnitude, as a float32 number, has its leading bit as exponent.
    shift = 150 - (bits.float().view(torch.int32) >> 23)
    normal = bits >= 1 << 23
    significands = torch.where(
        normal, (bits & 0x7FFFFF) | (1 << 23), bits << torch.where(normal, 0, shift)
    ).long()
    rows = torch.zeros((len(_EDGES) - 2, 47), dtype=torch.int64, device=bits.device)
    column = 0

    def add(of_values: torch.Tensor) -> None:
        nonlocal column
        sums = torch.cat([of_values.new_zeros(1, dtype=torch.int64), of_values.cumsum(0)])
        rows[:, column] = sums[at[1:]] - sums[at[:-1]]
        column += 1

    add(torch.ones_like(significands))
    add(significands == 1 << 23)
    add(significands)
    add((significands & ((1 << _FIRST_BIT) - 1)).square())
    set_bits = range(_FIRST_BIT, _LAST_BIT + 1)
    for bit in set_bits:
        add((significands >> bit) & 1)
    for bit in set_bits:
        add(((significands >> bit) & 1) * (significands & ((1 << bit) - 1)))
    lacks = (1 << 24) - significands
    up = [lacks <= 1 << (23 - b) for b in range(1, _MOST_BITS + 1)]
    tails = [lacks * one for one in up[_FEWEST_TAIL_BITS - 1 :]]
    for one in (*up, *tails, *(tail.square() for tail in tails)):
        add(one)
    nan = values.numel() - infinite
    return _core.table_from_sums(zeros, nan, infinite - finite, absmax, largest, rows.cpu().numpy())


def channels_of(values: torch.Tensor, axis: int | None) -> list[tuple[int, int]]:
    """Returns TensorTable::channels of float32 values whose channels are along an axis."""
    if axis is None or values.dim() < 2 or values.shape[axis] < 2 or values.numel() == 0:
        return []
    bits = values.contiguous().view(torch.int32) & 0x7FFFFFFF
    finite = torch.where(bits < _INFINITY, bits, 0)
    others = [dim for dim in range(values.dim()) if dim != axis % values.dim()]
    largest = finite.amax(others)
    counts = torch.bincount((largest[largest > 0] >> 21).long())
    keys = counts.nonzero().reshape(-1)
    return list(zip(keys.tolist(), counts[keys].tolist(), strict=True))
