# SPDX-License-Identifier: Apache-2.0
"""Records to the path of the scale: one voice, stretches of steps, and what of them is known.

Lines of ranks and of two wordings about one overflow become one. What lies between two lines stays
"between": a fall of the scale shows that steps were skipped, the same scale twice shows nothing.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from statistics import median_low

from .._errors import InputError
from .losses import Losses
from .reading import CUT, Log
from .wordings import (
    GROWTH,
    SEEN,
    SKIP,
    STEPS,
    STOPPED,
    UPDATES,
    Printed,
    Record,
    exactly,
    is_power_of_two,
    nearest_power,
)

_MOST_STEPS = 10_000_000
_HIGH_SCALE = (
    2.0**13
)  # no image or adapter is scaled by so much, and training with a loss scale has it
_MOST_VOICES = 64  # scalers that are told apart
_MOST_LEAD = 3  # how far the first rank may be ahead of the last one, in messages
# Where a message names the next scale only, the scale before was twice as high: the factor of Apex,
# fairseq, MXNet, ColossalAI, mmcv, Marian and torch_npu, unless somebody sets another.
_FALL = 0.5
_PRINTS_GROWTH = ("colossalai", "mxnet", "marian")
_HIDES_SKIPS = ("colossalai", "paddle")  # those that do not change the scale go without a word
_FREE = ("free", "table", "trainer-state")  # wordings whose scale may be any statistic


@dataclass(slots=True)
class Skip:
    """A skipped step: the scale that it used and the next one, as far as they are printed."""

    used: Printed | None = None
    next: Printed | None = None
    line: int = 0  # of the message about it; 0 if a record alone reports it


@dataclass(slots=True)
class Stretch:
    """The steps between two lines; where among them the skipped ones are is not known."""

    line: int
    steps: int | None = None  # None: unknown, at least the skipped ones
    skips: list[Skip] = field(default_factory=list)
    last: bool | None = None  # whether the last step was skipped, if that is known
    announced: bool = False  # MXNet announces scales that act a step later
    stated: bool = True  # the log says how many of the steps were skipped
    told: bool = False  # in so many words, not by a scale that stays: hysteresis hides skips
    hides: bool = False  # overflows that do not change the scale go without a word
    used: Printed | None = None  # by the last step
    next: Printed | None = None  # after the last step

    def end(self) -> Printed | None:
        """Returns the scale after the last step."""
        if self.next is not None:
            return self.next
        return self.skips[-1].next if self.skips else None


@dataclass
class Path:
    """What a log shows of one loss scaler."""

    stack: str = "key-value"
    policy: str = ""  # the stack's scaler that the wording names
    from_start: bool = True  # False: training began before the log
    first_step: int = 1  # the log's number of the first step
    unbounded: bool = False  # the scales bound no gradient
    means: bool = False  # the scales are means over steps
    static: bool = False  # the log says that the scale never changes
    stated_interval: int | None = None  # of growth, where a message names it
    stretches: list[Stretch] = field(default_factory=list)
    zero_line: int | None = None  # the first scale of 0: no gradient is left
    stopped_line: int | None = None  # the training ended, its scale at the minimum
    month: int | None = None  # the earliest of DeepSpeed's lines
    notes: list[str] = field(default_factory=list)
    losses: Losses = field(default_factory=Losses)
    name: str = ""  # which of several scalers or ranks
    shows_next: bool = False
    gaps: list[int] = field(default_factory=list)  # steps between lines that hide skips
    has_cuts: bool = False  # lines are left out in the middle
    comes_back: bool = False  # W&B's __MIN and __MAX show changes between two rows
    only_equal: bool = False  # the same message several times: of several ranks, perhaps

    @property
    def hides_steps(self) -> bool:
        """Whether there are steps of which the log does not say whether they were skipped."""
        return any(gap > 1 for gap in self.gaps)

    @property
    def tells_skips(self) -> bool:
        """Whether the log says of each step whether it was skipped."""
        return all(s.stated and (s.told or not s.steps) for s in self.stretches)

    @property
    def counted(self) -> bool:
        """Whether the number of steps in every stretch is known."""
        return all(stretch.steps is not None for stretch in self.stretches)


def _same_scales(a: Record, b: Record) -> bool:
    return a.used == b.used and a.next == b.next


def _same_message(a: Record, b: Record) -> bool:
    return a.kind == b.kind and a.number == b.number and _same_scales(a, b)


def _is_fall(record: Record) -> bool:
    return record.kind == SKIP and record.next is not None


def _values(record: Record) -> tuple[float | None, float | None]:
    used, after = record.used, record.next
    return used.value if used else None, after.value if after else None


# Which lines are about the loss scale.


def _prefer_messages(records: list[Record]) -> list[Record]:
    """Leaves out free lines where those of a stack say the same, or whose scale may be another."""
    has_states = any(not r.free and r.is_state for r in records)
    has_scales = any(not r.free and (r.used or r.next) for r in records)
    return [r for r in records if not (r.free and (has_states or (has_scales and r.bare)))]


def _is_vague(number: Printed) -> bool:
    """Whether a number was rounded so far that it may be one of two powers; 0 is printed so."""
    return number.value != 0 and (number.low <= 0 or number.high >= 2 * number.low)


def _drop_other_scales(records: list[Record], log: Log) -> list[Record]:
    for record in records:
        if record.used is not None and not 0 <= record.used.value < math.inf:  # NaN, too
            record.used = None
        if record.next is not None and not 0 <= record.next.value < math.inf:
            record.next = None
        used, after = record.used, record.next
        if used is not None and after is not None and after.holds(used.value / 2):
            record.next = after._replace(value=used.value / 2)  # it is printed with few digits
    bare = [r.used.value for r in records if r.bare and r.used]
    if not all(map(is_power_of_two, bare)) or max(bare, default=0) < _HIGH_SCALE:
        records = [r for r in records if not r.bare]
    elif bare:
        log.note(
            "a value called scale is assumed to be the loss scale, since it is a power of two of "
            "2^13 or more"
        )
    scales = [s for r in records for s in (r.used, r.next) if s is not None]
    if all(map(_is_vague, scales)):
        for record in records:
            record.used = record.next = None
    return records


# DeepSpeed's FP16_Optimizer says an overflow in several lines.


def _drop_repeats_of_optimizer(records: list[Record]) -> list[Record]:
    """The optimizer repeats what its loss scaler has just said."""
    said: deque[tuple[float | None, float | None]] = deque(maxlen=2)
    kept = []
    for record in records:
        scales = _values(record)
        if record.from_optimizer and scales in said:
            continue
        if _is_fall(record) and not record.from_optimizer and (not said or said[-1] != scales):
            said.append(scales)
        if record.kind == GROWTH:
            said.clear()
        kept.append(record)
    return kept


def _join_numbers(records: list[Record]) -> list[Record]:
    """ "Grad overflow on iteration: 7" numbers an overflow; lines about its scales follow.

    Both appear once per rank: the numbers tell how many overflows there are.
    """
    joined: list[Record] = []
    numbers: set[int] = set()
    waiting: deque[Record] = deque()
    last: Record | None = None  # the overflow whose scales came last
    for record in records:
        if record.kind != SKIP:
            last = None if record.kind == GROWTH else last
            joined.append(record)
        elif record.next is None and record.number is not None:  # a number alone
            if record.number not in numbers:
                numbers.add(record.number)
                joined.append(record)
                waiting.append(record)
        else:
            repeats = last is not None and _same_scales(last, record)
            if waiting:
                # The scale cannot have grown from one iteration to the next: another rank's copy.
                follows = last is not None and waiting[0].number == (last.number or -2) + 1
                if repeats and follows and not record.static:
                    continue
                last = waiting.popleft()
                last.used, last.next, last.static = record.used, record.next, record.static
            elif not repeats and not (numbers and record.stack == "deepspeed"):
                joined.append(record)  # its number is before the log's first line
                last = record
    if not numbers:
        return records
    first = next((r for r in joined if r.kind == SKIP and r.number is not None), None)
    for record in joined:
        if record is first or first is None:
            break
        if record.kind == SKIP and (first.number or 0) > 0:
            record.number = (first.number or 0) - 1
    return joined


def _join_growths(records: list[Record]) -> list[Record]:
    """FP16_Optimizer names the interval before the growth, and both appear once per rank.

    The interval counts from the overflow before it, whose number gives that of the growth.
    """
    kept = []
    last: tuple[float | None, float | None] | None = None
    interval: int | None = None
    overflow: int | None = None
    intervals = 0
    for record in records:
        if record.kind == SKIP:
            overflow, intervals, last = record.number, 0, None
        elif record.kind == CUT:
            overflow, last = None, None
        elif record.kind == GROWTH and record.stack == "deepspeed":
            if record.next is None:
                interval = record.interval
                continue
            if last == _values(record):
                continue
            record.interval = interval
            if overflow is not None and interval:
                intervals += 1
                record.number = overflow + 1 + intervals * interval
            last = _values(record)
        kept.append(record)
    return kept


# Ranks, engines and scalers.


def _drop_other_wordings(records: list[Record]) -> list[Record]:
    """Two stacks report one overflow: Paddle and PaddleNLP, a scaler and the script that has it."""
    wording = ""
    last: tuple[float | None, float | None] | None = None
    kept = []
    for record in records:
        if _is_fall(record) and record.number is None:
            wording = wording or record.wording
            used, after = _values(record)
            if record.wording == wording:
                last = used, after
            elif last and after == last[1] and (None in (used, last[0]) or used == last[0]):
                continue
        kept.append(record)
    return kept


def _by_voice(records: list[Record], log: Log) -> dict[str, list[Record]]:
    """Tells apart what the lines name: ranks that differ, and Apex's scalers."""
    scalers = sorted({r.scaler for r in records if r.scaler is not None})
    if len(scalers) > _MOST_VOICES:
        raise InputError(f"{len(scalers)} loss scalers, expected at most {_MOST_VOICES}")
    if len(scalers) > 1:
        return {
            f"loss scaler {number}": [r for r in records if r.scaler in (None, number)]
            for number in scalers
        }
    ranks = list(dict.fromkeys(r.rank for r in records if r.rank is not None))
    if len(ranks) < 2:
        return {"": records}
    log.losses.several_ranks = True
    voices = {rank: [r for r in records if r.rank in (None, rank)] for rank in ranks}
    messages = {rank: [r for r in records if r.rank == rank] for rank in ranks}
    own = messages[ranks[0]]
    same = all(
        _same_message(a, b)
        for others in messages.values()
        for a, b in zip(own, others, strict=False)
    )
    more = len(ranks) - 1
    if same or len(ranks) > _MOST_VOICES:  # the log may be cut
        what = "the same" if same else "other messages"
        prints = "prints" if more == 1 else "print"
        log.note(f"rank {ranks[0]} is read; {more} more {prints} {what}")
        return {"": voices[ranks[0]]}
    return {f"rank {rank}": voice for rank, voice in voices.items()}


def _drop_copies_before_growth(records: list[Record], log: Log) -> list[Record]:
    """Where each growth is printed, an equal fall without one between is another rank's copy."""
    last: Record | None = None
    kept: list[Record] = []
    for record in records:
        falls = _is_fall(record) and record.stack in _PRINTS_GROWTH and record.number is None
        if falls and last and _same_message(last, record) and record.next and record.next.value > 1:
            continue
        if falls:
            last = record
        if record.kind == GROWTH or record.is_state:
            last = None
        kept.append(record)
    dropped = len(records) - len(kept)
    if dropped:
        log.losses.several_ranks = True
        what = "one message is" if dropped == 1 else f"{dropped} messages are"
        whose = "that" if dropped == 1 else "those"
        log.note(f"{what} repeated without growth in between: assumed to be {whose} of other ranks")
    return kept


def _copies_of_ranks(
    count: int, in_a_row: int, same: Callable[[int, int], bool]
) -> tuple[int, list[int]]:
    """Returns of how many ranks a sequence of messages is, and the messages of the first one.

    Messages that ranks print with others between them could be those of one rank: only next to
    messages whose copies follow each other are they taken for copies.
    """
    of_first = sum(1 for i in range(count) if same(0, i))
    if count in (0, of_first):  # equal ones alone could be of one rank
        return 1, []
    most = min(count // 2, 4096, in_a_row, of_first)
    for ranks in range(most, 1, -1):
        if count % ranks == 0 and of_first % ranks == 0 and (kept := _first_of(ranks, count, same)):
            return ranks, kept
    return 1, []


def _first_of(ranks: int, count: int, same: Callable[[int, int], bool]) -> list[int]:
    """Returns the messages of the first rank; none if the sequence is not that of `ranks`."""
    kept: list[int] = []
    matched = [0] * (ranks - 1)  # messages of the others, the slowest one last
    for i in range(count):
        for at in range(ranks - 2, -1, -1):
            if matched[at] < len(kept) and same(kept[matched[at]], i):
                matched[matched.index(matched[at])] += 1  # the first that is equal
                break
        else:
            kept.append(i)
        if len(kept) - matched[-1] > _MOST_LEAD:
            return []
    return kept if matched[-1] == len(kept) and len(kept) >= 2 else []


def _copies_of_states(records: Iterable[Record]) -> int:
    """Returns how often each line that counts steps appears in a row, if all do so equally."""
    states = ((r.wording, r.number, r.used, r.next) for r in records if r.is_state)
    lengths = [len(list(group)) for _, group in groupby(states)]
    return lengths[0] if len(lengths) > 1 and len(set(lengths)) == 1 else 1


def _keep_one_of_equal(records: list[Record], log: Log) -> list[Record]:
    """Ranks that do not name themselves: every message appears once for each."""
    at, before, states = [], [], 0
    for i, record in enumerate(records):
        if record.kind in (STEPS, UPDATES):
            states += 1
        if record.kind == SKIP and record.number is None:
            at.append(i)
            before.append(states)

    def same(a: int, b: int) -> bool:
        return before[a] == before[b] and _same_message(records[at[a]], records[at[b]])

    groups: list[list[int]] = []  # equal messages in a row
    for i in range(len(at)):
        if groups and same(groups[-1][0], i):
            groups[-1].append(i)
        else:
            groups.append([i])
    ranks, kept = _copies_of_ranks(len(at), max(map(len, groups), default=1), same)
    if ranks < 2:
        ranks = _copies_of_states(records)
        kept = [i for group in groups for i in group[: len(group) // ranks]]
        if ranks < 2 or not at or any(len(group) % ranks for group in groups):
            return records
    log.losses.several_ranks = True
    named = all(records[i].rank is not None for i in at)
    who = "engine: all have the same rank" if named else "rank"
    log.note(f"each message appears {ranks} times, once per {who}")
    gone = set(at) - {at[i] for i in kept}
    return [r for i, r in enumerate(records) if i not in gone]


def _are_equal(records: Sequence[Record]) -> bool:
    """Whether a log of messages alone repeats one that names neither a rank nor its step."""
    first, *others = records
    same = all(r.rank is None and _same_message(first, r) for r in others)
    return bool(others) and first.kind == SKIP and first.number is None and same


def _is_count(record: Record) -> bool:
    return record.wording == "deepspeed-steps"


def _require_one_engine(records: Iterable[Record]) -> None:
    """An engine, or a run, counts its steps once; after a resume one may be counted twice."""
    last: Record | None = None
    again: Record | None = None
    counts = doubled = 0
    for record in records:
        if record.kind != STEPS or record.number is None:
            continue
        if last is not None and last.wording != record.wording and not _is_count(record):
            continue
        counts += 1
        if (
            last is not None
            and (last.wording, last.number, last.epoch)
            == (record.wording, record.number, record.epoch)
            and _differs(last, record)
        ):
            doubled += 1
            again = again or record
        last = record
    if again is None or (doubled < 2 and counts > 3):
        return
    if _is_count(again):
        raise InputError(
            f"line {again.line}: a second engine counts the same steps, expected a log of one "
            f"engine, got step={again.number} twice, with skipped={again.total or 0}"
        )
    raise InputError(
        f"line {again.line}: another scale of the same step, expected a log of one run, with one "
        f"loss scaler, got step {again.number} twice"
    )


def _differs(last: Record, record: Record) -> bool:
    if _is_count(record):
        return last.total != record.total or last.rate != record.rate
    return bool(last.used or last.next) and not _same_scales(last, record)


def _join_counts(records: list[Record]) -> list[Record]:
    """The engine's count and the training loop's line report one step: skips, and the scale."""
    joined: list[Record] = []
    for record in records:
        last = joined[-1] if joined else None
        both = last is not None and last.kind == record.kind == STEPS and last.number is not None
        if last is None or not both or last.number != record.number:
            joined.append(record)
        elif _is_count(last) == _is_count(record):
            joined.append(record)
        else:
            count, state = (last, record) if _is_count(last) else (record, last)
            joined[-1] = state
            state.total = count.total
            if state.skipped == 0:
                state.skipped = None
    return joined


def _note_no_scaler(records: Iterable[Record], log: Log) -> None:
    for record in records:
        if record.kind in (SKIP, STOPPED) or record.overflow or record.skipped or record.total:
            return
        for scale in (record.used, record.next):
            if scale is not None and (scale.value != 1 or _is_vague(scale)):
                return
    log.unbounded = True
    log.note("the loss scale is 1 throughout, which is also printed without loss scaling: no bound")


# Means and medians are called so.


def _drop_guided_means(records: list[Record], log: Log) -> list[Record]:
    """guided-diffusion prints means of the scale's logarithm, and a message at each overflow."""
    kept = [r for r in records if r.stack != "guided-diffusion" or not r.mean]
    if len(kept) == len(records) or not any(r.stack == "guided-diffusion" for r in kept):
        return records
    log.note(
        "tables of lg_loss_scale are means over steps and are ignored: messages report each "
        "overflow"
    )
    return kept


def _note_means(means: int, over: str, log: Log) -> None:
    if means:
        which = (
            "one value of loss_scale is a mean"
            if means == 1
            else f"{means} values of loss_scale are means"
        )
        log.note(f"{which} over {over}, and {'is' if means == 1 else 'are'} left out")


def _drop_means_of_fairseq(records: list[Record], log: Log) -> list[Record]:
    """Versions of fairseq print the mean over the last updates: no power of two times a scale."""
    named = next((r.next for r in records if r.stack == "fairseq" and _is_fall(r)), None)
    if named is None or named.value <= 0:
        return records
    means = scales = 0
    for record in records:
        if record.kind != UPDATES or record.next is None or record.next.value <= 0:
            continue
        if record.next.holds(nearest_power(record.next.value / named.value) * named.value):
            scales += 1
        else:
            record.next = None
            means += 1
    _note_means(means, "updates", log)
    if means and not scales:  # no line ties a scale to a number of updates
        return [r for r in records if r.kind != UPDATES]
    return records


def _drop_mixed_means(records: list[Record], log: Log) -> list[Record]:
    """Where the scale changes between two lines, the mean is no power of two."""

    def is_mixed(record: Record) -> bool:
        scale = record.used
        return (
            record.mean
            and scale is not None
            and scale.value > 0
            and not scale.holds(nearest_power(scale.value))
        )

    kept = [r for r in records if not is_mixed(r)]
    _note_means(len(records) - len(kept), "steps with different scales", log)
    return kept


def _are_means(records: Iterable[Record]) -> bool:
    """Whether scales in the wording of no stack are means: no powers of two times each other.

    A scaler with other factors repeats its ratios.
    """
    if any(r.mean and r.stack == "guided-diffusion" for r in records):
        return True
    scales = [r.used for r in records if r.wording in _FREE and r.used and r.used.value > 0]
    if not scales:
        return False
    unit = scales[0].value
    if all(s.holds(nearest_power(s.value / unit) * unit) for s in scales):
        return False
    pairs = pairwise(scales)
    ratios = Counter(f"{b.value / a.value:.3g}" for a, b in pairs if a.value != b.value)
    far = all(not 0.93 < float(ratio) < 1.07 for ratio in ratios)
    return not (far and sum(ratios.values()) >= 4 and len(ratios) <= 2)


# Stretches.


def _shows_next(records: Sequence[Record]) -> bool:
    """Scales that a log shows once per step may be those that the step used or the next ones.

    Where skipped steps are marked, their own line or the one after shows the fall. If there are
    more overflows before the first line than steps before its own, they report its step, too.
    """
    overflows = 0
    for record in records:
        if record.kind == SKIP and record.number is None:
            overflows += 1
        if record.is_state:
            number = record.number or 0
            if record.used and (record.epoch or 0) <= 1 and overflows >= max(number, 1):
                return True
            break
    own = after = 0
    for a, b in pairwise(records):
        if a.used and b.used and b.used.value < a.used.value:
            own += bool(b.overflow)
            after += bool(a.overflow)
    return own > after


def _counts_from_0(first: Record) -> bool:
    """Whether step 0 is a step: DeepSpeed's "step=0, skipped=0" is printed before the first."""
    return first.total is None or first.stack == "internevo"


class _Builder:
    """Joins records to stretches of steps."""

    def __init__(self, records: list[Record], log: Log, name: str) -> None:
        self.records = records
        self.path = Path(
            notes=list(log.notes), losses=log.losses, unbounded=log.unbounded, name=name
        )
        self.path.shows_next = self.shows_next = _shows_next(records)
        self._take_facts()
        self.has_states = any(r.is_state for r in records)
        # Messages tell of each overflow, unless the stack keeps silent about some.
        self.has_messages = any(r.kind == SKIP and r.stack not in _HIDES_SKIPS for r in records)
        self.first_index = 1  # 0 if steps are counted from 0
        self.done = 0  # steps before the next stretch
        self.total = 0
        self.placed = 0  # overflows since the last total of skipped steps
        self.overflows = 0
        self.pending: list[Record] = []  # overflows since the last state
        self.last_scale: float | None = None
        self.seen: Record | None = None  # the lowest scale since the last state, at some step
        self.epoch: int | None = None
        self.epoch_start = self.last_number = 0
        self.epochs = self.repeated = self.surplus = self.presumed = self.uncounted = 0
        self.owed = 0  # falls that a skipped step has explained
        self.cut = False
        self._find_start()

    def _take_facts(self) -> None:
        path = self.path
        stacks = [r for r in self.records if r.stack]
        for record in stacks:
            path.stated_interval = record.interval or path.stated_interval
            path.static = path.static or record.static
            path.policy = path.policy or record.policy
            if record.policy == "deepspeed-fp16-optimizer":
                path.policy = record.policy
            if record.kind in (SKIP, GROWTH) and record.stack == "deepspeed" and not path.policy:
                path.policy = "deepspeed"
            if record.month is not None:
                path.month = min(path.month or record.month, record.month)
            for scale in (record.used, record.next):
                if scale is not None and scale.value == 0 and path.zero_line is None:
                    path.zero_line = record.line
        own = [r.stack for r in stacks if r.stack != "fairseq" and not r.free]
        path.stack = (own or [r.stack for r in stacks] or ["key-value"])[-1]
        if not own and any(r.stack == "fairseq" for r in stacks):
            path.stack = "fairseq"
        if "internevo" in own:
            path.stack = "internevo"

    def _covers(self, first: Record, skips: int) -> bool:
        """Whether the first state tells of the steps before it, too."""
        number = first.number or 0
        if first.kind == UPDATES:
            return skips > 0 or first.wording == "metaseq-start"
        if number <= 1 or first.skipped is not None or first.mean:
            return True
        if first.total is not None:
            return True
        return skips > 0 or bool(first.overflow)

    def _find_start(self) -> None:
        first = second = None
        skips = 0
        numbered: int | None = None
        for record in self.records:
            if record.kind == SKIP and first is None:
                skips += record.number is None
                numbered = record.number if numbered is None else numbered
            if record.is_state:
                if first is None:
                    first = record
                elif (record.number or 0) > (first.number or 0):
                    second = record
                    break
        if first is None:
            if numbered is not None:
                self.first_index = self.path.first_step = 0
                self._start_at(0 if numbered < 1000 else numbered, begins=numbered < 1000)
            return
        number = first.number or 0
        if first.kind == STEPS and number == 0 and _counts_from_0(first):
            self.first_index = 0
        interval = (second.number or 0) - number if second else max(first.skipped or 0, 1)
        end = number + (1 - self.first_index if first.kind == STEPS else 0)
        begins = end <= max(interval, 1) and (first.epoch or 0) <= 1
        covers = self._covers(first, skips)
        if begins and covers and second:
            return self._start_at(0, begins=True)
        told = first.total is not None and first.total == skips
        if not second and (told or (first.kind == UPDATES and skips > 0)):
            return self._start_at(0, begins=True)
        implied = self._implied(first, skips, interval if covers else 1)
        done = max(min(end - implied, numbered if numbered is not None else end), 0)
        self.total = max((first.total or 0) - skips, 0)
        # A few iterations before the first number are those of a first interval.
        self._start_at(done, begins=(begins and covers) or (not second and done == 0))

    def _start_at(self, done: int, *, begins: bool) -> None:
        self.done, self.path.from_start = done, begins
        self.path.first_step = done + self.first_index

    def _implied(self, record: Record, overflows: int, interval: int) -> int:
        """Returns how many steps one state tells of."""
        implied = 0 if record.used is None or self.shows_next else 1
        if record.kind == STEPS:
            implied += overflows
        if record.overflow:
            implied = max(implied, 1)
        if record.skipped:
            implied = max(implied, interval)
        return implied

    def build(self) -> Path:
        """Returns the path."""
        for record in self.records:
            for name in ("used", "next"):
                scale = getattr(record, name)
                if scale is not None and scale.value == 0:
                    setattr(record, name, exactly(0.0))  # not what rounds to it
            if record.kind == SKIP:
                self._add_skip(record)
            elif record.kind == GROWTH:
                self._add_growth(record)
            elif record.is_state:
                if not self._add_state(record):
                    break
            elif record.kind == SEEN and record.used is not None:
                if self.seen is None or record.used.value < self.seen.used.value:  # type: ignore[union-attr]
                    self.seen = record
            elif record.kind == STOPPED:
                self.path.stopped_line = record.line
            elif record.kind == CUT:
                self._flush()
                self.cut = True
        self._flush()
        self._see_last_least()
        self._fall_to_seen()
        self._add_notes()
        return self.path

    def _check(self, end: int, record: Record) -> None:
        steps = end - (self.path.first_step - self.first_index)
        if steps > _MOST_STEPS:
            raise InputError(
                f"line {record.line}: step number too far from the first one, expected at most "
                f"{_MOST_STEPS}, got {steps}"
            )

    def _skip_over_cut(self, end: int) -> None:
        """Lines were left out before this one: the steps in between are not told."""
        if self.cut and end > self.done + 1:
            self.done = end - 1
            self.placed = 0
            self.path.has_cuts = True
            self.path.notes.append(
                "lines are left out in the middle of the log: the steps in between are not counted"
            )
        self.cut = False

    def _skip_of(self, record: Record) -> Skip:
        return Skip(record.used, record.next, record.line)

    def _add_skip(self, record: Record) -> None:
        if record.number is None:
            self.pending.append(record)
            self.overflows += 1
            if not self.has_states:
                self._flush()
            return
        if record.number < self.done:  # another rank's copy
            return
        self._skip_over_cut(record.number + 1)
        self._check(record.number + 1, record)
        self.overflows += 1
        self.placed += 1
        steps = record.number + 1 - self.done
        stretch = Stretch(record.line, steps, [self._skip_of(record)], last=True)
        self.path.stretches.append(stretch)
        self.done = record.number + 1
        if record.next is not None:
            self.last_scale = record.next.value

    def _flush(self) -> None:
        """Each message that no count of steps frames ends a stretch of its own."""
        for record in self.pending:
            stretch = Stretch(record.line, None, [self._skip_of(record)], last=True)
            stretch.announced = record.stack == "mxnet"
            stretch.hides = record.stack in _HIDES_SKIPS
            self.path.stretches.append(stretch)
        self.pending = []

    def _add_growth(self, record: Record) -> None:
        """Where states count steps, a growth without its number says nothing more."""
        if record.number is None and self.has_states:
            return
        if record.number is not None and record.number < self.done:
            return
        self._flush()
        stretch = Stretch(record.line, last=False, used=record.used, next=record.next)
        stretch.announced = record.stack == "mxnet"
        if record.number is not None:
            self._skip_over_cut(record.number + 1)
            self._check(record.number + 1, record)
            stretch.steps = record.number + 1 - self.done
            self.done = record.number + 1
        elif self.cut:
            self.cut = False
        self.path.stretches.append(stretch)
        if record.next is not None:
            self.last_scale = record.next.value

    def _see_last_least(self) -> None:
        """W&B's __MIN of the last row, so far below its value that it cannot have come before."""
        last = next((r for r in reversed(self.records) if r.is_state), None)
        if last is None or last.least is None or self.last_scale is None or self.path.means:
            return
        if 16 * last.least.value <= self.last_scale:
            self.seen = Record(SEEN, last.stack, last.line, used=last.least)

    def _fall_to_seen(self) -> None:
        """A log that ends with such a line: each halving is a step."""
        seen = self.seen
        falls = self._falls_to(seen.used) if seen is not None else 0
        if seen is None or falls == 0:
            return
        stretch = Stretch(seen.line, falls, last=True, next=seen.used)
        self._presume(seen, seen.used, stretch)
        self.path.stretches.append(stretch)

    def _add_state(self, record: Record) -> bool:
        """Adds the steps up to a state; returns False where what follows cannot be placed."""
        number = record.number or 0
        if record.epoch is not None and self.epoch is not None:
            if record.epoch > self.epoch and number < self.last_number:
                self.epoch_start += self.last_number + 1 - self.first_index
                self.epochs += 1
            elif record.epoch < self.epoch:
                self.path.notes.append(
                    f"the log goes back to epoch {record.epoch} at line {record.line}: only the "
                    "lines before it are read"
                )
                return False
        self.epoch = record.epoch
        self.last_number = number
        number += self.epoch_start
        falls = record.kind == UPDATES and not self.pending and self._falls_to(record.next) > 0
        if self._end_of(record, number) <= self.done and self.path.stretches and not falls:
            self._add_earlier(record, number)
        else:
            self._append(record, number)
        return True

    def _end_of(self, record: Record, number: int) -> int:
        """Returns how many steps were done when the state was printed."""
        if record.kind == UPDATES:
            return number + self.overflows
        return number + 1 - self.first_index

    def _add_earlier(self, record: Record, number: int) -> None:
        """A state of steps that are done: a copy, or training went back to a checkpoint."""
        stretches = self.path.stretches
        end = self._end_of(record, number)
        if record.kind == UPDATES or end == self.done:
            return
        while stretches and self.done >= end:
            self.done -= stretches.pop().steps or 0
            self.repeated += 1
        kept = stretches[-1] if stretches else None
        self.last_scale = kept.next.value if kept is not None and kept.next is not None else None
        if kept is None and self.done >= end:  # it comes before everything that was read until then
            if record.kind == STEPS and number == 0 and _counts_from_0(record):
                self.first_index = 0
            implied = self._implied(record, len(self.pending), 0)
            done = max(self._end_of(record, number) - implied, 0)
            self._start_at(done, begins=done == 0)
        self._append(record, number)

    def _append(self, record: Record, number: int) -> None:
        if record.kind == UPDATES and not self.pending:
            self.overflows += self._falls_to(record.next)  # no message reports them
            if record.is_zero and (self.last_scale or 0) >= 1:
                self.path.zero_line = self.path.zero_line or record.line
        end = self._end_of(record, number)
        self._skip_over_cut(end)
        self._check(end, record)
        shows_next = record.used is None or self.shows_next
        alone = not shows_next and record.overflow is not None and end - self.done == 1
        if not alone:
            scale = record.next if record.next is not None else record.used
            self._append_until(end - (0 if shows_next else 1), record, scale, shows_next=shows_next)
        elif self.path.stretches and self.path.stretches[-1].next is None:
            self.path.stretches[-1].next = record.used
        if shows_next or record.overflow is None:
            return
        own = Stretch(record.line, 1, used=record.used, told=True)
        if (
            alone
            and self.last_scale is not None
            and record.used is not None
            and self.path.stretches
        ):
            self._presume_before(record)
        self._mark_last(record.overflow, own)
        self.path.stretches.append(own)
        self.owed = int(record.overflow)
        self.done = end
        if record.used is not None:
            self.last_scale = record.used.value

    def _presume_before(self, record: Record) -> None:
        """The scale is lower than that of the step before, which is not marked as skipped."""
        before = self.path.stretches[-1]
        if before.skips or before.steps != 1 or self._falls_to(record.used) == 0:
            return
        before.skips.append(Skip())
        before.last = True
        self.presumed += 1

    def _append_until(
        self, end: int, record: Record, after: Printed | None, *, shows_next: bool
    ) -> None:
        """Adds the steps up to a number of done ones, after which the scale is `after`."""
        steps = end - self.done
        stretch = Stretch(record.line, steps, [self._skip_of(r) for r in self.pending])
        self.pending = []
        surplus = len(stretch.skips) - steps
        if surplus > 0:  # of messages that are more than the steps, the last ones count
            del stretch.skips[:surplus]
            self.surplus += surplus
        named = len(stretch.skips)
        self._see_extremes(record, after)
        self._add_counted(record, stretch)
        knows = record.overflow is not None and steps == 1 and shows_next
        if not knows and not stretch.skips:
            self._presume(record, after, stretch)
        counts = record.skipped is not None or record.total is not None
        messages = self.has_messages and (named > 0 or self._falls_to(after) == 0)
        all_skipped = len(stretch.skips) == steps
        stretch.told = counts or self.has_messages or knows
        stretch.stated = steps <= 1 or counts or messages or all_skipped
        if not stretch.stated:
            self.path.gaps.append(steps)
        if record.kind == UPDATES and steps > 0:
            stretch.last = False
        if record.overflow is not None and shows_next:
            self._mark_last(record.overflow, stretch)
        stretch.next = after
        if after is not None:
            self.last_scale = after.value
        self.seen, self.owed = None, 0
        repeats = (
            steps == 0
            and not stretch.skips
            and bool(self.path.stretches)
            and self.path.stretches[-1].next == stretch.next
        )
        if not repeats:
            self.path.stretches.append(stretch)
        self.done = end

    def _falls_to(self, after: Printed | None) -> int:
        """Returns how often the scale was halved since the last that is known; 0 if never."""
        if after is None or self.last_scale is None or not after.value < self.last_scale:
            return 0
        if after.value <= 0:
            return 1
        halvings = round(math.log2(self.last_scale) - math.log2(after.value))
        return halvings if 1 <= halvings < 1100 else 1

    def _presume(self, record: Record, after: Printed | None, stretch: Stretch) -> None:
        """Where no line reports skipped steps, or counts none: as few as explain the fall."""
        seen = self.seen
        saw_lower = (
            seen is not None and after is not None and seen.used.value < after.value  # type: ignore[union-attr]
        )
        steps = stretch.steps or 0
        falls = self._falls_to(seen.used if saw_lower and seen else after)
        if falls == 0 and self._is_first_descent(record, after, steps):
            falls = steps
        falls -= min(self.owed, falls)
        if falls == 0 or steps <= 0 or self.path.means:
            return
        stretch.skips = [Skip() for _ in range(min(falls, steps))]
        if saw_lower and seen is not None:
            stretch.skips[-1].next = seen.used
        presumed = len(stretch.skips)
        self.presumed += presumed
        self.placed += presumed
        if record.skipped is not None or record.total is not None:
            self.uncounted += presumed

    def _see_extremes(self, record: Record, after: Printed | None) -> None:
        """W&B's __MIN and __MAX are those of the steps that a row stands for."""
        for extreme in (record.least, record.most):
            if extreme is not None and after is not None and self.last_scale is not None:
                between = sorted((self.last_scale, after.value))
                if not between[0] <= extreme.value <= between[1]:
                    self.path.comes_back = True

    def _is_first_descent(self, record: Record, after: Printed | None, steps: int) -> bool:
        """A training begins with scales that overflow.

        If the last step of its first stretch does, those before it, at the same scale or higher
        ones, do so too.
        """
        begins = not self.path.stretches and self.path.from_start
        if not begins or after is None or not record.overflow or not after.value > 0:
            return False
        return math.log2(after.value) + steps <= 32

    def _add_counted(self, record: Record, stretch: Stretch) -> None:
        """Counted overflows of which no message states more."""
        named, counted = len(stretch.skips), record.skipped or 0
        if record.total is not None:
            counted = record.total - self.total - self.placed
            self.total = record.total
        self.placed = 0 if record.total is not None else self.placed + max(named, counted)
        if named < counted <= (stretch.steps or 0):
            stretch.skips = [Skip() for _ in range(counted)]

    @staticmethod
    def _mark_last(overflow: bool, stretch: Stretch) -> None:
        stretch.last = overflow
        if overflow and not stretch.skips and stretch.steps != 0:
            stretch.skips.append(Skip())

    def _add_notes(self) -> None:
        notes = self.path.notes
        bad = [r for r in self.records if r.norm_is_bad]
        if bad:
            lines = (
                "one line that reports a step"
                if len(bad) == 1
                else f"{len(bad)} lines that report steps"
            )
            notes.append(
                f"the gradient's norm is not finite in {lines} not skipped, from line "
                f"{bad[0].line} on: no loss scale helps"
            )
        if self.epochs:
            notes.append(
                "step numbers start over with each epoch: each epoch is assumed to end at its last "
                "line, so there may be more steps, and longer growth intervals"
            )
        if self.repeated:
            notes.append(
                f"the log goes back, as after a resume: {self.repeated} repeated stretches are "
                "ignored"
            )
        if self.surplus:
            notes.append(
                "there are more overflow messages than steps between some lines: "
                f"{self.surplus} are ignored"
            )
        if self.uncounted:
            notes.append(
                "the scale falls where the log counts 0 skipped steps: each halving is assumed to "
                "be an overflow"
            )
        elif self.presumed:
            notes.append(
                "the log does not say which steps were skipped: each fall of the scale is assumed "
                "to be an overflow"
            )
        if self.path.comes_back and not self.path.means:
            notes.append(
                "the columns __MIN and __MAX show that the scale changed and came back between "
                "rows: steps were skipped there"
            )
        if self.path.hides_steps and not self.path.means:
            typical = median_low(gap for gap in self.path.gaps if gap > 1)
            notes.append(
                f"the log shows the scale {typical} steps apart: what happened between two lines "
                "does not show, so there may be more skipped steps"
            )
        if self.has_states and not self.path.from_start and not self.repeated:
            first = self.path.first_step
            notes.append(f"the log does not show what happened before step {first}")


def _joined(records: list[Record], log: Log) -> list[Record]:
    """Returns the records of one voice, each overflow once."""
    records = _join_growths(_join_numbers(_drop_repeats_of_optimizer(records)))
    records = _drop_other_wordings(records)
    records = _keep_one_of_equal(records, log)
    records = _drop_copies_before_growth(records, log)
    _require_one_engine(records)
    records = _join_counts(records)
    _note_no_scaler(records, log)
    records = _drop_guided_means(records, log)
    records = _drop_means_of_fairseq(records, log)
    records = _drop_mixed_means(records, log)
    if any(record.median for record in records):
        log.note(
            "loss_scale is a median over the last steps: the scale may have changed some steps "
            "earlier"
        )
    return records


def paths_of(log: Log) -> list[Path]:
    """Returns the path of each scaler that a log tells apart; none of a log without a scale."""
    records = _drop_other_scales(_prefer_messages(log.records), log)
    paths = []
    for name, voice in _by_voice(records, log).items():
        own = Log(voice, log.losses, list(log.notes), log.unbounded)
        joined = _joined(voice, own)
        own.losses.scale_may_be_next = any(
            r.is_state and r.used is not None and r.overflow is None for r in joined
        )
        if not any(r.used or r.next for r in joined) and not any(r.kind == STOPPED for r in joined):
            continue
        means = _are_means(joined)
        if means:
            own.unbounded = True
            own.note(
                "the scale is printed as a mean over steps, or another average: no path is read "
                "from it"
            )
            for record in joined:
                record.mean = record.mean or record.wording in _FREE
        builder = _Builder(joined, own, name)
        builder.path.means = means
        builder.path.only_equal = _are_equal(joined)
        path = builder.build()
        if path.stretches or path.stopped_line is not None:
            paths.append(path)
    return paths


# The steps one after the other.


@dataclass(slots=True)
class Run:
    """Steps in a row that used one scale, all applied or all skipped; NaN: not known which.

    A run of no steps says only what the scale is there.
    """

    count: int
    scale: float
    skipped: bool
    line: int
    hidden: bool = False  # whether they were skipped is not told


def recorded_runs(path: Path) -> list[Run]:
    """Returns the steps as far as the log states them.

    Where in a stretch the skipped steps are is not known: they are put at its end, and at the
    beginning of a stretch with which the training begins.
    """
    runs: list[Run] = []
    used = (s.used for stretch in path.stretches for s in stretch.skips if s.used is not None)
    static = next(used, None) if path.static else None
    scale = static.value if static is not None else math.nan
    for stretch in path.stretches:
        count = stretch.steps if stretch.steps is not None else len(stretch.skips)
        line = stretch.line
        end = stretch.end()
        after = end.value if end is not None else scale
        if end is None and not stretch.skips and stretch.used is not None:
            after = stretch.used.value
            scale = after if math.isnan(scale) or count <= 1 else scale
        clean = max(count - len(stretch.skips), 0)
        skipped = _skipped_runs(stretch, scale, after, clean)
        moves = any(s.next is not None and s.next.value != scale for s in stretch.skips)
        constant = after == scale and not moves
        hidden = not stretch.stated
        applied = [Run(1, scale, False, line, hidden)] if clean else []
        if clean > 1:
            rest = scale if constant else math.nan
            applied.append(Run(clean - 1, rest, False, line, hidden))
        if not any(run.count for run in runs) and path.from_start and stretch.last is not True:
            if skipped:
                for run in applied:
                    run.scale = math.nan
            applied = skipped + applied
            skipped = []
        placed = applied + skipped
        if placed and stretch.used is not None and (count == 1 or not constant):
            last = placed[-1]
            if last.count > 1:
                last.count -= 1
                last = Run(1, math.nan, last.skipped, line)
                placed.append(last)
            last.scale = stretch.used.value
        runs += placed
        if end is not None:
            runs.append(Run(0, after, False, line))
        scale = after
    return merged(runs)


def _skipped_runs(stretch: Stretch, before: float, after: float, clean: int) -> list[Run]:
    """The skipped steps of a stretch; falls that only a lower scale shows are halvings."""
    skips = stretch.skips
    halves = [before * 0.5**i for i in range(len(skips))]
    explained = all(s.used is None and s.next is None for s in skips) and math.isclose(
        before * 0.5 ** len(skips), after
    )
    runs = []
    for at, skip in enumerate(skips):
        used = skip.used.value if skip.used is not None else math.nan
        if explained:
            used = halves[at]
        elif math.isnan(used) and skip.next is not None:
            used = skip.next.value / _FALL
            if skip.next.value < before / 4:
                used = before
        elif math.isnan(used) and (after == before or (at == 0 and not clean)):
            used = before
        runs.append(Run(1, used, True, skip.line or stretch.line))
        if skip.next is not None:
            runs.append(Run(0, skip.next.value, False, skip.line or stretch.line))
        if not explained:
            before = skip.next.value if skip.next is not None else before
    return runs


def merged(runs: Iterable[Run]) -> list[Run]:
    """Joins neighbors that are alike."""
    joined: list[Run] = []
    for run in runs:
        last = joined[-1] if joined else None
        same = last is not None and (
            last.scale == run.scale or (math.isnan(last.scale) and math.isnan(run.scale))
        )
        if run.count == 0 and (same or math.isnan(run.scale)):
            continue
        own = (run.line, run.skipped, run.hidden)
        if last and same and last.count and (last.line, last.skipped, last.hidden) == own:
            last.count += run.count
        else:
            joined.append(Run(run.count, run.scale, run.skipped, run.line, run.hidden))
    return joined
