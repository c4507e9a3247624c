# SPDX-License-Identifier: Apache-2.0
"""The scaler of the log's own stack: parameters that the path shows, checked by a run of it.

No other stack is tried: many scalers take the same few scales.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from .._core import LossScaler
from .._errors import Error
from .facts import Path, Run, Skip, Stretch, merged
from .wordings import is_power_of_two, nearest_power

_MOST_WORK = 2_000_000  # steps of scalers
_MOST_HIDDEN = 8  # overflows in a row that are not printed
_JUNE_2025 = 2025 * 12 + 5  # DeepSpeed 0.17.1 was released


class _Roles(NamedTuple):
    """What a policy calls its parameters; empty for those that it does not have."""

    start: str
    interval: str = ""
    growth: str = ""
    backoff: str = ""
    factor: str = ""  # of growth, and its inverse of backoff
    skips: str = ""  # overflows until the scale falls


_FACTOR = {"factor": "scale_factor"}
_TORCH = ("growth_interval", "growth_factor", "backoff_factor")
_ROLES = {
    "apex": _Roles("init_scale", "scale_window", **_FACTOR),
    "apex-fp16-utils": _Roles("init_scale", "scale_window", **_FACTOR),
    "colossalai": _Roles("initial_scale", *_TORCH, skips="hysteresis"),
    "deepspeed": _Roles("init_scale", "scale_window", **_FACTOR, skips="delayed_shift"),
    "deepspeed-0.16": _Roles("init_scale", "scale_window", **_FACTOR, skips="delayed_shift"),
    "deepspeed-fp16-optimizer": _Roles("init_scale", "scale_window"),
    "fairseq": _Roles("init_scale", "scale_window", **_FACTOR),
    "fairseq2": _Roles("init_scale", "scale_window", **_FACTOR),
    "guided-diffusion": _Roles("init_scale"),
    "megatron": _Roles("initial_scale", *_TORCH, skips="hysteresis"),
    "metaseq": _Roles("init_scale", "scale_window", **_FACTOR),
    "mindspore-cell": _Roles("loss_scale_value", "scale_window", **_FACTOR),
    "mxnet": _Roles("loss_scale", "scale_seq_len"),
    "paddle": _Roles("init_loss_scaling", "incr_every_n_steps", "incr_ratio", "decr_ratio"),
    "static": _Roles("loss_scale"),
    "torch": _Roles("init_scale", *_TORCH),
}
# The scaler of a stack; torch's for those that use it and loops that name none; none of Marian.
_OWN = {
    "guided-diffusion": "guided-diffusion",
    "internevo": "colossalai",
    "marian": "",
    "mindspore": "mindspore-cell",
    "mmcv": "apex-fp16-utils",
}


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
    """A policy whose run takes every scale of the log, or those of its first stretches."""

    policy: str
    settings: dict[str, str]
    parameters: dict[str, Any]
    evidence: list[Evidence] = field(default_factory=list)
    stretches: int = 0  # how many of those of the path are reproduced
    runs: list[Run] = field(default_factory=list)
    ambiguous: bool = False  # the skipped steps may lie elsewhere


@dataclass
class Finding:
    """The policy of a log: one that fits, or the one that goes farthest, or why none was run."""

    match: Match | None = None
    best: Match | None = None
    fails_at_line: int | None = None
    why_not: str = ""

    @property
    def interval(self) -> int | None:
        """Returns the interval of growth, if the log bounds it."""
        rows = self.match.evidence if self.match is not None else ()
        return next((row.least for row in rows if row.least and row.most), None)


def own_policy(path: Path) -> str:
    """Returns the policy of the log's own stack; empty if it has none."""
    own = path.stack if path.stack in _ROLES else "torch"
    policy = path.policy or _OWN.get(path.stack, own)
    is_old = path.month is not None and path.month < _JUNE_2025
    return "deepspeed-0.16" if policy == "deepspeed" and is_old else policy


def _close(ratio: float) -> float:
    """Returns a power of two for a ratio that is printed as nearly one."""
    power = nearest_power(ratio)
    return power if abs(ratio - power) < 1e-3 * power else ratio


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


class _Shown:
    """What the path shows of the parameters, before a scaler is run."""

    def __init__(self, path: Path) -> None:
        self.rise: float | None = None  # the first ratio of a growth
        self.fall: float | None = None  # of a fall
        self.least, self.most = 1, 1 << 40  # applied steps until a growth
        self.longest = 0  # applied steps in a row without a growth
        self.skips = 0  # skipped steps until the first fall
        self.has_fallen = self.has_grown = self.says_start = False
        self.starts: list[float] = []
        self._scale: float | None = None
        self._clean = [0, 0]  # applied steps since the last change, at least and at most
        self._counts = path.from_start  # else the counter is known from the first change on
        self._find_starts(path)
        for stretch in path.stretches:
            self._add(stretch)
        self.skips += bool(self.skips) and not self.has_fallen  # hysteresis is not used up

    def _find_starts(self, path: Path) -> None:
        """Finds the scale of the first step, or those from which it may have fallen."""
        falls = 0
        for stretch in path.stretches:
            known, before = _first_scale(stretch)
            falls += before
            if known is not None:
                # Elsewhere the scale may have grown before.
                self.says_start = falls == 0 and stretch.steps in (0, 1, len(stretch.skips))
                highest = min(falls, 64)
                higher = (known * 2.0**i for i in range(highest, -1, -1))
                self.starts = [start for start in higher if math.isfinite(start)]
                self._scale = known * 2.0**highest
                return

    def _add(self, stretch: Stretch) -> None:
        count = stretch.steps if stretch.steps is not None else len(stretch.skips)
        for skip in stretch.skips:
            self.skips += not self.has_fallen
            used = skip.used.value if skip.used is not None else self._scale
            if skip.next is not None and used is not None and 0 < skip.next.value < used:
                self.fall, self.has_fallen = self.fall or _close(skip.next.value / used), True
            if skip.next is not None:
                self._scale = skip.next.value
        end, before = stretch.end(), self._scale
        after = end.value if end is not None else before
        if after is None or before is None:
            return
        if stretch.skips and 0 < after < before:
            self.has_fallen = True
            if len(stretch.skips) == 1:
                self.fall = self.fall or _close(after / before)
        grows = after > before > 0
        if grows:
            if stretch.steps is not None and not stretch.skips and self._counts:
                self.rise, self.has_grown = self.rise or _close(after / before), True
                least, most = self._clean[0] + 1, self._clean[1] + count
                if max(least, self.least) <= min(most, self.most):
                    self.least, self.most = max(least, self.least), min(most, self.most)
            self._clean = [0, max(count - 1, 0)]
        elif stretch.skips:
            self._clean = [0, count - len(stretch.skips)]
        else:
            self._clean = [self._clean[0] + count, self._clean[1] + count]
        self.longest = max(self.longest, self._clean[0])
        self._counts = self._counts or grows or bool(stretch.skips)
        self._scale = after


def _first_scale(stretch: Stretch) -> tuple[float | None, int]:
    """Returns the first scale that a stretch tells, and how many falls may have led to it."""
    if stretch.steps in (None, 1) and stretch.used is not None:
        return stretch.used.value, 0
    for at, skip in enumerate(stretch.skips):
        if skip.used is not None:
            return skip.used.value, at
        if skip.next is not None:
            return skip.next.value, at + 1
    end = stretch.end() or stretch.used
    return (end.value if end is not None else None), len(stretch.skips)


def _announced(scaler: LossScaler) -> float:
    """Returns the scale that comes next: MXNet's acts a step later."""
    announced = scaler.checkpoint().get("next_loss_scale")
    return scaler.scale if announced is None else float.fromhex(announced)


class _Follower:
    """A scaler that is run along a path."""

    def __init__(self, scaler: LossScaler, budget: int, *, begins: bool) -> None:
        self.scaler, self.budget, self.begins = scaler, budget, begins
        self.runs: list[Run] = []
        self.ambiguous = False

    def follow(self, stretches: list[Stretch], first: int) -> int:
        """Returns up to which stretch the scaler does what the log says."""
        for at in range(first, len(stretches)):
            stretch = stretches[at]
            done = self._messages if stretch.steps is None else self._counted
            if not done(stretch) or self.budget < 0:
                return at
        return len(stretches)

    def _counted(self, stretch: Stretch) -> bool:
        count, skips = stretch.steps or 0, len(stretch.skips)
        if skips in (0, count):
            return self._take(stretch, frozenset(range(skips)), self.scaler)
        if skips > count:
            return False
        # Where among the steps the skipped ones are is open: at the beginning, after a growth, or
        # at the end, whichever comes first to the scale that the log shows.
        self.ambiguous = True
        most = count - (stretch.last is False)
        places = [frozenset(range(skips)), None, frozenset(range(most - skips, most))]
        if stretch.last is True:
            places = [None, frozenset((*range(skips - 1), count - 1)), places[-1]]
        elif self.begins and not any(run.count for run in self.runs):
            places = places[:1]  # a training begins with scales that overflow
        length = len(self.runs)
        for chosen in places:
            trial = copy.copy(self.scaler)
            if self._take(stretch, chosen, trial):
                self.scaler = trial
                return True
            del self.runs[length:]
        return False

    def _take(self, stretch: Stretch, places: frozenset[int] | None, scaler: LossScaler) -> bool:
        """Takes the steps of a stretch; without places, those after a growth are skipped."""
        count, skips = stretch.steps or 0, iter(stretch.skips)
        left, used, grown = len(stretch.skips), scaler.scale, False
        self.budget -= count + 1
        if self.budget < 0:
            return False
        for at in range(count):
            is_last = at == count - 1
            if places is not None:
                skip = at in places
            else:
                needed = stretch.last is True and (is_last or left == 1)
                skip = is_last if needed else left > 0 and grown
            if is_last and stretch.used is not None and not stretch.used.holds(used):
                return False
            if not self._step(scaler, next(skips) if skip else None, announced=False):
                return False
            left -= skip
            after = scaler.scale
            grown = after > used or (grown and skip and after >= used)
            # Steps of another line, or with another outcome, are a run of their own.
            last = self.runs[-1] if self.runs else None
            same = last is not None and (last.scale, last.skipped) == (used, skip)
            if last is not None and same and last.line == stretch.line:
                last.count += 1
            else:
                self.runs.append(Run(1, used, skip, stretch.line))
            used = after
        return not left and (stretch.next is None or stretch.next.holds(used))

    @staticmethod
    def _step(scaler: LossScaler, logged: Skip | None, *, announced: bool) -> bool:
        if logged is None:
            scaler.next(False)
            return True
        if logged.used is not None and not logged.used.holds(scaler.scale):
            return False
        if not scaler.next(True, math.inf)["skip"]:
            return False
        after = _announced(scaler) if announced else scaler.scale
        return logged.next is None or logged.next.holds(after)

    def _messages(self, stretch: Stretch) -> bool:
        """How many steps there are between messages is not told: the scale may have grown."""
        scaler = self.scaler
        self.budget -= 16
        if not stretch.skips and stretch.next is not None:  # a growth
            used = stretch.used.value if stretch.used is not None else scaler.scale
            if used < scaler.scale or stretch.next.value not in (used, 2 * used):
                return stretch.announced
            scaler.restart_at(stretch.next.value)
            self.runs.append(Run(0, scaler.scale, False, stretch.line))
        for skip in stretch.skips:
            if _announced(scaler) != scaler.scale:
                scaler.restart_at(_announced(scaler))
            used = self._before(skip, stretch)
            if used != scaler.scale:
                scaler.restart_at(used)
            line = skip.line or stretch.line
            self.runs.append(Run(1, scaler.scale, True, line))
            for _ in range(_MOST_HIDDEN if stretch.hides else 0):  # hysteresis, without a word
                trial = copy.copy(scaler)
                if trial.next(True, math.inf) and trial.scale == scaler.scale:
                    self.scaler = scaler = trial
            if not self._step(scaler, skip, announced=stretch.announced):
                return False
            self.runs.append(Run(0, _announced(scaler), False, line))
        return True

    def _before(self, skip: Skip, stretch: Stretch) -> float:
        """Returns the scale that a skipped step used: the scaler's, or a higher one."""
        scale = self.scaler.scale
        if skip.used is not None:
            ratio = skip.used.value / scale if scale > 0 else 0
            grows = is_power_of_two(ratio) or self.scaler.policy == "guided-diffusion"
            return skip.used.value if ratio > 1 and grows else scale
        for growths in range(40):
            higher = scale * 2.0**growths
            trial = copy.copy(self.scaler)
            if growths:
                trial.restart_at(higher)
            for _ in range(_MOST_HIDDEN if stretch.hides else 1):
                trial.next(True, math.inf)
                if _announced(trial) != higher:
                    break
            if skip.next is None or skip.next.holds(_announced(trial)):
                return higher
            if _announced(trial) > skip.next.value:
                break
        return scale


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
    scales = {s.value for stretch in path.stretches for s in (stretch.used, stretch.end()) if s}
    if len(scales) == 1 and not any(stretch.skips for stretch in path.stretches):
        # A dynamic scaler begins at a power of two; 1 is printed without scaling, too.
        policy = policy if is_power_of_two(min(scales)) and scales != {1.0} else "static"
    return _Finder(path, policy, format_name).find()


def _static(path: Path, policy: str) -> Finding:
    """DeepSpeed says that the scale is static: it never changes, and steps are skipped."""
    values = (s.used.value for stretch in path.stretches for s in stretch.skips if s.used)
    value = next(values, None)
    if value is None:
        return Finding(why_not="the log does not tell the static scale")
    settings = {"loss_scale": _setting_text(value)}
    scaler = LossScaler(policy, settings)
    rows = [Evidence(n, v, n == "loss_scale") for n, v in scaler.parameters.items()]
    return Finding(match=Match(policy, settings, dict(scaler.parameters), rows))


class _Finder:
    def __init__(self, path: Path, policy: str, format_name: str) -> None:
        self._path, self._policy, self._format = path, policy, format_name
        self._roles, self._shown = _ROLES[policy], _Shown(path)
        self._defaults = LossScaler(policy).parameters
        self._knows_start = path.from_start or policy == "static"
        # In mid-training the counters are not known: the run begins after the first change.
        self._first, self._begin = 0, math.nan
        if not self._knows_start:
            self._find_first_change()

    def _find_first_change(self) -> None:
        """The first growth sets all counters; without one, a fall sets that of applied steps."""
        scale: float | None = None
        changes: dict[bool, tuple[int, float]] = {}
        for at, stretch in enumerate(self._path.stretches):
            end = stretch.end()
            if end is not None and scale is not None and end.value != scale:
                changes.setdefault(end.value > scale and not stretch.skips, (at + 1, end.value))
            scale = end.value if end is not None else scale
        none = len(self._path.stretches), math.nan
        self._first, self._begin = changes.get(True) or changes.get(False) or none

    def find(self) -> Finding:
        """Returns the first parameters that fit, else those that go farthest."""
        stretches, budget = self._path.stretches, _MOST_WORK
        if self._first >= len(stretches):
            return Finding(
                why_not="the log starts in mid-training, and its scale does not change before the "
                "last line"
            )
        best: tuple[int, dict[str, Any], _Follower] | None = None
        for settings in self._candidates():
            follower = self._follower(settings, budget)
            if follower is None:
                continue
            reached = follower.follow(stretches, self._first)
            budget = follower.budget
            if best is None or reached > best[0]:
                best = reached, settings, follower
            if reached == len(stretches) or budget < 0:
                break
        if best is None:
            return Finding(why_not="the log shows no scale with which it began")
        reached, settings, follower = best
        match = self._match(settings, reached, follower)
        if reached == len(stretches):
            return Finding(match=match)
        if budget < 0:
            return Finding(best=match, why_not="the log is too long to be run through again")
        return Finding(best=match, fails_at_line=stretches[reached].line)

    def _follower(self, settings: Mapping[str, Any], budget: int) -> _Follower | None:
        try:
            scaler = LossScaler(self._policy, dict(settings), self._format)
        except (Error, ValueError):  # its policy refuses the settings
            return None
        if not math.isnan(self._begin):
            scaler.restart_at(self._begin)
        return _Follower(scaler, budget, begins=self._path.from_start)

    def _match(self, settings: Mapping[str, Any], reached: int, follower: _Follower) -> Match:
        if not self._knows_start:  # how much of the hysteresis was used up is not known
            settings = {n: v for n, v in settings.items() if n != self._roles.skips}
        parameters = dict(LossScaler(self._policy, dict(settings), self._format).parameters)
        texts = {name: _setting_text(value) for name, value in settings.items()}
        match = Match(self._policy, texts, parameters, stretches=reached - self._first)
        match.runs, match.ambiguous = merged(follower.runs), follower.ambiguous
        match.evidence = [self._evidence(name, value) for name, value in parameters.items()]
        return match

    def _candidates(self) -> Iterator[dict[str, Any]]:
        """Yields settings that the path shows, those that differ least from the defaults first."""
        roles, shown = self._roles, self._shown
        options: list[list[tuple[str, Any]]] = []

        def add(name: str, values: list[Any]) -> None:
            if name:
                options.append([(name, v) for v in dict.fromkeys(values)])

        if self._knows_start:
            add(roles.start, shown.starts)
        add(roles.growth, [shown.rise or self._defaults.get(roles.growth)])
        add(roles.backoff, [shown.fall or self._defaults.get(roles.backoff)])
        add(roles.factor, [1 / shown.fall if shown.fall else self._defaults.get(roles.factor)])
        add(roles.interval, self._intervals())
        if roles.skips:
            standard = self._defaults[roles.skips]
            add(roles.skips, [standard, *([shown.skips] if 0 < shown.skips < 64 else []), 1])

        def others(settings: Mapping[str, Any]) -> int:
            return len(settings.keys() - {roles.start})

        found = ({n: v for n, v in c if v != self._defaults.get(n)} for c in product(*options))
        yield from sorted(found, key=others)

    def _intervals(self) -> list[Any]:
        shown, name = self._shown, self._roles.interval
        if not name:
            return []
        standard = int(self._defaults[name])
        if self._path.stated_interval is not None:
            return [self._path.stated_interval]
        if not shown.has_grown:
            least = shown.longest + 1
            return [self._defaults[name] if standard >= least else _roundest(least, 10 * least)]
        least, most = shown.least, shown.most
        values: list[Any] = [self._defaults[name]] if least - 1 <= standard <= most else []
        values += [_roundest(least, most), least, most, least - 1, most - 1]
        return [value for value in values if value > 0]

    def _evidence(self, name: str, value: Any) -> Evidence:
        """Says what the log shows of a parameter."""
        roles, shown, path = self._roles, self._shown, self._path
        row = Evidence(name, value)
        clear = path.counted and not path.hides_steps
        if name == roles.start:
            row.seen = self._knows_start and shown.says_start
        elif name == roles.growth:
            row.seen = shown.rise is not None
        elif name in (roles.backoff, roles.factor):
            row.seen = shown.fall is not None
        elif name == roles.skips:
            row.seen = path.from_start and shown.has_fallen and clear
        elif name == roles.interval and path.stated_interval is not None:
            row.seen, row.least, row.most = True, path.stated_interval, path.stated_interval
        elif name == roles.interval and clear and shown.has_grown:
            # Some policies count one applied step more or fewer.
            row.least, row.most = min(shown.least, int(value)), max(shown.most, int(value))
            row.seen = row.least == row.most
        elif name == roles.interval and clear and 0 < shown.longest < int(value):
            row.least = shown.longest + 1 if shown.longest > 1 else None
        return row


def _setting_text(value: Any) -> str:
    """Returns a value as a setting: "65536", "2^27"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return str(value)
    number = float(value)
    if is_power_of_two(number) and not 1 <= number <= 2**20:
        return f"2^{round(math.log2(number))}"
    return str(int(number)) if number == int(number) and abs(number) < 2**53 else repr(number)
