# ---
# jupyter:
#   SPDX-License-Identifier: Apache-2.0
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Conversion kernels and their limits
#
# **How fast can values be rounded to 16 bits, what sets the limit, and which shortcuts give wrong
# bits?**
#
# A conversion moves six bytes per value and computes little, so it can be as fast as memory. We
# compare dlsim's kernels with copies of the same bytes and with other libraries, check that they
# are exact, and rebuild some shortcuts to see what they break.
#
# Each time below is the shortest of several, on one thread of the machine that runs this. Only
# bits are asserted, not times; `docs/kernels.md` has careful measurements.

# %%
import os

os.environ["OMP_NUM_THREADS"] = "1"  # read when dlsim is imported

import platform
import time
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
from IPython.display import display

import dlsim

torch.set_num_threads(1)
random = np.random.default_rng(1)


def shortest(calls: dict[str, Callable[[], object]], seconds: float = 0.03) -> dict[str, float]:
    """The shortest time of each call, in seconds.

    The calls take turns, so that all meet the same disturbances, of five in a row, so that caches
    and clocks recover from the call before.
    """
    best = dict.fromkeys(calls, np.inf)
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end:
        for name, call in calls.items():
            for _ in range(5):
                start = time.perf_counter()
                call()
                best[name] = min(best[name], time.perf_counter() - start)
    return best


print(platform.machine(), "with the SIMD targets", ", ".join(dlsim.simd.targets()))

# %% [markdown]
# ## 1. Speed and its limit
#
# The limit of a conversion from float32 to 16 bits is a loop that reads four bytes and writes two,
# as a copy of three bytes does. Two sizes: 128 Ki values, which fit in a core's cache, and 8 Mi
# values, which do not.

# %%
SIZES = {"in cache": 1 << 17, "in memory": 1 << 23}
KERNELS = [("fp16", "rne"), ("bf16", "rne"), ("cb16", "rne"), ("cb16", "rtz"), ("cb16", "sr")]
rows = []
for place, size in SIZES.items():
    values = random.standard_normal(size).astype(np.float32)
    codes = np.empty(size, np.uint16)
    back = np.empty(size, np.float32)
    source, target = np.zeros(3 * size, np.uint8), np.zeros(3 * size, np.uint8)
    calls: dict[str, Callable[[], object]] = {
        "copy of as many bytes": lambda s=source, t=target: np.copyto(t, s)
    }
    for fmt, mode in KERNELS:
        calls[f"encode {fmt} {mode}"] = lambda v=values, c=codes, f=fmt, m=mode: dlsim.encode(
            v, f, rounding=m, out=c
        )
    for fmt in ("fp16", "bf16", "cb16"):
        calls[f"decode {fmt}"] = lambda c=codes, b=back, f=fmt: dlsim.decode(c, f, out=b)
    times = shortest(calls)
    for name, elapsed in times.items():
        rows.append(
            {
                "kernel": name,
                "where": place,
                "Gelem/s": size / elapsed / 1e9,
                "of the copy": times["copy of as many bytes"] / elapsed,
            }
        )
table = pd.DataFrame(rows)
display(table.pivot(index="kernel", columns="where").round(2))

# %% [markdown]
# In memory, all kernels but stochastic rounding should come near the copy or pass it: the
# arithmetic hides behind the memory, and large outputs are stored past the caches. In cache the
# arithmetic shows: cb16 takes more instructions than fp16 and bf16, which the processor supports,
# and stochastic rounding must draw random bits.
#
# ### Small arrays
#
# A call from Python costs a few microseconds, whatever the size, in which the kernel converts
# thousands of values:

# %%
points = {}
for exponent in range(0, 21, 2):
    values = random.standard_normal(1 << exponent).astype(np.float32)
    codes, half = np.empty(values.size, np.uint16), np.empty(values.size, np.float16)
    calls = {
        "dlsim fp16": lambda v=values, c=codes: dlsim.encode(v, "fp16", out=c),
        "numpy fp16": lambda v=values, h=half: np.copyto(h, v, casting="same_kind"),
    }
    points[values.size] = shortest(calls, 0.01)
figure = go.Figure()
for name in ("dlsim fp16", "numpy fp16"):
    figure.add_scatter(
        x=list(points), y=[elapsed[name] * 1e6 for elapsed in points.values()], name=name
    )
figure.update_layout(
    title="Time of a call",
    xaxis={"title": "values", "type": "log"},
    yaxis={"title": "microseconds", "type": "log"},
)
print(
    f"one value: {points[1]['dlsim fp16'] * 1e6:.1f} us, numpy {points[1]['numpy fp16'] * 1e6:.1f}"
)
figure

# %% [markdown]
# ### Instruction sets
#
# The kernels are compiled for several instruction sets, and the best one is chosen when the
# program runs. You can select another; all give the same bits:

# %%
values = random.standard_normal(1 << 17).astype(np.float32)
expected = {mode: dlsim.encode(values, "cb16", rounding=mode) for _, mode in KERNELS}
rows = []
for target in dlsim.simd.targets():
    with dlsim.simd.using(target):
        for mode, codes in expected.items():
            assert np.array_equal(dlsim.encode(values, "cb16", rounding=mode), codes)
        out = np.empty(values.size, np.uint16)
        calls = {
            f"{fmt} {mode}": lambda f=fmt, m=mode, o=out: dlsim.encode(values, f, rounding=m, out=o)
            for fmt, mode in KERNELS
        }
        times = shortest(calls, 0.01)
    rows.append({"target": target, **{name: values.size / t / 1e9 for name, t in times.items()}})
print("Gelem/s")
display(pd.DataFrame(rows).round(2))

# %% [markdown]
# ## 2. Other libraries
#
# Two data sets: normal numbers, and numbers like gradients, whose exponents are spread over 40
# binades, so that a third of them becomes subnormal or zero in fp16.

# %%
size = 1 << 17
normal = random.standard_normal(size).astype(np.float32)
DATA = {
    "normal": normal,
    "gradients": normal * np.exp2(random.integers(-36, 4, size)).astype(np.float32),
}
out = np.empty(size, np.uint16)
rows = []
for data, values in DATA.items():
    tensor = torch.from_numpy(values)
    half, brain = torch.empty(size, dtype=torch.float16), torch.empty(size, dtype=torch.bfloat16)
    calls = {
        "fp16 dlsim": lambda v=values: dlsim.encode(v, "fp16", out=out),
        "fp16 torch": lambda t=tensor, h=half: h.copy_(t),
        "fp16 numpy": lambda v=values: np.copyto(out.view(np.float16), v, casting="same_kind"),
        "bf16 dlsim": lambda v=values: dlsim.encode(v, "bf16", out=out),
        "bf16 torch": lambda t=tensor, b=brain: b.copy_(t),
        "bf16 ml_dtypes": lambda v=values: np.copyto(
            out.view(ml_dtypes.bfloat16), v, casting="same_kind"
        ),
    }
    for name, elapsed in shortest(calls).items():
        rows.append({"kernel": name, "data": data, "Gelem/s": size / elapsed / 1e9})
table = pd.DataFrame(rows).pivot(index="kernel", columns="data", values="Gelem/s")
display(table.round(2))

# %% [markdown]
# NumPy's fp16 takes longer where results are subnormal. dlsim's time does not depend on the data,
# except for values that overflow.
#
# ## 3. Are they exact?
#
# All 65,536 codes, the ties and neighbors between them, and a million other patterns, against
# three libraries:

# %%
codes = np.arange(1 << 16, dtype=np.uint16)
for name, dtype in (("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)):
    decoded = dlsim.decode(codes, name)
    with np.errstate(invalid="ignore"):
        theirs = codes.view(dtype).astype(np.float32)
    nan = np.isnan(theirs)
    assert np.array_equal(decoded[~nan], theirs[~nan]) and np.isnan(decoded[nan]).all()

    finite = np.sort(decoded[np.isfinite(decoded)])
    middle = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    probes = np.concatenate([finite, middle])
    probes = np.concatenate(
        [
            probes,
            np.nextafter(probes, np.float32(np.inf)),
            np.nextafter(probes, -np.float32(np.inf)),
        ]
    )
    patterns = random.integers(0, 1 << 32, 1 << 20, dtype=np.uint32).view(np.float32)
    probes = np.concatenate([probes, patterns[~np.isnan(patterns)]])
    ours = dlsim.encode(probes, name)
    with np.errstate(over="ignore"):
        assert np.array_equal(ours, probes.astype(dtype).view(np.uint16))
    by_torch = torch.from_numpy(probes).to(torch.float16 if name == "fp16" else torch.bfloat16)
    assert np.array_equal(ours, by_torch.view(torch.int16).numpy().view(np.uint16))
    print(f"{name}: {probes.size} values, every code equal to NumPy's or ml_dtypes', and torch's")

# %% [markdown]
# NaN is left out, because libraries differ in what they keep of it: dlsim keeps its sign and its
# upper bits and makes it quiet, as x86 does. No other library has cb16. Its kernels are compared
# with an integer definition instead, on all 2^32 inputs, for each mode and instruction set
# (`tools/prove`). Here is such a definition in NumPy, in float64, where every step is exact:


# %%
def cb16_by_definition(values: np.ndarray) -> np.ndarray:
    """Rounds finite float32 values to CB16, ties to even, in exact arithmetic."""
    wide = np.abs(values.astype(np.float64))
    exponent = np.maximum(np.frexp(wide)[1] - 1, -30)  # subnormals share the smallest quantum
    quanta = np.rint(np.ldexp(wide, 9 - exponent))
    rounded = np.ldexp(quanta, exponent - 9)
    rounded[rounded >= 2.0**32] = np.inf
    return np.copysign(rounded, values).astype(np.float32)


with np.errstate(over="ignore"):
    patterns = random.integers(0, 1 << 32, 1 << 20, dtype=np.uint32).view(np.float32)
    patterns = np.concatenate([patterns[np.isfinite(patterns)], *DATA.values()])
ours = dlsim.quantize(patterns, "cb16")
assert np.array_equal(ours.view(np.uint32), cb16_by_definition(patterns).view(np.uint32))
print(f"cb16: {patterns.size} values equal to the definition, signs of zeros included")

# %% [markdown]
# ## 4. Shortcuts that are wrong
#
# bf16 is the upper half of a float32, which invites shortcuts. Three of them, against the right
# codes:


# %%
def shift(bits: np.ndarray) -> np.ndarray:
    """Cuts off the lower half."""
    return (bits >> 16).astype(np.uint16)


def add_and_shift(bits: np.ndarray) -> np.ndarray:
    """Rounds to nearest even by an addition that carries, and forgets NaN."""
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def flush_subnormals(bits: np.ndarray) -> np.ndarray:
    """Rounds well and takes subnormal inputs for zero, as AVX-512's vcvtneps2bf16 does."""
    flushed = np.where(bits & 0x7F800000 == 0, bits & 0x80000000, bits)
    return dlsim.encode(flushed.astype(np.uint32).view(np.float32), "bf16")


bits = random.integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
bits[:1000] = 0x7F800001 + np.arange(1000)  # NaN whose payload is in the lower half
bits[1000:2000] = 0x7FFFFFFF - np.arange(1000)  # NaN with all ones
values = bits.view(np.float32)
right = dlsim.encode(values, "bf16")
meant = dlsim.decode(right, "bf16")
rows = []
for shortcut in (shift, add_and_shift, flush_subnormals):
    codes = shortcut(bits)
    got = dlsim.decode(codes, "bf16")
    rows.append(
        {
            "shortcut": shortcut.__name__,
            "wrong": f"{np.mean((got != meant) & ~(np.isnan(got) & np.isnan(meant))):.2%}",
            "NaN becomes infinite": np.count_nonzero(np.isnan(values) & np.isinf(got)),
            "NaN becomes a number": np.count_nonzero(np.isnan(values) & np.isfinite(got)),
            "number becomes zero": np.count_nonzero((got == 0) & (meant != 0) & ~np.isnan(values)),
        }
    )
table = pd.DataFrame(rows).set_index("shortcut")
display(table)
assert table.loc["shift", "NaN becomes infinite"] >= 1000
assert table.loc["add_and_shift", "NaN becomes infinite"] >= 1000
assert table.loc["add_and_shift", "NaN becomes a number"] >= 1000
assert table.loc["flush_subnormals", "number becomes zero"] > 1000

# %% [markdown]
# * **Cutting off** rounds toward zero, so half of the values are one code too small. A NaN whose
#   payload lies in the lower half becomes infinite. `DemoteTo` of Highway 1.0 cuts off, as many
#   old casts do.
# * **Adding** does the same to such a NaN, and overflows on others: 0x7FFFFFFF carries into the
#   sign and becomes -0. A training with NaN looks healthy, and the loss scaler has no reason to
#   skip.
# * **The instruction** for bf16 takes subnormals for zero, which is harmless for gradients above
#   2^-126.
#
# What truncation does to a mean:

# %%
values = DATA["normal"] ** 2
for mode in ("rne", "rtz"):
    drift = dlsim.quantize(values, "bf16", rounding=mode).astype(np.float64).mean() / values.mean(
        dtype=np.float64
    )
    print(f"{mode}: the mean of squares changes by {drift - 1:+.3%}")
    assert (abs(drift - 1) < 1e-4) if mode == "rne" else (-4e-3 < drift - 1 < -2e-3)

# %% [markdown]
# ## 5. Measuring without converting
#
# `measure` says what a conversion would lose and stores nothing. It must agree with what
# conversions give, for 24 questions about one array:

# %%
values = DATA["gradients"]
formats, scales = ["fp16", "bf16", "cb16"], [2.0 ** (4 * k) for k in range(8)]
QUESTIONS = [(fmt, scale) for fmt in formats for scale in scales]


def by_conversion(fmt: str, scale: float) -> tuple[int, int]:
    """Underflow and overflow, counted from the results."""
    rounded = dlsim.quantize(values, fmt, scale, unscale=False)
    return np.count_nonzero((rounded == 0) & (values != 0)), np.count_nonzero(np.isinf(rounded))


measured = [(s.underflow, s.overflow) for s in dlsim.measure(values, formats, scales)]
assert measured == [by_conversion(*question) for question in QUESTIONS]

# %% [markdown]
# There is a way to do less. Rounding never reverses an order, so what happens to a value depends
# only on which *thresholds* its magnitude has reached: one where the result stops being zero, one
# where it overflows. Once the magnitudes are sorted, two look-ups answer any question:


# %%
def threshold(fmt: str, scale: float, reached: Callable[[np.ndarray], bool]) -> np.float32:
    """The smallest float32 whose result has reached something, by bisection over the patterns."""
    low, high = 0, 0x7F800000
    while high - low > 1:
        middle = (low + high) // 2
        x = np.array([middle], np.uint32).view(np.float32)
        if reached(dlsim.quantize(x, fmt, scale, unscale=False)):
            high = middle
        else:
            low = middle
    return np.array([high], np.uint32).view(np.float32)[0]


thresholds = [
    (threshold(*question, lambda r: r[0] > 0), threshold(*question, lambda r: np.isinf(r[0])))
    for question in QUESTIONS
]
ordered = np.sort(np.abs(values[values != 0]))


def looked_up() -> list[tuple[int, int]]:
    """Underflow and overflow of all questions, from the sorted magnitudes."""
    below = np.searchsorted(ordered, np.array(thresholds, np.float32))
    return [(int(zero), int(ordered.size - finite)) for zero, finite in below]


assert looked_up() == measured
times = shortest(
    {
        "24 conversions, counted": lambda: [by_conversion(*question) for question in QUESTIONS],
        "measure with 24 questions": lambda: dlsim.measure(values, formats, scales),
        "24 look-ups": looked_up,
    }
)
for name, elapsed in times.items():
    print(f"{name:26} {elapsed * 1e6:8.0f} us")

# %% [markdown]
# So `dlsim sweep` tries thousands of scales in one pass, and a profile keeps the counts between
# all thresholds that matter (`docs/profiles.md`).
#
# ## What we learned
#
# * Out of cache a conversion is as fast as a copy of its bytes; in cache the arithmetic limits it,
#   most of all the random bits of stochastic rounding.
# * A call costs a few microseconds: convert whole tensors.
# * Every instruction set gives the same bits, and these are NumPy's, ml_dtypes' and torch's.
# * Speed may depend on the data: measure with gradients, not only with normal numbers.
# * What a format loses at a scale depends on two thresholds: count once, ask often.
# * bf16 by cutting, by adding or by the instruction is wrong for NaN, on average, or for
#   subnormals.
