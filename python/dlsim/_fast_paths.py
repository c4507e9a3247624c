# SPDX-License-Identifier: Apache-2.0
"""PyTorch's fused paths, which call no parts and so no hooks, kept from running."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

import torch

# What PyTorch's transformer layers ask before they run fused, without calling their parts, in
# evaluation without gradients; and the answers that keep them from it. The results are the same.
_FUSED: dict[type, dict[str, Any]] = {
    torch.nn.TransformerEncoderLayer: {"activation_relu_or_gelu": 0},
    torch.nn.TransformerEncoder: {"enable_nested_tensor": False, "use_nested_tensor": False},
}
FUSED_MODULES = tuple(_FUSED)

# How often a module is closed now, and its own answers.
_closed: WeakKeyDictionary[torch.nn.Module, tuple[int, dict[str, Any]]] = WeakKeyDictionary()
_lock = threading.Lock()


class ClosedFastPaths:
    """The fused paths in a model, closed until reopen() of the last that closed them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = [part for part in model.modules() if isinstance(part, FUSED_MODULES)]
        with _lock:
            for module in self._modules:
                times, own = _closed.get(module, (0, {}))
                for kind, answers in _FUSED.items() if not times else ():
                    known = answers.keys() & vars(module).keys()
                    for name in known if isinstance(module, kind) else ():
                        own[name] = vars(module)[name]
                        vars(module)[name] = answers[name]
                _closed[module] = times + 1, own

    def reopen(self) -> None:
        """Leaves the model as it was."""
        with _lock:
            while self._modules:
                module = self._modules.pop()
                times, own = _closed.pop(module)
                if times > 1:
                    _closed[module] = times - 1, own
                else:
                    vars(module).update(own)
