# SPDX-License-Identifier: Apache-2.0
"""Runs scripts written for cerebras.pytorch without it: `python -m dlsim.cerebras script.py`.

docs/amp.md lists what is implemented, the names in the loops of Cerebras' documentation; all else
is an error that names it.
"""

from __future__ import annotations

import math
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from . import amp
from ._errors import UsageError

__all__ = ["install"]

# What dlsim.amp has beyond cerebras.pytorch.amp: parts of the Model Zoo, and its own.
_NOT_IN_AMP = ("ApplianceNanError", "MixedPrecision", "OptState", "cbtorch")

_backends: list[SimpleNamespace] = []  # the current one last


def _backend(backend_type: str | None = None, **settings: Any) -> SimpleNamespace:
    """Returns a new backend, or the current one; a "CSX" is emulated on the CPU."""
    if backend_type is None:
        if not _backends:
            raise RuntimeError("backend: none was set, expected cstorch.compile or cstorch.backend")
        return _backends[-1]
    kind = backend_type.upper()
    if kind not in ("CSX", "CPU", "GPU"):
        raise UsageError(f"backend: unknown, expected CSX, CPU or GPU, got {kind!r}")
    device = torch.device("cuda" if kind == "GPU" else "cpu")
    made = SimpleNamespace(settings=settings, torch_device=device, device=nullcontext(device))
    made.is_csx, made.is_gpu, made.is_cpu = kind == "CSX", kind == "GPU", kind == "CPU"
    _backends.append(made)
    return made


def _device() -> torch.device:
    device: torch.device = _backends[-1].torch_device if _backends else torch.device("cpu")
    return device


def _compile(model: torch.nn.Module, backend: Any = None) -> torch.nn.Module:
    if isinstance(backend, str) or (backend is None and not _backends):
        _backend(backend or "CPU")
    return model.to(_device())


def _checkpoint_closure(function: Callable[..., Any]) -> Callable[..., None]:
    def at_checkpoints(*args: Any, **options: Any) -> None:
        if not DataExecutor.running:
            raise RuntimeError(f"{function.__name__}: called outside of a loop over a DataExecutor")
        if DataExecutor.running[-1].is_checkpoint_step:
            function(*args, **options)

    return at_checkpoints


class DataExecutor:
    """Yields batches for `num_steps` steps, from the beginning again when they are used up.

    `checkpoint_steps` is the interval of checkpoints, None or 0 for none; the last step is one,
    too. Without `num_steps` there are as many as batches. Other arguments have no effect.
    """

    running: list[DataExecutor] = []  # noqa: RUF012 - of all executors, the innermost loop last

    def __init__(
        self,
        dataloader: Any,
        num_steps: int | None = None,
        checkpoint_steps: int | None = None,
        **ignored: Any,
    ) -> None:
        self.dataloader = dataloader
        self.num_steps = len(dataloader) if num_steps is None else num_steps
        self.user_iteration = 0  # the number of the step, from 1
        self.profiler = SimpleNamespace(rate=self._rate, global_rate=self._global_rate)
        self._times: list[float] = []  # of the beginning, and after each step
        self._interval = checkpoint_steps or 0

    @property
    def on_final_iteration(self) -> bool:
        """Whether it is the last step."""
        return self.user_iteration >= self.num_steps

    @property
    def is_checkpoint_step(self) -> bool:
        """Whether a checkpoint may be saved at this step."""
        is_due = self.on_final_iteration or self.user_iteration % (self._interval or 1) == 0
        return self._interval > 0 and is_due

    def __iter__(self) -> Iterator[Any]:
        self.running.append(self)
        self._times = [time.perf_counter()]
        try:
            numbers = range(1, self.num_steps + 1)
            for number, batch in zip(numbers, self._batches(), strict=False):
                self.user_iteration = number
                yield tree_map(
                    lambda item: item.to(_device()) if hasattr(item, "to") else item, batch
                )
                self._times.append(time.perf_counter())
        finally:
            self.running.remove(self)

    def _rate(self) -> float:
        return 1 / (self._times[-1] - self._times[-2]) if len(self._times) > 1 else 0.0

    def _global_rate(self) -> float:
        return (len(self._times) - 1) / max(self._times[-1] - self._times[0], 1e-9)

    def _batches(self) -> Iterator[Any]:
        batch = None
        while True:
            for batch in self.dataloader:
                yield batch
            if batch is None:
                raise RuntimeError("DataExecutor: the dataloader gave no batch, expected some")


class _EpsilonFirst(torch.optim.Optimizer):
    """Adam of torch as in cerebras.pytorch 2.10: `eps` is added before the bias is corrected."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        settings: dict[str, Any] = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        super().__init__(params, **settings)

    def step(self, closure: None = None) -> None:  # type: ignore[override, unused-ignore]
        """Takes one step."""
        given = [group["eps"] for group in self.param_groups]
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            ages = {int(self.state.get(p, {}).get("step", 0)) + 1 for p in moved} or {1}
            if len(ages) > 1:
                raise UsageError("Adam: parameters of other ages, expected a group for each age")
            group["eps"] /= math.sqrt(1 - group["betas"][1] ** ages.pop())
        super().step()
        for group, eps in zip(self.param_groups, given, strict=True):
            group["eps"] = eps


class Adam(_EpsilonFirst, torch.optim.Adam):
    """Weight decay is part of the gradient."""


class AdamW(_EpsilonFirst, torch.optim.AdamW):
    """Weight decay is part of the step."""


class _Emulated(ModuleType):
    """A module that says what it lacks."""

    def __init__(self, name: str, contents: Mapping[str, Any]) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # it is a package: its parts can be imported
        for key, value in contents.items():
            is_part = isinstance(value, dict)
            setattr(self, key, _Emulated(f"{name}.{key}", value) if is_part else value)
        self._known = ", ".join(sorted(contents))
        sys.modules[name] = self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"{self.__name__}.{name}: not emulated by dlsim, expected one of {self._known}"
        )


def _summary_writer(*args: Any, **options: Any) -> Any:
    return import_module("torch.utils.tensorboard").SummaryWriter(*args, **options)


def _pytorch() -> dict[str, Any]:
    """Returns the contents of cerebras.pytorch; modules inside are dicts."""
    return {
        "amp": {name: getattr(amp, name) for name in amp.__all__ if name not in _NOT_IN_AMP},
        "backend": _backend,
        "checkpoint_closure": _checkpoint_closure,
        "compile": _compile,
        "current_backend": _backend,
        "current_torch_device": _device,
        "distributed": {"ClusterConfig": SimpleNamespace},
        "from_numpy": torch.from_numpy,
        "load": torch.load,
        "optim": {"SGD": torch.optim.SGD, "Adam": Adam, "AdamW": AdamW},
        "save": torch.save,
        "step_closure": lambda function: function,
        "to_numpy": lambda tensor: tensor.detach().cpu().numpy(),
        "trace": lambda function: function,
        "use_cs": lambda: bool(_backends) and _backends[-1].is_csx,
        "utils": {
            "CSConfig": SimpleNamespace,
            "data": {
                "DataExecutor": DataExecutor,
                "DataLoader": lambda make, *a, **o: make(*a, **o),
            },
            "tensorboard": {"SummaryWriter": _summary_writer},
        },
    }


def install() -> None:
    """Lets `import cerebras.pytorch` and `import cerebras_pytorch` find what dlsim emulates.

    Also where Cerebras' package is installed; raises RuntimeError if that was imported before.
    """
    found = sys.modules.get("cerebras") or sys.modules.get("cerebras_pytorch")
    if found is None:
        zoo = {"trainer": {"callbacks": {"MixedPrecision": amp.MixedPrecision}}}
        _Emulated("cerebras", {"pytorch": _pytorch(), "modelzoo": zoo})
        _Emulated("cerebras_pytorch", _pytorch())  # its older name
    elif not isinstance(found, _Emulated):
        raise RuntimeError(f"dlsim.cerebras: expected install before import {found.__name__}")


def main() -> int:
    """Runs the script that the command names with its arguments; what it raises, it raises."""
    script = "" if len(sys.argv) < 2 else sys.argv[1]
    if not Path(script).is_file():
        print(f"dlsim.cerebras: {script}: no such file, expected a script", file=sys.stderr)
        return 2
    install()
    del sys.argv[0]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(import_module("dlsim.cerebras").main())  # so that there is one of each class
