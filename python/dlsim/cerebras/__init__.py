# SPDX-License-Identifier: Apache-2.0
"""Runs scripts written for cerebras.pytorch without it: `python -m dlsim.cerebras script.py`.

docs/amp.md lists what is implemented; all else is an error that names it.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "dlsim.cerebras: PyTorch is missing, expected the package torch (pip install torch)",
        name=error.name,
    ) from None

from ._modules import install

__all__ = ["install"]
