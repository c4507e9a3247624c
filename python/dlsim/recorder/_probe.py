# SPDX-License-Identifier: Apache-2.0
"""Follows the updates of a few elements of each parameter, and writes them to a probe."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .._errors import Error, UsageError
from ._followed import Buffer, Followed, why_not
from ._names import smallest_of
from ._optimizer_state import State, settings_of, states_of
from ._optimizers import Steps
from ._probe_file import EXTRA, FIRST, FOUND, SCALE, ProbeFile, Update
from ._report import Report
from ._worker import Job, Worker

ELEMENTS = 4096  # of a parameter, where a caller asks for no other number
VALUES_EVERY = 100  # updates
_FEW = 4  # elements by which a clip coefficient is found, at least
VALUES_FIRST = 10  # after a new optimizer began, which may not have the states of another


class Following:
    """The probe of a recorder: what optimizers do to `parameters`, by name, until `close`.

    Errors are counted in `report`, or raised if `raises`. After one of the file the next update
    records the values again.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        path: Path,
        report: Report,
        *,
        elements: int,
        existing: str,
        description: Mapping[str, str],
        first_step: int,
        raises: bool,
    ) -> None:
        self.path, self._report, self._raises = path, report, raises
        self._elements, self._parameters = elements, parameters
        self._file = ProbeFile(path, elements, existing, description)
        self._step, self._counts = first_step, True  # whether updates are counted here
        self._followed: list[Followed] = []
        self._place: dict[int, int] = {}  # of parameters among those that are followed
        self._buffers: list[tuple[Buffer, Job | None]] = []
        self._update: Update | None = None
        # Optimizers, and of each the update at which it stepped last, and which states it had.
        self._known: weakref.WeakKeyDictionary[Any, tuple[int, int, int]]
        self._known = weakref.WeakKeyDictionary()
        self._reference: tuple[Any, Any, float] | None = None  # parameter, gradient, its scale
        self._small = _smallest(parameters)
        self._updates, self._anew = 0, True
        self._begun = 0  # the update at which states were written last
        self._process, self._closed = os.getpid(), False
        self._steps, self._thread = Steps(weakref.ref(self)), Worker()
        self._collected = weakref.finalize(self, _abandon, self._steps, self._thread)
        self._collected.atexit = False
        self._steps.add()

    @property
    def updates(self) -> int:
        """How many updates the file holds, those before a resumption among them."""
        self._settle()
        return self._file.updates

    @property
    def bytes(self) -> int:
        """The size of the file."""
        self._settle()
        return self._file.bytes

    def at_step(self, step: int, scale: float | None) -> None:
        """Begins the step of that number, whose gradients carry `scale` now, if that is known."""
        with self._counting():
            self._finish()
            self._steps.add()
            self._step, self._counts, self._reference = step, False, None
            gradient = None if self._small is None else self._small.grad
            if scale is not None and gradient is not None and not gradient.is_sparse:
                first = gradient.detach().reshape(-1)[:FIRST].float()
                self._reference = self._small, first.clone(), scale

    def before(self, optimizer: Any, options: Any, *, again: bool) -> None:
        """Reads what an optimizer is about to use."""
        import torch

        if self._closed or os.getpid() != self._process:
            return
        with self._counting():
            if again or type(optimizer).__name__ == "LBFGS" or "grad_scaler" in options:
                self._leave_out(optimizer)
            else:
                with torch.no_grad():
                    self._read(optimizer)

    def after(self, optimizer: Any) -> None:
        """Completes an update once all optimizers that are known have stepped."""
        update = self._update
        if update is None:
            return
        update.stepping.discard(id(optimizer))
        if len(update.optimizers) >= len(self._known) and not update.stepping:
            with self._counting():
                self._finish()

    def close(self) -> None:
        """Completes the file. More calls do nothing."""
        if self._closed or os.getpid() != self._process:
            return
        with self._counting():
            self._finish()
        self._closed = True
        self._steps.remove()
        self._settle()
        flushed = self._thread.submit(self._file.close)
        self._thread.end()
        with self._counting():
            _check(flushed)
        self._collected.detach()
        if not self._followed:
            self._report.left_out.setdefault(self.path.name, "no optimizer has stepped")

    def leave(self) -> None:
        """Ends in a forked process, without touching the file."""
        self._closed = True
        self._collected.detach()

    def _settle(self) -> None:
        """Waits for what is being written, and counts errors of that."""
        for i, (buffer, job) in enumerate(self._buffers):
            self._buffers[i] = buffer, None
            with self._counting():
                _check(job)

    def _counting(self) -> AbstractContextManager[None]:
        return self._report.counting(f"probe, step {self._step}", raises=self._raises)

    def _leave_out(self, optimizer: Any) -> None:
        name = f"{type(optimizer).__name__} (probe)"
        why = "evaluates its closure several times in a step, or unscales gradients by itself"
        self._report.left_out.setdefault(name, why)
        if self._update is not None and id(optimizer) in self._update.optimizers:
            self._update, self._anew = None, True

    def _read(self, optimizer: Any) -> None:
        if not self._followed:
            self._follow()
        mine = [
            (place, group, parameter)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if (place := self._place.get(id(parameter))) is not None
        ]
        if not mine:
            return
        update = self._update_for(optimizer)
        groups = {id(group): group for _, group, _ in mine}
        numbers = {one: len(update.groups) + i for i, one in enumerate(groups)}
        update.groups.extend(settings_of(optimizer, group) for group in groups.values())
        update.optimizers.add(id(optimizer))
        update.stepping.add(id(optimizer))
        taken, group_of = {}, {}
        for place, group, parameter in mine:
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.is_sparse:
                name = f"{self._followed[place].name} (probe)"
                self._report.left_out.setdefault(name, "its gradient is sparse")
                continue
            taken[place], group_of[place] = gradient, numbers[id(group)]
        update.buffer.read(taken)
        update.group_of.update(group_of)
        if getattr(optimizer, "grad_scale", None) is not None:
            update.scaled = list(taken)
            update.buffer.put(SCALE, optimizer.grad_scale)
            update.buffer.put(FOUND, optimizer.found_inf)
        if self._reference is not None:
            small, before, scale = self._reference
            place = self._place.get(id(small), -1)
            if place in update.group_of:
                update.buffer.put(0, before)
                update.clipped = place, scale

    def _update_for(self, optimizer: Any) -> Update:
        """Returns the update that an optimizer takes part in, which may be a new one."""
        is_new = self._has_new_states(optimizer)
        update = self._update
        if update is not None and id(optimizer) in update.stepping:
            if len(update.optimizers) == 1:
                update.groups.clear()
            return update  # a class that calls the step of its base: what that reads counts
        if update is not None and (is_new or id(optimizer) in update.optimizers or update.scaled):
            self._finish()
        if self._update is None:
            self._update = update = Update(self._step, self._free_buffer())
            states = is_new or self._anew or self._file.failed
            if states:
                self._begun = self._updates
            first = self._updates == self._begun + VALUES_FIRST
            if states or first or self._updates % VALUES_EVERY == 0:
                update.values = self._values(states=states)
                self._anew = self._file.failed = False
            self._updates += 1
        assert self._update is not None
        return self._update

    def _has_new_states(self, optimizer: Any) -> bool:
        """Returns whether an optimizer steps for the first time since its states were replaced."""
        states = vars(optimizer).get("state", ())
        _, known, count = self._known.get(optimizer, (0, 0, 0))
        self._known[optimizer] = self._updates, id(states), len(states)
        return known != id(states) or count > len(states)

    def _follow(self) -> None:
        for name, parameter in self._parameters.items():
            why = why_not(parameter)
            if not parameter.requires_grad:
                continue
            if why is None:
                self._place[id(parameter)] = len(self._followed)
                self._followed.append(Followed(name, parameter, self._elements))
            else:
                self._report.left_out.setdefault(f"{name} (probe)", why)
        if not self._followed:
            raise Error("no parameter is trained that a probe can follow")
        self._buffers = [(Buffer(self._followed, EXTRA), None) for _ in range(2)]

    def _free_buffer(self) -> Buffer:
        buffer, job = self._buffers.pop(0)
        self._buffers.append((buffer, None))
        _check(job)
        return buffer

    def _values(self, *, states: bool) -> tuple[Buffer, list[State]]:
        buffer = Buffer(self._followed, 0)
        buffer.read({i: one.parameter.detach() for i, one in enumerate(self._followed)})
        buffer.send()
        newest = sorted(self._known, key=self._known.__getitem__, reverse=True)
        return buffer, states_of(newest, self._followed) if states else []

    def _finish(self) -> None:
        """Has the update written that was read."""
        update, self._update = self._update, None
        if update is None:
            return
        self._reference = None
        update.buffer.send()
        job = self._thread.submit(self._file.write, update, self._followed)
        self._buffers[-1] = update.buffer, job
        if self._counts:
            self._step += 1
        if self._raises:
            _check(job)


def _check(job: Job | None) -> None:
    if job is not None:
        job.result()


def _smallest(parameters: Mapping[str, Any]) -> Any:
    """Returns the smallest parameter that can be followed and has a few elements."""
    fit = {name: one for name, one in parameters.items() if not why_not(one)}
    name = smallest_of(fit, _FEW)
    return None if name is None else fit[name]


def _abandon(steps: Steps, thread: Worker) -> None:
    """Ends what a probe has begun that nobody refers to any more; what is written stays."""
    steps.remove()
    thread.leave()


def elements_of(probe: Any) -> int:
    """Returns how many elements of a parameter `probe` asks for; 0 for no probe."""
    if probe is None or probe is False:
        return 0
    if probe is True:
        return ELEMENTS
    if not isinstance(probe, int) or probe < 0:
        raise UsageError(f"probe: expected a number of elements, True or None, got {probe!r}")
    return probe
