# SPDX-License-Identifier: Apache-2.0
"""Tensor names, each written once, and the layers that they belong to."""

from __future__ import annotations

from ._json import visible


class NameTable:
    """Numbers for tensor names, so that each name is written once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._index: dict[str, int] = {}

    def index(self, name: str) -> int:
        """Returns the number of a name."""
        shown = visible(name)
        if shown not in self._index:
            self._index[shown] = len(self.names)
            self.names.append(shown)
        return self._index[shown]


def layer_of(name: str) -> str:
    """Returns the module of a tensor: `blocks.0.attn` of `blocks.0.attn.weight.grad`.

    Activation gradients, `<module>.act_grad`, belong to the layer that they flow out of.
    """
    parts = name.split(".")
    if parts[-1] == "act_grad":
        return ".".join(parts[:-1]) or name
    if parts[-1] == "grad":
        parts.pop()
    return ".".join(parts[:-1]) or ".".join(parts) or name
