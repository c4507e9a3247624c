# SPDX-License-Identifier: Apache-2.0
"""The loader and the executor of cerebras.pytorch.utils.data as plain loops."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import torch

from .._errors import UsageError
from ._backend import current_torch_device


class DataLoader:
    """Makes the batches by `input_fn(*args, **kwargs)`, once."""

    def __init__(self, input_fn: Callable[..., Iterable[Any]], *args: Any, **kwargs: Any) -> None:
        if not callable(input_fn):
            raise TypeError(
                "Expected a callable that constructs and returns a "
                "`torch.utils.data.DataLoader` or an iterable that "
                "returns a structure containing torch tensors."
            )
        self._make = partial(input_fn, *args, **kwargs)

    @cached_property
    def dataloader(self) -> Any:
        """What `input_fn` has returned."""
        return self._make()

    def __len__(self) -> int:
        return len(self.dataloader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataloader)


class _RateTracker:
    """Steps per second: of the latest step, and since the loop began."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self._steps = 0
        self._latest = 0.0

    def tick(self) -> None:
        """Counts a step."""
        now = time.perf_counter()
        self._steps, self._latest, self._last = self._steps + 1, now - self._last, now

    @property
    def rate(self) -> float:
        """That of the latest step."""
        return 1 / self._latest if self._latest else 0.0

    @property
    def global_rate(self) -> float:
        """That since the loop began."""
        spent = self._last - self._began
        return self._steps / spent if spent else 0.0


class _Profiler:
    """The rates of a loop, as release 2.10 and, by the methods, earlier ones tell them."""

    def __init__(self) -> None:
        self.rate_tracker = _RateTracker()

    def rate(self) -> float:
        """Returns steps per second of the latest step."""
        return self.rate_tracker.rate

    def global_rate(self) -> float:
        """Returns steps per second since the loop began."""
        return self.rate_tracker.global_rate


class DataExecutor:
    """Yields batches for `num_steps` steps, from the beginning again when they are used up.

    `checkpoint_steps` is the interval of checkpoints, None or 0 for none; the last step is one,
    too. Without `num_steps` there are as many as batches. Other arguments have no effect.
    """

    def __init__(
        self,
        dataloader: DataLoader,
        num_steps: int | None = None,
        checkpoint_steps: int | None = None,
        activation_steps: int | None = None,
        **ignored: Any,
    ) -> None:
        if not isinstance(dataloader, DataLoader):
            raise TypeError(
                "DataExecutor: bad dataloader, expected cstorch.utils.data.DataLoader(input_fn), "
                f"got {type(dataloader).__name__}"
            )
        if checkpoint_steps is not None and not isinstance(checkpoint_steps, int):
            raise UsageError(
                "DataExecutor.checkpoint_steps: only intervals are emulated by dlsim, expected a "
                f"whole number or None, got {type(checkpoint_steps).__name__}"
            )
        self.dataloader = dataloader
        self.num_steps = len(dataloader) if num_steps is None else num_steps
        if self.num_steps < 1:
            raise RuntimeError(f"Expected num_steps >= 1, but got {num_steps}.")
        self.profiler = _Profiler()
        self.iteration = -1
        self._checkpoint_steps = checkpoint_steps or 0

    def __len__(self) -> int:
        return self.num_steps

    @property
    def user_iteration(self) -> int:
        """The number of the step, from 1."""
        return self.iteration + 1

    @property
    def on_final_iteration(self) -> bool:
        """Whether it is the last step."""
        return self.user_iteration >= self.num_steps

    @property
    def is_checkpoint_step(self) -> bool:
        """Whether a checkpoint may be saved at this step."""
        interval = self._checkpoint_steps
        return interval > 0 and (self.user_iteration % interval == 0 or self.on_final_iteration)

    def __iter__(self) -> Iterator[Any]:
        _running.append(self)
        try:
            self.profiler = _Profiler()
            for iteration, batch in zip(range(self.num_steps), self._batches(), strict=False):
                self.iteration = iteration
                yield _moved(batch, current_torch_device())
                self.profiler.rate_tracker.tick()
        finally:
            _running.remove(self)

    def _batches(self) -> Iterator[Any]:
        while True:
            empty = True
            for batch in self.dataloader:
                empty = False
                yield batch
            if empty:
                raise RuntimeError("DataExecutor: the dataloader gave no batch, expected some")


_running: list[DataExecutor] = []  # the innermost loop last


def running_executor() -> DataExecutor | None:
    """Returns the executor whose loop runs, or None."""
    return _running[-1] if _running else None


def current_executor() -> DataExecutor:
    """Returns the executor whose loop runs; raises RuntimeError without one."""
    if not _running:
        raise RuntimeError(
            "current_executor: no executor is running, expected a loop over a DataExecutor"
        )
    return _running[-1]


def _moved(batch: Any, device: torch.device) -> Any:
    """Returns a batch with its tensors on a device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: _moved(value, device) for key, value in batch.items()}
    if type(batch) in (tuple, list):
        return type(batch)(_moved(item, device) for item in batch)
    return batch
