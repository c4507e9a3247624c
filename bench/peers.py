#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the conversions of NumPy, PyTorch and ml_dtypes; prints JSON like dlsim_bench --help says.

Names, sizes and data sets are those of dlsim_bench. Libraries that cannot be imported are skipped,
with a line on standard error. Several threads share one array, so they are timed in DRAM only.
"""
import argparse
import importlib
import json
import re
import sys
import time

FLOAT32_BYTES = {"L1": 16 << 10, "L2": 256 << 10}
DRAWN_VALUES = 1 << 20
SLICE_SECONDS = 5e-4
# Bytes that an element moves.
TRAFFIC = {"Encode": 6, "Decode": 6, "Measure": 4}


def find(module):
    """Returns the module, or None after saying so."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        print(f"bench/peers.py: skipping {module}: {error}", file=sys.stderr)
        return None


def draw(numpy, elements, data):
    """Returns values of a data set; long arrays repeat what was drawn."""
    random = numpy.random.default_rng(2023)
    count = min(elements, DRAWN_VALUES)
    values = random.standard_normal(count, dtype=numpy.float32)
    if data == "grad":
        values = numpy.ldexp(values, random.integers(-36, 4, count).astype(numpy.int32))
    return numpy.resize(values, elements).astype(numpy.float32, copy=False)


def numpy_peers(numpy, name, types):
    """Yields kernel, format, name and a function from values to a call, for types by format."""

    def encode(to_type):
        def bind(values):
            codes = numpy.zeros(values.size, to_type)
            return lambda: numpy.copyto(codes, values, casting="unsafe")

        return bind

    def decode(from_type):
        def bind(values):
            codes, floats = values.astype(from_type), numpy.zeros_like(values)
            return lambda: numpy.copyto(floats, codes, casting="unsafe")

        return bind

    for number_format, code_type in types.items():
        yield "Encode", number_format, name, encode(code_type)
        yield "Decode", number_format, name, decode(code_type)


def torch_measure(torch):
    """What one writes to count underflow, subnormals and overflow of one scale."""

    def bind(values):
        gradient = torch.from_numpy(values)

        def measure():
            scaled = gradient * 1.0
            half = scaled.half()
            zero, size = half == 0, half.abs()
            return (
                (zero & (scaled != 0)).sum().item(),
                (~zero & (size < 2.0**-14)).sum().item(),
                (torch.isinf(half) & torch.isfinite(scaled)).sum().item(),
            )

        return measure

    return bind


def torch_peers(torch):
    def encode(to_type):
        def bind(values):
            floats = torch.from_numpy(values)
            codes = torch.zeros(values.size, dtype=to_type)
            return lambda: codes.copy_(floats)

        return bind

    def decode(from_type):
        def bind(values):
            codes = torch.from_numpy(values).to(from_type)
            floats = torch.zeros(values.size)
            return lambda: floats.copy_(codes)

        return bind

    for number_format, code_type in {"fp16": torch.half, "bf16": torch.bfloat16}.items():
        yield "Encode", number_format, "torch", encode(code_type)
        yield "Decode", number_format, "torch", decode(code_type)
    yield "Measure", "fp16", "torch", torch_measure(torch)


def time_call(call, threads, min_time):
    """Returns the mean and the lower quartile of seconds per call, and the number of calls.

    One thread is timed by its own clock, which stops while others have its core.
    """
    now = time.thread_time if threads == 1 else time.perf_counter
    begin = now()
    call()
    calls = max(1, int(SLICE_SECONDS / max(now() - begin, 1e-9)))
    slices = []
    while sum(slices) < min_time:
        begin = now()
        for _ in range(calls):
            call()
        slices.append(now() - begin)
    slices.sort()
    mean = sum(slices) / len(slices) / calls
    return mean, slices[(len(slices) - 1) // 4] / calls, calls * len(slices)


def run(name, threads, elements, kernel, call, min_time):
    mean, quartile, iterations = time_call(call, threads, min_time)
    return {
        "name": name,
        "run_name": name,
        "run_type": "iteration",
        "repetitions": 1,
        "repetition_index": 0,
        "threads": threads,
        "iterations": iterations,
        "real_time": mean * 1e9,
        "cpu_time": mean * 1e9,
        "time_unit": "ns",
        "bytes_per_second": elements * TRAFFIC[kernel] / mean,
        "items_per_second": elements / mean,
        "quartile_items_per_second": elements / quartile,
    }


def run_all(numpy, options):
    torch, ml_dtypes = find("torch"), find("ml_dtypes")
    peers = list(numpy_peers(numpy, "numpy", {"fp16": numpy.float16}))
    if ml_dtypes:
        peers += numpy_peers(numpy, "ml_dtypes", {"bf16": ml_dtypes.bfloat16})
    if torch:
        peers += torch_peers(torch)
    sizes = dict(FLOAT32_BYTES, DRAM=options.dram_mib << 20)
    for size, data in ((size, data) for size in sizes for data in ("normal", "grad")):
        elements, values = sizes[size] // 4, None
        for kernel, number_format, library, bind in peers:
            for threads in options.threads:
                mode = "-" if kernel == "Decode" else "rne"
                name = f"{kernel}/{number_format}/{mode}/{library}/{size}/{data}/threads:{threads}"
                shared = size == "DRAM" and library == "torch"
                if threads > 1 and not shared or not re.search(options.filter, name):
                    continue
                if values is None:
                    values = draw(numpy, elements, data)
                if torch:
                    torch.set_num_threads(threads)
                yield run(name, threads, elements, kernel, bind(values), options.min_time)


def thread_numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=thread_numbers, default=[1], metavar="N[,M]...")
    parser.add_argument("--dram-mib", type=int, default=512, metavar="N")
    parser.add_argument("--benchmark_filter", dest="filter", default="", metavar="REGEX")
    parser.add_argument("--benchmark_min_time", dest="min_time", type=float, default=0.5)
    options = parser.parse_args()
    numpy = find("numpy")
    results = list(run_all(numpy, options)) if numpy else []
    context = {"executable": sys.argv[0], "dram_mib": str(options.dram_mib)}
    json.dump({"context": context, "benchmarks": results}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
