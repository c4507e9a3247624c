# SPDX-License-Identifier: Apache-2.0
"""Two results of the same benchmarks: which kernels became slower or faster, by a stated rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from .._errors import UsageError
from ._results import IncomparableError, Kernel, Results, require_comparable, threads_of

# With fewer repetitions no two samples differ significantly: the smallest p of 5 + 5 values is
# 2 / C(10, 5) = 0.008, before any correction.
LEAST_REPETITIONS = 6
_MOST_EXACT = 25  # repetitions of either side, without ties

VERDICTS = ("slower", "inconclusive", "faster", "same", "unjudged")  # worst first


@dataclass(frozen=True)
class Rule:
    """What counts: a relative change of the median, and the probability of one false alarm."""

    threshold: float = 0.05
    alpha: float = 0.01


@dataclass
class Sample:
    """What the repetitions of a kernel say. Rates are medians, 0 where they are not recorded."""

    count: int
    median: float
    min: float
    spread: float  # interquartile range / median; 0 below three repetitions
    bytes_per_second: float
    fraction_of_stream: float


@dataclass
class KernelComparison:
    """Ratios are current / base: above 1 is slower. `superiority` is the probability of slower."""

    name: str
    base: Sample
    current: Sample
    median_ratio: float
    min_ratio: float
    u: float = 0.0
    superiority: float = 0.5
    p: float = 1.0
    corrected_p: float = 1.0
    verdict: str = "same"
    reason: str = ""  # of an inconclusive verdict


@dataclass
class Comparison:
    """All kernels, the worst first."""

    kind: str
    rule: Rule
    kernels: list[KernelComparison] = field(default_factory=list)
    only_in_base: list[str] = field(default_factory=list)
    only_in_new: list[str] = field(default_factory=list)

    def count(self, verdict: str) -> int:
        """Returns the number of kernels with a verdict."""
        return sum(kernel.verdict == verdict for kernel in self.kernels)

    def judged(self) -> int:
        """Returns the number of kernels that are neither limits nor peers."""
        return len(self.kernels) - self.count("unjudged")


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Returns U, the number of pairs with b > a (ties count one half), and the two-sided p.

    The p value is exact without ties and up to 25 values a side; else that of the normal
    approximation with corrections for ties and continuity.
    """
    try:
        from scipy.stats import mannwhitneyu
    except ModuleNotFoundError as error:
        raise UsageError(
            "comparing times needs SciPy: pip install scipy, or dlsim-numerics[bench]"
        ) from error
    tied = len({*a, *b}) < len(a) + len(b)
    exact = not tied and max(len(a), len(b)) <= _MOST_EXACT
    found = mannwhitneyu(b, a, alternative="two-sided", method="exact" if exact else "asymptotic")
    p = float(found.pvalue)
    return float(found.statistic), 1.0 if math.isnan(p) else p  # NaN: all values are equal


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns Holm's step-down correction of p values, in their order.

    To reject what is below alpha keeps the probability of even one false rejection below alpha.
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def compare(
    base: Results, current: Results, rule: Rule, is_chosen: Callable[[str], bool]
) -> Comparison:
    """Compares the chosen kernels of both files; raises IncomparableError."""
    require_comparable(base, current)
    comparison = Comparison(base.kind, rule)
    left = {kernel.name: kernel for kernel in current.kernels if is_chosen(kernel.name)}
    for kernel in base.kernels:
        if not is_chosen(kernel.name):
            continue
        other = left.pop(kernel.name, None)
        if other is None:
            comparison.only_in_base.append(kernel.name)
        else:
            comparison.kernels.append(_compare_kernel(base.kind, kernel, other))
    comparison.only_in_new = list(left)
    if not comparison.kernels:
        raise IncomparableError(f"{base.place} and {current.place}: no chosen kernel is in both")
    _decide(comparison)
    comparison.kernels.sort(key=lambda each: (VERDICTS.index(each.verdict), -each.median_ratio))
    return comparison


def detectable_change(base: Sample, current: Sample) -> float:
    """Returns twice the standard error of the ratio of medians, estimated from the quartiles.

    The median of n values has the standard error sqrt(pi / 2) sigma / sqrt(n) for normal data,
    whose interquartile range is 1.349 sigma; quartiles do not see the rare long repetitions.
    """
    variance = base.spread**2 / base.count + current.spread**2 / current.count
    return 2 * (1.2533 / 1.349) * math.sqrt(variance)


def describe_rule(kind: str, rule: Rule, kernels: str) -> str:
    """Returns the rule in words, one condition per line; `kernels` says over how many."""
    percent = 100 * rule.threshold
    if kind == "instructions":
        return (
            f"slower: more than {percent:g} % more instructions; "
            "faster: fewer by the same ratio; same: all else\n"
        )
    return (
        f"slower: the median time rose by more than {percent:g} %, p < {rule.alpha:g} "
        "(two-sided Mann-Whitney U test, with\n"
        f"  Holm's correction for {kernels}), and the shortest time rose by more than "
        f"{percent / 2:g} %. On\n"
        "  several threads, whose wall-clock time other programs lengthen, the share of the stream "
        "must\n"
        "  fall by as much, too, if it was recorded\n"
        "faster: the same in the other direction\n"
        f"inconclusive: fewer than {LEAST_REPETITIONS} repetitions; or the median moved that far, "
        "but another condition\n"
        "  fails; or twice the standard error of the ratio of medians, estimated from the "
        f"quartiles, is\n  above {percent:g} %\n"
        "same: all else\n"
    )


def _median(values: Sequence[float]) -> float:
    return median(values) if values else 0.0


def summarize(kernel: Kernel) -> Sample:
    """Returns what the repetitions of a kernel say."""
    cost = sorted(kernel.cost)
    half = len(cost) // 2  # quartiles are the medians of both halves, without the middle value
    spread = 0.0
    if len(cost) > 2:
        spread = (median(cost[-half:]) - median(cost[:half])) / median(cost)
    return Sample(
        len(cost),
        median(cost),
        cost[0],
        spread,
        _median(kernel.bytes_per_second),
        _median(kernel.fraction_of_stream),
    )


def _compare_kernel(kind: str, base: Kernel, current: Kernel) -> KernelComparison:
    before, now = summarize(base), summarize(current)
    found = KernelComparison(
        base.name, before, now, now.median / before.median, now.min / before.min
    )
    if not (base.is_judged and current.is_judged):
        found.verdict = "unjudged"
    if kind == "time":
        found.u, found.p = mann_whitney(base.cost, current.cost)
        found.superiority = found.u / (before.count * now.count)
    return found


def _decide(comparison: Comparison) -> None:
    judged = [kernel for kernel in comparison.kernels if kernel.verdict != "unjudged"]
    for kernel, p in zip(judged, holm([kernel.p for kernel in judged]), strict=True):
        kernel.corrected_p = p
        if comparison.kind == "time":
            kernel.verdict, kernel.reason = _decide_time(comparison.rule, kernel)
        elif _is_up(kernel.median_ratio, comparison.rule.threshold):
            kernel.verdict = "slower"
        elif _is_down(kernel.median_ratio, comparison.rule.threshold):
            kernel.verdict = "faster"


def _is_up(ratio: float, change: float) -> bool:
    return ratio > 1 + change


def _is_down(ratio: float, change: float) -> bool:
    return ratio < 1 / (1 + change)


def _decide_time(rule: Rule, kernel: KernelComparison) -> tuple[str, str]:
    """Returns the verdict, and the reason of an inconclusive one."""
    count = min(kernel.base.count, kernel.current.count)
    if count < LEAST_REPETITIONS:
        return "inconclusive", f"{count} repetition{'' if count == 1 else 's'}"
    up = _is_up(kernel.median_ratio, rule.threshold)
    if up or _is_down(kernel.median_ratio, rule.threshold):
        objection = _objection(rule, kernel, _is_up if up else _is_down)
        return ("inconclusive", objection) if objection else ("slower" if up else "faster", "")
    detectable = detectable_change(kernel.base, kernel.current)
    if detectable > rule.threshold:
        return "inconclusive", f"noise of {100 * detectable:.1f} %"
    return "same", ""


def _objection(rule: Rule, kernel: KernelComparison, moved: Callable[[float, float], bool]) -> str:
    """Returns what contradicts a change of the median beyond the threshold; "" if nothing does."""
    if kernel.corrected_p >= rule.alpha:
        return "not significant"
    if not moved(kernel.min_ratio, rule.threshold / 2):
        return "the shortest did not move"
    # Other programs stretch the wall-clock time of several threads, but that of the stream next to
    # the kernel, too: a change of the kernel changes its share.
    before, now = kernel.base.fraction_of_stream, kernel.current.fraction_of_stream
    if threads_of(kernel.name) == 1 or before <= 0 or now <= 0:
        return ""
    return "" if moved(before / now, rule.threshold / 2) else "so did the stream"
