# SPDX-License-Identifier: Apache-2.0
"""The rule of `dlsim bench compare`: its edges, and how often it is wrong on made-up samples."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from bench_samples import CACHE_NOISE, MEMORY_NOISE, Noise, noisy_times

pytest.importorskip("scipy")

from dlsim._bench._comparison import (
    Comparison,
    KernelComparison,
    Rule,
    compare,
    detectable_change,
    holm,
    mann_whitney,
)
from dlsim._bench._results import IncomparableError, Kernel, Results

GOLDEN = Path(__file__).parents[1] / "data" / "bench" / "rank_test_golden.json"
# Eleven times within 0.4 %, without ties.
QUIET = [99.8, 99.84, 99.9, 99.95, 99.97, 100, 100.1, 100.2, 99.85, 100.02, 100.03]
SIX = QUIET[:6]


def results(kernels: Sequence[Kernel], kind: str = "time") -> Results:
    return Results("made.json", kind, {"cpu_model": "x"}, list(kernels))


def scaled(times: Sequence[float], factor: float) -> list[float]:
    return [factor * time for time in times]


def compared(
    base: Sequence[Kernel], new: Sequence[Kernel], rule: Rule | None = None, kind: str = "time"
) -> Comparison:
    return compare(results(base, kind), results(new, kind), rule or Rule(), lambda _: True)


def compare_one(
    base: Sequence[float], new: Sequence[float], rule: Rule | None = None, kind: str = "time"
) -> KernelComparison:
    return compared([Kernel("k", list(base))], [Kernel("k", list(new))], rule, kind).kernels[0]


def test_p_values_are_those_of_the_golden_file() -> None:
    tests = json.loads(GOLDEN.read_text())["tests"]
    assert len(tests) == 52
    for test in tests:
        u, p = mann_whitney(test["a"], test["b"])
        assert u == test["u"]
        expected = test["asymptotic"] if test["exact"] is None else test["exact"]
        assert p == pytest.approx(expected, rel=1e-12)


def test_separated_samples_have_the_smallest_p() -> None:
    assert mann_whitney(SIX, scaled(SIX, 2)) == (36, pytest.approx(2 / 924))  # C(12, 6)
    assert mann_whitney(scaled(SIX, 2), SIX)[0] == 0


def test_equal_values_show_nothing() -> None:
    assert mann_whitney([5.0] * 6, [5.0] * 6) == (18, 1)


def test_holm_multiplies_the_smallest_by_the_number_of_tests_and_never_falls() -> None:
    # As R's p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm").
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([]) == []


def test_slower_and_faster() -> None:
    slower = compare_one(QUIET, scaled(QUIET, 1.1))
    assert slower.verdict == "slower" and slower.superiority == 1
    assert slower.median_ratio == pytest.approx(1.1) == slower.min_ratio
    faster = compare_one(scaled(QUIET, 1.1), QUIET)
    assert faster.verdict == "faster" and faster.superiority == 0
    assert compare_one(QUIET, QUIET).verdict == "same"


def test_limits_and_peers_are_not_judged_and_not_corrected_for() -> None:
    slow = scaled(QUIET, 1.5)
    found = compared(
        [Kernel("peer", QUIET), Kernel("k", QUIET)],
        [Kernel("peer", slow, is_judged=False), Kernel("k", slow)],
    )
    assert [kernel.verdict for kernel in found.kernels] == ["slower", "unjudged"]
    assert found.kernels[0].corrected_p == found.kernels[0].p
    assert found.judged() == 1


@pytest.mark.parametrize(
    ("factor", "rule", "verdict"),
    [
        (1.0499, Rule(), "same"),
        (1.0501, Rule(), "slower"),
        (1 / 1.0499, Rule(), "same"),
        (1 / 1.0501, Rule(), "faster"),
        (1.031, Rule(threshold=0.03), "slower"),
    ],
)
def test_it_takes_more_than_the_threshold(factor: float, rule: Rule, verdict: str) -> None:
    assert compare_one(QUIET, scaled(QUIET, factor), rule).verdict == verdict


def test_exactly_the_threshold_is_not_more() -> None:
    base = [64.0, 65, 66, 67, 68, 69, 70]
    assert compare_one(base, scaled(base, 1.5), Rule(threshold=0.5)).verdict == "same"


def test_the_shortest_must_move_by_half_the_threshold() -> None:
    now = scaled(QUIET, 1.1)
    now[0] = 99.8 * 1.026
    assert compare_one(QUIET, now).verdict == "slower"
    now[0] = 99.8 * 1.024
    found = compare_one(QUIET, now)
    assert (found.verdict, found.reason) == ("inconclusive", "the shortest did not move")


@pytest.mark.parametrize(
    ("name", "share", "verdict", "reason"),
    [
        ("k/threads:2", 0.8 / 1.03, "slower", ""),
        ("k/threads:2", 0.8 / 1.02, "inconclusive", "so did the stream"),
        ("k/threads:1", 0.8, "slower", ""),  # CPU time
    ],
)
def test_on_several_threads_the_share_of_the_stream_must_move(
    name: str, share: float, verdict: str, reason: str
) -> None:
    base = Kernel(name, QUIET, fraction_of_stream=[0.8])
    new = Kernel(name, scaled(QUIET, 1.1), fraction_of_stream=[share])
    found = compared([base], [new]).kernels[0]
    assert (found.verdict, found.reason) == (verdict, reason)


def test_it_takes_six_repetitions_on_each_side() -> None:
    five = QUIET[:5]
    assert compare_one(QUIET, scaled(five, 2)).reason == "5 repetitions"
    assert compare_one(five, scaled(QUIET, 2)).verdict == "inconclusive"
    assert compare_one([100], [200]).reason == "1 repetition"
    assert compare_one(SIX, scaled(SIX, 2)).verdict == "slower"


def test_it_takes_significance_after_the_correction() -> None:
    base = [Kernel(str(i), SIX) for i in range(5)]
    new = [Kernel(str(i), scaled(SIX, 2) if i == 0 else SIX) for i in range(5)]
    found = compared(base, new).kernels[0]  # alone p = 2 / 924; times five it is above 0.01
    assert (found.name, found.verdict) == ("0", "inconclusive")
    assert found.reason == "not significant"
    assert found.corrected_p == pytest.approx(10 / 924)
    assert compared(base[:4], new[:4]).kernels[0].verdict == "slower"
    assert compare_one(SIX, scaled(SIX, 2), Rule(alpha=0.002)).verdict == "inconclusive"


def test_ties_are_no_evidence() -> None:
    base = [100.0] * 11
    assert compare_one(base, base).verdict == "same"
    assert compare_one(base, [110.0] * 11).verdict == "slower"
    assert compare_one(base, [110.0] * 6 + [100.0] * 5).verdict == "inconclusive"


def test_noise_that_hides_a_change_of_the_threshold_is_named() -> None:
    wide = [80.0, 85, 90, 95, 98, 100, 102, 105, 110, 115, 120]
    found = compare_one(wide, scaled(wide, 1.001))
    assert found.verdict == "inconclusive" and found.reason.startswith("noise of ")
    assert found.base.spread == pytest.approx((110 - 90) / 100)
    error = 2 * 1.2533 / 1.349 * found.base.spread * math.sqrt(2 / 11)
    assert detectable_change(found.base, found.current) == pytest.approx(error)
    assert compare_one(wide, scaled(wide, 1.001), Rule(threshold=0.5)).verdict == "same"


@pytest.mark.parametrize(
    ("base", "new", "verdict"),
    [(100000, 101000, "same"), (100000, 101001, "slower"), (101001, 100000, "faster")],
)
def test_counts_of_instructions_need_no_statistics(base: float, new: float, verdict: str) -> None:
    assert compare_one([base], [new], Rule(0.01), "instructions").verdict == verdict


def test_kernels_of_one_side_are_listed_and_the_worst_comes_first() -> None:
    base = {"gone": 1.0, "same": 1.0, "faster": 2.0, "slow": 1.0, "slowest": 1.0}
    new = {"slow": 1.2, "slowest": 1.4, "new": 1.0, "faster": 1.0, "same": 1.0}
    found = compared(
        [Kernel(name, scaled(QUIET, factor)) for name, factor in base.items()],
        [Kernel(name, scaled(QUIET, factor)) for name, factor in new.items()],
    )
    assert [kernel.name for kernel in found.kernels] == ["slowest", "slow", "faster", "same"]
    assert (found.only_in_base, found.only_in_new) == (["gone"], ["new"])
    assert found.count("slower") == 2


def test_nothing_in_common_is_incomparable() -> None:
    with pytest.raises(IncomparableError, match="no chosen kernel is in both"):
        compared([Kernel("a", QUIET)], [Kernel("b", QUIET)])


def simulate(noise: Noise, planted: float, processes: int, runs: int) -> dict[str, float]:
    """Returns the shares of verdicts on pairs of runs of twelve kernels, the second slower."""
    mixed = random.Random(20240607)
    counts = dict.fromkeys(("slower", "inconclusive", "faster"), 0)
    for _ in range(runs):
        pair = [
            [Kernel(str(i), noisy_times(noise, mean, processes, mixed)) for i in range(12)]
            for mean in (100, 100 * (1 + planted))
        ]
        found = compared(*pair)
        for verdict in counts:
            counts[verdict] += found.count(verdict)
    return {verdict: count / (12 * runs) for verdict, count in counts.items()}


def test_no_change_is_not_slower() -> None:
    cache = simulate(CACHE_NOISE, 0, 11, 100)
    assert cache["slower"] == cache["faster"] == 0
    assert cache["inconclusive"] <= 0.001
    memory = simulate(MEMORY_NOISE, 0, 11, 100)
    assert memory["slower"] <= 0.005 and memory["faster"] <= 0.005


def test_changes_around_the_threshold() -> None:
    assert simulate(CACHE_NOISE, 0.03, 11, 50)["slower"] <= 0.01
    assert 0.2 <= simulate(CACHE_NOISE, 0.05, 11, 50)["slower"] <= 0.8
    assert simulate(CACHE_NOISE, 0.1, 11, 50)["slower"] >= 0.99
    assert simulate(MEMORY_NOISE, 0.3, 11, 50)["slower"] >= 0.98


def test_repetitions_of_one_process_make_its_shift_look_like_a_change() -> None:
    layout = Noise(0, 0.05, 0.002, 0, 0.1, 0.03)
    assert simulate(layout, 0, 1, 50)["slower"] >= 0.1
    assert simulate(layout, 0, 11, 50)["slower"] == 0
