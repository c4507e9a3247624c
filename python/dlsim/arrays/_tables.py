# SPDX-License-Identifier: Apache-2.0
"""The table of an array: all that rounding to nearest does to it, in any format of 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ._arguments import conversion_of, scale_of
from ._dtypes import VALUES
from ._frameworks import is_cuda, source_of
from ._tensor_stats import TensorStats

if TYPE_CHECKING:
    pass


class TensorTable:
    """The table of a tensor: exact counts and sums for each exponent (docs/profiles.md)."""

    def __init__(self, core: _core.TensorTable) -> None:
        """For `tabulate` and profiles."""
        self._core = core

    @property
    def elements(self) -> int:
        """How many elements the tensor has."""
        return self._core.elements

    @property
    def zeros(self) -> int:
        """Elements that are +0 or -0."""
        return self._core.zeros

    @property
    def nan(self) -> int:
        """Elements that are NaN."""
        return self._core.nan

    @property
    def inf(self) -> int:
        """Elements that are infinite."""
        return self._core.inf

    @property
    def absmax(self) -> float:
        """The largest finite magnitude; 0 if there is none."""
        return self._core.absmax

    @property
    def largest(self) -> float:
        """The largest finite value; 0 if none is positive."""
        return self._core.largest

    @property
    def sum_of_squares(self) -> float:
        """Of the finite values: the exact sum, rounded once."""
        return self._core.sum_of_squares

    @property
    def exponents(self) -> NDArray[np.int64]:
        """The exponents that nonzero finite values have, 2^e <= |x| < 2^(e + 1), ascending."""
        return self._core.exponents()[0]

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many values have each of these exponents."""
        return self._core.exponents()[1]

    @property
    def channels(self) -> list[tuple[float, int]]:
        """Of a gradient in a profile: magnitudes, and how many channels reach them.

        Those whose largest magnitude lies between one and the next quarter of a power of two.
        """
        return self._core.channels()

    def ask(
        self,
        format: Any,
        scale: float | str = 1.0,
        *,
        overflow: str = "inf",
        subnormals: str = "keep",
    ) -> TensorStats:
        """Returns what `dlsim.measure` returns of the tensor, to nearest at a power of two.

        But `quantized_sum_of_squares` is NaN. Raises UsageError for what the table does not tell:
        other scales, formats of more than 11 bits of significand, some values at their ends.
        """
        chosen, conversion = conversion_of(format, "rne", overflow, subnormals)
        by = scale_of(scale)
        row = self._core.ask(conversion, by) | {"quantized_sum_of_squares": float("nan")}
        return TensorStats(chosen, by, **row)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorTable) and self._core == other._core

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<dlsim.TensorTable: {self.elements} elements, absmax {self.absmax:.3g}>"


def tabulate(values: Any, *, grad_scale: float | str = 1.0) -> TensorTable:
    """Returns the table of an array of float32, float64, float16 or bfloat16.

    `grad_scale` is the loss scale that the values carry: each is multiplied by its float32
    reciprocal first. Tensors of PyTorch on a GPU are tabulated there.
    """
    scale = _core.checked_grad_scale(scale_of(grad_scale))
    if is_cuda(values):
        from . import _torch_tables

        return TensorTable(_torch_tables.tabulate_on_device([values.detach()], scale)[0])
    source = source_of(values, "values", VALUES)
    return TensorTable(_core.tabulate_array(source.bits, source.element, scale))
