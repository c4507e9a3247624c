# SPDX-License-Identifier: Apache-2.0
"""Tables of PyTorch's tensors on a device: by dlsim's kernel, or by PyTorch's integer operations.

Both give the bits of _core.tabulate_array.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from .. import _core
from .._rounding import has_kernels

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
    """Returns float32 values times a float32 factor."""
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
