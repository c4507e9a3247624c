# SPDX-License-Identifier: Apache-2.0
"""Tensor names, each written once, and the layers that they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ._json import visible

_NUMBER = re.compile(r"(\d+)")


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


def in_order(names: Iterable[str]) -> list[int]:
    """Returns the places of the names, those that differ in a number by its value.

    Files often are in alphabetical order, with layer 11 before layer 2. Where words differ, the one
    that came first in the file stays first: that may be the order of the model.
    """
    words: dict[tuple[str, ...], dict[str, int]] = {}
    keys = [_order_key(_NUMBER.split(name), words) for name in names]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _order_key(parts: Sequence[str], words: dict[tuple[str, ...], dict[str, int]]) -> list[int]:
    """The words of a name as the number of words before it at that place, and its numbers."""
    key = []
    for i, word in enumerate(parts):
        found = words.setdefault(tuple(parts[:i]), {})
        key.append(int(word[:18]) if i % 2 else found.setdefault(word, len(found)))
    return key


def layer_of(name: str) -> str:
    """Returns the module of a tensor: `blocks.0.attn` of `blocks.0.attn.weight.grad`.

    Activations and their gradients, `<module>.act_grad`, belong to the layer that they flow out of,
    those of operations, `<module>/<operation>.act_grad`, to that which they run in.
    """
    parts = name.split(".")
    if parts[-1] in ("act", "act_grad"):
        layer = ".".join(parts[:-1])
        return layer.rpartition("/")[0] or layer or name
    if parts[-1] in ("grad", "value"):
        parts.pop()
    return ".".join(parts[:-1]) or ".".join(parts) or name
