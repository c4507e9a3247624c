# SPDX-License-Identifier: Apache-2.0
"""The modules that a script finds under the names of cerebras.pytorch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from .. import amp
from . import _data, _optim, _run

_ROOTS = ("cerebras", "cerebras_pytorch")

# What dlsim.amp has beyond cerebras.pytorch.amp: parts of the Model Zoo, and its own.
_NOT_IN_AMP = ("ApplianceNanError", "MixedPrecision", "OptState", "cbtorch")


def _missing(module: str, name: str, known: Sequence[str]) -> str:
    return f"{module}.{name}: not emulated by dlsim, expected one of {', '.join(known)}"


class _Emulated(ModuleType):
    """A module that says what it lacks."""

    def __init__(self, name: str, contents: Mapping[str, Any]) -> None:
        super().__init__(name, f"What dlsim emulates of {name}.")
        self.__path__: list[str] = []  # it is a package: its parts can be imported
        vars(self).update(contents)
        self._known = sorted(contents)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(_missing(self.__name__, name, self._known))


class _Finder(MetaPathFinder):
    """Names the modules that are missing."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Raises ModuleNotFoundError for a module under the emulated names."""
        parent, _, name = fullname.rpartition(".")
        if fullname.partition(".")[0] not in _ROOTS:
            return None
        holder = sys.modules[parent]
        known = holder._known if isinstance(holder, _Emulated) else ()
        raise ModuleNotFoundError(_missing(parent, name, known))


def _pytorch() -> dict[str, Any]:
    """Returns the contents of cerebras.pytorch; modules inside are mappings."""
    data = {name: getattr(_data, name) for name in ("DataExecutor", "DataLoader")}
    return {
        **{name: getattr(_run, name) for name in _run.__all__},
        "amp": {name: getattr(amp, name) for name in amp.__all__ if name not in _NOT_IN_AMP},
        "current_executor": _data.current_executor,
        "distributed": {"ClusterConfig": _run.Ignored},
        "from_numpy": torch.from_numpy,
        "optim": {name: getattr(_optim, name) for name in _optim.__all__},
        "to_numpy": _run.to_numpy,
        "utils": {
            "CSConfig": _run.Ignored,
            "data": data,
            "tensorboard": {"SummaryWriter": _run.SummaryWriter},
        },
    }


def _put(name: str, contents: Mapping[str, Any]) -> ModuleType:
    """Makes a module and those inside importable."""
    inside = {
        key: _put(f"{name}.{key}", value) if isinstance(value, dict) else value
        for key, value in contents.items()
    }
    module = _Emulated(name, inside)
    sys.modules[name] = module
    return module


def install() -> None:
    """Lets `import cerebras.pytorch` and `import cerebras_pytorch` find what dlsim emulates.

    Also where Cerebras' package is installed; raises RuntimeError if that was imported before.
    """
    for name in _ROOTS:
        present = sys.modules.get(name)
        if present is not None and not isinstance(present, _Emulated):
            raise RuntimeError(
                f"dlsim.cerebras: {name} was imported before, expected install first"
            )
    if isinstance(sys.modules.get("cerebras"), _Emulated):
        return
    zoo = {"trainer": {"callbacks": {"MixedPrecision": amp.MixedPrecision}}}
    _put("cerebras", {"pytorch": _pytorch(), "modelzoo": zoo})
    _put("cerebras_pytorch", _pytorch())  # its older name
    sys.meta_path.insert(0, _Finder())
