# SPDX-License-Identifier: Apache-2.0
"""A thread that runs one job after the other, and that an interrupt of its caller cannot stop."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


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

    def done(self) -> bool:
        """Returns whether the call has ended."""
        return self._done

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
