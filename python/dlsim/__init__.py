# SPDX-License-Identifier: Apache-2.0
"""dlsim: bit-exact low-precision formats and dynamic loss scaling, offline and in training.

Parts that need PyTorch, plotly or other packages are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._core import Format, LossScaler, __version__, format_names, policy_names
from ._errors import Error, InputError, PolicyRefusal, UsageError

if TYPE_CHECKING:
    from ._exponents import Exponents as Exponents
    from ._exponents import exponents as exponents
    from .profiles import Profile as Profile
    from .profiles import open_profile as open_profile
    from .traces import Trace as Trace
    from .traces import open_trace as open_trace

FP16 = Format("fp16")
BF16 = Format("bf16")
CB16 = Format("cb16")

# Public names that cost an import: where each is.
_LAZY: dict[str, str] = {
    "Exponents": "_exponents",
    "Profile": "profiles",
    "Trace": "traces",
    "exponents": "_exponents",
    "open_profile": "profiles",
    "open_trace": "traces",
}
_SUBMODULES: frozenset[str] = frozenset(
    {
        "profiles",
        "traces",
    }
)

__all__ = [  # noqa: PLE0604, what follows * are strings, too
    "BF16",
    "CB16",
    "FP16",
    "Error",
    "Format",
    "InputError",
    "LossScaler",
    "PolicyRefusal",
    "UsageError",
    "__version__",
    "format_names",
    "policy_names",
    *_LAZY,
    *_SUBMODULES,
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    if name in _LAZY:
        value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
