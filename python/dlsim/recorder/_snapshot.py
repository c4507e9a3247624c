# SPDX-License-Identifier: Apache-2.0
"""Tensors in host memory, as they were when they were asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..arrays._dtypes import VALUES
from ._output import Part
from ._report import RecordedTensor
from ._tensors import device_of, name_of_dtype, role_of


def described(part: Part, before: Iterable[RecordedTensor] = ()) -> tuple[RecordedTensor, ...]:
    """Returns what is recorded of each tensor, mostly the same as in the step `before`."""
    known = {one.name: one for one in before}
    in_files = [RecordedTensor(name, *one[1:]) for name, one in part.spilled.items()]
    in_memory = (_described(name, one, known.get(name)) for name, one in part.tensors.items())
    return (*in_memory, *in_files)


def _described(name: str, tensor: Any, before: RecordedTensor | None) -> RecordedTensor:
    shape, dtype = tensor.shape, name_of_dtype(tensor.dtype)
    if before is not None and before.shape == shape and before.dtype == dtype:
        return before
    return RecordedTensor(name, tuple(shape), dtype, tensor.numel() * tensor.element_size())


def _is_seldom(name: str) -> bool:
    """Returns whether a tensor is recorded in few steps, so that no buffer is kept for it."""
    return role_of(name) in ("act", "value")


def _local(tensor: Any) -> Any:
    """Returns the elements that this process holds, dense."""
    import torch

    tensor = tensor.detach()
    if type(tensor) is not torch.Tensor and hasattr(tensor, "to_local"):  # DTensor
        tensor = tensor.to_local()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _recorded(name: str, given: Any, left_out: dict[str, str]) -> Any:
    """Returns the elements to be recorded; None if they are not floating-point numbers."""
    tensor = _local(given)
    dtype = name_of_dtype(tensor.dtype)
    if dtype in VALUES:
        return tensor
    left_out[name] = f"has elements of type {dtype}"
    return None


class HostCopies:
    """Takes tensors to the host, once, in buffers that the next call overwrites.

    With `borrowed`, parameters' gradients are those that the training goes on to change. All others
    are held by hooks alone, and are not copied where they are on the CPU. Those on a CUDA device go
    to pinned buffers, with one synchronization of each device for all; with `on_device` those of
    the first device stay there.
    """

    def __init__(self, *, borrowed: bool = True, on_device: bool = False) -> None:
        self._borrowed, self._on_device = borrowed, on_device
        self._buffers: dict[str, Any] = {}

    def take(self, tensors: Mapping[str, Any], left_out: dict[str, str]) -> dict[str, Any]:
        """Returns contiguous tensors; notes those that are not floating-point numbers."""
        import torch

        host: dict[str, Any] = {}
        counting = None  # the device that counts
        devices = set()
        for name, given in tensors.items():
            tensor = _recorded(name, given, left_out)
            if tensor is None:
                continue
            device = device_of(tensor)
            if device is not None:
                devices.add(device)
                if self._on_device and counting in (None, device):
                    counting = device
                    host[name] = tensor.resolve_neg().contiguous()
                    continue
                host[name] = self._buffer_like(name, tensor, pinned=True)
                host[name].copy_(tensor, non_blocking=True)
            elif tensor.device.type == "cpu" and self._is_borrowed(name):
                host[name] = self._buffer_like(name, tensor, pinned=False).copy_(tensor)
            else:
                host[name] = tensor.resolve_neg().cpu().contiguous()
        for device in devices:
            torch.cuda.synchronize(device)
        return host

    def _is_borrowed(self, name: str) -> bool:
        return role_of(name) == "value" or (self._borrowed and role_of(name) == "grad")

    def _buffer_like(self, name: str, tensor: Any, *, pinned: bool) -> Any:
        import torch

        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            if pinned:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            else:
                buffer = torch.empty_like(tensor, memory_format=torch.contiguous_format)
            if not _is_seldom(name):
                self._buffers[name] = buffer
        return buffer


def in_host_memory(tensors: Mapping[str, Any], left_out: dict[str, str]) -> dict[str, Any]:
    """Returns gradients that hooks alone hold, which nobody goes on to change."""
    found = {name: _recorded(name, given, left_out) for name, given in tensors.items()}
    return {
        name: tensor.resolve_neg().cpu().contiguous()
        for name, tensor in found.items()
        if tensor is not None
    }
