# SPDX-License-Identifier: Apache-2.0
"""Arrays to formats with scales of their own and back: FP8 recipes, MXFP8, MXFP4, NVFP4."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._errors import UsageError
from ._dtypes import is_torch

_AXES = {-1: "row", 0: "column", None: "both"}
_SCALE_DTYPES = {"float32": np.uint32, "e8m0": np.uint8, "e4m3": np.uint8}


@dataclass(frozen=True, eq=False)
class ScaledArray:
    """The codes of an array, with the scales that its elements share.

    `codes` are uint8, one for each element, of the array's shape. `scales` are E8M0 or E4M3 codes,
    or float32 numbers by which values were multiplied; of the shape of a matrix of groups: the
    array's, with the axis of the blocks shorter. `tensor_scale` multiplies each E4M3 scale.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[Any]
    tensor_scale: float
    format: str
    backward: bool
    axis: int | None

    def decode(self) -> NDArray[np.float32]:
        """Returns the float32 values that the codes stand for."""
        side = _core.ScaledSide(self.format, self.backward)
        codes = _matrix(self.codes)
        values = np.empty(codes.shape, np.float32)
        bits = self.scales.view(np.uint32) if side.scale_type == "float32" else self.scales
        _core.decode_scaled(
            codes, bits.ravel().tolist(), self.tensor_scale, side, _AXES[self.axis], values
        )
        return values.reshape(self.codes.shape)


def encode_scaled(
    values: Any,
    format: str,
    *,
    backward: bool = False,
    axis: int | None = -1,
    scale: float | None = None,
) -> ScaledArray:
    """Encodes an array to a format with scales of its own.

    `format` is a name with options, such as "mxfp8" or "mxfp8:rule=floor"; `backward` takes the
    elements of gradients, not those of weights and activations. Blocks lie along the last axis, or
    along the first one of the array as a matrix of its last axis (`axis=0`), or are squares
    (`axis=None`). `scale` replaces the scale of a whole tensor, as delayed scaling does. Raises
    UsageError for other arguments.
    """
    side, array, along, given = _arguments(values, format, backward, axis, scale)
    matrix = _matrix(array)
    codes, scales, tensor_scale = _core.encode_scaled(matrix, side, _AXES[along], given)
    groups = scales.astype(_SCALE_DTYPES[side.scale_type], copy=False)
    if side.scale_type == "float32":
        groups = groups.view(np.float32)
    if side.sharing != "tensor":
        shape = list(matrix.shape)
        for i in (0, 1) if along is None else (along,):
            shape[i] = -(-shape[i] // (side.block or max(shape[i], 1)))
        groups = groups.reshape(shape)
    return ScaledArray(codes.reshape(array.shape), groups, tensor_scale, format, backward, along)


def quantize_scaled(
    values: Any,
    format: str,
    *,
    backward: bool = False,
    axis: int | None = -1,
    scale: float | None = None,
) -> Any:
    """Returns the values that remain of an array in a format; see encode_scaled.

    The result is float32, a PyTorch tensor for one, else a NumPy array.
    """
    encoded = encode_scaled(values, format, backward=backward, axis=axis, scale=scale)
    result = encoded.decode()
    if not is_torch(values):
        return result
    import torch

    return torch.from_numpy(result).to(values.device)


def measure_scaled(
    values: Any,
    format: str,
    *,
    backward: bool = False,
    axis: int | None = -1,
    scale: float | None = None,
) -> dict[str, Any]:
    """Returns what an array loses in a format; see encode_scaled.

    `stats` has the counters of docs/results.md, of which `overflow` counts clipped elements;
    `mean_channel_harm` and `worst_channel_harm` are over columns; `min_scale` and `max_scale` are
    the factors before rounding.
    """
    side, array, along, given = _arguments(values, format, backward, axis, scale)
    return _core.measure_scaled(_matrix(array), side, _AXES[along], False, given)


def delayed_scales(largest: Iterable[float], format: str, *, backward: bool = False) -> list[float]:
    """Returns the scales of a tensor under delayed scaling, from its largest magnitudes.

    `largest` has one for each step. A scale follows from the steps before; the first is 1.
    """
    side = _core.ScaledSide(format, backward)
    if not side.delayed:
        raise UsageError(f"format: no delayed scaling, expected fp8-delayed, got '{format}'")
    return list(_core.delayed_scales([float(value) for value in largest], side))


def _arguments(
    values: Any, format: str, backward: bool, axis: int | None, scale: float | None
) -> tuple[Any, NDArray[np.float32], int | None, float | None]:
    side = _core.ScaledSide(format, backward)
    array = _float32(values)
    if axis not in (-1, 0, array.ndim - 1, None):
        raise UsageError(f"axis: blocks lie along one of two axes, expected -1 or 0, got {axis}")
    if axis is None and side.sharing != "block":
        raise UsageError(f"axis: {format} has no blocks, expected -1 or 0, got None")
    if scale is not None and side.sharing != "tensor":
        raise UsageError(f"scale: {format} has no scale of the tensor alone, expected None")
    if scale is not None and not 0 < scale < np.inf:
        raise UsageError(f"scale: expected a positive number, got {scale}")
    if axis is not None:
        axis = 0 if axis == 0 and array.ndim > 1 else -1
    return side, array, axis, scale


def _float32(values: Any) -> NDArray[np.float32]:
    if is_torch(values):
        values = values.detach().float().cpu().numpy()
    return np.ascontiguousarray(values, np.float32)


def _matrix(array: NDArray[Any]) -> NDArray[Any]:
    return array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
