#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes rank_test_golden.json: Mann-Whitney U tests computed by SciPy."""
import json
import random

import scipy
from scipy.stats import mannwhitneyu


def samples():
    """Pairs of samples: small, unequal, shifted, tied, separated, constant."""
    rng = random.Random(20240607)
    for n, m in [(1, 1), (1, 5), (2, 3), (6, 6), (6, 11), (9, 9), (11, 11), (20, 7), (25, 25)]:
        for shift in (0, 0.5, 2, 100):
            yield ([rng.gauss(10, 1) for _ in range(n)],
                   [rng.gauss(10 + shift, 1) for _ in range(m)])
    for n, m in [(3, 3), (6, 6), (11, 11), (30, 40)]:
        for shift in (0, 1, 3):
            yield ([float(rng.randint(0, 5)) for _ in range(n)],
                   [float(rng.randint(0, 5) + shift) for _ in range(m)])
    for shift in (0, 0.3, 1):
        yield ([rng.lognormvariate(0, 1) for _ in range(60)],
               [rng.lognormvariate(shift, 1) for _ in range(33)])
    yield ([1.0] * 6, [1.0] * 6)


def test(a, b):
    u = mannwhitneyu(b, a, alternative="two-sided", method="asymptotic")
    tied = len(set(a + b)) < len(a + b)
    exact = None
    if not tied and max(len(a), len(b)) <= 25:
        exact = mannwhitneyu(b, a, alternative="two-sided", method="exact").pvalue
    # SciPy divides by a variance of zero where all values are equal.
    asymptotic = 1.0 if len(set(a + b)) == 1 else u.pvalue
    return {"a": a, "b": b, "u": u.statistic, "asymptotic": asymptotic, "exact": exact}


with open("rank_test_golden.json", "w", encoding="ascii") as file:
    rows = ",\n".join(json.dumps(test(a, b)) for a, b in samples())
    file.write(f'{{"generator": "rank_test_golden.py, SciPy {scipy.__version__}",\n"tests": [\n'
               f"{rows}\n]}}\n")
