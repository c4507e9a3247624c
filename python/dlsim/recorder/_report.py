# SPDX-License-Identifier: Apache-2.0
"""What a recorder has done, and what went wrong without stopping the training."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .._text import bytes_text, counted

_LOG = logging.getLogger("dlsim.recorder")
_MESSAGES_KEPT = 20

# Why a tensor is left out that nobody misses: attention has a dropout that fused kernels replace.
NEVER_CALLED = "its module was never called in a recorded step"


def say(text: str) -> None:
    """Tells users something, unless they want warnings alone: logging.getLogger("dlsim.recorder").

    No warning, so that programs without a configuration of logging would not show it.
    """
    if _LOG.level <= logging.INFO:
        print(text, file=sys.stderr)


@dataclass(frozen=True)
class RecordedTensor:
    """A tensor as it is recorded: its name, shape, element type and bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass
class Report:
    """Counts of a recording so far.

    `every` is the distance of the steps that are recorded now, if the recorder has chosen it.
    `seconds` is the time spent in the recorder's own calls, without its hooks. `errors` counts
    failures, `messages` are the first of them, and `refused` the steps that were not recorded for
    them. `left_out` says of each tensor that was missing in a recorded step why. `tensors` are
    those of the last recorded step, `step_bytes` their bytes, and `bytes` what all steps take on
    the disk.
    """

    path: str
    steps: int = 0
    bytes: int = 0
    seconds: float = 0.0
    errors: int = 0
    messages: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    tensors: tuple[RecordedTensor, ...] = ()
    every: int | None = None
    refused: int = 0
    _latest: str = field(default="", repr=False, compare=False)  # error
    # How many steps were refused since the last one that was recorded, and why the first was; and
    # what that one told of those before it.
    _since: tuple[int, str] = field(default=(0, ""), repr=False, compare=False)
    _told: tuple[int, str] = field(default=(0, ""), repr=False, compare=False)

    @property
    def step_bytes(self) -> int:
        """The bytes of the tensors of the last recorded step, in memory."""
        return sum(tensor.bytes for tensor in self.tensors)

    def count(self, error: BaseException, doing: str) -> None:
        """Counts an error; the first one is logged. Never raises."""
        self.errors += 1
        text = f"{doing}: {' '.join(str(error).split()) or type(error).__name__}"
        self._latest = text
        if len(self.messages) >= _MESSAGES_KEPT:
            return
        self.messages.append(text)
        if self.errors == 1:
            _LOG.warning("dlsim recorder: %s (training goes on; later errors are counted)", text)

    @contextmanager
    def counting(self, doing: str, *, raises: bool) -> Iterator[None]:
        """Counts an error of the block, which ends there, or lets it pass if `raises`."""
        try:
            yield
        except Exception as error:
            if raises:
                raise
            self.count(error, doing)

    def refuse(self) -> None:
        """Notes that a step was not recorded, for the error that was counted last."""
        self.refused += 1
        self._since = self._since[0] + 1, self._since[1] or self._latest

    def refusals(self) -> dict[str, str]:
        """Returns what the next step is to say of those before it that were not recorded."""
        count, first = self._since
        return {"refused": str(count), "refused_first": first} if count else {}

    def recorded(self) -> None:
        """Notes that it said so, and was recorded."""
        self._told, self._since = self._since, (0, "")

    def revoke(self) -> None:
        """Notes that this step was removed for the last error: what it told is to be told again."""
        count, first = self._told
        self._since = count + self._since[0], first or self._since[1]
        self._told = 0, ""
        self.refuse()

    def choose(self, every: int, step: int) -> None:
        """Notes the distance of the steps that are recorded from `step` on; logs the first."""
        if self.every is None:
            _LOG.warning(
                "dlsim recorder: %s: of step %d and later, only multiples of %d are recorded for "
                "now, so that recording takes little time (every=1 records all, every=0.1 as many "
                "as take a tenth of the time)",
                *(self.path, step, every),
            )
        self.every = every

    def say_size(self, *, forward: bool) -> None:
        """Says what a trace takes, for those who might rather have a profile."""
        without = "" if forward else ", without the forward pass (forward_every=50 takes some)"
        say(
            f"{self.path}: a trace, {bytes_text(self.step_bytes)} for each step{without}. "
            f"For a profile, which has forward passes and is small, name it {self.path}.profile"
        )

    def say_at_close(
        self, next_command: str | None, *, called: bool, completes: bool = False
    ) -> None:
        """Says how many steps were recorded and what can be done with them.

        `called` says whether any step was asked for: without any, something is wrong, unless the
        recorder `completes` what was there.
        """
        if self.steps > 0:
            refused = f", {self.refused} refused" if self.refused else ""
            then = "" if next_command is None else f" Next: {next_command}"
            say(f"{self.path}: {counted(self.steps, 'steps')} recorded{refused}.{then}")
        elif self.errors == 0 and not completes:
            _LOG.warning(
                "dlsim recorder: %s: nothing was recorded: %s",
                self.path,
                "no step was among those to be recorded"
                if called
                else "Recorder.step was never called, expected it after each backward pass",
            )

    def log_at_close(self) -> None:
        """Logs the errors and the tensors that were left out, a line each, if there are any.

        Those of modules that never ran are no warning.
        """
        if self.errors > 0:
            _LOG.warning("dlsim recorder: %s: %d errors, %d steps", *self._sums())
        for level, left_out in (
            (logging.WARNING, [one for one in self.left_out.items() if one[1] != NEVER_CALLED]),
            (logging.DEBUG, [one for one in self.left_out.items() if one[1] == NEVER_CALLED]),
        ):
            if left_out:
                more = f", and {len(left_out) - 1} more" if len(left_out) > 1 else ""
                first = (self.path, *left_out[0], more)
                _LOG.log(level, "dlsim recorder: %s: left out: %s (%s)%s", *first)

    def _sums(self) -> tuple[str, int, int]:
        return self.path, self.errors, self.steps

    def __str__(self) -> str:
        text = (
            f"{self.path}: {counted(self.steps, 'steps')}, "
            f"{counted(len(self.tensors), 'tensors')} of "
            f"{bytes_text(self.step_bytes)} per step, {bytes_text(self.bytes)} written, "
            f"{self.seconds:.3f} s in the recorder, {counted(self.errors, 'errors')}"
        )
        if self.every is not None:
            text += f", recording {'all' if self.every == 1 else f'multiples of {self.every}'} now"
        return f"{text}, first: {self.messages[0]}" if self.messages else text
