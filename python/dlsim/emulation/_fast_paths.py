# SPDX-License-Identifier: Apache-2.0
"""PyTorch's fused transformer layers, which do not call their parts, kept from being used."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from typing import Any

from ._rounding import torch

FUSED_MODULES = (torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder)

# What TransformerEncoderLayer and TransformerEncoder ask before they take the fused path, in
# evaluation without gradients, and the answer that keeps them off it. The results are the same.
_QUESTIONS: tuple[tuple[type, str, Any], ...] = (
    (torch.nn.TransformerEncoderLayer, "activation_relu_or_gelu", 0),
    (torch.nn.TransformerEncoder, "enable_nested_tensor", False),
    (torch.nn.TransformerEncoder, "use_nested_tensor", False),
)


@dataclasses.dataclass
class _Closed:
    """How often a module is closed now, and its own answers."""

    times: int
    answers: dict[str, Any]


_closed: weakref.WeakKeyDictionary[torch.nn.Module, _Closed] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class ClosedFastPaths:
    """The fused paths in a model, closed until reopen() of the last that closed them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = [part for part in model.modules() if isinstance(part, FUSED_MODULES)]
        with _lock:
            for module in self._modules:
                _close(module)

    def reopen(self) -> None:
        """Leaves the model as it was."""
        with _lock:
            while self._modules:
                _open(self._modules.pop())


def _close(module: torch.nn.Module) -> None:
    if module not in _closed:
        answers = {}
        for kind, name, answer in _QUESTIONS:
            if isinstance(module, kind) and name in vars(module):
                answers[name] = vars(module)[name]
                vars(module)[name] = answer
        _closed[module] = _Closed(0, answers)
    _closed[module].times += 1


def _open(module: torch.nn.Module) -> None:
    _closed[module].times -= 1
    if _closed[module].times == 0:
        vars(module).update(_closed.pop(module).answers)
