# SPDX-License-Identifier: Apache-2.0
"""Gradients that are those of an earlier step, or sums with them."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import Any


class Leftovers:
    """Which gradients nobody has cleared since a step was recorded, or an optimizer has stepped.

    `held` is called then, and `given` after each backward pass. A gradient is unchanged if it is
    the same tensor with the same version; backward adds in place and increments the version once.
    `p.grad.data.zero_()` leaves the version alone: once `coming`, called for one parameter before
    backward adds, has seen that, nothing counts as a sum.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[weakref.ref[Any], int, bool]] = {}
        self._sums: dict[str, bool] = {}  # whether an optimizer has used the older part
        self._counts = True  # whether clearing a gradient changes its version

    def begin(self) -> None:
        """Begins a step."""
        self._sums.clear()

    def held(self, name: str, gradient: Any, *, used: bool) -> None:
        """Notes a gradient that is recorded, or that an optimizer has `used`."""
        if used or not self.is_unchanged(name, gradient):
            self._held[name] = weakref.ref(gradient), gradient._version, used

    def coming(self, name: str, gradient: Any) -> None:
        """Looks at a gradient that backward is about to replace or to add to."""
        if self._counts and self.is_unchanged(name, gradient):
            self._counts = bool(gradient.any())

    def given(self, name: str, gradient: Any) -> None:
        """Notes what backward has left of a gradient."""
        if name not in self._held:
            return
        before, version, used = self._held[name]
        is_same = before() is gradient
        if not is_same:
            self._sums.pop(name, None)
        elif gradient._version == version + 1:
            self._sums[name] = used

    def is_unchanged(self, name: str, gradient: Any) -> bool:
        """Returns whether a gradient is still that of an earlier step."""
        if gradient is None or name not in self._held:
            return False
        before, version, _ = self._held[name]
        is_same = before() is gradient
        return is_same and gradient._version == version

    def sums(self, names: Collection[str]) -> set[str]:
        """Returns those of `names` whose gradients hold more than their step has given.

        If all do, as in a training that never clears its gradients, those that an optimizer has
        used before are right.
        """
        sums = {name for name in names if name in self._sums and self._counts}
        return sums if len(sums) < len(names) else {one for one in sums if not self._sums[one]}

    def clear(self) -> None:
        """Forgets everything."""
        self._held.clear()
        self._sums.clear()
