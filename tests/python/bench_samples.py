# SPDX-License-Identifier: Apache-2.0
"""Made-up results of benchmarks: a model of the noise of real runs, and documents of them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Noise:
    """Relative sizes of what disturbs a repetition; the first three are standard deviations."""

    run_shift: float  # between two runs
    process_shift: float  # between two processes
    repetition: float  # between two repetitions
    drift: float  # from the first repetition of a run to the last
    tail_share: float  # how many repetitions something else disturbs
    tail: float  # by how much, mean of an exponential distribution


# CPU times of real runs on a shared virtual machine of two cores: kernels in the L2 cache, and the
# decoder in memory, the noisiest. Drift and shifts between runs are taken twice as large.
CACHE_NOISE = Noise(0.004, 0.003, 0.004, 0.004, 0.1, 0.03)
MEMORY_NOISE = Noise(0.01, 0.015, 0.02, 0.01, 0.2, 0.12)


def noisy_times(noise: Noise, mean: float, processes: int, mixed: random.Random) -> list[float]:
    """Returns 11 times, dealt out over the processes."""
    run = noise.run_shift * mixed.gauss(0, 1)
    shifts = [noise.process_shift * mixed.gauss(0, 1) for _ in range(processes)]
    times = []
    for i in range(11):
        log_time = run + noise.drift * i / 11 + shifts[i * processes // 11]
        log_time += noise.repetition * mixed.gauss(0, 1)
        if mixed.random() < noise.tail_share:
            log_time += mixed.expovariate(1 / noise.tail)
        times.append(mean * math.exp(log_time))
    return times


def bench_document(kernels: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Returns a document of dlsim bench run, each kernel with its times in nanoseconds."""
    entries = [
        {
            **{"name": name, "run_name": name, "run_type": "iteration"},
            **{"real_time": 2 * time, "cpu_time": time, "time_unit": "ns"},
            **{"bytes_per_second": 1e9, "fraction_of_stream": 0.5},
        }
        for name, times in kernels.items()
        for time in times
    ]
    block = {
        **{"schema": "dlsim.bench/1", "kind": "time", "cpu_model": "Some CPU (R) 1.0"},
        **{"simd_target": "AVX2", "compiler": "GNU 12.2.0", "compiler_flags": "-O3"},
        **{"threads": "1", "dram_mib": "512", "processes": 11},
    }
    context = {"num_cpus": 2, "mhz_per_cpu": 2600, "library_build_type": "release"}
    return {"context": context, "dlsim": block, "benchmarks": entries}


def count_document(kernels: Mapping[str, float]) -> dict[str, Any]:
    """Returns the same for counts of instructions."""
    document = bench_document({})
    document["dlsim"]["kind"] = "instructions"
    document["benchmarks"] = [
        {"name": name, "instructions": count} for name, count in kernels.items()
    ]
    return document
