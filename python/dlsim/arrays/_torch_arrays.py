# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch as bits; codes are int16 or int32, as older versions have no uint16."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._errors import UsageError
from ._dtypes import PLAIN_RESULTS, SIZES, bad_element, check_shape

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
