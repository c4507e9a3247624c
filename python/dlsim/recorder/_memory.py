# SPDX-License-Identifier: Apache-2.0
"""What is known of tensors by the memory that they lie in."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def is_plain(tensor: Any) -> bool:
    """Returns whether a tensor is dense, and none that stands for others, as a DTensor does."""
    import torch

    return tensor.layout is torch.strided and not hasattr(tensor, "to_local")


def memory_of(tensor: Any) -> int:
    """Returns the address of the memory that a tensor shares with its views."""
    return int(_storage_of(tensor).data_ptr())


def elements_of(tensor: Any) -> int:
    """Returns how many elements the memory has that a tensor shares with its views."""
    return int(_storage_of(tensor).nbytes() // tensor.element_size())


def _storage_of(tensor: Any) -> Any:
    return getattr(tensor, "untyped_storage", tensor.storage)()  # PyTorch 1.13 has no untyped


def view_like(elements: Any, tensor: Any) -> Any:
    """Returns a view of other elements of a whole memory, as a tensor is one of its own memory."""
    return elements.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


class ByMemory(Generic[T]):
    """What is known of tensors and their views, until their memory is freed.

    Another tensor may lie there afterwards. Of tensors that are not plain each is known by itself.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Callable[[], bool], T]] = {}  # whether it is freed, and what

    def get(self, tensor: Any) -> T | None:
        """Returns what is known, or None."""
        found = self._known.get(_place_of(tensor))
        return None if found is None or found[0]() else found[1]

    def set(self, tensor: Any, value: T) -> None:
        """Says what is to be known."""
        self._known[_place_of(tensor)] = _freed(tensor), value

    def forget(self, tensor: Any) -> None:
        """Forgets what is known, if anything is."""
        self._known.pop(_place_of(tensor), None)

    def clear(self) -> None:
        """Forgets everything."""
        self._known.clear()


def _place_of(tensor: Any) -> int:
    return memory_of(tensor) if is_plain(tensor) else id(tensor)


def _freed(tensor: Any) -> Callable[[], bool]:
    """Returns what says whether the memory of a tensor has been freed."""
    if not is_plain(tensor):
        held = weakref.ref(tensor)
        return lambda: held() is None
    from torch.multiprocessing import reductions

    module: Any = reductions  # which has no types
    expired: Callable[[], bool] = module.StorageWeakRef(_storage_of(tensor)).expired
    return expired
