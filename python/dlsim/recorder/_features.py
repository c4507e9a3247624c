# SPDX-License-Identifier: Apache-2.0
"""Which axis of the gradients of activations holds features, by what has made the activation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ._names import ROOT

_NAME = re.compile(
    r"(?P<module>[^/]*?)(?:/(?P<operation>[^/.]+))?(?:\.call\d+)?(?P<later>\.out\d+)?\.act_grad"
)

_OPERATIONS = {
    "batch_norm": 1,
    "conv": 1,
    "embedding": -1,
    "group_norm": 1,
    "instance_norm": 1,
    "layer_norm": -1,
    "rms_norm": -1,
}
_LAST = ("Bilinear", "Embedding", "EmbeddingBag", "LayerNorm", "Linear", "MultiheadAttention")
_SECOND = ("_BatchNorm", "GroupNorm")


def default_axis(dims: int) -> int:
    """Returns the axis that readers take for that of features, as LayoutOf in C++ does."""
    return 1 if dims >= 4 else dims - 1


class Features:
    """What the metadata of a step say of the gradients of its activations.

    Modules that do not say, such as an activation function, a container or a sum, are taken as
    readers take them, unless a module with as many axes has other features: then it is not known.
    """

    def __init__(self, modules: Mapping[str, Any]) -> None:
        self._modules = modules
        self._other: dict[str, int] = {}  # where it is not what readers take
        self._unsaid: dict[str, int] = {}  # tensors whose axes are all that is known: how many
        self._ambiguous: set[int] = set()  # numbers of axes

    def note(self, tensors: Iterable[tuple[str, Any]]) -> None:
        """Looks at tensors of a step, of which those matter that are gradients of activations."""
        for name, tensor in tensors:
            found = _NAME.fullmatch(name)
            if found is None or (dims := tensor.dim()) < 2:
                continue
            axis = self._axis(found, dims)
            if axis is None:
                self._unsaid[name] = dims
            elif axis != default_axis(dims):
                self._other[name] = axis
                self._ambiguous.add(dims)

    def _axis(self, found: re.Match[str], dims: int) -> int | None:
        if found["operation"]:
            axis = _OPERATIONS.get(found["operation"])
        elif found["later"]:
            return None
        else:
            module = found["module"]
            axis = _axis_of(self._modules.get("" if module == ROOT else module), dims)
        return axis if axis is None else axis % dims

    def metadata(self) -> dict[str, str]:
        """Returns what is to be said of the step."""
        unknown = (name for name, dims in self._unsaid.items() if dims in self._ambiguous)
        lines = [f"{axis} {name}" for name, axis in self._other.items()]
        lines += [f"? {name}" for name in unknown]
        return {"feature_axes": "\n".join(sorted(lines))} if lines else {}

    def clear(self) -> None:
        """Forgets the step."""
        self._other.clear()
        self._unsaid.clear()


def _axis_of(module: Any, dims: int) -> int | None:
    """Returns the axis of features of what a module returns; None if the module does not say."""
    if module is None:
        return None
    from torch import nn

    layers: Any = nn.modules
    if isinstance(module, layers.conv._ConvNd):
        return dims - 1 - len(module.kernel_size)  # without a batch the first
    if isinstance(module, layers.instancenorm._InstanceNorm):
        return dims - int(module._get_no_batch_dim())
    kinds = {kind.__name__ for kind in type(module).__mro__}
    if kinds.intersection(_SECOND):
        return 1
    recurrent = isinstance(module, (nn.RNNBase, nn.RNNCellBase))
    return -1 if recurrent or kinds.intersection(_LAST) or "RMSNorm" in kinds else None
