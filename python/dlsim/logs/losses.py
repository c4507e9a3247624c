# SPDX-License-Identifier: Apache-2.0
"""The losses that a log prints, and what the loss of a skipped step was.

What the loss of a stack is a mean of, its own source says, which is named here.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .wordings import BETWEEN, NUMBER, count_after, number_after, read_number, step_in

# What a loss is the mean of.
STEP = "step"  # of one step
ALL = "all"  # of the steps since the line before
APPLIED = "applied"  # of those that were applied
FINITE = "finite"  # of those that are finite
UNKNOWN = "unknown"  # of some steps, or of a step before

_SILENT = {
    APPLIED: "the log prints a mean of the loss that leaves out skipped steps",
    FINITE: "the log prints a mean of the loss in which values that are not finite are left out "
    "or replaced",
    UNKNOWN: "the log prints a mean of the loss over some steps, or the loss of a step before",
}


@dataclass(slots=True)
class Loss:
    """A loss that a line prints; NaN also where a line only counts losses that are not finite."""

    value: float
    line: int = 0
    over: str = STEP
    step: int | None = None
    epoch_mean: float | None = None  # since the epoch began
    skipped: int | None = None  # Megatron-LM: steps since the line before
    bad_count: int | None = None  # of these steps, those whose loss is not finite
    norm_is_bad: bool = False  # the norm of the gradient is not finite

    @property
    def is_bad(self) -> bool:
        """Whether a loss is not finite; Hugging Face's Trainer prints 0 where it left out all."""
        none_left = self.over == FINITE and self.value == 0 and self.norm_is_bad
        return none_left or not math.isfinite(self.value) or bool(self.bad_count)


# The clearest first.
_NAMES = (
    *("lm loss", "lm_loss", "train_loss_step", "loss_step", "total_loss", "total loss"),
    *("training_loss", "training loss", "train_loss", "train loss", "Train loss", "Train Loss"),
    *("loss", "Loss"),
)
_RANK = {name: rank for rank, name in enumerate(_NAMES)}
_ENDS = sorted((name for name in _NAMES if name.endswith("oss")), key=len, reverse=True)
_NAME = re.compile(rf"(?:.*?(?<!\w)|)({'|'.join(_ENDS)})\Z", re.DOTALL).match
_VALUE = re.compile(rf"(_step)?(?!\w){BETWEEN}(?:is{BETWEEN})?(?:tensor{BETWEEN})?({NUMBER})").match
# A loss of validation, or of a test.
_OTHER_RUN = re.compile(
    r"(?<!\w)(?:valid|Valid|VALID|eval|Eval|val_|val |Val |test_|train_runtime)"
)
_OTHER_WORDS = ("alid", "VALID", "val", "Val", "test_", "train_runtime")  # of these
# Words right before "loss" that leave it the loss of the training: others name a part of it, or a
# mean ("kl loss", "average loss").
_PLAIN = frozenset(("train", "Train", "training", "Training", "total", "step", "batch", "INFO"))
_OUTPUT = re.compile(rf"outputs are \(Tensor\(.{{0,80}}?value= ?({NUMBER})")
_ROW = re.compile(rf"\|? *loss +\| +({NUMBER})")
_IN_EPOCH = re.compile(r"\]\[ *(\d{1,15})/")
_MEAN = re.compile(rf"[ :\t]*\S{{1,40}} \(({NUMBER})\)")
_HF = ("'loss':", "'epoch':")


def _value(text: str) -> float:
    number = read_number(text)
    return number.value if number else math.nan


def _is_plain(before: str) -> bool:
    """Whether with the word before it, blanks between, a loss is still that of the training."""
    word = re.search(r"(\w*[^\W\d_]) +\Z", before)
    return word is None or word[1] in _PLAIN


def _found(line: str) -> tuple[str, float, int] | None:
    """Returns the clearest name of a loss, its value, and where the name ends."""
    best: tuple[str, float, int] | None = None
    at = line.find("oss")
    while at >= 0:
        # All names end so; before most of them stands another word.
        found = _VALUE(line, at + 3)
        name = _NAME(line[max(0, at - 13) : at + 3]) if found else None
        if found and name:
            full = name.group(1) + (found.group(1) or "")
            start = at + 3 - len(name.group(1))
            plain = _is_plain(line[max(0, start - 40) : start])
            if full in _RANK and plain and (best is None or _RANK[full] < _RANK[best[0]]):
                best = full, _value(found.group(2)), at + 3 + len(found.group(1) or "")
        at = line.find("oss", at + 3)
    return best


def _over(line: str, name: str) -> str:  # noqa: PLR0911 - a list of cases
    # fairseq and metaseq, trainer.py: a step that overflows is not logged. Megatron-LM,
    # training_log: skipped iterations are left out, and of these it counts losses that are not
    # finite; under DeepSpeed no iteration is reported as skipped, and the mean has them all.
    if "num_updates" in line or "elapsed time per iteration (ms)" in line:
        return APPLIED
    # ESPnet, espnet2/train/reporter.py: the weighted mean of those that are finite. Hugging Face's
    # Trainer: logging_nan_inf_filter, which is on by default.
    if "epoch:train:" in line or all(word in line for word in _HF):
        return FINITE
    # Lightning, the step's own value and its mean; Lightning 1's "loss" is a mean over 20.
    if name.endswith("_step"):
        return STEP
    is_bar = ("it/s" in line or "s/it" in line) and "|" in line and "[" in line
    if is_bar or "v_num=" in line or "interval_runtime" in line:
        return UNKNOWN
    if "lg_loss_scale" in line:  # guided-diffusion, logkv_mean
        return ALL
    # mmcv and mmengine, TextLoggerHook: a mean over the interval.
    if "eta:" in line and "lr:" in line and ("Epoch [" in line or "Iter [" in line):
        return ALL
    return STEP


def loss_in(line: str, number: int | None = None) -> Loss | None:
    """Returns the loss of the training that a line prints; `number` is its step, if it is known."""
    row = _ROW.match(line) if "|" in line else None
    if row:  # logger.py of guided-diffusion
        return Loss(_value(row.group(1)), over=ALL)
    output = _OUTPUT.search(line) if "outputs are (" in line else None
    if output:
        return Loss(_value(output.group(1)), step=step_in(line))
    has_counts = "number of nan iterations" in line
    found = _found(line)
    if found is None and not has_counts:
        return None
    skipped = count_after(line, "number of skipped iterations")
    if found is None and not skipped:  # Megatron-LM prints no loss where all were skipped
        return None
    if any(word in line for word in _OTHER_WORDS) and _OTHER_RUN.search(line):
        return None
    loss = Loss(0.0, skipped=skipped)
    loss.bad_count = count_after(line, "number of nan iterations") if has_counts else None
    place = _IN_EPOCH.search(line) if "][" in line else None
    loss.step = int(place.group(1)) if place else step_in(line) if number is None else number
    if found is not None:
        name, loss.value, end = found
        loss.over = _over(line, name)
        _add_epoch_mean(line, end, loss)
    else:
        loss.over = APPLIED
    if "norm" in line and any(word in line for word in ("nan", "inf", "NaN", "Inf")):
        norms = (number_after(line, name) for name in ("grad_norm", "grad norm", "gnorm"))
        loss.norm_is_bad = any(n is not None and not math.isfinite(n.value) for n in norms)
    return loss


def _add_epoch_mean(line: str, end: int, loss: Loss) -> None:
    """Swin Transformer: the step's value and the epoch's mean; MetricLogger: a median, and that."""
    if "loss_scale" not in line or not ("Train: [" in line or "Epoch: [" in line):
        return
    if "Epoch: [" in line:
        loss.over = UNKNOWN
    mean = _MEAN.match(line, end)
    loss.epoch_mean = _value(mean.group(1)) if mean else None


@dataclass
class Losses:
    """All losses of a log, in the order of their lines."""

    printed: list[Loss] = field(default_factory=list)
    several_ranks: bool = False
    scale_may_be_next: bool = False  # whether the scale is that of the step or the next is open

    def between(self, first: int, last: int) -> Sequence[Loss]:
        """Returns the losses of the lines after `first`, up to `last`."""
        return [loss for loss in self.printed if first < loss.line <= last]


@dataclass(frozen=True)
class SkipLoss:
    """What is known of the loss of a skipped step: finite, not finite, or why it is not known."""

    finite: Loss | None = None
    bad: Loss | None = None
    why: str = ""


def _unknown(why: str) -> SkipLoss:
    return SkipLoss(why=why)


_NOT_EACH = "the log does not print the loss of each step"


def _which(loss: Loss, skips: int) -> SkipLoss:
    return _unknown(
        f"the loss at line {loss.line} is not finite, but the log does not say to which of "
        f"{skips} skipped steps it belongs"
    )


def _finite(losses: Losses, loss: Loss) -> SkipLoss:
    if losses.several_ranks and not loss.skipped:
        return _unknown("several ranks print, and the loss of one says nothing about the others")
    return SkipLoss(finite=loss)


def _follows(loss: Loss, before: Loss) -> bool:
    return loss.step is not None and before.step is not None and loss.step == before.step + 1


def _of_counts(losses: Losses, loss: Loss, skips: int) -> SkipLoss:
    """Megatron-LM counts the skipped iterations whose loss is not finite."""
    if not loss.skipped:  # under DeepSpeed, where the mean leaves out none
        if math.isfinite(loss.value):
            return _finite(losses, loss)
        return SkipLoss(bad=loss) if skips == 1 else _which(loss, skips)
    if loss.bad_count is None:
        return _unknown(_SILENT[APPLIED])
    if loss.bad_count == 0:
        return _finite(losses, loss)
    return SkipLoss(bad=loss) if loss.bad_count >= loss.skipped else _which(loss, skips)


def around_message(  # noqa: PLR0911 - a list of cases
    losses: Losses, line: int, message_lines: Sequence[int]
) -> SkipLoss:
    """The loss of a step whose message about its overflow is on a line.

    A loop may print the loss of a step before its message or after it: both neighbors count. On one
    line the loss comes before the message, as in progress bars. `message_lines` are those of all
    messages about overflows.
    """
    printed = losses.printed
    if not printed:
        return _unknown("the log prints no loss that dlsim recognizes")
    at = bisect.bisect_right(printed, line, key=lambda loss: loss.line)
    before = printed[at - 1] if at > 0 else None
    after = printed[at] if at < len(printed) else None
    if before is not None and not math.isfinite(before.value):
        return SkipLoss(bad=before)
    if after is None:
        return _unknown("the log prints no loss after the first skipped step")
    first = max(before.line if before else 0, 1)
    skips = sum(1 for message in message_lines if first <= message < after.line)
    if after.skipped is not None:
        return _of_counts(losses, after, skips)
    if not math.isfinite(after.value):
        return SkipLoss(bad=after) if skips == 1 else _which(after, skips)
    if after.over in _SILENT:
        return _unknown(_SILENT[after.over])
    is_first = before is None and after.step is not None and after.step <= 1
    if after.over == ALL or (
        skips == 1 and (is_first or (before is not None and _follows(after, before)))
    ):
        return _finite(losses, after)
    return _unknown(_NOT_EACH)


def in_stretch(  # noqa: PLR0911 - a list of cases
    losses: Losses, line: int, previous: int, skips: int, steps: int | None, *, last_skipped: bool
) -> SkipLoss:
    """The loss of steps that no message reports, in a stretch from line `previous` to `line`."""
    printed = losses.printed
    if not printed:
        return _unknown("the log prints no loss that dlsim recognizes")
    if line == 0:  # of a JSON
        return _unknown(_SILENT[FINITE])
    at = bisect.bisect_left(printed, line, key=lambda loss: loss.line)
    own = printed[at] if at < len(printed) and printed[at].line == line else None
    if own is not None:
        before = printed[at - 1] if at > 0 else None
        return _of_record(losses, own, before, skips, steps, last_skipped=last_skipped)
    inside = losses.between(previous, line)
    if not inside:
        return _unknown("the log prints no loss near the first skipped step")
    last = inside[-1]
    if last.over == ALL:
        return _of_record(losses, last, None, skips, steps, last_skipped=last_skipped)
    bad = [loss for loss in inside if not math.isfinite(loss.value)]
    if bad:
        is_that = skips == 1 or len(bad) >= skips
        return SkipLoss(bad=bad[0]) if is_that else _which(bad[0], skips)
    if last.over in _SILENT:
        return _unknown(_SILENT[last.over])
    follow = all(_follows(b, a) for a, b in pairwise(inside))
    if follow and len(inside) == steps:
        return _finite(losses, last)
    return _unknown(_NOT_EACH)


def _of_record(  # noqa: PLR0911 - a list of cases
    losses: Losses,
    loss: Loss,
    before: Loss | None,
    skips: int,
    steps: int | None,
    *,
    last_skipped: bool,
) -> SkipLoss:
    """What the loss of a record says of the steps since the record before."""
    if loss.skipped is not None:
        return _of_counts(losses, loss, skips)
    mean, mean_before = loss.epoch_mean, before.epoch_mean if before else None
    if mean is not None and math.isfinite(mean):
        return _finite(losses, loss)
    if mean is not None and mean_before is not None and math.isfinite(mean_before):
        bad = Loss(mean, line=loss.line, over=loss.over, step=loss.step)
        return SkipLoss(bad=bad) if skips == 1 else _which(bad, skips)
    if not math.isfinite(loss.value):
        return SkipLoss(bad=loss) if skips == 1 else _which(loss, skips)
    # The line of the step, or of the scale after it; else the step may be the one before.
    is_sure = last_skipped or not losses.scale_may_be_next
    if not is_sure and before is not None and not math.isfinite(before.value):
        return SkipLoss(bad=before)
    if loss.over in _SILENT:
        return _unknown(_SILENT[loss.over])
    is_stated = is_sure or (before is not None and _follows(loss, before))
    if loss.over == ALL or (steps == 1 and is_stated):
        return _finite(losses, loss)
    return _unknown(_NOT_EACH)


def bad_from(losses: Losses) -> str:
    """Returns "the loss is nan from line 3 on"; empty if all losses are finite."""
    printed = losses.printed
    first_at = next((i for i, loss in enumerate(printed) if loss.is_bad), None)
    if first_at is None:
        return ""

    def place(loss: Loss) -> str:
        return (
            f"step {loss.step}" if loss.line == 0 and loss.step is not None else f"line {loss.line}"
        )

    first, rest = printed[first_at], printed[first_at + 1 :]
    text = "the loss is not finite" if math.isfinite(first.value) else f"the loss is {first.value}"
    again = next((loss for loss in rest if not loss.is_bad), None)
    if again is not None:
        text += f" at {place(first)}, and finite again at {place(again)}"
    elif rest:
        text += f" from {place(first)} on"
    else:
        text += f" at {place(first)}, the last one"
    printed_0 = first.over == FINITE and first.value == 0
    return text + (" (where all losses of a line are NaN, it shows 0)" if printed_0 else "")
