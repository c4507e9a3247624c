#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times dlsim's functions for arrays next to what one would call or write in Python instead.

One thread, processor time, the shortest of rounds that alternate; the data are N(0,1) * 2^U{-36..3}
in float32, as of gradients. The table has ratios: how many times as long as dlsim the other takes.
Libraries that are not installed are left out, with a line on standard error. microxcaling is found
by PYTHONPATH, since it is no package.

Example: OMP_NUM_THREADS=1 python bench/python_peers.py --rounds 5
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

Call = Callable[[], object]
# What is asked, the peer, dlsim's call and the peer's.
Row = tuple[str, str, Call, Call]
ROWS, COLUMNS = 1024, 2048
SCALE = 2.0**15


def find(name: str) -> types.ModuleType | None:
    """Returns the module, or None after saying so."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # without its device it fails in its own ways
        print(f"bench/python_peers.py: leaves out {name}: {error}", file=sys.stderr)
        return None


def numpy_counts(np: Any, values: Any) -> Call:
    """Counts what float16 loses at a scale, as a loop over NumPy arrays would."""

    def count() -> object:
        with np.errstate(over="ignore"):
            half = (values * np.float32(SCALE)).astype(np.float16)
        size = np.abs(half)
        zero = (half == 0) & (values != 0)
        subnormal = (size > 0) & (size < np.float16(2.0**-14))
        return np.count_nonzero(zero), np.count_nonzero(subnormal), np.count_nonzero(np.isinf(half))

    return count


def torch_counts(torch: Any, tensor: Any) -> Call:
    """The same with PyTorch."""

    def count() -> object:
        half = (tensor * SCALE).half()
        size = half.abs()
        zero = (half == 0) & (tensor != 0)
        subnormal = (size > 0) & (size < 2.0**-14)
        return zero.sum().item(), subnormal.sum().item(), torch.isinf(half).sum().item()

    return count


def formats(arrays: Any, np: Any, values: Any, torch: Any, tensor: Any) -> Iterator[Row]:
    """Yields conversions, and the counters of one, for formats without scales of their own."""

    def measure() -> object:
        return arrays.measure(values, "fp16", SCALE)

    yield "underflow, subnormal, overflow in fp16", "NumPy loop", measure, numpy_counts(np, values)
    if torch is not None:
        yield "the same", "torch loop", measure, torch_counts(torch, tensor)
    ml_dtypes = find("ml_dtypes")
    casts: list[tuple[str, str, Call]] = [
        ("fp16", "NumPy", lambda: values.astype(np.float16).astype(np.float32))
    ]
    if ml_dtypes is not None:
        casts += [
            (name, "ml_dtypes", lambda kind=kind: values.astype(kind).astype(np.float32))
            for name, kind in (
                ("bf16", ml_dtypes.bfloat16),
                ("fp8-e5m2", ml_dtypes.float8_e5m2),
            )
        ]
    if torch is not None:
        casts += [
            (name, "torch", lambda kind=kind: tensor.to(kind).to(torch.float32))
            for name, kind in (("fp16", torch.float16), ("bf16", torch.bfloat16))
        ]
    with np.errstate(over="ignore"):
        for name, peer, cast in casts:
            yield (
                f"values as {name} holds them",
                peer,
                lambda n=name: arrays.quantize(values, n),
                cast,
            )


def scaled_formats(arrays: Any, values: Any, torch: Any, tensor: Any) -> Iterator[Row]:
    """Yields conversions to formats with scales of their own."""
    elements = {"mxfp8": "fp8_e4m3", "mxfp6-e3m2": "fp6_e3m2", "mxfp4": "fp4_e2m1"}
    blocks = find("torchao.prototype.mx_formats.mx_tensor")
    constants = find("torchao.prototype.mx_formats.constants")
    kinds: dict[str, Any] = {}
    if blocks is not None and constants is not None:
        kinds = {
            "mxfp8": torch.float8_e4m3fn,
            "mxfp6-e3m2": constants.DTYPE_FP6_E3M2,
            "mxfp4": torch.float4_e2m1fn_x2,
        }
    for name, kind in kinds.items():
        yield (
            f"codes and scales of {name}",
            "torchao",
            lambda n=name: arrays.encode_scaled(values, n + ":rule=floor"),
            lambda k=kind: blocks.to_mx(tensor, k, 32),
        )
    tensors = find("torchao.float8.float8_utils")
    if tensors is not None:
        yield (
            "codes and scale of fp8-current",
            "torchao",
            lambda: arrays.encode_scaled(values, "fp8-current"),
            lambda: tensors.to_fp8_saturated(
                tensor * tensors.tensor_to_scale(tensor, torch.float8_e4m3fn), torch.float8_e4m3fn
            ),
        )
    mx = find("mx.mx_ops")
    for name, element in elements.items() if mx is not None else ():
        yield (
            f"values as {name} holds them",
            "microxcaling",
            lambda n=name: arrays.quantize_scaled(values, n + ":rule=floor"),
            lambda e=element: mx._quantize_mx(tensor, 8, e, axes=[-1], block_size=32),
        )


def shortest(call: Call, rounds: int) -> list[float]:
    """Returns the processor time of each round."""
    times = []
    for _ in range(rounds):
        begin = time.thread_time()
        call()
        times.append(time.thread_time() - begin)
    return times


def main() -> None:
    """Prints the table as Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="times each is run (default 5)")
    rounds = parser.parse_args().rounds
    if rounds < 1:
        parser.error("--rounds: too small, expected 1 or more")
    import numpy as np

    from dlsim import arrays

    random = np.random.default_rng(0)
    powers = 2.0 ** random.integers(-36, 4, (ROWS, COLUMNS))
    values = (random.standard_normal((ROWS, COLUMNS)) * powers).astype(np.float32)
    torch, tensor = find("torch"), None
    if torch is not None:
        torch.set_num_threads(1)
        tensor = torch.from_numpy(values)
    rows = list(formats(arrays, np, values, torch, tensor))
    if torch is not None:
        rows += scaled_formats(arrays, values, torch, tensor)
    print("| what | peer | times dlsim's |\n|---|---|---|")
    for what, peer, own, other in rows:
        own(), other()  # warm up
        pairs = [(shortest(own, 1)[0], shortest(other, 1)[0]) for _ in range(rounds)]
        ratio = min(pair[1] for pair in pairs) / min(pair[0] for pair in pairs)
        print(f"| {what} | {peer} | {ratio:.1f} |", flush=True)


main()
