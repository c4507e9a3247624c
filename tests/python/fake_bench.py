#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Acts as dlsim_bench in tests: three kernels whose times are known.

The environment variable FAKE_BENCH makes it fail (fail, die, garbage, or hang once the pipe
FAKE_BENCH_ALIVE has a byte), FAKE_BENCH_FACTOR slows it down.
"""

import json
import os
import re
import signal
import sys
import time

KERNELS = {
    "Encode/cb16/rne/AVX2/L2/grad/threads:1": 2000,
    "Decode/cb16/-/AVX2/L2/grad/threads:1": 1000,
    "Encode/cb16/rne/AVX2/DRAM/grad/threads:1": 3000,
}
CONTEXT = {
    "date": "2026-01-02T03:04:05+00:00",
    "cpu_model": "Fake CPU",
    "simd_target": "AVX3",
    "compiler": "GNU 12.2.0",
    "compiler_flags": "-O3",
    "threads": "1",
    "dram_mib": "512",
    "dlsim_version": "0.1.0",
}


def misbehave(how: str) -> None:
    if how == "fail":
        sys.exit("some diagnostics\ndlsim_bench: --threads: out of range")
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        with open(os.environ["FAKE_BENCH_ALIVE"], "wb", buffering=0) as alive:  # until it ends
            alive.write(b".")
            time.sleep(600)
    print("garbage")
    sys.exit()


def measured(name: str, work: float, repetition: int) -> dict[str, object]:
    # Times differ a little from one repetition and process to the next, and never tie.
    noise = 1 + 1e-6 * (os.getpid() % 1000) + 1e-4 * repetition
    cost = work * noise * float(os.environ.get("FAKE_BENCH_FACTOR", "1"))
    return {
        **{"name": name, "run_name": name, "run_type": "iteration", "repetitions": 1},
        **{"repetition_index": repetition, "threads": 1, "iterations": 10},
        **{"real_time": cost, "cpu_time": cost, "time_unit": "ns"},
    }


def main() -> None:
    given = dict(word.partition("=")[::2] for word in sys.argv[1:])
    pattern = given.get("--benchmark_filter", "")
    negated = pattern.startswith("-")
    chosen = re.compile(pattern.removeprefix("-"))
    names = [name for name in KERNELS if (chosen.search(name) is None) == negated]
    if "--benchmark_list_tests" in given:
        print("\n".join(names))
        return
    if "FAKE_BENCH" in os.environ:
        misbehave(os.environ["FAKE_BENCH"])
    entries = [
        measured(name, KERNELS[name], i)
        for name in names
        for i in range(int(given.get("--benchmark_repetitions", "1")))
    ]
    print(json.dumps({"context": CONTEXT, "benchmarks": entries}))


main()
