# SPDX-License-Identifier: Apache-2.0
"""Gradients that are counted in the memory of the CUDA device that has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import _core
from .._errors import UsageError
from ..arrays._dtypes import name_of_dtype


def check_on_device(wanted: bool, *, profile: bool, formats: Iterable[str] = ()) -> None:
    """Raises UsageError if gradients are wanted to be counted where they are, but cannot."""
    if not wanted:
        return
    import torch

    for format in formats:
        if format.partition(":")[0] in _core.scaled_format_names():
            raise UsageError(
                f"on_device: {format} is measured in the host's memory, expected on_device=False"
            )

    if not profile:
        raise UsageError(
            "on_device: a trace needs the gradients themselves, expected a profile, such as "
            "run.dlprof"
        )
    if torch.version.hip is not None:
        raise UsageError("on_device: PyTorch was built for ROCm, expected CUDA")
    try:
        _core.require_cuda("on_device", 0)
    except UsageError:
        raise UsageError(
            "on_device: this dlsim was built without CUDA, expected on_device=False or a build "
            "with -DDLSIM_ENABLE_CUDA=ON"
        ) from None


def device_of(tensor: Any) -> int | None:
    """Returns the CUDA device that has the tensor; None for memory of the host."""
    return int(tensor.device.index or 0) if tensor.is_cuda else None


def any_on_device(tensors: Iterable[Any]) -> bool:
    """Returns whether a CUDA device has one of the tensors."""
    return any(device_of(tensor) is not None for tensor in tensors)


def counted_where_it_is(tensor: Any) -> Any:
    """Returns what a ProfileWriter takes: an array of the host, or memory of a device."""
    device = device_of(tensor)
    if device is None:
        return tensor
    return device, tensor.data_ptr(), name_of_dtype(tensor.dtype), tuple(tensor.shape)
