# SPDX-License-Identifier: Apache-2.0
"""The scaler of the log's own stack: parameters that the path shows, checked by a run of it.

No other stack is tried: many scalers take the same few scales. A parameter is "seen" if another
value of it would not take the scales of the log.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any, NamedTuple

from .._core import LossScaler
from .._errors import Error
from .facts import Path, Run, Skip, Stretch, merged
from .wordings import is_power_of_two

_MOST_WORK = 4_000_000  # steps of scalers until one is found
_MORE_WORK = 500_000  # until it is known what the log shows of its parameters
_MOST_STATES = 12
_MOST_CANDIDATES = 2000
_MOST_HIDDEN = 8
_MOST_INTERVALS = 24
_MOST_PLACES = 16  # steps in which each place of one skipped step is tried
_JUNE_2025 = 2025 * 12 + 5  # DeepSpeed 0.17.1 was released
_LONGEST_INTERVAL = 1 << 30


class _Roles(NamedTuple):
    """What a policy calls its parameters; empty for those that it does not have."""

    start: str
    interval: str = ""
    growth: str = ""
    backoff: str = ""
    factor: str = ""  # of growth, and its inverse of backoff
    skips: str = ""  # overflows until the scale falls
    floor: str = ""


_ROLES = {
    "apex": _Roles("init_scale", "scale_window", factor="scale_factor", floor="min_loss_scale"),
    "apex-fp16-utils": _Roles("init_scale", "scale_window", factor="scale_factor"),
    "colossalai": _Roles(
        *("initial_scale", "growth_interval", "growth_factor", "backoff_factor"),
        skips="hysteresis",
        floor="min_scale",
    ),
    "deepspeed": _Roles(
        *("init_scale", "scale_window"),
        factor="scale_factor",
        skips="delayed_shift",
        floor="min_scale",
    ),
    "deepspeed-fp16-optimizer": _Roles("init_scale", "scale_window", floor="min_scale"),
    "fairseq": _Roles("init_scale", "scale_window", factor="scale_factor", floor="min_loss_scale"),
    "fairseq2": _Roles("init_scale", "scale_window", factor="scale_factor", floor="min_scale"),
    "guided-diffusion": _Roles("init_scale"),
    "megatron": _Roles(
        *("initial_scale", "growth_interval", "growth_factor", "backoff_factor"),
        skips="hysteresis",
        floor="min_scale",
    ),
    "metaseq": _Roles("init_scale", "scale_window", factor="scale_factor", floor="min_loss_scale"),
    "mindspore-cell": _Roles("loss_scale_value", "scale_window", factor="scale_factor"),
    "mxnet": _Roles("loss_scale", "scale_seq_len"),
    "paddle": _Roles(
        *("init_loss_scaling", "incr_every_n_steps", "incr_ratio", "decr_ratio"),
        skips="decr_every_n_nan_or_inf",
    ),
    "static": _Roles("loss_scale"),
    "torch": _Roles("init_scale", "growth_interval", "growth_factor", "backoff_factor"),
}
_ROLES["deepspeed-0.16"] = _ROLES["deepspeed"]

# The scaler of a stack; torch's for those that use it, and for loops of one's own.
_OWN = {
    "apex": "apex",
    "colossalai": "colossalai",
    "deepspeed": "deepspeed",
    "fairseq": "fairseq",
    "fairseq2": "fairseq2",
    "guided-diffusion": "guided-diffusion",
    "internevo": "colossalai",
    "megatron": "megatron",
    "metaseq": "metaseq",
    "mindspore": "mindspore-cell",
    "mmcv": "apex-fp16-utils",
    "mxnet": "mxnet",
    "paddle": "paddle",
}
_NO_POLICY = ("marian",)  # its scaler is none of the policies


@dataclass
class Evidence:
    """A parameter, whether the log shows its value, and the bounds of an interval."""

    name: str
    value: Any
    seen: bool = False
    least: int | None = None
    most: int | None = None


@dataclass
class Match:
    """A policy whose run takes every scale of the log, or those up to a line."""

    policy: str
    settings: dict[str, str]
    parameters: dict[str, Any]
    evidence: list[Evidence] = field(default_factory=list)
    stretches: int = 0  # how many of those of the path are reproduced
    runs: list[Run] = field(default_factory=list)
    ambiguous: bool = False  # several placements of the skipped steps fit
    scaler: LossScaler | None = None  # after the last step


@dataclass
class Finding:
    """The policy of a log: one that fits, or the one that goes farthest, or why none was run."""

    match: Match | None = None
    best: Match | None = None
    fails_at_line: int | None = None
    why_not: str = ""
    interval: int | None = None  # of growth, the least that the log allows


class _Interval(NamedTuple):
    least: int
    most: int


class _Marks(NamedTuple):
    """What the path shows of the parameters, before a scaler is run."""

    starts: list[float]
    rise: float | None  # the first ratio of a growth
    fall: float | None  # of a fall
    interval: _Interval | None
    intervals: list[int]  # that each growth alone suggests
    longest_clean: int  # applied steps in a row without growth
    skips_before_fall: int
    floor: float | None  # the lowest scale, if a step was skipped there and it did not fall


def own_policy(path: Path) -> str:
    """Returns the policy of the log's own stack; empty if it has none."""
    if path.stack in _NO_POLICY:
        return ""
    policy = path.policy or _OWN.get(path.stack, "torch")
    is_old = path.month is not None and path.month < _JUNE_2025
    return "deepspeed-0.16" if policy == "deepspeed" and is_old else policy


def _close(ratio: float) -> float:
    """Returns a power of two for a ratio that is printed as nearly one."""
    power = 2.0 ** round(math.log2(ratio))
    return power if abs(ratio - power) < 1e-3 * power else ratio


class _MarkFinder:
    """Walks along a path; the counter of applied steps is bounded: gaps hide where they were."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._scale: float | None = None
        self._clean = [0, 0]  # applied steps since the last change, at least and at most
        self._longest = self._stands = self._before_fall = 0
        self._rise: float | None = None
        self._fall: float | None = None
        self._lowest = math.inf
        self._distances: list[_Interval] = []
        # Of a log that begins in mid-training the counter is known from the first change on.
        self._counts, self._fallen = path.from_start, False

    def find(self) -> _Marks:
        """Returns the marks."""
        starts = self._starts()
        for stretch in self._path.stretches:
            self._add(stretch)
        interval: _Interval | None = None
        for distance in self._distances:
            both = distance
            if interval is not None:
                least = max(interval.least, distance.least)
                both = _Interval(least, min(interval.most, distance.most))
            interval = both if both.least <= both.most else interval
        spread = [_roundest(*distance) for distance in dict.fromkeys(self._distances)]
        floor = self._lowest if self._stands and self._lowest < math.inf else None
        # While the scale has never fallen, hysteresis is not used up.
        skips = self._before_fall + (not self._fallen and self._before_fall > 0)
        ratios = self._rise, self._fall
        return _Marks(
            *(starts, *ratios, interval, spread[:_MOST_INTERVALS], self._longest, skips, floor)
        )

    def _starts(self) -> list[float]:
        """Returns the scale of the first step, or those from which it may have fallen."""
        falls = 0
        for stretch in self._path.stretches:
            known = _first_scale(stretch)
            falls += _falls_before(stretch) if known is not None else len(stretch.skips)
            if known is not None:
                self._scale = known * 2.0 ** min(falls, 64)
                higher = (known * 2.0**i for i in range(min(falls, 64), -1, -1))
                return [start for start in higher if math.isfinite(start)]
        return []

    def _add(self, stretch: Stretch) -> None:
        count = stretch.steps if stretch.steps is not None else len(stretch.skips)
        for skip in stretch.skips:
            self._add_skip(skip)
        end, before = stretch.end(), self._scale
        after = end.value if end is not None else before
        if after is None or before is None:
            return
        self._lowest = min(self._lowest, after)
        if stretch.skips and 0 < after < before:
            if len(stretch.skips) == 1:
                self._fall = self._fall or _close(after / before)
            self._fallen = True
        grows = after > before > 0
        if grows:
            self._rise = self._rise or (
                _close(after / before) if stretch.steps is not None else 2.0
            )
            if stretch.steps is not None and not stretch.skips and self._counts:
                self._distances.append(_Interval(self._clean[0] + 1, self._clean[1] + count))
            self._clean = [0, max(count - 1, 0)]
        elif stretch.skips:
            self._clean = [0, count - len(stretch.skips)]
        else:
            self._clean = [self._clean[0] + count, self._clean[1] + count]
        self._longest = max(self._longest, self._clean[0])
        self._counts = self._counts or grows or bool(stretch.skips)
        self._scale = after

    def _add_skip(self, skip: Skip) -> None:
        self._before_fall += not self._fallen
        used = skip.used.value if skip.used is not None else self._scale
        if skip.used is not None and self._scale is not None and skip.used.value > self._scale:
            self._rise = self._rise or 2.0
        if skip.next is None or used is None:
            return
        after = skip.next.value
        if 0 < after < used:
            self._fall = self._fall or _close(after / used)
            self._fallen, self._stands = True, 0
        elif after == used and used <= self._lowest and self._fallen:
            self._stands += 1
        self._scale = after


def _first_scale(stretch: Stretch) -> float | None:
    """Returns the first scale that a stretch tells."""
    if stretch.steps in (None, 1) and stretch.used is not None:
        return stretch.used.value
    for skip in stretch.skips:
        for number in (skip.used, skip.next):
            if number is not None:
                return number.value
    end = stretch.end() or stretch.used
    return end.value if end is not None else None


def _falls_before(stretch: Stretch) -> int:
    """Returns how many falls may have led to the first scale that a stretch tells."""
    if stretch.steps in (None, 1) and stretch.used is not None:
        return 0
    for at, skip in enumerate(stretch.skips):
        if skip.used is not None or skip.next is not None:
            return at if skip.used is not None else at + 1
    return len(stretch.skips)


def _roundest(least: int, most: int) -> int:
    """Returns the number between two with the most trailing zeros."""
    unit = 1_000_000_000
    while unit > 1:
        for part in (unit, unit // 2, unit // 4):
            multiple = -(-least // part) * part if part >= 1 else 0
            if 0 < multiple <= most:
                return multiple
        unit //= 10
    return least


def _announced(scaler: LossScaler) -> float:
    """Returns the scale that comes next: MXNet's acts a step later."""
    announced = scaler.checkpoint().get("next_loss_scale")
    return scaler.scale if announced is None else float.fromhex(announced)


class _Checker:
    """Runs scalers along a path."""

    def __init__(self, path: Path, format_name: str) -> None:
        self._path, self._format = path, format_name
        self._work, self._most = 0, _MOST_WORK

    @property
    def is_tired(self) -> bool:
        """Whether no more steps are run."""
        return self._work > self._most

    def allow_more(self) -> None:
        """Lets the questions about parameters take some steps, however many were taken before."""
        self._most = self._work + _MORE_WORK

    def make(self, policy: str, settings: Mapping[str, Any]) -> LossScaler | None:
        """Returns a scaler; None for settings that its policy refuses."""
        try:
            return LossScaler(policy, dict(settings), self._format)
        except (Error, ValueError):
            return None

    def run(self, scaler: LossScaler, first: int) -> tuple[int, list[_State]]:
        """Returns how many stretches from `first` on fit, and the states after the last of them."""
        states = [_State(scaler, None, [])]
        stretches = self._path.stretches
        for at in range(first, len(stretches)):
            stretch = stretches[at]
            if len(states) == 1 and _is_clear(stretch):  # no other way: the scaler need not be kept
                taken = self._take(stretch, states[0], frozenset(range(len(stretch.skips))))
                if not taken or self.is_tired:
                    return at, states
                continue
            after: list[_State] = []
            known: set[str] = set()
            for state in states:
                for result in self._through(stretch, state):
                    key = repr(sorted(result.scaler.checkpoint().items()))
                    if key not in known and len(after) < _MOST_STATES:
                        known.add(key)
                        after.append(result)
            if not after or self.is_tired:
                return at, states
            states = after
        return len(stretches), states

    def _through(self, stretch: Stretch, state: _State) -> Iterator[_State]:
        if stretch.steps is None:
            yield from self._through_messages(stretch, state)
            return
        count, skips = stretch.steps, len(stretch.skips)
        if skips > count:
            return
        for places in self._places(stretch, count, skips):
            result = _State(copy.copy(state.scaler), state, [])
            if self._take(stretch, result, places):
                yield result

    def _places(self, stretch: Stretch, count: int, skips: int) -> Iterator[str | frozenset[int]]:
        """Yields where the skipped steps may be."""
        if skips in (0, count):
            yield frozenset(range(skips))
            return
        if stretch.last is True:
            yield frozenset(range(count - skips, count))
            yield frozenset((*range(skips - 1), count - 1))
            if skips > 1:
                yield "grown"
            return
        most = count - (1 if stretch.last is False else 0)
        if skips == 1 and count <= _MOST_PLACES:
            for at in range(most):
                yield frozenset((at,))
            return
        yield frozenset(range(skips))
        yield "grown"
        yield frozenset(range(most - skips, most))

    def _take(self, stretch: Stretch, state: _State, places: str | frozenset[int]) -> bool:
        """Takes the steps of a stretch; returns False where the log says something else."""
        scaler, runs, count = state.scaler, state.steps, stretch.steps or 0
        skips = iter(stretch.skips)
        left, grown, line = len(stretch.skips), False, stretch.line
        self._work += count + 1
        used = scaler.scale
        for at in range(count):
            if isinstance(places, str):
                skip = left > 0 and (grown or (stretch.last is True and at == count - 1))
                if stretch.last is True and left == 1 and at < count - 1:
                    skip = False
            else:
                skip = at in places
            if at == count - 1 and stretch.used is not None and not stretch.used.holds(used):
                return False
            if not self._step(scaler, next(skips) if skip else None):
                return False
            left -= skip
            after = scaler.scale
            grown = after > used or (grown and skip and after >= used)
            last = runs[-1] if runs else None
            if (
                last is not None
                and last.scale == used
                and (last.skipped, last.line) == (skip, line)
            ):
                last.count += 1
            else:
                runs.append(Run(1, used, skip, line))
            used = after
        return not left and (stretch.next is None or stretch.next.holds(used))

    @staticmethod
    def _step(scaler: LossScaler, logged: Skip | None, *, announced: bool = False) -> bool:
        """Takes a step; returns False where the scaler does not do what the log says."""
        used = scaler.scale
        if logged is not None and logged.used is not None and not logged.used.holds(used):
            return False
        if logged is None:
            scaler.next(False)
            return True
        if not scaler.next(True, math.inf)["skip"]:
            return False
        after = logged.next
        return after is None or after.holds(_announced(scaler) if announced else scaler.scale)

    def _through_messages(self, stretch: Stretch, state: _State) -> Iterator[_State]:
        """How many steps there are between messages is not told: the scale may have grown."""
        scaler = copy.copy(state.scaler)
        runs: list[Run] = []
        self._work += 16
        if not stretch.skips and stretch.next is not None:  # a growth
            used = stretch.used.value if stretch.used is not None else scaler.scale
            ratio = stretch.next.value / used if used > 0 else 0
            if used < scaler.scale or (ratio not in (1, 2) and not stretch.announced):
                return
            scaler.restart_at(stretch.next.value)
            runs.append(Run(0, scaler.scale, False, stretch.line))
            yield _State(scaler, state, runs)
            return
        for skip in stretch.skips:
            if stretch.announced and _announced(scaler) != scaler.scale:
                scaler.restart_at(_announced(scaler))
            found = self._before(scaler, skip, stretch)
            if found is None:
                return
            used = found
            if used != scaler.scale:
                scaler.restart_at(used)
            line = skip.line or stretch.line
            for _ in range(_MOST_HIDDEN if stretch.hides and skip.next is not None else 0):
                trial = copy.copy(scaler)
                trial.next(True, math.inf)
                if trial.scale != used:
                    break
                scaler = trial  # hysteresis: an overflow that is not printed
            runs.append(Run(1, used, True, line))
            if not self._step(scaler, skip, announced=stretch.announced):
                return
            runs.append(Run(0, _announced(scaler), False, line))
        yield _State(scaler, state, runs)

    @staticmethod
    def _before(  # noqa: PLR0911 - a list of cases
        scaler: LossScaler, skip: Skip, stretch: Stretch
    ) -> float | None:
        """Returns the scale that a skipped step used: the scaler's, or a higher one."""
        if skip.used is not None:
            if skip.used.holds(scaler.scale):
                return scaler.scale
            ratio = skip.used.value / scaler.scale if scaler.scale > 0 else 0
            grows = is_power_of_two(ratio) or scaler.policy == "guided-diffusion"
            return skip.used.value if ratio > 1 and grows else None
        if skip.next is None:
            return scaler.scale
        trial = copy.copy(scaler)
        for _ in range(_MOST_HIDDEN if stretch.hides else 1):
            trial.next(True, math.inf)
            if trial.scale != scaler.scale:
                break
        if skip.next.holds(_announced(trial)):
            return scaler.scale
        for growths in range(1, 40):
            higher = scaler.scale * 2.0**growths
            if not math.isfinite(higher):
                return None
            trial = copy.copy(scaler)
            trial.restart_at(higher)
            trial.next(True, math.inf)
            if skip.next.holds(_announced(trial)):
                return higher
            if _announced(trial) > skip.next.value:
                return None
        return None


@dataclass(slots=True)
class _State:
    """A scaler, and the steps that led to it from the state before."""

    scaler: LossScaler
    before: _State | None
    steps: list[Run]

    def runs(self) -> list[Run]:
        """Returns all steps."""
        parts = []
        state: _State | None = self
        while state is not None:
            parts.append(state.steps)
            state = state.before
        return merged(run for runs in reversed(parts) for run in runs)


def _is_clear(stretch: Stretch) -> bool:
    """Whether the steps of a stretch leave no choice of which were skipped."""
    return stretch.steps is not None and len(stretch.skips) in (0, stretch.steps)


def _is_constant(path: Path) -> bool:
    """Whether the scale never changes and is none that a dynamic scaler begins with."""
    scales = {s.value for stretch in path.stretches for s in (stretch.used, stretch.end()) if s}
    skips = any(stretch.skips for stretch in path.stretches)
    return not skips and len(scales) == 1 and (1.0 in scales or not is_power_of_two(min(scales)))


def find_policy(path: Path, format_name: str) -> Finding:
    """Returns the policy of the log's own stack with the parameters that its path shows."""
    policy = own_policy(path)
    if path.means:
        return Finding(why_not="the log has means of the scale")
    if all(stretch.steps == 0 for stretch in path.stretches):
        return Finding(why_not="the log has one record only")
    if not policy:
        return Finding(why_not=f"no policy of dlsim is that of {path.stack.capitalize()}")
    if path.static:
        return _static(path, policy)
    if path.has_cuts:
        return Finding(why_not="lines are left out in the middle of the log")
    if _is_constant(path):
        policy = "static"
    return _Finder(path, policy, format_name).find()


def _static(path: Path, policy: str) -> Finding:
    """DeepSpeed says that the scale is static: it never changes, and steps are skipped."""
    value = next(s.used.value for stretch in path.stretches for s in stretch.skips if s.used)
    settings = {"loss_scale": _setting_text(value)}
    try:
        scaler = LossScaler(policy, settings)
    except (Error, ValueError):
        policy, scaler = "static", LossScaler("static", settings)
    rows = [Evidence(n, v, n == "loss_scale") for n, v in scaler.parameters.items()]
    match = Match(policy, settings, dict(scaler.parameters), rows, scaler=scaler)
    return Finding(match=match)


class _Finder:
    def __init__(self, path: Path, policy: str, format_name: str) -> None:
        self._path, self._policy = path, policy
        self._roles = _ROLES[policy]
        self._checker = _Checker(path, format_name)
        self._marks = _MarkFinder(path).find()
        self._defaults = LossScaler(policy).parameters
        # In mid-training the counters are not known: the run begins after the first change.
        self._knows_start = path.from_start or policy == "static"
        self._first = 0 if self._knows_start else self._first_change()

    def _first_change(self) -> int:
        """Returns the stretch after the first growth, which sets all counters, or after a fall."""
        scale: float | None = None
        fall = None
        for at, stretch in enumerate(self._path.stretches):
            end = stretch.end()
            if end is None:
                continue
            if scale is not None and end.value > scale and not stretch.skips:
                return at + 1
            if scale is not None and end.value < scale and fall is None:
                fall = at + 1
            scale = end.value
        return len(self._path.stretches) if fall is None else fall

    def _begin(self) -> float | None:
        """Returns the scale with which the run begins, in mid-training."""
        if self._knows_start:
            return None
        for stretch in reversed(self._path.stretches[: self._first]):
            end = stretch.end()
            if end is not None:
                return end.value
        return None

    def find(self) -> Finding:
        """Returns the first parameters that fit, else those that go farthest."""
        if self._first >= len(self._path.stretches) and not self._knows_start:
            return Finding(
                why_not="the log starts in mid-training, and its scale does not change before the "
                "last line"
            )
        best: tuple[int, dict[str, Any], list[_State]] | None = None
        for settings in self._candidates():
            reached, states = self._try(settings)
            if best is None or reached > best[0]:
                best = reached, settings, states
            if reached == len(self._path.stretches) or self._checker.is_tired:
                break
        if best is None:
            return Finding(why_not="the log shows no scale with which it began")
        reached, settings, states = best
        match = self._match(settings, reached, states)
        if reached == len(self._path.stretches) and not self._checker.is_tired:
            self._add_evidence(match, settings)
            row = next((e for e in match.evidence if e.name == self._roles.interval), None)
            known = row is not None and row.least is not None and row.most is not None
            return Finding(match=match, interval=row.least if known and row else None)
        if self._checker.is_tired:
            return Finding(best=match, why_not="the log is too long to be run through again")
        line = self._path.stretches[reached].line
        return Finding(best=match, fails_at_line=line)

    def _try(self, settings: Mapping[str, Any]) -> tuple[int, list[_State]]:
        scaler = self._checker.make(self._policy, settings)
        if scaler is None:
            return self._first, []
        begin = self._begin()
        if begin is not None:
            scaler.restart_at(begin)
        return self._checker.run(scaler, self._first)

    def _match(self, settings: dict[str, Any], reached: int, states: list[_State]) -> Match:
        if not self._knows_start:  # how much of the hysteresis was used up is not known
            settings = {n: v for n, v in settings.items() if n != self._roles.skips}
        scaler = self._checker.make(self._policy, settings)
        parameters = dict(scaler.parameters) if scaler is not None else {}
        texts = {name: _setting_text(value) for name, value in settings.items()}
        match = Match(self._policy, texts, parameters, stretches=reached - self._first)
        if states:
            match.runs, match.scaler = states[0].runs(), states[0].scaler
            match.ambiguous = len(states) > 1
        return match

    def _candidates(self) -> Iterator[dict[str, Any]]:
        roles, marks = self._roles, self._marks
        options: list[list[tuple[str, Any]]] = []

        def add(name: str, values: list[Any]) -> None:
            if name:
                unique = list(dict.fromkeys(values))
                options.append([(name, v) for v in unique])

        def default(name: str) -> Any:
            return self._defaults.get(name)

        rise, fall = marks.rise, marks.fall
        if roles.growth and rise is not None and rise != default(roles.growth):
            add(roles.growth, [rise, default(roles.growth)])
        if roles.backoff and fall is not None and fall != default(roles.backoff):
            add(roles.backoff, [fall, default(roles.backoff)])
        if roles.factor and fall is not None and 1 / fall != default(roles.factor):
            add(roles.factor, [1 / fall, default(roles.factor)])
        if marks.floor is not None and roles.floor and marks.floor != default(roles.floor):
            add(roles.floor, [default(roles.floor), marks.floor])
        add(roles.interval, self._intervals())
        if self._knows_start:
            add(roles.start, self._starts(default(roles.start)))
        if roles.skips:
            standard = default(roles.skips)
            shown = marks.skips_before_fall if marks.skips_before_fall > 0 else standard
            values = [standard, min(shown, 64), 1] if self._knows_start else [standard, 1]
            add(roles.skips, values)
        found = ({n: v for n, v in chosen if v != default(n)} for chosen in product(*options))
        yield from sorted(islice(found, _MOST_CANDIDATES), key=len)

    def _starts(self, standard: Any) -> list[Any]:
        starts = self._marks.starts
        if standard in starts and len(starts) > 2:
            return [standard, *starts]
        return list(starts)

    def _intervals(self) -> list[Any]:
        name = self._roles.interval
        if not name:
            return []
        standard = int(self._defaults[name])
        marks = self._marks
        if self._path.stated_interval is not None:
            return [self._path.stated_interval]
        interval = marks.interval
        if interval is None:
            if standard > marks.longest_clean:
                return [self._defaults[name]]
            return [_roundest(marks.longest_clean + 1, (marks.longest_clean + 1) * 10)]
        least, most = interval
        values: list[Any] = [self._defaults[name]] if least - 1 <= standard <= most else []
        values += [_roundest(least, most), least, most, least - 1, most - 1]
        values += range(least, most + 1, max(1, (most - least) // 24))
        values += marks.intervals
        return [v for v in values if 0 < v < _LONGEST_INTERVAL]

    # What the log shows of each parameter.

    def _fits(self, settings: Mapping[str, Any]) -> bool:
        reached, states = self._try(settings)
        return bool(states) and reached == len(self._path.stretches)

    def _add_evidence(self, match: Match, settings: dict[str, Any]) -> None:
        roles = self._roles
        self._checker.allow_more()
        for name, value in match.parameters.items():
            row = Evidence(name, value)
            if name == roles.interval:
                self._bound_interval(row, settings)
            elif name == roles.start:
                row.seen = self._knows_start and self._is_seen(name, value, settings, 2.0)
            elif name in (roles.growth, roles.backoff, roles.factor):
                row.seen = self._is_seen(name, value, settings, 1.25)
            elif name == roles.skips:
                row.seen = self._path.from_start and self._is_seen(name, value, settings, None)
            elif name == roles.floor:
                row.seen = self._marks.floor is not None and self._is_seen(
                    name, value, settings, 2.0
                )
            match.evidence.append(row)

    def _is_seen(
        self, name: str, value: Any, settings: dict[str, Any], factor: float | None
    ) -> bool:
        if isinstance(value, (str, bool)) or value is None:
            return False
        if factor is None:
            others = [value + 1, value - 1] if value > 1 else [value + 1]
        else:
            others = [value * factor, value / factor]
        return not any(
            self._fits({**settings, name: other}) or self._checker.is_tired for other in others
        )

    def _bound_interval(self, row: Evidence, settings: dict[str, Any]) -> None:
        """Bounds the interval of growth, where each skipped step and growth is told."""
        stated = self._path.stated_interval
        if stated is not None:
            row.seen, row.least, row.most = True, stated, stated
            return
        value = int(row.value)
        if not self._path.counted or self._path.gaps:
            return
        interval = self._marks.interval
        if interval is None:
            least = self._marks.longest_clean + 1
            row.least = least if 1 < least <= value else None
            return

        def fits(tried: int) -> bool:
            return self._fits({**settings, row.name: tried})

        least = most = value
        while least > max(interval.least - 2, 1) and value - least < 64 and fits(least - 1):
            least -= 1
        while most < interval.most + 1 and most - value < 64 and fits(most + 1):
            most += 1
        row.least, row.most, row.seen = least, most, least == most


def _setting_text(value: Any) -> str:
    """Returns a value as a setting: "65536", "2^27"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, (int, float)):
        number = float(value)
        if is_power_of_two(number) and not 1 <= number <= 2**20:
            return f"2^{round(math.log2(number))}"
        return str(int(number)) if number == int(number) and abs(number) < 2**53 else repr(number)
    return str(value)
