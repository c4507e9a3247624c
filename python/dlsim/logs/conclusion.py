# SPDX-License-Identifier: Apache-2.0
"""What the path of a scale means: facts, one conclusion of a short list, and one action.

A conclusion has its evidence in the log, by line; without it the answer is "unknown".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from .._core import Format, LossScaler
from .._text import counted, percent_text, scale_text, table_text, wrapped
from .facts import Path, Run, recorded_runs
from .losses import Losses, SkipLoss, around_message, bad_from, in_stretch
from .policy import Evidence, Finding, find_policy, own_policy
from .wordings import is_power_of_two

_SETTLED = 10  # applied steps in a row that end the search for the first scale
_FALLS = 4  # so many falls, to an eighth or less of every scale before, are a divergence
_FALL = 8
_HYSTERESIS = 2  # skipped steps until the scale falls, in the stacks that wait
_AT_FLOOR = 4  # skipped steps in a row that do not lower the scale further
_SHOWN = 20  # rows of the table of brackets
_NOT_NORMAL = "but the loss is not finite at the end: not normal"
_OPEN = ("key-value", "table", "trainer-state")  # wordings of no stack

# The index of the step from which on a change acts, both scales, and the line.
_Change = tuple[int, float, float, int]

NONE, WARM_UP, STEADY, FREQUENT = "none", "warm-up", "steady", "frequent"
DIVERGENCE, UNKNOWN = "divergence", "unknown"

# Per conclusion, what to do, and the part of docs/failures.md.
_ACTIONS = {
    "nothing skipped": ("nothing", ""),
    "warm-up": ("nothing, or start lower: a lower initial scale saves these steps", "start"),
    "the scale probes its limit": (
        "nothing; a longer growth interval saves some steps",
        "a-step-is-skipped-every-n-steps",
    ),
    "more skips than growth explains": (
        "record some steps: which gradients overflow?",
        "a-step-is-skipped-every-n-steps",
    ),
    "the scale falls and does not come back": (
        "record a step that fails: which tensor is infinite first?",
        "the-scale-falls-to-its-minimum",
    ),
    "not finite whatever the scale": (
        "look at the forward pass, the data and the weights: no loss scale helps",
        "forward",
    ),
    "a growth that never comes": (
        "compare the scaler's settings: a static scale, a longer interval or an upper limit",
        "underflow",
    ),
    "steps overflow at a static scale": ("lower the scale, or let it be dynamic", "start"),
    "cannot tell": (
        "print the scale and the loss at each step, or record some steps",
        "by-symptom",
    ),
}


@dataclass
class Skips:
    """How many steps were skipped, and what that means."""

    verdict: str = NONE
    steps: int = 0
    skipped: int = 0
    warm_up: int = 0
    longest_run: int = 0
    tail: int | None = None  # the index of the first skipped step of a divergence
    tail_skips: int = 0
    share: float | None = None  # of the steps after the warm-up that are skipped
    expected_share: float | None = None  # one per growth interval
    falls: int = 0
    growths: int = 0
    explained: int = 0  # falls after the warm-up that undo a growth
    new_lows: int = 0  # other ones
    at_floor: bool = False
    evidence: list[int] = field(default_factory=list)  # lines


@dataclass
class Bracket:
    """Steps in a row at one scale, and what follows for their largest gradient, unscaled."""

    first: int
    last: int
    scale: float
    applied: int = 0
    skipped: int = 0
    hidden: int = 0  # steps of which the log does not say whether they were skipped
    applied_at_most: float | None = None
    skipped_above: float | None = None


@dataclass
class Explanation:
    """All that is found in the log of one loss scaler."""

    path: Path
    format_name: str
    finding: Finding
    runs: list[Run]
    skips: Skips
    brackets: list[Bracket]
    side: str
    side_evidence: str
    conclusion: str
    others: list[Explanation] = field(default_factory=list)

    @property
    def is_silent(self) -> bool:
        """Whether the log prints no scale."""
        return not self.path.stretches


# Skips.


def _placed(runs: Iterable[Run]) -> Iterator[tuple[int, Run]]:
    """Yields each run with the index of its first step."""
    at = 0
    for run in runs:
        yield at, run
        at += run.count


def _changes(runs: Sequence[Run], last_scale: float | None) -> Iterator[_Change]:
    """Yields each change of the scale that is seen."""
    known: float | None = None
    for at, run in _placed(runs):
        if not math.isnan(run.scale):
            if known is not None and run.scale != known:
                yield at, known, run.scale, run.line
            known = run.scale
    if known is not None and last_scale is not None and last_scale != known:
        yield sum(run.count for run in runs), known, last_scale, runs[-1].line


def _last_scale(path: Path) -> float | None:
    for stretch in reversed(path.stretches):
        end = stretch.end()
        if end is not None:
            return end.value
        if stretch.skips:
            return None
    return None


def _fall_count(before: float, after: float) -> int:
    if after <= 0 or before <= 0:
        return 1
    return max(1, round(math.log2(before) - math.log2(after)))


def _end_of_warm_up(runs: Sequence[Run]) -> int:
    """Returns the index of the first of ten applied steps in a row; the end if there are none."""
    applied = 0
    for at, run in _placed(runs):
        applied = 0 if run.skipped else applied + run.count
        if applied >= _SETTLED:
            return at + run.count - applied
    return sum(run.count for run in runs)


def _longest_run(runs: Sequence[Run]) -> int:
    """The longest run of skipped steps; where the scale grew between two, steps were applied."""
    longest = length = 0
    known = math.inf
    for run in runs:
        if (run.count and not run.skipped) or run.scale > known:
            length = 0
        known = run.scale if not math.isnan(run.scale) else known
        length += run.count if run.skipped else 0
        longest = max(longest, length)
    return longest


def _skips_from(runs: Sequence[Run], start: int) -> tuple[int, int | None, list[int]]:
    """Returns how many steps were skipped from an index on, the first of them, and their lines."""
    found = [(at, run) for at, run in _placed(runs) if run.skipped and at + run.count > start]
    count = sum(at + run.count - max(at, start) for at, run in found)
    first = max(found[0][0], start) if found else None
    return count, first, [run.line for _, run in found]


def _stands_at_floor(path: Path) -> bool:
    """Whether the last skipped steps did not lower a scale that had fallen before."""
    if path.static:
        return False
    stands, fell = 0, False
    for stretch in path.stretches:
        for skip in stretch.skips:
            if skip.used is None or skip.next is None:
                stands = 0
            elif skip.next.value < skip.used.value:
                stands, fell = 0, True
            else:
                stands += 1
        if not stretch.skips and (stretch.steps or 0) > 0:
            stands = 0
    return fell and stands >= _AT_FLOOR


def judge(path: Path, runs: list[Run], interval: int | None) -> Skips:
    """Judges the skipped steps of a path."""
    skips = Skips(steps=sum(run.count for run in runs))
    skips.skipped, _, skips.evidence = _skips_from(runs, 0)
    skips.longest_run = _longest_run(runs)
    changes = list(_changes(runs, _last_scale(path)))
    skips.falls = sum(_fall_count(b, a) for _, b, a, _ in changes if a < b)
    skips.growths = sum(1 for _, b, a, _ in changes if a > b)
    ends = [line for line in (path.stopped_line, path.zero_line) if line is not None]
    if ends:
        skips.verdict = DIVERGENCE
    elif not skips.steps or path.means or (skips.skipped == 0 and not path.tells_skips):
        skips.verdict = UNKNOWN
    if skips.skipped and not path.means:
        _judge_skips(path, runs, changes, interval, skips)
    skips.evidence += ends
    return skips


def _judge_skips(
    path: Path, runs: Sequence[Run], changes: Sequence[_Change], interval: int | None, skips: Skips
) -> None:
    settled = _end_of_warm_up(runs) if path.from_start else 0
    if not path.counted:
        settled = min([settled, *(at for at, before, after, _ in changes if after > before)])
    later, _, lines = _skips_from(runs, settled)
    skips.warm_up = skips.skipped - later
    if path.counted and skips.steps > settled:
        skips.share = later / (skips.steps - settled)
        skips.expected_share = 1 / (interval + 1) if interval else None
    skips.evidence = lines or skips.evidence
    begin = 0 if later == 0 else settled
    if _find_floor(path, runs, changes, begin, skips):
        return
    if skips.verdict != DIVERGENCE and path.only_equal:
        skips.verdict = UNKNOWN
    elif skips.verdict != DIVERGENCE and later == 0:
        stays = skips.falls == 0 and skips.skipped > _HYSTERESIS  # at a floor, or static
        skips.verdict = UNKNOWN if stays else WARM_UP
    if skips.verdict in (UNKNOWN, WARM_UP):
        skips.warm_up = skips.warm_up if skips.verdict == WARM_UP else 0
        return
    if not (begin == 0 and _settles(runs, changes)) and _find_divergence(
        runs, changes, begin, skips
    ):
        return
    if skips.verdict == DIVERGENCE:  # the log says so
        skips.tail_skips, skips.tail, _ = _skips_from(runs, begin)
        return
    skips.explained, skips.new_lows = _explained(changes, settled)
    steady = skips.explained > 0 and skips.explained >= skips.new_lows
    skips.verdict = STEADY if steady else UNKNOWN
    often = skips.share and skips.expected_share and skips.share > 3 * skips.expected_share
    if often and later > 2:
        skips.verdict = FREQUENT


def _explained(changes: Sequence[_Change], start: int) -> tuple[int, int]:
    """Counts the falls that undo a growth, and the others, which lead to new lows."""
    undone = lows = grown = 0
    for at, before, after, _ in changes:
        if after > before:
            grown += _fall_count(after, before)
        elif at > start or start == 0:
            falls = _fall_count(before, after)
            explained = min(falls, grown)
            grown -= explained
            undone += explained
            lows += falls - explained
    return undone, lows


def _find_floor(
    path: Path,
    runs: Sequence[Run],
    changes: Sequence[_Change],
    begin: int,
    skips: Skips,
) -> bool:
    """A scale that has fallen to its floor or below 1 enlarges nothing, and steps are skipped."""
    known = [run.scale for run in runs if not math.isnan(run.scale)]
    last = _last_scale(path)
    if last is None:
        last = known[-1] if known else math.inf
    # From the last step on that used a scale above 1.
    start, low = 0, False
    for at, run in _placed(runs):
        if run.scale > 1:
            start, low = at + run.count, False
        elif run.skipped and run.scale <= 1:
            low = True
    fell_below = last < 1 and any(a < 1 for _, b, a, _ in changes if a < b)
    grows = bool(changes) and changes[-1][2] > changes[-1][1]  # and recovers
    if grows or not ((last <= 1 and low) or fell_below or _stands_at_floor(path)):
        return False
    skips.verdict, skips.at_floor = DIVERGENCE, True
    if low:
        start = min(start, _descent_start(changes, start))
    else:  # the falls since the last growth lead there
        start = _descent_start(changes, skips.steps)
    tail = _skips_from(runs, max(start, begin))
    skips.tail_skips, skips.tail, skips.evidence = tail if tail[0] else _skips_from(runs, 0)
    return True


def _descent_start(changes: Sequence[_Change], before: int) -> int:
    """Returns the index from which the scale only falls until `before`."""
    start = 0
    for at, b, a, _ in changes:
        if at > before:
            break
        if a > b:
            start = at
    return start


def _settles(runs: Sequence[Run], changes: Sequence[_Change]) -> bool:
    """Whether a log begins with falls, and the scale stays from then on, as after a warm-up."""
    first, last = changes[0][0] if changes else 0, changes[-1][0] if changes else 0
    steps = sum(run.count for run in runs)
    return first <= _SETTLED and steps - last >= 5 * max(last - first, _SETTLED)


def _find_divergence(
    runs: Sequence[Run],
    changes: Sequence[_Change],
    start: int,
    skips: Skips,
) -> bool:
    """Many falls, and few growths between them, to far below every scale that was used before."""
    falls = growths = 0
    found: tuple[int, int] | None = None  # the falls, and the index of the first change
    last: float | None = None
    for at, before, after, _ in reversed(changes):
        if at <= start and start > 0:
            break
        last = after if last is None else last
        if after > before:
            growths += _fall_count(after, before)
        else:
            falls += _fall_count(before, after)
        if after < before and 5 * growths <= falls and falls >= _FALLS and before >= _FALL * last:
            found = falls, at
    if found is None or last is None:
        return False
    _, first = found
    applied = (run for at, run in _placed(runs) if start <= at < first and not run.skipped)
    lowest = min(
        (run.scale for run in applied if run.count and not math.isnan(run.scale)), default=math.inf
    )
    if lowest < math.inf and last > lowest / _FALL:
        return False
    skips.verdict = DIVERGENCE
    # The skipped steps that made the first of these falls come before it.
    end = tail = start
    for at, run in _placed(runs):
        if run.skipped and run.count and at < first:
            tail = tail if at == end else max(at, start)
            end = at + run.count
    skips.tail_skips, skips.tail, skips.evidence = _skips_from(runs, tail)
    return True


# The largest gradient.


def _largest(threshold: float, scale: float) -> float | None:
    """Returns the largest float32 whose product with the scale does not overflow."""
    if not 0 < scale < 3e38:
        return None
    factor, most = np.float32(scale), np.float32(np.finfo(np.float32).max)
    if factor == 0:
        return None
    with np.errstate(all="ignore"):
        found = np.float32(min(threshold / scale, float(most)))
        while found > 0 and not found * factor < threshold:
            found = np.nextafter(found, np.float32(0))
        while found < most and np.nextafter(found, most) * factor < threshold:
            found = np.nextafter(found, most)
    return float(found)


def brackets_of(runs: Sequence[Run], format_name: str) -> list[Bracket]:
    """Returns what the steps at each scale say of the gradients."""
    threshold = Format(format_name).overflow_threshold
    brackets: list[Bracket] = []
    bounds: dict[float, float | None] = {}
    for at, run in _placed(run for run in runs if run.count):
        last = brackets[-1] if brackets else None
        same = last is not None and (
            last.scale == run.scale or (math.isnan(last.scale) and math.isnan(run.scale))
        )
        if last is None or not same:
            last = Bracket(at, at, run.scale)
            brackets.append(last)
        last.last = at + run.count - 1
        if run.skipped:
            last.skipped += run.count
        elif run.hidden:
            last.hidden += run.count
        else:
            last.applied += run.count
    for bracket in brackets:
        scale = bracket.scale
        if math.isnan(scale):
            continue
        if scale not in bounds:
            bounds[scale] = _largest(threshold, scale)
        bracket.applied_at_most = bounds[scale] if bracket.applied else None
        bracket.skipped_above = bounds[scale] if bracket.skipped else None
    return brackets


def _most(values: Sequence[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


# Forward or backward.

_FORWARD_TEXT = (
    ": consistent with an overflow in the forward pass, or with data or weights that are already "
    "broken; a lower scale cannot help"
)


def _judged_skip(path: Path, runs: Sequence[Run], skips: Skips) -> tuple[int, int] | None:
    """Returns a stretch and which of its skips is judged: the divergence's first, or the first."""
    from_line = before = 0
    if skips.verdict == DIVERGENCE and skips.tail is not None:
        from_line = next((r.line for at, r in _placed(runs) if at + r.count > skips.tail), 0)
        of_line = [(at, run) for at, run in _placed(runs) if run.line == from_line and run.skipped]
        before = sum(min(run.count, max(skips.tail - at, 0)) for at, run in of_line)
    for index, stretch in enumerate(path.stretches):
        if stretch.skips and stretch.line >= from_line:
            own = before if stretch.line == from_line else 0
            return index, min(own, len(stretch.skips) - 1)
    return None


def _loss_text(loss: Any) -> str:
    if loss.skipped:
        if not loss.bad_count:
            return "no skipped iteration had a loss that is not finite"
        noun = "iteration" if loss.skipped == 1 else "iterations"
        return f"{loss.bad_count} of {loss.skipped} skipped {noun} had a loss that is not finite"
    if math.isfinite(loss.value):
        return f"the loss is finite ({loss.value:.5g})"
    return f"the loss is {loss.value}"


def _loss_of(path: Path, place: tuple[int, int]) -> SkipLoss:
    stretch = path.stretches[place[0]]
    line = stretch.skips[place[1]].line
    if line:
        lines = sorted(s.line for each in path.stretches for s in each.skips if s.line)
        return around_message(path.losses, line, lines)
    previous = max(
        (each.line for each in path.stretches[: place[0]] if each.line < stretch.line), default=0
    )
    return in_stretch(
        *(path.losses, stretch.line, previous, len(stretch.skips), stretch.steps),
        last_skipped=stretch.last is True,
    )


def diagnose(
    path: Path, runs: Sequence[Run], skips: Skips, brackets: Sequence[Bracket]
) -> tuple[str, str]:
    """Returns the side, forward, backward or unknown, and its evidence."""
    losses = path.losses
    bad = bad_from(losses)
    if not path.stretches and path.stopped_line is None:
        bad = bad or "a gradient norm is not finite, with a finite loss"
        return UNKNOWN, (
            f"{bad}; this log prints no loss scale, so it is unknown whether the forward or the "
            "backward pass failed: record some steps with dlsim.Recorder"
        )
    place = _judged_skip(path, runs, skips)
    if place is None:
        means = "the log prints means of the scale, which show no step"
        shows = means if path.means else "the log shows no skipped step"
        return UNKNOWN, shows + (f", but {bad}" if bad else "")
    found = _loss_of(path, place)
    partly = skips.verdict == DIVERGENCE and skips.tail_skips < skips.skipped
    where = "the first skipped step of the divergence" if partly else "the first skipped step"
    if found.bad is not None:
        return (
            "forward",
            f"{_loss_text(found.bad)} at {where} (line {found.bad.line}){_FORWARD_TEXT}",
        )
    if found.finite is None:
        return UNKNOWN, found.why
    first = f"{_loss_text(found.finite)} at {where} (line {found.finite.line})"
    wrong_at = next(
        (i for i, x in enumerate(losses.printed) if x.line > found.finite.line and x.is_bad), None
    )
    rest = losses.printed[wrong_at:] if wrong_at is not None else []
    if len(rest) > 1 and all(loss.is_bad for loss in rest):
        return "forward", f"{first}, but not from line {rest[0].line} to the end{_FORWARD_TEXT}"
    if rest:
        more = (
            f"; later, at line {rest[0].line}, the loss is not finite, which points to the forward "
            "pass"
        )
    else:
        more = _floor_text(path, runs, brackets)
    return "backward", f"{first}: consistent with an overflow in the backward pass{more}"


def _floor_text(path: Path, runs: Sequence[Run], brackets: Sequence[Bracket]) -> str:
    lowest = min((r.scale for r in runs if r.skipped and r.scale > 0), default=None)
    above = _most([b.skipped_above for b in brackets])
    if lowest is None or above is None or (lowest > 1 and path.stopped_line is None):
        return ""
    return (
        f"; a step was skipped even at a scale of {scale_text(lowest)}: a gradient is above "
        f"{above:.5g} unscaled, or not finite at any scale"
    )


# All together.


def _ends_badly(losses: Losses) -> bool:
    return bool(losses.printed) and losses.printed[-1].is_bad


_OF_VERDICT = {
    FREQUENT: "more skips than growth explains",
    STEADY: "the scale probes its limit",
    WARM_UP: "warm-up",
}


def _conclusion_of(path: Path, skips: Skips, runs: Sequence[Run]) -> str:
    if skips.verdict == DIVERGENCE:
        low = skips.at_floor or path.zero_line is not None or path.stopped_line is not None
        return "not finite whatever the scale" if low else "the scale falls and does not come back"
    if path.static and skips.skipped:
        return "steps overflow at a static scale"
    if _ends_badly(path.losses) or not path.stretches:
        return "cannot tell"
    if skips.verdict == NONE:
        return "a growth that never comes" if _never_grows(path, runs) else "nothing skipped"
    return _OF_VERDICT.get(skips.verdict, "cannot tell")


def _never_grows(path: Path, runs: Sequence[Run]) -> bool:
    """Whether a stack's scaler would have grown twice in the applied steps that the log counts."""
    if path.stack in ("key-value", "table", "trainer-state", "swin", "marian") or path.unbounded:
        return False
    policy = own_policy(path)
    names = ("growth_interval", "scale_window", "scale_seq_len", "incr_every_n_steps")
    parameters = LossScaler(policy).parameters if policy else {}
    interval = next((int(parameters[name]) for name in names if name in parameters), 0)
    scales = {run.scale for run in runs}
    constant = len(scales) == 1 and 0 < min(scales) < 2.0**15 and is_power_of_two(min(scales))
    return bool(interval) and constant and sum(run.count for run in runs) > 2 * interval


def explain_path(path: Path, format_name: str) -> Explanation:
    """Returns what a path means."""
    finding = Finding()
    if path.stretches and any(stretch.steps != 0 for stretch in path.stretches):
        finding = find_policy(path, format_name)
    elif path.stretches:
        finding = Finding(why_not="the log has one record only")
    runs = recorded_runs(path)
    match = finding.match
    if match is not None and match.runs and path.from_start:
        unstated = {stretch.line for stretch in path.stretches if not stretch.stated}
        runs = match.runs
        for run in runs:
            run.hidden = run.line in unstated and not run.skipped
    skips = judge(path, runs, finding.interval)
    brackets = [] if path.unbounded or path.means else brackets_of(runs, format_name)
    side, evidence = diagnose(path, runs, skips, brackets)
    conclusion = _conclusion_of(path, skips, runs)
    if side == "forward":
        conclusion = "not finite whatever the scale"
    return Explanation(
        path, format_name, finding, runs, skips, brackets, side, evidence, conclusion
    )


_RANK = {DIVERGENCE: 0, FREQUENT: 1, UNKNOWN: 2, STEADY: 3, WARM_UP: 4, NONE: 5}


def explain_paths(paths: Sequence[Path], format_name: str) -> Explanation:
    """Explains each scaler that a log tells apart; the one that does worst comes first."""
    explained = [explain_path(path, format_name) for path in paths]
    explained.sort(key=lambda e: _RANK[e.skips.verdict])
    first, *others = explained
    first.others = others
    if others:
        told = "; ".join(f"{e.path.name}: {skip_line(e)}" for e in others)
        first.path.notes.append(f"this is {first.path.name}, one of {len(explained)}; {told}")
    return first


# JSON.


def _lowest_and_highest(explained: Explanation) -> tuple[float | None, float | None]:
    if explained.path.means:
        return None, None
    known = [run.scale for run in explained.runs if run.count and not math.isnan(run.scale)]
    for stretch in explained.path.stretches:  # some of its applied steps may have used it
        if stretch.next is not None and (stretch.steps or 0) > max(len(stretch.skips), 1):
            known.append(stretch.next.value)
    if not known:  # one record
        known = [s.next.value for s in explained.path.stretches if s.next is not None]
        known = known or [s.used.value for s in explained.path.stretches if s.used is not None]
    return (min(known), max(known)) if known else (0.0, 0.0)


# What --expect can ask: the summary, and where the scale began to fall without recovery.
FIGURES = (
    *("steps", "skipped_steps", "warm_up_skips", "longest_run", "min_scale", "max_scale"),
    *("falls", "growths", "applied_at_most", "skipped_above", "divergence_from"),
)


def _summary(explained: Explanation) -> dict[str, Any]:
    skips, brackets = explained.skips, explained.brackets
    low, high = _lowest_and_highest(explained)
    is_known = not explained.path.means and not explained.path.only_equal
    return {
        "steps": skips.steps,
        "skipped_steps": skips.skipped if is_known else None,
        "warm_up_skips": skips.warm_up,
        "longest_run": skips.longest_run,
        "min_scale": low,
        "max_scale": high,
        "falls": None if explained.path.means else skips.falls,
        "growths": None if explained.path.means else skips.growths,
        "applied_at_most": _most([b.applied_at_most for b in brackets]),
        "skipped_above": _most([b.skipped_above for b in brackets]),
    }


def _evidence(row: Evidence) -> dict[str, Any]:
    return {**asdict(row), "value": _plain(row.value)}


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value)


def document_of(explained: Explanation) -> dict[str, Any]:
    """Returns the document dlsim.explain/1."""
    path, skips, finding = explained.path, explained.skips, explained.finding
    is_counted = path.counted
    first = path.first_step if is_counted else 1
    match, best = finding.match, finding.best
    action, page = _ACTIONS[explained.conclusion]
    document: dict[str, Any] = {
        "schema": "dlsim.explain/1",
        "stack": path.stack,
        "format": explained.format_name,
        "counted": is_counted,
        "from_start": path.from_start and is_counted,
        "notes": list(path.notes),
        "conclusion": {
            "name": explained.conclusion,
            "lines": sorted(set(skips.evidence))[:100],
            "action": action,
            "page": "docs/failures.md" + (f"#{page}" if page else ""),
        },
        "diagnosis": {"side": explained.side, "evidence": explained.side_evidence},
        "summary": _summary(explained),
        "policies": [],
        "best_prefix": None,
    }
    if match is not None:
        document["policies"].append(
            {
                "policy": match.policy,
                "settings": [f"{name}={text}" for name, text in sorted(match.settings.items())],
                "params": dict(match.parameters),
                "evidence": [_evidence(row) for row in match.evidence],
            }
        )
    if best is not None:
        document["best_prefix"] = {
            "policy": best.policy,
            "settings": [f"{name}={text}" for name, text in sorted(best.settings.items())],
            "stretches": best.stretches,
            "of_stretches": len(path.stretches),
            "fails_at_line": finding.fails_at_line,
        }
    document["skips"] = {
        "verdict": skips.verdict,
        "steps": skips.steps,
        "skipped": skips.skipped,
        "warm_up_skips": skips.warm_up,
        "longest_run": skips.longest_run,
        "share": skips.share,
        "expected_share": skips.expected_share,
        "divergence_from": None if skips.tail is None else first + skips.tail,
    }
    document["brackets"] = [
        {
            "first_step": first + bracket.first,
            "last_step": first + bracket.last,
            "scale": bracket.scale,
            "applied": bracket.applied if is_counted and not bracket.hidden else None,
            "skipped": bracket.skipped,
            "applied_at_most": bracket.applied_at_most,
            "skipped_above": bracket.skipped_above,
        }
        for bracket in explained.brackets
    ]
    document["others"] = [
        {"name": other.path.name, "summary": _summary(other), "verdict": other.skips.verdict}
        for other in explained.others
    ]
    return document


def csv_of(explained: Explanation) -> Iterator[str]:
    """Yields the path as CSV, one row per step or overflow."""
    path = explained.path
    yield f"{'step' if path.counted else 'overflow'},scale,skipped,line\n"
    at = path.first_step if path.counted else 1
    for run in explained.runs:
        scale = "" if math.isnan(run.scale) else f"{run.scale:.17g}".removesuffix(".0")
        for _ in range(run.count):
            yield f"{at},{scale},{int(run.skipped)},{run.line}\n"
            at += 1


# The report.


def _facts_line(explained: Explanation) -> str:
    """What the log shows, before anything is said of it."""
    path, skips = explained.path, explained.skips
    last = path.first_step + skips.steps - 1
    covers = f"{counted(skips.skipped, 'messages')} of skipped steps"
    if path.counted:
        covers = f"steps {path.first_step} to {last}" if skips.steps else "one record"
    scales = [run.scale for run in explained.runs if not math.isnan(run.scale)]
    text = f"log: {path.stack}, {covers}"
    if scales and not path.means:
        first, end = scales[0], _last_scale(path)
        text += f"; scale {scale_text(first)} to {scale_text(scales[-1] if end is None else end)}"
        text += f", {counted(skips.falls, 'falls')}, {counted(skips.growths, 'growths')}"
        text += f"; longest run of skips {skips.longest_run}" if skips.skipped else ""
    return wrapped(text)


def _diagnosis_line(explained: Explanation) -> str:
    all_applied = explained.skips.skipped == 0 and not explained.is_silent
    if all_applied and not any(loss.is_bad for loss in explained.path.losses.printed):
        return ""
    return wrapped(f"diagnosis: {explained.side}: {explained.side_evidence}")


def _shown_parameter(name: str, value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
        if ("scale" in name and "window" not in name and "factor" not in name) or name.startswith(
            "init"
        ):
            return scale_text(number) if is_power_of_two(number) else f"{number:g}"
        return f"{number:g}"
    return _plain(value)


def _policy_line(explained: Explanation) -> str:
    finding, path = explained.finding, explained.path
    match, best = finding.match, finding.best
    if match is None:
        if best is None or finding.fails_at_line is None:
            return f"policy: unknown: {finding.why_not}"
        line = f"policy: unknown: from line {finding.fails_at_line} on "
        if path.gaps:
            return line + f"the log does not show enough for a run of {best.policy}"
        return line + f"the scale differs from what {best.policy} does"
    parts = []
    for row in match.evidence:
        bounded = row.least is not None and row.least > 1
        if row.seen:
            parts.append(f"{row.name} {_shown_parameter(row.name, row.value)}")
        elif bounded and row.most is not None:
            parts.append(f"{row.name} {row.least} to {row.most}")
        elif bounded:
            parts.append(f"{row.name} {row.least} or more")
    text = f" with {', '.join(parts)}" if parts else ""
    if path.static:
        return f"policy: {match.policy}{text}, which the log calls static: it never changes"
    if path.stack in _OPEN and match.policy != "static":
        text += " takes every scale of it"
        return f"policy: the log does not name its scaler; {match.policy}{text}"
    return f"policy: {match.policy}{text} takes every scale of the log"


def _end_text(path: Path) -> str:
    """Where the log says that the training ended, or that no gradient is left."""
    if path.zero_line is not None:
        return f"; at line {path.zero_line} the printed scale is 0: the training cannot recover"
    if path.stopped_line is not None:
        ended = "" if path.stack == "marian" else "the training ended, because "
        return f"; at line {path.stopped_line} {ended}the scale could not fall further"
    return ""


def skip_line(explained: Explanation) -> str:
    """Returns what the skipped steps mean, in a sentence."""
    skips, path = explained.skips, explained.path
    if skips.verdict == DIVERGENCE and skips.tail is None:
        ends = "scale is at its minimum" if path.stack == "marian" else "training ended"
        return f"number unknown, but the {ends} (divergence)" + _end_text(path)
    if explained.is_silent or not skips.steps or path.means:
        why = "prints no loss scale" if explained.is_silent else "has one record only"
        return f"unknown: the log {'prints means of the scale' if path.means else why}"
    if skips.skipped == 0:
        return _no_skip_text(path, skips)
    line = f"{'at least ' if path.hides_steps else ''}{skips.skipped}"
    line += f" of {counted(skips.steps, 'steps')}, " if path.counted else ", "
    if skips.verdict == WARM_UP:
        return line + _warm_up_text(path)
    if skips.verdict == DIVERGENCE:
        which = "all" if skips.tail_skips == skips.skipped else f"the last {skips.tail_skips}"
        tail = skips.tail or 0
        step = f"step {path.first_step + tail}" if path.counted else f"overflow {tail + 1}"
        text = "the scale falls and does not recover (divergence)"
        return f"{line}{which} from {step} on: {text}{_end_text(path)}"
    return line + _later_text(path, skips)


def _no_skip_text(path: Path, skips: Skips) -> str:
    steps = counted(skips.steps, "steps")
    if skips.verdict == UNKNOWN and path.hides_steps:
        return f"none seen in {steps}, but the log does not show each of them"
    if skips.verdict == UNKNOWN:
        return f"none seen in {steps}: the scale does not fall, but the log does not mark skips"
    return f"0 of {steps}, none skipped" if path.counted else "none"


def _warm_up_text(path: Path) -> str:
    fails = _ends_badly(path.losses)
    if path.counted:
        return "all in warm-up, " + (
            _NOT_NORMAL if fails else "while the scale finds its level: normal"
        )
    return (
        f"at the start of training, {_NOT_NORMAL}"
        if fails
        else "normal at the start of training (warm-up)"
    )


def _later_text(path: Path, skips: Skips) -> str:
    """Of skipped steps that are not all at the beginning."""
    before = f"{skips.warm_up} of them warm-up; then " if path.from_start and skips.warm_up else ""
    if path.static:
        return "at a static scale, which does not fall"
    if skips.verdict == STEADY:
        fails = _ends_badly(path.losses)
        return f"{before}steady, {_NOT_NORMAL if fails else 'as expected from growth of the scale'}"
    if skips.verdict == FREQUENT:
        share, expected = percent_text(skips.share or 0), percent_text(skips.expected_share or 0)
        return f"{before}more often ({share}) than growth of the scale explains ({expected})"
    if path.only_equal:
        return "all with the same message: as many overflows, or fewer of several ranks"
    if skips.growths == 0:
        how = "fell, and has not grown in this log" if skips.falls else "did not fall"
        how = "fell and came back between two lines" if path.comes_back else how
        return f"{before}the scale {how}: cannot tell why"
    falls = f"{counted(skips.new_lows, 'falls')} to a new low, {skips.explained} after a growth"
    return f"{before}{falls}: cannot tell why"


def _magnitude_line(explained: Explanation) -> str:
    brackets = explained.brackets
    line = f"largest gradient ({explained.format_name}): "
    applied = [b.applied_at_most for b in brackets if b.applied_at_most is not None]
    above = _most([b.skipped_above for b in brackets])
    if not applied and above is None:
        unbounded = explained.path.unbounded or explained.path.means
        return line + ("not bounded" if unbounded else "no scale is known")
    parts = []
    if applied:
        last = f" (the last {applied[-1]:.5g})" if applied[-1] != max(applied) else ""
        parts.append(f"at most {max(applied):.5g} in applied steps{last}")
    if above is not None:
        parts.append(f"above {above:.5g} in skipped steps, or not finite")
    return line + "; ".join(parts)


def _bracket_table(explained: Explanation) -> str:
    if not explained.brackets:
        return ""
    is_counted = explained.path.counted
    first = explained.path.first_step if is_counted else 1
    rows = [["steps" if is_counted else "overflows", "scale", "applied", "skipped"]]
    rows[0] += ["applied up to", "skipped above"]
    for bracket in explained.brackets[:_SHOWN]:
        low, high = first + bracket.first, first + bracket.last
        steps = str(low) if low == high else f"{low} to {high}"
        scale = "?" if math.isnan(bracket.scale) else scale_text(bracket.scale)
        bounds = [
            "" if bound is None else f"{bound:.5g}"
            for bound in (bracket.applied_at_most, bracket.skipped_above)
        ]
        applied = str(bracket.applied) if is_counted and not bracket.hidden else "?"
        rows.append([steps, scale, applied, str(bracket.skipped), *bounds])
    text = "\nlargest gradient, unscaled, at each scale\n" + table_text(rows)
    more = len(explained.brackets) - _SHOWN
    return text + (f"  ... and {more} more (--json)\n" if more > 0 else "")


def _next_line(explained: Explanation) -> str:
    action, page = _ACTIONS[explained.conclusion]
    lines = sorted(set(explained.skips.evidence))
    where = ""
    if lines:
        where = f" (line {lines[0]})" if len(lines) == 1 else f" (lines {lines[0]} to {lines[-1]})"
    more = f"; see docs/failures.md#{page}" if page else ""
    return wrapped(f"conclusion: {explained.conclusion}{where}; to do: {action}{more}")


def _notes(explained: Explanation) -> str:
    notes = list(explained.path.notes)
    if not explained.path.counted:
        notes.append(
            "the log does not count the steps between its messages, so growth intervals are unknown"
        )
    match = explained.finding.match
    if match is not None and match.ambiguous:
        notes.append(
            "the log does not say exactly which steps overflowed; one consistent assignment is "
            "shown"
        )
    text = "".join(wrapped(f"note: {note}") for note in notes)
    return f"\n{text}" if text else ""


def report_of(explained: Explanation) -> str:
    """Returns the report."""
    skips = wrapped(f"skips: {skip_line(explained)}")
    if explained.is_silent:
        return _diagnosis_line(explained) + skips
    return "".join(
        (
            _facts_line(explained),
            _diagnosis_line(explained),
            wrapped(_policy_line(explained)),
            skips,
            wrapped(_magnitude_line(explained)),
            _next_line(explained),
            _bracket_table(explained),
            _notes(explained),
        )
    )
