# SPDX-License-Identifier: Apache-2.0
"""Counts and writes steps in a thread, while the training goes on."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from .._errors import UsageError
from ._output import Output, Part, Sink, Spill, Spilled, remove
from ._pace import Pace
from ._report import Report
from ._tensors import any_on_device

# -- A thread that runs one job after the other, and that an interrupt of its caller cannot stop


class Job:
    """A call that is made in another thread."""

    def __init__(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._function: Callable[..., object] | None = function
        self._arguments = arguments
        self._error: BaseException | None = None
        self._done = False
        self._signal: SimpleQueue[None] = SimpleQueue()

    def run(self) -> None:
        """Makes the call."""
        try:
            assert self._function is not None
            self._function(*self._arguments)
        except BaseException as error:
            self._error = error
        self._function, self._arguments = None, ()  # what they hold is free
        self._done = True
        self._signal.put(None)

    def exception(self) -> BaseException | None:
        """Waits until the call has ended, and returns what it raised."""
        if not self._done:
            self._signal.get()
            self._signal.put(None)  # for another thread that waits
        return self._error

    def result(self) -> None:
        """Waits until the call has ended, and raises what it raised."""
        if self.exception() is not None:
            raise self._error  # type: ignore[misc]


class Worker:
    """The thread, from now on until `end`.

    KeyboardInterrupt, or what another handler of a signal raises, may come at any moment, also
    while one of Python's own locks is being taken, which is then never given back: Future, Thread
    and Condition have such. SimpleQueue takes its lock in C, where no signal is handled. Python's
    end does not wait for the thread, but closes recorders, which do.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._ended = False
        _thread.start_new_thread(_work, (self._jobs,))

    def submit(self, function: Callable[..., object], *arguments: Any) -> Job:
        """Has a function called after all that was submitted before; at once after `end`."""
        job = Job(function, arguments)
        if self._ended:
            job.run()
        else:
            self._jobs.put(job)
        return job

    def wait(self) -> None:
        """Waits for all that was submitted."""
        self.submit(_nothing).exception()

    def end(self) -> None:
        """Waits for all that was submitted, and ends the thread."""
        self.wait()
        self._ended = True  # first: nobody may wait for a thread that has ended
        self._jobs.put(None)  # once more after an interrupt, which may have come before it

    def leave(self) -> None:
        """Ends the thread behind all that was submitted, and does not wait."""
        self._ended = True
        self._jobs.put(None)


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
        del job  # not held while it waits for the next


def _nothing() -> None:
    """Is done when all before it is."""


# -- Counts and writes steps in a thread, while the training goes on


class Background:
    """The output at work in a thread of its own.

    What it is given must stay as it is until `wait` returns. Steps and errors are counted in
    `report` by `settle`, which raises them instead if `raises`. `pace` receives how long that
    thread works on a step, and how long the caller waits for it.
    """

    def __init__(self, output: Output, report: Report, pace: Pace, *, raises: bool) -> None:
        self._output, self._report, self._raises = output, report, raises
        self._pace = pace
        self._sink: Sink | None = None
        self._thread = Worker()
        self._spill = Spill(output.spill)
        # Of the step that is not finished: what reads a part, and its tensors in files.
        self._parts: list[tuple[Job, Mapping[str, Spilled]]] = []
        self._has_parts = False  # the output may hold some
        self._steps: list[tuple[int, Job]] = []
        self._written: int | None = None  # the last step that is there

    def open(self) -> Sink:
        """Opens the output, unless it is open."""
        if self._sink is None:
            self._sink = self._output.open()
        return self._sink

    def describe(self, texts: Mapping[str, str]) -> None:
        """Adds to what the output says of itself."""
        if self._has_parts or self._steps or self._written is not None:
            raise UsageError("describe: expected before the first step that is recorded")
        description = {**self._output.description, **texts}
        if self._sink is not None:
            self._sink.describe(description)
        self._output.description = description

    def add(self, step: int, part: Part) -> None:
        """Takes a part of a step; returns when it is read if some of it is on a device."""
        self._has_parts = True
        done = self._thread.submit(self._read, self.open(), step, part)
        if any_on_device(part.tensors.values()):
            with self._waiting():
                done.exception()
        self._parts.append((done, part.spilled))

    def put_aside(self, tensors: Mapping[str, Any]) -> None:
        """Writes tensors of a step whose part comes later; returns when their memory is free."""
        if self._has_parts:  # an interrupted step has left them
            self.drop()
        self.open()  # which refuses a place that somebody else uses
        self._spill.add(tensors)

    def completed(self, part: Part) -> Part:
        """Returns a part with what was put aside for it."""
        return part._replace(tensors=self._spill.summed(part.tensors), spilled=self._spill.take())

    def finish(self, step: int) -> None:
        """Completes the step."""
        self.settle()  # those before, which are done
        parts, self._parts = self._parts, []
        self._steps.append((step, self._thread.submit(self._finish, step, parts)))
        self._has_parts = False  # last: if this is interrupted, the next step drops them
        if self._raises:
            self.settle()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._pace.waited(time.perf_counter() - began)

    def _read(self, sink: Sink, step: int, part: Part) -> None:
        began = time.perf_counter()
        sink.add(step, part)
        self._pace.worked(step, time.perf_counter() - began)

    def _finish(self, step: int, parts: list[tuple[Job, Mapping[str, Spilled]]]) -> None:
        began, sink = time.perf_counter(), self.open()
        try:
            for reading, _ in parts:  # all are done: there is one thread
                reading.result()
        except Exception:
            sink.drop()
            raise
        finally:
            for _, spilled in parts:
                remove(spilled)
        sink.finish(step)
        self._pace.worked(step, time.perf_counter() - began)

    def drop(self) -> None:
        """Forgets the parts of a step that is not finished."""
        self._parts.clear()
        if self._sink is not None:
            self._thread.submit(self._sink.drop)
        self._thread.wait()  # until no part is read
        self._spill.clear()
        self._has_parts = False

    def begin(self) -> None:
        """Begins a step: waits until nothing that was given before is needed.

        Forgets what an interrupted one has left.
        """
        self.wait()
        if self._has_parts:
            self.drop()

    def forget_spilled(self) -> None:
        """Forgets what was put aside for a step that is not recorded."""
        if self._spill.holds:
            self.drop()

    def wait(self) -> None:
        """Waits until nothing that was given before is needed."""
        with self._waiting():
            self._thread.wait()

    def settle(self) -> None:
        """Waits for the steps that were finished, and counts them and their errors."""
        while self._steps:
            step, outcome = self._steps[0]
            with self._waiting():
                outcome.exception()
            del self._steps[0]
            errors = self._report.errors
            with self._report.counting(f"step {step}", raises=self._raises):
                outcome.result()
                self._written = step
                self._report.steps += 1
            if self._report.errors > errors:
                self._report.refuse()

    def revoke(self, step: int) -> bool:
        """Removes a step, the last of those that were finished; returns whether it was there."""
        self.settle()
        if self._written != step or self._sink is None:
            return False
        self._sink.forget(step)
        self._written = None
        self._report.steps -= 1
        return True

    def measure(self) -> None:
        """Notes in the report how many bytes are on the disk."""
        if self._sink is not None:
            self.wait()
            self._report.bytes = self._sink.bytes_on_disk()

    def close(self) -> None:
        """Completes the output."""
        self._thread.end()
        self._spill.clear()
        if self._sink is not None:
            self._sink.close()
            self._report.bytes = self._sink.bytes_on_disk()
            self._sink = None  # last: what was interrupted can be called again

    def abandon(self) -> None:
        """Completes the output of a recorder that is gone; counts errors, for nobody."""
        self._raises = False
        for finish in (self.settle, self.close):
            with self._report.counting("close", raises=False):
                finish()

    def leave(self) -> None:
        """Forgets everything, in a forked process, which has no such thread."""
        self._parts.clear()
        self._steps.clear()
        self._sink = None
