# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch in the memory of a CUDA device, on its current stream.

Nothing waits. A dlsim that was built without CUDA refuses in one line.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _core
from .._core import Conversion, Format
from .._errors import UsageError
from ._dtypes import CODES, SIZES, VALUES, code_elements, format_of_codes
from ._torch_arrays import (
    check_target,
    dtype_of_element,
    element_of_tensor,
    in_c_order,
    integer_view,
    mark_written,
)

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
    """Does what dlsim.decode does."""
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
    """Does what dlsim.quantize does."""
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
