# SPDX-License-Identifier: Apache-2.0
"""Counts and writes steps in a thread, while the training goes on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from ._output import Output
from ._report import Report
from ._sinks import Part, Sink


class Background:
    """The output at work in a thread of its own, which Python's end waits for.

    What it is given must stay as it is until `wait` returns. Steps and errors are counted in
    `report` by `settle`, which raises them instead if `raises`.
    """

    def __init__(self, output: Output, report: Report, *, raises: bool) -> None:
        self._output, self._report, self._raises = output, report, raises
        self._sink: Sink | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dlsim-recorder")
        self._parts: list[Future[None]] = []  # of the step that is not finished
        self._steps: list[tuple[int, Future[None]]] = []

    def open(self) -> Sink:
        """Opens the output, unless it is open."""
        if self._sink is None:
            self._sink = self._output.open()
        return self._sink

    def add(self, step: int, part: Part) -> None:
        """Takes a part of a step."""
        self._parts.append(self._thread.submit(self.open().add, step, part))

    def finish(self, step: int) -> None:
        """Completes the step."""
        self.settle()  # those before, which are done
        parts, self._parts = self._parts, []
        self._steps.append((step, self._thread.submit(self._finish, step, parts)))
        if self._raises:
            self.settle()

    def _finish(self, step: int, parts: list[Future[None]]) -> None:
        sink = self.open()
        try:
            for part in parts:  # all are done: there is one thread
                part.result()
        except Exception:
            sink.drop()
            raise
        sink.finish(step)

    def drop(self) -> None:
        """Forgets the parts of a step that is not finished."""
        self._parts.clear()
        if self._sink is not None:
            self._thread.submit(self._sink.drop)

    def wait(self) -> None:
        """Waits until nothing that was given before is needed."""
        self._thread.submit(_nothing).result()

    def settle(self) -> None:
        """Waits for the steps that were finished, and counts them and their errors."""
        while self._steps:
            step, outcome = self._steps.pop(0)
            with self._report.counting(f"step {step}", raises=self._raises):
                outcome.result()
                self._report.steps += 1

    def measure(self) -> None:
        """Tells the report how many bytes are on the disk."""
        if self._sink is not None:
            self.wait()
            self._report.bytes = self._sink.bytes_on_disk()

    def close(self) -> None:
        """Completes the output."""
        self._thread.shutdown()
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()
            self._report.bytes = sink.bytes_on_disk()

    def leave(self) -> None:
        """Forgets everything, in a forked process, which has no such thread."""
        self._parts.clear()
        self._steps.clear()
        self._sink = None


def _nothing() -> None:
    """Is done when all before it is."""
