# SPDX-License-Identifier: Apache-2.0
"""Gradients that are read where they are, while the training goes on."""

from __future__ import annotations

from typing import Any

from .._errors import Error
from ._ranks import Ranks


def _owns_its_memory(tensor: Any) -> bool:
    """Returns whether no other tensor is known to lie in the same memory, such as a bucket."""
    storage = getattr(tensor, "untyped_storage", tensor.storage)()  # PyTorch 1.13 has no untyped
    return bool(storage.nbytes() == tensor.numel() * tensor.element_size())


class Loan:
    """A gradient that the training must not change in place until the recorder's next call.

    Nothing here holds its memory, which is free as soon as the training has left it and it was
    read.
    """

    def __init__(self, lender: Lender, name: str, tensor: Any) -> None:
        self.name = name
        self._lender = lender
        self._address = tensor.data_ptr()
        self._version = tensor._version
        self._counter = tensor.detach()  # shares the counter of changes
        self._counter.data = tensor.new_empty(0)

    def check_place(self, tensor: Any) -> None:
        """Raises Error if the memory of the gradient is no longer its own."""
        if tensor.data_ptr() != self._address:
            raise self._error("its memory was given away")

    def change(self) -> Error | None:
        """Returns the error if the gradient was changed; called while no change is under way."""
        if self._counter._version == self._version:
            return None
        return self._error("was changed in place")

    def _error(self, what: str) -> Error:
        self._lender.active = False
        return Error(
            f"{self.name}: {what} after the step was recorded, as clipping and "
            "zero_grad(set_to_none=False) do, expected copy=True, which is so from now on"
        )


class Lender:
    """Decides which gradients need no copy: none any more once one was changed."""

    def __init__(self, *, active: bool) -> None:
        self.active = active

    def lend(self, name: str, given: Any, tensor: Any) -> Loan | None:
        """Returns a loan of `tensor`, which are the elements of `given`, if it may be lent."""
        import torch

        if not self.active or type(given) is not torch.Tensor or tensor.is_inference():
            return None
        if not tensor.is_contiguous() or tensor.is_neg() or not _owns_its_memory(tensor):
            return None
        return Loan(self, name, tensor)


def lender_of(ranks: Ranks, *, copy: bool) -> Lender:
    """Returns the lender of a recorder; nothing is lent that communication is going to change."""
    return Lender(active=not copy and ranks.kind in ("single", "reduced"))
