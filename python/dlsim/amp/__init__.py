# SPDX-License-Identifier: Apache-2.0
"""Loss scaling as cerebras.pytorch.amp does it, emulated on CPUs and GPUs with torch.optim."""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "dlsim.amp: PyTorch is missing, expected the package torch (pip install torch)",
        name=error.name,
    ) from None

from . import cbtorch
from ._autocast import (
    autocast,
    enable_mixed_precision,
    get_floating_point_dtype,
    get_floating_point_dtype_str,
    get_half_dtype,
    get_half_dtype_str,
    is_cbfloat16_tensor,
    mixed_precision,
    set_half_dtype,
)
from ._grad_scaler import GradScaler, OptState, isfinite, optimizer_step
from ._mixed_precision import ApplianceNanError, MixedPrecision

__all__ = [
    "ApplianceNanError",
    "GradScaler",
    "MixedPrecision",
    "OptState",
    "autocast",
    "cbtorch",
    "enable_mixed_precision",
    "get_floating_point_dtype",
    "get_floating_point_dtype_str",
    "get_half_dtype",
    "get_half_dtype_str",
    "is_cbfloat16_tensor",
    "isfinite",
    "mixed_precision",
    "optimizer_step",
    "set_half_dtype",
]
