# SPDX-License-Identifier: Apache-2.0
"""The floating-point buffers that a forward pass reads, such as BatchNorm's running statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ._memory import is_plain
from ._tensors import is_mask
from ._widths import Widths


class Buffers:
    """The buffers of modules that operators read in the forward pass of a step.

    `model.half()` casts them, also those that are in no state_dict; autocast leaves them as they
    are, and what it copies of them in 16 bits is seen as such a copy.
    """

    def __init__(self, modules: Mapping[str, Any], widths: Widths) -> None:
        self._modules, self._widths = modules, widths
        # By name, with the module's; held, so that nothing else comes to lie in their places.
        self._found: dict[str, tuple[str, Any]] = {}

    def begin(self) -> None:
        """Begins the forward pass of a step, which may put other tensors in their place."""
        self._found = dict(_floating(self._modules))
        self._widths.watch(one for _, one in self._found.values())

    def values(self, wanted: Callable[[str], bool]) -> dict[str, Any]:
        """Returns those that were read and belong to wanted modules, by name; no masks."""
        return {
            f"{name}.value": one.detach()
            for name, (module, one) in self._found.items()
            if wanted(module) and self._widths.was_read(one) and not is_mask(one.detach())
        }

    def names(self) -> list[str]:
        """Returns the names of all that were read."""
        found = self._found.items()
        return [f"{name}.value" for name, (_, one) in found if self._widths.was_read(one)]

    def clear(self) -> None:
        """Forgets them."""
        self._found = {}
        self._widths.watch(())


def _floating(modules: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Yields each buffer once, with its name and that of its module."""
    seen: set[int] = set()
    for module, owner in modules.items():
        for name, one in owner.named_buffers(recurse=False):
            if id(one) in seen or not one.is_floating_point() or not is_plain(one):
                continue
            seen.add(id(one))
            yield f"{module}.{name}" if module else name, (module, one)
