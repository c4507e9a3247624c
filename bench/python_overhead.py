#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times dlsim's Python calls and the same calls of the C++ library, in turn; prints a table.

Data sets are those of dlsim_bench: normal, N(0,1), and grad, N(0,1) * 2^U{-36..3}.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

import dlsim
from dlsim import _core

Call = Callable[[], object]
KERNELS = ("encode", "decode", "quantize", "measure")
DRAWN_VALUES = 1 << 20


def draw(elements: int, data: str) -> np.ndarray:
    """Returns values of a data set; long arrays repeat what was drawn."""
    random = np.random.default_rng(2023)
    values = random.standard_normal(min(elements, DRAWN_VALUES), dtype=np.float32)
    if data == "grad":
        values = np.ldexp(values, random.integers(-36, 4, values.size).astype(np.int32))
    return np.resize(values, elements)


def seconds(call: Call, cpu: bool = False) -> float:
    """Runs a call and returns how long it took: in all, or on a processor."""
    clock = time.thread_time if cpu else time.perf_counter
    start = clock()
    call()
    return clock() - start


def python_calls(kernel: str, format: str, values: np.ndarray, codes: np.ndarray) -> list[Call]:
    """Returns the Python call that writes to an array, and the one that makes a new one."""
    if kernel == "encode":
        return [
            lambda: dlsim.encode(values, format, out=codes),
            lambda: dlsim.encode(values, format),
        ]
    if kernel == "decode":
        return [
            lambda: dlsim.decode(codes, format, out=values),
            lambda: dlsim.decode(codes, format),
        ]
    if kernel == "quantize":
        return [
            lambda: dlsim.quantize(values, format, out=values),
            lambda: dlsim.quantize(values, format),
        ]
    return [lambda: dlsim.measure(values, format)]


def ratio_of(
    first: Callable[[], float], second: Callable[[], float], rounds: int
) -> tuple[float, float, float]:
    """Times two calls in turn; returns their medians and the median of second / first."""
    times: list[tuple[float, float]] = []
    for turn in range(rounds + 1):
        if turn % 2:
            times.append((first(), second()))
        else:
            later = second()
            times.append((first(), later))
    times = times[1:]  # the first round warms up
    ones, others = zip(*times, strict=True)
    ratio = statistics.median(other / one for one, other in times)
    return statistics.median(ones), statistics.median(others), ratio


def compare(kernel: str, format: str, data: str, *, elements: int, rounds: int, cpu: bool) -> str:
    """Returns a row: C++ and Python with memory of the caller, then Python with new memory."""
    values = draw(elements, data)
    codes = dlsim.encode(values, format)
    conversion = _core.Conversion(dlsim.Format(format), "rne", "inf", "keep")

    def in_cpp() -> float:
        return _core.seconds_of(kernel, values, codes, conversion, cpu)

    columns = [
        ratio_of(in_cpp, partial(seconds, call, cpu), rounds)
        for call in python_calls(kernel, format, values, codes)
    ]
    cells = [f"{columns[0][0] * 1e3:9.3f}"]
    cells += [f"{python * 1e3:9.3f} {ratio:6.3f}" for _, python, ratio in columns]
    return f"{kernel:9} {format:5} {data:7} {elements >> 18:6} " + " ".join(cells)


def small_calls() -> dict[str, Call]:
    """Returns calls on ten elements, and what other libraries do to as many."""
    array, codes = np.zeros(10, np.float32), np.zeros(10, np.uint16)
    calls: dict[str, Call] = {
        "encode, out=": lambda: dlsim.encode(array, "cb16", out=codes),
        "encode": lambda: dlsim.encode(array, "cb16"),
        "decode": lambda: dlsim.decode(codes, "cb16"),
        "quantize": lambda: dlsim.quantize(array, "cb16"),
        "measure": lambda: dlsim.measure(array, "cb16"),
        "numpy astype(float16)": lambda: array.astype(np.float16),
    }
    try:
        import torch
    except ImportError:
        return calls
    tensor = torch.zeros(10)
    return calls | {
        "encode, torch": lambda: dlsim.encode(tensor, "cb16"),
        "quantize, torch": lambda: dlsim.quantize(tensor, "cb16"),
        "torch to(float16)": lambda: tensor.to(torch.float16),
    }


def microseconds(call: Call, repeats: int = 2000, rounds: int = 9) -> float:
    """Returns the median time of a call."""
    runs = [seconds(lambda: [call() for _ in range(repeats)]) for _ in range(rounds)]
    return statistics.median(runs) / repeats * 1e6


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, nargs="+", default=[64, 256], help="of float32 values")
    parser.add_argument("--formats", nargs="+", default=["fp16", "cb16"])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="time on a processor, for a busy machine; set OMP_NUM_THREADS=1",
    )
    arguments = parser.parse_args()
    print("kernel    format data      MiB   C++ ms  out= ms  ratio    new ms  ratio")
    for mib in arguments.mib:
        for format in arguments.formats:
            for data in ("normal", "grad"):
                for kernel in KERNELS:
                    row = compare(
                        kernel,
                        format,
                        data,
                        elements=mib << 18,
                        rounds=arguments.rounds,
                        cpu=arguments.cpu,
                    )
                    print(row, flush=True)
    print("\nten elements           us")
    for name, call in small_calls().items():
        print(f"{name:21} {microseconds(call):5.2f}")


if __name__ == "__main__":
    main()
