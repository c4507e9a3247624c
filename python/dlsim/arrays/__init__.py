# SPDX-License-Identifier: Apache-2.0
"""Arrays to the codes of a format and back: encode, decode, quantize, measure, tabulate.

Arrays are those of NumPy, PyTorch, JAX and whatever has __dlpack__; results are of the same kind
and shape, on the same device. docs/python-arrays.md has the rules for layouts, types and errors.
"""

from .._core import TensorTable
from ._convert import TensorStats, decode, encode, measure, quantize, tabulate
from ._scaled import (
    ScaledArray,
    delayed_scales,
    encode_scaled,
    measure_scaled,
    quantize_scaled,
)

__all__ = [
    "ScaledArray",
    "TensorStats",
    "TensorTable",
    "decode",
    "delayed_scales",
    "encode",
    "encode_scaled",
    "measure",
    "measure_scaled",
    "quantize",
    "quantize_scaled",
    "tabulate",
]
