# SPDX-License-Identifier: Apache-2.0
"""What one line of a log says of the loss scale: a row for each wording that a stack has."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

# Kinds of records.
SKIP = "skip"  # a step was skipped; `number` is its index from 0 if the line has it
GROWTH = "growth"  # the scale grew
STEPS = "steps"  # the state after `number` steps, or of the step of that number
UPDATES = "updates"  # the state after `number` applied steps
SEEN = "seen"  # the scale after some step since the record before
STOPPED = "stopped"  # the training ended, since the scale could fall no more

_MOST_STEPS = 2**53

# Decimal digits in groups of three, or plain; not what goes on as "64k", "2^16" or "2**16".
_DIGITS = (
    r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?"
)
NUMBER = rf"[+-]?(?:{_DIGITS}|[nN]a[nN]|NAN|[iI]nf(?:inity)?)(?![\w^]|\*\*|,\d)"
BETWEEN = r"[ \t:=\"'\[(]{0,40}"


class Printed(NamedTuple):
    """A number as a log prints it: `low` to `high` are the values that are printed so."""

    value: float
    low: float
    high: float

    def holds(self, number: float) -> bool:
        """Whether the number would be printed so."""
        return self.low <= number <= self.high


def exactly(value: float) -> Printed:
    """Returns a number that is printed with all its digits."""
    return Printed(value, value, value)


def is_power_of_two(value: float) -> bool:
    """Whether a number is 2^k, for an integer k."""
    return 0 < value < math.inf and math.frexp(value)[0] == 0.5


def nearest_power(value: float) -> float:
    """Returns the power of two next to a positive number, by its logarithm."""
    if not 0 < value < math.inf:
        return value
    return math.ldexp(1.0, max(-1074, min(1023, round(math.log2(value)))))


def _as_float32(number: Printed) -> Printed:
    """Takes a power of two for its float32 in few digits: NumPy prints 2^28 as 268435460.0."""
    value = number.value
    if not 2.0**24 < value <= 2.0**127 or is_power_of_two(value):
        return number
    power = nearest_power(value)
    spacing = 2.0 ** (round(math.log2(power)) - 23)
    if abs(value - power) > spacing / 2 or struct.unpack("f", struct.pack("f", value))[0] != power:
        return number
    return Printed(power, min(number.low, power), max(number.high, power))


@lru_cache(maxsize=1 << 15)
def read_number(text: str) -> Printed | None:
    """Returns a printed number, with the values that are printed so; None for other texts.

    Half a unit of the last digit to both sides, if it has a fraction or an exponent. Of those a
    power of two is taken for the number, as scales are.
    """
    if len(text) > 400:
        return None
    plain = text.strip().replace(",", "")
    try:
        value = float(plain)
    except ValueError:
        return None
    if not math.isfinite(value):
        return exactly(value)
    mantissa, _, exponent = plain.lower().partition("e")
    if "." not in mantissa and not exponent:
        return exactly(value)
    digits = len(mantissa.partition(".")[2])
    try:
        slack = 0.5 * 10.0 ** (int(exponent or "0") - digits)
    except (OverflowError, ValueError):
        slack = 0.0
    number = Printed(value, value - slack, value + slack)
    if slack > 0 and value > 0:
        power = nearest_power(value)
        if number.holds(power):
            number = number._replace(value=power)
    return _as_float32(number)


def whole_number(text: str) -> Printed | None:
    """Returns the number that a text is, such as "65,536"; None for "64k" and "2^16"."""
    found = _WHOLE(text.strip()[:401])
    return read_number(found.group()) if found else None


_WHOLE = re.compile(NUMBER + r"\Z").match


_value_at = re.compile(f"{BETWEEN}({NUMBER})").match


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def text_after(line: str, name: str) -> str | None:
    """Returns the text of the number that follows the first whole-word `name`."""
    at = line.find(name)
    while at >= 0:
        end = at + len(name)
        starts = at == 0 or not (_is_word(line[at - 1]) and _is_word(name[0]))
        ends = end == len(line) or not (_is_word(line[end]) and _is_word(name[-1]))
        found = _value_at(line, end) if starts and ends else None
        if found:
            return found.group(1)
        at = line.find(name, at + 1)
    return None


def number_after(line: str, name: str) -> Printed | None:
    """Returns the number that follows the first whole-word `name`; None if there is none."""
    text = text_after(line, name)
    return read_number(text) if text is not None else None


def count_of(number: Printed | None) -> int | None:
    """Returns a number as the count of something: 500, or 500.0 as Lightning prints it."""
    if number is None or not abs(number.value) < _MOST_STEPS:
        return None
    if number.value != int(number.value) or number.high - number.low > 0.1 + 1e-9:
        return None
    return int(number.value)


def count_after(line: str, name: str) -> int | None:
    """Returns the count that follows a name."""
    return count_of(number_after(line, name))


@dataclass(slots=True)
class Record:
    """What one line says."""

    kind: str
    stack: str
    line: int = 0
    number: int | None = None
    epoch: int | None = None  # if `number` starts over with each
    used: Printed | None = None  # the scale that the step used
    next: Printed | None = None  # the scale after it
    overflow: bool | None = None  # of the step of that number
    skipped: int | None = None  # steps since the record before
    total: int | None = None  # steps skipped since the start
    interval: int | None = None  # of growth
    rank: int | None = None
    scaler: int | None = None  # of several in one process
    policy: str = ""  # whose wording it is, where a stack has several scalers
    wording: str = ""  # two wordings may report one overflow
    norm_is_bad: bool = False  # the norm of a step that was applied is not finite
    from_optimizer: bool = False  # DeepSpeed's optimizer may repeat what its loss scaler says
    static: bool = False  # the scaler says itself that its scale never changes
    free: bool = False  # names and values in the wording of no stack
    bare: bool = False  # the name is "scale" alone, and nothing says of what
    mean: bool = False  # the scale is a mean over the steps since the record before
    median: bool = False  # the scale is a median over the last steps
    least: Printed | None = None  # W&B: of the steps that a row stands for
    most: Printed | None = None
    is_zero: bool = False  # fairseq: less than half of the last digit
    rate: float | None = None  # DeepSpeed's learning rate tells two engines apart
    month: int | None = None  # DeepSpeed: of the line, counted from year 0
    loss: float | None = None  # of a table's row or a JSON's entry

    @property
    def is_state(self) -> bool:
        """Whether the line counts steps."""
        return self.kind in (STEPS, UPDATES) and self.number is not None and self.number >= 0


# Finishes a record of a row from the line; None if the line is no such message after all.
_Finish = Callable[[Record, str], "Record | None"]


class Wording(NamedTuple):
    """A row: the words that a line must have, and the fields by the text before their number."""

    name: str
    stack: str
    kind: str
    words: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]
    needs: tuple[str, ...]
    finish: _Finish | None = None
    fixed: Mapping[str, Any] = {}


_STAMP = re.compile(r"\[(20\d\d)-(\d\d)-\d\d \d\d:\d\d:\d\d,\d{3}\] \[")


def _month(line: str) -> int | None:
    """The month of "[2023-04-18 01:46:52,554] [INFO] ...", as DeepSpeed's logger begins a line."""
    found = _STAMP.search(line)
    return int(found[1]) * 12 + int(found[2]) - 1 if found else None


def _cut(number: Printed | None) -> Printed | None:
    """Widens a number whose fraction was cut off, as Python's int() does."""
    if number is None or number.low != number.high or not math.isfinite(number.value):
        return number
    return (
        number._replace(high=math.nextafter(number.value + 1, 0)) if number.value < 1024 else number
    )


def _deepspeed(record: Record, line: str) -> Record | None:
    optimizer = "Overflow detected." in line or "fp16 dynamic loss scale overflow" in line
    record.used, record.next = _cut(record.used), _cut(record.next)
    if "OVERFLOW! Skipping step" in line and "[deeps" not in line:
        # apex/fp16_utils of 2018 and its copies, as in tacotron2, which print no next scale.
        record.stack, record.policy, record.rank = "apex", "apex-fp16-utils", None
        record.wording = "apex-fp16-utils"
        return record
    if "but hysteresis is" in line:
        record.next = record.used
    record.month = _month(line)
    record.from_optimizer = optimizer or ":step]" in line
    if optimizer:
        record.policy = "deepspeed-fp16-optimizer"
    return record if record.next else None


def _deepspeed_progress(record: Record, line: str) -> Record:
    rate = number_after(line, "lr")
    record.rate, record.month = rate.value if rate else None, _month(line)
    return record


def _megatron(record: Record, line: str) -> Record | None:
    if record.skipped is None and "elapsed time per iteration (ms)" not in line:
        return None
    norm = number_after(line, "grad norm")
    record.norm_is_bad = record.skipped == 0 and norm is not None and not math.isfinite(norm.value)
    return record


_FRACTION = re.compile(r"(?:step|Step)[:=]?\[ *(\d{1,15})/ *(\d{1,15})\]")


def _mindformers(record: Record, line: str) -> Record:
    epoch, step = count_after(line, "Epoch"), _FRACTION.search(line)
    if epoch and step:
        record.number = (epoch - 1) * int(step[2]) + int(step[1])
    record.overflow = "overflow cond: True" in line
    return record


_SWIN = re.compile(r"Train: \[(\d{1,9})/\d+\]\[(\d{1,15})/(\d{1,15})\]")


def _swin(record: Record, line: str) -> Record | None:
    place = _SWIN.search(line)
    if place is None:
        return None
    record.number = int(place[1]) * int(place[3]) + int(place[2]) + 1
    return record


_METRIC = re.compile(r"Epoch: \[(\d{1,9})\] {0,9}\[ *(\d{1,15})/(\d{1,15})\]")
_MEDIAN = re.compile(r"loss_scale: \S{1,60} \(")


def _metric_logger(record: Record, line: str) -> Record | None:
    place = _METRIC.search(line)
    if place is None or not _MEDIAN.search(line) or int(place[2]) >= int(place[3]):
        return None
    record.number = int(place[1]) * int(place[3]) + int(place[2]) + 1
    record.median = int(place[2]) > 0
    return record


_ESPNET = re.compile(r"(\d{1,9})epoch:train:\d{1,15}-(\d{1,15})batch:")


def _espnet(record: Record, line: str) -> Record | None:
    place = _ESPNET.search(line)
    if place is None:
        return None
    record.epoch, record.number, record.mean = int(place[1]), int(place[2]), True
    return record


_OUTPUTS = re.compile(
    r"Bool, value= ?(True|False)\).{0,80}?Tensor\(.{0,80}?value= ?(" + NUMBER + ")"
)


def _mindspore_outputs(record: Record, line: str) -> Record | None:
    found = _OUTPUTS.search(line)
    if found is None:
        return None
    record.overflow, record.used = found[1] == "True", read_number(found[2])
    return record


def _paddle(record: Record, line: str) -> Record | None:
    ratio = number_after(line, "*")
    if ratio is None or record.used is None or record.used.value < 0 or ratio.low < 0:
        return None
    used = record.used
    record.next = Printed(
        used.value * ratio.value, max(used.low, 0.0) * ratio.low, used.high * ratio.high
    )
    return record


def _fairseq_updates(record: Record, line: str) -> Record:
    if "scale_window" in line:
        record.stack = "metaseq"
    if record.next is not None and not record.next.value > 0:
        record.is_zero, record.next = True, None  # a smaller one: 2^-10 is printed as 0
    return record


_LARGEST_LOG2 = 1000


def scale_of_log2(low: float, high: float) -> Printed:
    """Returns a scale whose logarithm to base 2 is printed."""
    value = 2.0 ** ((low + high) / 2)
    return Printed(value, 2.0**low * (1 - 1e-9), 2.0**high * (1 + 1e-9))


def _guided(record: Record, line: str) -> Record | None:
    # fp16_util.py: the scale has fallen by 1, and grows by 0.001 at each step that is applied.
    log2 = record.next
    if log2 is None or not abs(log2.value) < _LARGEST_LOG2:
        return None
    middle = (log2.low + log2.high) / 2
    record.next = scale_of_log2(middle, middle)
    record.used = scale_of_log2(middle + 1, middle + 1)
    return record


def log2_record(number: int, log2: Printed) -> Record | None:
    """guided-diffusion, logger.py, logkv_mean: the mean of the scale's logarithm since the last."""
    if not abs(log2.value) < _LARGEST_LOG2:
        return None
    scale = scale_of_log2(log2.low, log2.high)
    return Record(STEPS, "guided-diffusion", number=number, next=scale, mean=True)


def _marian(record: Record, line: str) -> Record | None:
    if "is already at minimum" in line:
        record.kind = STOPPED
        record.used = number_after(line, "cost-scaling factor")
        return record if record.used else None
    record.next = number_after(line, "cost-scaling factor to minimum") or record.next
    if "Increasing" in line:
        record.kind = GROWTH
        record.interval = count_after(line, "No NaN/Inf after")
    return record if record.next else None


# A row is "NAME STACK KIND: WORDS that a line has", and its fields by the text before their number,
# with * for those that it must have, or after := by themselves. The first row that fits has a line.
_TABLE = """
# Megatron-LM, megatron/training/training.py: the scale after the iteration, and the iterations
# skipped since the last such line, which its first versions do not tell.
megatron megatron steps: loss scale|iteration
    number=iteration*; next=loss scale*; skipped=number of skipped iterations
# DeepSpeed, runtime/fp16/loss_scaler.py and runtime/zero/stage3.py; also apex.fp16_utils.
deepspeed deepspeed skip: Attempted loss scale|Skipping step
    used=Attempted loss scale*; next=reducing to; rank=Rank
# DeepSpeed, runtime/fp16/fused_optimizer.py and unfused_optimizer.py, `verbose`.
deepspeed-number deepspeed skip: Grad overflow on iteration
    number=iteration*; policy:=deepspeed-fp16-optimizer
deepspeed-scales deepspeed skip: Reducing dynamic loss scale from
    used=scale from*; next=to*; policy:=deepspeed-fp16-optimizer
deepspeed-static deepspeed skip: Using static loss scale of
    used=static loss scale of*; next=loss scale of; policy:=deepspeed-fp16-optimizer; static:=1
deepspeed-interval deepspeed growth: No Grad overflow for
    interval=No Grad overflow for*; policy:=deepspeed-fp16-optimizer
deepspeed-growth deepspeed growth: Increasing dynamic loss scale from
    used=scale from*; next=to*; policy:=deepspeed-fp16-optimizer
# DeepSpeed, runtime/engine.py: "step=10, skipped=3, lr=[1e-05], ..." after that many steps.
deepspeed-steps deepspeed steps: skipped=|step=|lr=
    number=step*; total=skipped*
# Apex, apex/amp/handle.py and _process_optimizer.
apex apex skip: Gradient overflow.|Skipping step|reducing loss scale to
    next=reducing loss scale to*; scaler=loss scaler
# InternEvo (InternLM), train.py and pipeline.py: the scale after the step, and the steps
# skipped since the start; its scaler is ColossalAI's.
internevo internevo steps: inf_nan_skip_batches|loss_scale|step
    number=step*; next=loss_scale*; total=inf_nan_skip_batches*
internevo-skip internevo skip: skip parameter update at step
    number=skip parameter update at step*
# MindFormers, core/callback/callback.py: the scale after the step.
mindformers mindspore steps: overflow cond: |loss_scale|step
    number=step*; next=loss_scale*
# fairseq and metaseq, trainer.py; before fairseq 0.10 without "gradient".
fairseq fairseq skip: overflow detected|setting loss scale to
    next=setting loss scale to*
# fairseq, logging/progress_bar.py: the scale after the update.
fairseq-updates fairseq updates: num_updates|loss_scale
    number=num_updates*; next=loss_scale*
# metaseq, optim/dynamic_loss_scaler.py, when it begins.
metaseq-start metaseq updates: *** SCALE_WINDOW:
    next=loss scale*; interval=SCALE_WINDOW; number:=0
# MXNet, contrib/amp/loss_scaler.py.
mxnet mxnet skip: AMP: decreasing loss scale to
    next=loss scale to*
mxnet-growth mxnet growth: AMP: increasing loss scale to
    next=loss scale to*
# Paddle, fluid/dygraph/amp/loss_scaler.py: "..., decrease to: 65536.0*0.5".
paddle paddle skip: Found inf or nan, current scale is:
    used=current scale is:*
# PaddleNLP, trainer/trainer.py.
paddlenlp paddle skip: optimizer not run|scale_before
    used=scale_before*; next=scale_after*
# ColossalAI, amp/naive_amp/grad_scaler/dynamic_grad_scaler.py, `verbose`: overflows before
# hysteresis is used up say nothing.
colossalai colossalai skip: Overflow occurs,|loss scale is adjusted to
    next=the loss scale is adjusted to*
colossalai-growth colossalai growth: No overflow for consecutive|loss scale is adjusted to
    next=the loss scale is adjusted to*; interval=consecutive
# DeepSpeed, loss_scaler.py; fairseq, optim/dynamic_loss_scaler.py; GPT-NeoX, megatron/utils.py:
# the exception that ends the training.
fairseq-end fairseq stopped: Minimum loss scale reached
deepspeed-end deepspeed stopped: Current loss scale already at minimum
neox-end deepspeed stopped: iterations in a row due to Overflow - Exiting
# Swin Transformer and those that took over its main.py: the scale after that step.
swin swin steps: Train: [|loss_scale
    next=loss_scale*
# fairseq2, optim/fp16_loss_scaler.py. Its newer versions repeat a skipped step, so that the
# number gives no step.
fairseq2-end fairseq2 stopped: Overflow detected|ignoring gradient, loss scale is already at
    used=already at minimum
fairseq2 fairseq2 skip: ignoring gradient, decreasing loss scale from
    used=loss scale from*; next=to*
fairseq2-growth fairseq2 growth: gradient overflow detected in the last|increasing loss scale from
    used=loss scale from*; next=to*; interval=in the last
# icefall, egs/librispeech/ASR/zipformer/train.py and icefall/err.py.
icefall-end key-value stopped: grad_scale is too small, exiting
    used=grad_scale is too small, exiting*
icefall key-value seen: Grad scale is small:
    used=Grad scale is small:*
# torch_npu, npu/amp/grad_scaler.py: after a line "Gradient overflow. Skipping step".
torch-npu torch-npu skip: Loss scaler reducing loss scale to
    next=Loss scaler reducing loss scale to*
# mmcv, runner/hooks/optimizer.py, before torch 1.6.
mmcv mmcv skip: Check overflow, downscale loss scale to
    next=downscale loss scale to*
# guided-diffusion, fp16_util.py: the logarithm to base 2.
guided-diffusion guided-diffusion skip: Found NaN, decreased lg_loss_scale to
    next=lg_loss_scale to*
# DLLogger in NVIDIA's BERT, at each overflow.
dllogger apex skip: PARAMETER loss_scale|DLL
    next=PARAMETER loss_scale*
# Marian, training/graph_group.cpp: "Reduced", or in older versions "reducing".
marian marian skip: cost-scaling factor
    next=cost-scaling factor to
# ESPnet, espnet2/train/reporter.py: the mean over those batches of the scale that they used.
espnet key-value steps: epoch:train:|loss_scale
    used=loss_scale*
# MetricLogger of BEiT, VideoMAE, EVA and others: the median of the scales after the last 20
# steps, counted from 0, and a mean.
metric-logger key-value steps: Epoch: [|loss_scale:
    next=loss_scale*
# MindSpore's model zoo prints what the training cell returns: the loss, whether a gradient
# overflowed, and the scale.
mindspore-outputs mindspore steps: outputs are (Tensor(|step
    number=step*
"""

_FINISH: dict[str, _Finish] = {
    "megatron": _megatron,
    "deepspeed": _deepspeed,
    "deepspeed-steps": _deepspeed_progress,
    "mindformers": _mindformers,
    "fairseq-updates": _fairseq_updates,
    "paddle": _paddle,
    "swin": _swin,
    "guided-diffusion": _guided,
    "marian": _marian,
    "espnet": _espnet,
    "metric-logger": _metric_logger,
    "mindspore-outputs": _mindspore_outputs,
}


def _rows() -> Iterator[Wording]:
    lines = [line for line in _TABLE.splitlines() if line and not line.startswith("#")]
    for line, below in pairwise([*lines, ""]):
        if line.startswith(" "):
            continue
        head, _, words = line.partition(": ")
        name, stack, kind = head.split()
        pairs = [field.strip() for field in below.split("; ")] if below.startswith(" ") else []
        given = (pair.split(":=") for pair in pairs if ":=" in pair)
        fixed = {field: int(v) if v.isdigit() else v for field, v in given}
        fields = [pair.split("=") for pair in pairs if ":=" not in pair]
        needs = tuple(field for field, before in fields if before.endswith("*"))
        found = tuple((field, before.removesuffix("*")) for field, before in fields)
        own = Wording(name, stack, kind, tuple(words.split("|")), found, needs)
        yield own._replace(finish=_FINISH.get(name), fixed=fixed)


WORDINGS = tuple(_rows())

_COUNTS = frozenset({"number", "skipped", "total", "interval", "rank", "scaler"})


def message_of(line: str) -> Record | None:
    """Returns what a line says in the wording of a stack; None for other lines."""
    for wording in WORDINGS:
        if wording.words[0] not in line or not all(word in line for word in wording.words):
            continue
        record = Record(wording.kind, wording.stack, wording=wording.name, **wording.fixed)
        for name, before in wording.fields:
            value = number_after(line, before)
            if value is not None:
                setattr(record, name, count_of(value) if name in _COUNTS else value)
        if any(getattr(record, name) is None for name in wording.needs):
            continue
        finished = wording.finish(record, line) if wording.finish else record
        if finished is not None:
            return finished
    return None


# Lines of settings name a scale and may name a step: "loss_scale": 0 asks for a dynamic one.
_SETTINGS = (
    *("loss_scale_window", "initial_scale_power", "initial_loss_scale", "min_loss_scale"),
    *("initial_dynamic_scale", "Namespace("),
)


def prints_settings(line: str) -> bool:
    """Whether a line is one of settings."""
    return any(word in line for word in _SETTINGS)


# Words before "_scale" that leave it a loss scale, unlike those of min_loss_scale or logit_scale.
_PREFIXES = "train|training|model|opt|optim|optimizer|amp|fp16|grad|loss|cur|current"
# Names of a scale, the clearest first; the last ones do not say of what.
_NAMED_SCALE = re.compile(
    rf"(?<!\w)(?:(?:{_PREFIXES})_)*(?:loss_scale|grad_scale|loss-scale|grad-scale|lossscale"
    rf"|amp_scale)(?!\w){BETWEEN}({NUMBER})"
)
_SPACED_SCALE = re.compile(
    rf"(?<!\w)(?:(\w{{1,40}}) )?(?:[Ll]oss|[Gg]rad) [Ss]cale{BETWEEN}({NUMBER})"
)
_BARE_SCALE = re.compile(rf"(?<!\w)(?:(?:{_PREFIXES})_)*scale(?!\w){BETWEEN}({NUMBER})")
_PLAIN_WORDS = frozenset({*_PREFIXES.split("|"), "new", "dynamic", "fp16", "Fp16", "FP16"})

_STEP_NAMES = (
    *("global_step", "global step", "Global Step", "GLOBAL_STEP", "step", "Step"),
    *("iteration", "Iteration", "iter", "Iter", "batch"),
)
# clu, metric_writers/logging_writer.py: "[100] steps_per_second=5.1, train_loss=6.9".
_STEP_IN_BRACKETS = re.compile(r"\[(\d{1,15})\] \S{1,60}[=:]")


def scale_in(line: str) -> tuple[Printed, bool] | None:
    """Returns a scale that a line names, and whether its name leaves open of what it is."""
    first = line.find("cale")
    line = line[max(first - 80, 0) :] if first >= 0 else ""  # before it is nothing to be found
    found = _NAMED_SCALE.search(line)
    if found:
        number = read_number(found.group(1))
        return (number, False) if number else None
    spaced = _SPACED_SCALE.search(line) if " " in line else None
    if spaced:
        number = read_number(spaced.group(2))
        word = spaced.group(1)  # "kl loss scale: 0.5" is that of a part of the loss
        bare = word is not None and word not in _PLAIN_WORDS and not word.isdigit()
        return (number, bare) if number else None
    found = _BARE_SCALE.search(line)
    number = read_number(found.group(1)) if found else None
    return (number, True) if number else None


def step_in(line: str) -> int | None:
    """Returns the number of the step that a line names; None if that is no count of steps."""
    for name in _STEP_NAMES:
        number = number_after(line, name)
        if number is not None:
            return count_of(number)
    found = _STEP_IN_BRACKETS.search(line)
    return int(found.group(1)) if found else None


def free_record(line: str) -> Record | None:
    """Returns what a line says that has a step and a scale as "name: value" or "name=value"."""
    if "cale" not in line:
        return None
    scale = scale_in(line)
    number = step_in(line) if scale else None
    if scale is None or number is None:
        return None
    epoch = count_after(line, "epoch")
    if epoch is None:
        epoch = count_after(line, "Epoch")
    return Record(
        *(STEPS, "key-value"),
        number=number,
        epoch=epoch,
        used=scale[0],
        wording="free",
        free=True,
        bare=scale[1],
    )


# The last part of names of a scale in JSON, in a table's header, or of TensorBoard's tags.
SCALE_NAMES = ("loss_scale", "loss-scale", "grad_scale", "grad-scale", "lossscale", "amp_scale")
_STEP_KEYS = ("step", "global_step", "_step", "iteration", "iter", "num_updates")
SKIP_KEYS = ("skipped", "overflow", "found_inf")


def is_scale_name(name: str) -> bool:
    """Whether the last part of a name is that of a loss scale: "actor/loss_scale"."""
    last = re.split(r"[/ ]", name.lower().strip())[-1]
    return any(
        last == known or re.fullmatch(rf"(?:(?:{_PREFIXES})_)+{re.escape(known)}", last)
        for known in SCALE_NAMES
    )


def is_bare_name(name: str) -> bool:
    """Whether a name says "scale" alone, which may be another one."""
    last = re.split(r"[/ ]", name.lower().strip())[-1]
    return bool(re.fullmatch(rf"(?:(?:{_PREFIXES})_)*scale", last))


def _number_of(value: object) -> Printed | None:
    """Returns a number of JSON, which may be a text, as fairseq writes it."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return _as_float32(exactly(float(value)))
        except OverflowError:
            return exactly(math.inf)
    return whole_number(value) if isinstance(value, str) else None


def _named(entry: Mapping[str, object], names: tuple[str, ...]) -> Printed | None:
    for name in names:
        for key in (name, f"train_{name}", f"train/{name}"):
            if key in entry:
                return _number_of(entry[key])
    return None


def json_record(entry: Mapping[str, object], stack: str = "key-value") -> Record | None:
    """Returns what an object of JSON says: a step, a scale, or a norm that is not finite.

    A finite norm says only that the step of this very entry was not skipped.
    """
    flat = dict(entry)
    for value in entry.values():
        if isinstance(value, dict) and len(value) <= 1000:
            flat.update({k: v for k, v in value.items() if isinstance(k, str) and k not in flat})
    named = [key for key in flat if is_scale_name(key)]
    bare = [key for key in flat if is_bare_name(key)] if not named else []
    used = _number_of(flat[(named or bare)[0]]) if named or bare else None
    updates = _named(flat, ("num_updates",))
    number = count_of(updates if updates is not None else _named(flat, _STEP_KEYS))
    if number is None:
        return None
    log2 = _number_of(flat.get("lg_loss_scale"))
    if log2 is not None and used is None:
        return log2_record(number, log2)
    if updates is not None:
        stack = "metaseq" if "scale_window" in flat or "train_scale_window" in flat else "fairseq"
        record = Record(UPDATES, stack, number=number, next=used, wording="fairseq-updates")
        return record if used else None
    record = Record(STEPS, stack, number=number, used=used, bare=bool(bare), wording="free")
    norm = _named(flat, ("grad_norm",))
    if norm is not None:
        record.overflow = not math.isfinite(norm.value)
    loss = _named(flat, ("loss",))
    record.loss = loss.value if loss is not None else None
    for name in SKIP_KEYS:
        value = flat.get(name)
        if isinstance(value, (bool, int, float)):
            record.overflow, record.bare = value != 0, False
    return record
