# SPDX-License-Identifier: Apache-2.0
"""Functions of cerebras.pytorch around a training step, which here runs as it is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from .._errors import UsageError
from ._backend import Backend, current_torch_device
from ._data import running_executor

__all__ = [
    "backend",
    "checkpoint_closure",
    "compile",
    "current_backend",
    "current_torch_device",
    "load",
    "save",
    "step_closure",
    "trace",
    "use_cs",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Ignored:
    """A configuration of a cluster, whose settings are kept and have no effect."""

    def __init__(self, **settings: Any) -> None:
        vars(self).update(settings)


def backend(backend_type: str | None = None, **settings: Any) -> Backend:
    """Returns a new backend, "CSX", "CPU" or "GPU", or without a type the current one.

    Settings are kept and have no effect. On all of them dlsim emulates loss scaling and rounding.
    """
    return current_backend() if backend_type is None else _begin(backend_type, settings)


def _begin(backend_type: str, settings: dict[str, Any]) -> Backend:
    kind = str(backend_type).upper()
    if kind not in ("CSX", "CPU", "GPU"):
        raise UsageError(f"backend: unknown, expected CSX, CPU or GPU, got {backend_type!r}")
    Backend.current = Backend(kind, settings)
    return Backend.current


def current_backend() -> Backend:
    """Returns the backend that was made last; raises RuntimeError without one."""
    if Backend.current is None:
        raise RuntimeError("backend: none was set, expected cstorch.compile or cstorch.backend")
    return Backend.current


def use_cs() -> bool:
    """Returns whether the current backend is a CSX, though emulated."""
    return Backend.current is not None and Backend.current.is_csx


def compile(model: torch.nn.Module, backend: Any = None) -> torch.nn.Module:
    """Returns the model itself, on the device of the backend."""
    if isinstance(backend, str) or (backend is None and Backend.current is None):
        _begin(backend or "CPU", {})
    return model.to(current_torch_device())


def trace(function: _Function) -> _Function:
    """Returns the step function itself."""
    return function


def step_closure(function: _Function) -> _Function:
    """Returns the function itself, as values are known at once."""
    return function


def checkpoint_closure(function: Callable[..., Any]) -> Callable[..., None]:
    """Returns a function that calls this one at the executor's checkpoint steps only."""

    @wraps(function)
    def at_checkpoints(*args: Any, **options: Any) -> None:
        executor = running_executor()
        if executor is None:
            raise RuntimeError(
                f"{function.__name__}: called outside of a loop over a DataExecutor, which tells "
                "the checkpoint steps"
            )
        if executor.is_checkpoint_step:
            function(*args, **options)

    return at_checkpoints


def save(state_dict: dict[str, Any], ckpt_path: str | os.PathLike[str]) -> None:
    """Saves as torch.save does, not in the form of the original."""
    torch.save(state_dict, ckpt_path)


def load(ckpt_path: str | os.PathLike[str], map_location: Any = None, **_: Any) -> Any:
    """Loads what `save` wrote."""
    return torch.load(ckpt_path, map_location=map_location)


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Returns a tensor's values as an array."""
    return np.asarray(tensor.detach().cpu())


def SummaryWriter(*args: Any, base_step: int = 1, **options: Any) -> Any:  # noqa: N802
    """Returns PyTorch's SummaryWriter, with the original's `base_step`."""
    writers: Any = import_module("torch.utils.tensorboard")
    writer = writers.SummaryWriter(*args, **options)
    writer.base_step = base_step
    return writer
