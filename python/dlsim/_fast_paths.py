# SPDX-License-Identifier: Apache-2.0
"""PyTorch's fused transformer layers, which do not call their parts, kept from being used."""

from __future__ import annotations

from typing import Any

from ._torch_rounding import torch

# What TransformerEncoderLayer and TransformerEncoder ask before they take the fused path, in
# evaluation without gradients, and the answer that keeps them off it. The results are the same.
_QUESTIONS: tuple[tuple[type, str, Any], ...] = (
    (torch.nn.TransformerEncoderLayer, "activation_relu_or_gelu", 0),
    (torch.nn.TransformerEncoder, "enable_nested_tensor", False),
    (torch.nn.TransformerEncoder, "use_nested_tensor", False),
)


class ClosedFastPaths:
    """The fused paths in a model, closed until reopen()."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._before: list[tuple[torch.nn.Module, str, Any]] = []
        for module in model.modules():
            for kind, name, answer in _QUESTIONS:
                if isinstance(module, kind) and name in vars(module):
                    self._before.append((module, name, vars(module)[name]))
                    vars(module)[name] = answer

    def reopen(self) -> None:
        """Leaves the model as it was."""
        while self._before:
            module, name, value = self._before.pop()
            vars(module)[name] = value
