# SPDX-License-Identifier: Apache-2.0
"""What a recorder tells of the steps while the training runs: where to, and when to raise alarm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._core import Alert, Format
from .._errors import Error, UsageError
from ._selection import whole_number

Figures = dict[str, float | None]
Target = Callable[[int, Figures], object]


class AlertStop(Error):
    """An alert with the action "stop"; it leaves `Recorder.step`, and what was recorded stays."""


AlertStop.__module__ = "dlsim.recorder"


@dataclass(frozen=True)
class Watch:
    """Figures of a training while it runs: `Recorder(..., watch=Watch(...))`.

    `to` says where they go, one target or several: a TensorBoard SummaryWriter, a run of W&B, or a
    callable that takes the step and the figures. They are computed for the first recorded step and
    then once every `every` steps, by a replay of that step in `format` at its loss scale; their
    names and meanings are those in its JSON: `mean_harm`, `worst_harm`, `underflow_fraction`, ...
    In addition there are `window_low` and `window_high`, the lowest and the highest safe loss scale
    of the step; `tensors_at_risk` and `dead_tensors`, the numbers of tensors with a harm above a
    tenth and of tensors that are all zeros; `skipped_steps` and `longest_skip_run` of the
    recorder's `scaler`; and `schedule_ahead`, how many steps the recorder's `scheduler` is ahead of
    it. A figure that is not known is None.

    `alerts` maps expressions FIGURE OP NUMBER, such as "scale<=1", to what is done when one becomes
    true: "warn" logs it, "stop" raises AlertStop from `Recorder.step`, a callable is called with
    step and figures. OP is <, <=, >, >=, == or !=; NUMBER also 2^-14, and `none` after == and !=.
    """

    to: Any = ()
    every: int = 100
    format: str | Format = "fp16"
    alerts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the arguments; raises UsageError and TypeError."""
        whole_number("watch.every", self.every, 1)
        for target in self.targets():
            target_of(target)
        self.parsed_alerts()

    def targets(self) -> list[Any]:
        """Returns `to` as a list."""
        return list(self.to) if isinstance(self.to, (list, tuple)) else [self.to]

    def parsed_alerts(self) -> list[tuple[Alert, Any]]:
        """Returns the alerts, parsed, with their actions."""
        for text, action in self.alerts.items():
            if action not in ("warn", "stop") and not callable(action):
                raise UsageError(
                    f"watch.alerts: {text}: expected 'warn', 'stop' or a callable, got {action!r}"
                )
        return [(Alert(text, "watch.alerts"), do) for text, do in self.alerts.items()]


def watch_of(watch: Any) -> Watch | None:
    """Returns what `Recorder` was given as a Watch, with defaults around targets alone."""
    return watch if watch is None or isinstance(watch, Watch) else Watch(to=watch)


def target_of(target: Any) -> Target:
    """Returns the function that shows figures; raises TypeError for what takes none."""
    if callable(getattr(target, "add_scalar", None)):  # torch.utils.tensorboard, tensorboardX

        def to_tensorboard(step: int, figures: Figures) -> None:
            for name, value in figures.items():
                if value is not None:
                    target.add_scalar(f"dlsim/{name}", value, step)

        return to_tensorboard
    if callable(getattr(target, "define_metric", None)) and callable(getattr(target, "log", None)):
        defined: list[bool] = []

        def to_wandb(step: int, figures: Figures) -> None:
            if not defined:  # the run counts its own steps, which are others
                target.define_metric("dlsim/*", step_metric="dlsim/step")
                defined.append(True)
            known = {f"dlsim/{name}": value for name, value in figures.items() if value is not None}
            target.log({**known, "dlsim/step": step})

        return to_wandb
    if callable(target):
        return target  # type: ignore[no-any-return]
    raise TypeError(
        f"watch: expected a SummaryWriter, a run of W&B or a callable, got {type(target).__name__}"
    )
