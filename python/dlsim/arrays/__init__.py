# SPDX-License-Identifier: Apache-2.0
"""Arrays to the codes of a format and back: encode, decode, quantize, measure, tabulate.

Arrays are those of NumPy, PyTorch, JAX and whatever has __dlpack__; results are of the same kind
and shape, on the same device. docs/python-arrays.md has the rules for layouts, types and errors.
"""

from .._core import TensorTable as TensorTable
from ._convert import TensorStats as TensorStats
from ._convert import decode as decode
from ._convert import encode as encode
from ._convert import measure as measure
from ._convert import quantize as quantize
from ._convert import tabulate as tabulate
from ._scaled import ScaledArray as ScaledArray
from ._scaled import delayed_scales as delayed_scales
from ._scaled import encode_scaled as encode_scaled
from ._scaled import measure_scaled as measure_scaled
from ._scaled import quantize_scaled as quantize_scaled
