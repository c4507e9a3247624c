# SPDX-License-Identifier: Apache-2.0
"""The elements of parameters that a probe follows, read into memory of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import _core

_TYPES = {"torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16"}


def why_not(parameter: Any) -> str | None:
    """Returns why the elements of a parameter cannot be followed; None if they can."""
    if str(parameter.dtype) not in _TYPES:
        return f"is {str(parameter.dtype).removeprefix('torch.')}, which a probe does not follow"
    return None if parameter.numel() > 0 else "has no elements"


class Followed:
    """A parameter of which some elements are followed."""

    def __init__(self, name: str, parameter: Any, elements: int) -> None:
        import torch

        shape = tuple(parameter.shape)
        self.name, self.parameter = name, parameter
        self.row = _core.sample_of(name, _TYPES[str(parameter.dtype)], shape, elements)
        *_, stride, run, self.count = self.row
        self.rows = (self.count // run, run)
        self._strides = (stride, 1)
        self._plain, self._dtype, self._all = torch.Tensor, parameter.dtype, parameter.numel()
        self._indices: tuple[Any, ...] | None = None  # where memory has another order

    def address_of(self, tensor: Any) -> int:
        """Returns where the elements of a plain tensor in memory of the host begin; 0 of others."""
        is_plain = type(tensor) is self._plain and tensor.is_cpu and tensor.dtype is self._dtype
        if is_plain and tensor.is_contiguous() and tensor.numel() == self._all:
            return int(tensor.data_ptr())
        return 0

    def of(self, tensor: Any) -> Any:
        """Returns the elements of a tensor of the parameter's shape, in rows; no copy if it can."""
        if tensor.is_contiguous():
            return tensor.as_strided(self.rows, self._strides, tensor.storage_offset())
        if self._indices is None:
            import numpy as np
            import torch

            flat = np.arange(self.rows[0])[:, None] * self._strides[0] + np.arange(self.rows[1])
            at = np.unravel_index(flat, tuple(tensor.shape))
            self._indices = tuple(torch.from_numpy(i).to(tensor.device) for i in at)
        return tensor[self._indices]


class Buffer:
    """Memory for the elements of `followed` and `extra` values, on their device and on the host.

    `read` and `put` read, `send` begins to copy to the host, `array` waits for that, in any thread.
    """

    def __init__(self, followed: Sequence[Followed], extra: int) -> None:
        import torch

        self._followed = followed
        self._sampler = _core.ProbeSampler([one.row for one in followed])
        self._count = sum(one.count for one in followed)
        device = followed[0].parameter.device
        size = self._count + extra
        self._memory = self._host = torch.empty(size, device=device)
        if device.type != "cpu":
            self._host = torch.empty(size, pin_memory=device.type == "cuda")
        self._places: list[Any] = []
        self._parts: list[slice] = []
        at = 0
        for one in followed:
            self._parts.append(slice(at, at + one.count))
            self._places.append(self._memory[at : at + one.count].view(one.rows))
            at += one.count
        self._event: Any = None

    def read(self, tensors: Mapping[int, Any]) -> None:
        """Reads the elements of tensors by the place of their parameter."""
        addresses = [0] * len(self._followed)
        for i, tensor in tensors.items():
            one = self._followed[i]
            addresses[i] = one.address_of(tensor) if self._host is self._memory else 0
            if addresses[i] == 0:
                self._places[i].copy_(one.of(tensor))
        if any(addresses):
            self._sampler.read(addresses, self._host.numpy()[: self._count])

    def put(self, at: int, values: Any) -> None:
        """Reads some of the extra values."""
        begin = self._count + at
        self._memory[begin : begin + values.numel()].copy_(values.reshape(-1))

    def send(self) -> None:
        """Begins to copy everything to the host."""
        import torch

        if self._host is self._memory:
            return
        self._host.copy_(self._memory, non_blocking=True)
        if self._memory.device.type == "cuda":
            event: Any = torch.cuda.Event
            self._event = event()
            self._event.record(torch.cuda.current_stream(self._memory.device))

    def array(self) -> tuple[Any, Any, list[slice]]:
        """Returns the elements, the extra values, and which elements are those of a parameter.

        The arrays are the memory that is written over next.
        """
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        values = self._host.numpy()
        return values[: self._count], values[self._count :], self._parts
