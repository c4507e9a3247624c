# SPDX-License-Identifier: Apache-2.0
"""Will a model train in fp16, bf16 or CB16, and with which loss scale?

`Recorder` records a training in float32 (`dlsim.integrations` has it for trainers), and `replay`
judges the recording: `print(dlsim.replay("run.profile").verdict)`. `check` judges gradients at
hand, `tune` recommends a loss scaler, `encode` and `quantize` convert arrays bit by bit as formats
do.
"""

# Everything is imported when first used: PyTorch, plotly and other packages, and the compiled
# module, so that the command can prepare its process before.

from __future__ import annotations

from ._errors import Error, InputError, PolicyRefusal, UsageError

TYPE_CHECKING = False  # the module typing takes longer than all the rest
if TYPE_CHECKING:
    from . import amp as amp
    from . import arrays as arrays
    from . import cerebras as cerebras
    from . import emulation as emulation
    from . import importers as importers
    from . import integrations as integrations
    from . import profiles as profiles
    from . import recorder as recorder
    from . import results as results
    from . import runs as runs
    from . import simd as simd
    from . import traces as traces
    from ._accumulate import accumulate as accumulate
    from ._check import check as check
    from ._core import Format as Format
    from ._core import LossScaler as LossScaler
    from ._core import TensorTable as TensorTable
    from ._core import __version__ as __version__
    from ._core import format_names as format_names
    from ._core import policy_names as policy_names
    from ._keep import keep_float32 as keep_float32
    from ._updates import ProbeRecorder as ProbeRecorder
    from ._updates import updates as updates
    from .arrays import TensorStats as TensorStats
    from .arrays import decode as decode
    from .arrays import encode as encode
    from .arrays import measure as measure
    from .arrays import quantize as quantize
    from .arrays import tabulate as tabulate
    from .emulation import autocast_emulation as autocast_emulation
    from .emulation._shadow import PlanCheck as PlanCheck
    from .emulation._shadow import Shadow as Shadow
    from .emulation._shadow import check_plan as check_plan
    from .emulation._shadow import shadow as shadow
    from .logs import explain as explain
    from .profiles import Profile as Profile
    from .profiles import open_profile as open_profile
    from .recorder import Recorder as Recorder
    from .report import CallableReport
    from .results import Result as Result
    from .results import read_result as read_result
    from .runs import diff as diff
    from .runs import formats as formats
    from .runs import info as info
    from .runs import profile as profile
    from .runs import replay as replay
    from .runs import scaler as scaler
    from .runs import sweep as sweep
    from .runs import tune as tune
    from .traces import Exponents as Exponents
    from .traces import Trace as Trace
    from .traces import exponents as exponents
    from .traces import open_trace as open_trace

    report: CallableReport

    FP16: Format
    BF16: Format
    CB16: Format

_FORMATS: dict[str, str] = {"FP16": "fp16", "BF16": "bf16", "CB16": "cb16"}

# Public names that cost an import, by the module that has them.
_LAZY: dict[str, str] = {
    name: module
    for module, names in {
        "_accumulate": "accumulate",
        "_check": "check",
        "_core": "Format LossScaler TensorTable __version__ format_names policy_names",
        "_keep": "keep_float32",
        "_updates": "ProbeRecorder updates",
        "arrays": "TensorStats decode encode measure quantize tabulate",
        "emulation": "autocast_emulation",
        "emulation._shadow": "PlanCheck Shadow check_plan shadow",
        "logs": "explain",
        "profiles": "Profile open_profile",
        "recorder": "Recorder",
        "results": "Result read_result",
        "runs": "diff formats info profile replay scaler sweep tune",
        "traces": "Exponents Trace exponents open_trace",
    }.items()
    for name in names.split()
}
_SUBMODULES = frozenset(
    """
    amp arrays cerebras emulation importers integrations logs profiles recorder report results runs
    simd traces
    """.split()
)

__all__ = ["Error", "InputError", "PolicyRefusal", "UsageError", *_FORMATS, *_LAZY, *_SUBMODULES]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    value: object
    if name in _LAZY:
        value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    elif name in _FORMATS:
        value = import_module(f"{__name__}._core").Format(_FORMATS[name])
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
