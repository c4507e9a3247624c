# SPDX-License-Identifier: Apache-2.0
"""Arrays to the codes of a format and back: encode, decode, quantize, measure.

Arrays are those of NumPy, PyTorch, JAX and whatever has __dlpack__; results are of the same kind
and shape, on the same device. docs/python-arrays.md has the rules for layouts, types and errors.
"""

from ._convert import decode, encode, measure, quantize
from ._tensor_stats import TensorStats

__all__ = ["TensorStats", "decode", "encode", "measure", "quantize"]
