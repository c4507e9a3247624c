# ---
# jupyter:
#   SPDX-License-Identifier: Apache-2.0
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Formats and rounding
#
# **What can fp16, bf16 and CB16 hold, what happens to a value that they cannot hold, and where
# does that go wrong?**
#
# All three have a sign, an exponent and a mantissa in 16 bits. We look at all 65,536 codes of
# each, at the ways of rounding, and at four traps: subnormals, the two ends of the range, rounding
# twice, and the bias of sums.

# %%
import ml_dtypes
import numpy as np
import pandas as pd
import plotly.graph_objects as go
from IPython.display import display

import dlsim

FORMATS = [dlsim.FP16, dlsim.BF16, dlsim.CB16]

# %% [markdown]
# ## 1. What they hold
#
# `decode` turns codes into float32, exactly.

# %%
codes = np.arange(1 << 16, dtype=np.uint16)
rows = []
for fmt in [*FORMATS, dlsim.Format("dlfloat16")]:
    values = dlsim.decode(codes, fmt)
    finite = values[np.isfinite(values)].astype(np.float64)
    positive = finite[finite > 0]
    normal = positive[positive >= fmt.min_normal]
    rows.append(
        {
            "format": fmt.name,
            "sign/exp/mantissa": f"1/{fmt.exponent_bits}/{fmt.mantissa_bits}",
            "finite": finite.size,
            "NaN": int(np.isnan(values).sum()),
            "smallest": f"2^{np.log2(positive.min()):.4g}",
            "smallest normal": f"2^{np.log2(normal.min()):.4g}",
            "largest": f"2^{np.log2(positive.max()):.5g}",
            "steps per binade": 1 << fmt.mantissa_bits,
            "subnormals": positive.size - normal.size,
        }
    )
    assert positive.min() == fmt.min_positive and positive.max() == fmt.max_finite
    assert np.array_equal(
        dlsim.encode(values, fmt)[np.isfinite(values)], codes[np.isfinite(values)]
    )
display(pd.DataFrame(rows))

# %% [markdown]
# fp16 has the finest steps and the shortest range; bf16 has float32's range and steps eight times
# as wide. CB16, the format of Cerebras' machines, lies between them: 2^16 times fp16's range
# upwards for one bit of mantissa. (Cerebras publishes the widths, not the codes:
# `docs/numerics.md` says what dlsim assumes.)
#
# dlsim's fp16 and bf16 are those of NumPy and ml_dtypes, for a million float32 values drawn from
# all bit patterns:

# %%
random = np.random.default_rng(1)
patterns = random.integers(0, 1 << 32, 1_000_000, dtype=np.uint32).view(np.float32)
patterns = patterns[~np.isnan(patterns)]
with np.errstate(over="ignore"):
    by_numpy = patterns.astype(np.float16).view(np.uint16)
by_ml_dtypes = patterns.astype(ml_dtypes.bfloat16).view(np.uint16)
assert np.array_equal(dlsim.encode(patterns, "fp16"), by_numpy)
assert np.array_equal(dlsim.encode(patterns, "bf16"), by_ml_dtypes)
print(f"{patterns.size} values: every code is equal")

# %% [markdown]
# The figure shows the largest relative error of rounding to nearest in each binade. Below the
# smallest normal value the steps stay as they are while the values shrink: these are subnormals.
# At the left end the error is 100 %: the value becomes zero.

# %%
exponents = np.arange(-48, 40)
fractions = np.linspace(1, 2, 4097, dtype=np.float32)[:-1]
figure = go.Figure()
for fmt in FORMATS:
    magnitudes = (2.0**exponents)[:, None].astype(np.float32) * fractions
    rounded = dlsim.quantize(magnitudes, fmt)
    error = np.abs(rounded.astype(np.float64) / magnitudes - 1).max(axis=1)
    figure.add_scatter(x=exponents, y=np.where(np.isinf(error), np.nan, error), name=fmt.name)
    inside = (2.0**exponents >= fmt.min_normal) & (2.0 ** (exponents + 1.0) <= fmt.max_finite)
    assert error[inside].max() <= 2.0 ** -(fmt.mantissa_bits + 1)
figure.update_layout(
    title="Largest relative error of rounding to nearest",
    xaxis_title="exponent of the value",
    yaxis={"title": "relative error", "type": "log"},
)
figure

# %% [markdown]
# ## 2. Six ways of rounding
#
# | mode | rounds |
# |---|---|
# | `rne` | to nearest, ties to even: the default, what hardware does |
# | `rna` | to nearest, ties away from zero |
# | `rtz` | toward zero: truncation |
# | `ru`, `rd` | up, down |
# | `sr` | up or down at random, with the probability of its distance |
#
# CB16 steps by 2^-9 above 1. In units of that step:

# %%
MODES = ["rne", "rna", "rtz", "ru", "rd", "sr"]
step = 2.0**-9
offsets = np.array([0.25, 0.5, 0.75, 1.0, 1.5, -0.5, -0.75])
values = (np.sign(offsets) * (1 + np.abs(offsets) * step)).astype(np.float32)
table = pd.DataFrame({"1 + k steps": offsets})
for mode in MODES:
    rounded = dlsim.quantize(values, "cb16", rounding=mode, seed=1)
    table[mode] = (np.abs(rounded) - 1) / step * np.sign(offsets)
display(table)
assert table.rne.tolist() == [0, 0, 1, 1, 2, 0, -1]
assert table.rna.tolist() == [0, 1, 1, 1, 2, -1, -1]
assert table.rtz.tolist() == [0, 0, 0, 1, 1, 0, 0]

# %% [markdown]
# A million gradients that span cb16's range show what each mode promises:

# %%
gradients = random.standard_normal(1_000_000).astype(np.float32)
gradients *= np.exp2(random.integers(-38, 12, gradients.size)).astype(np.float32)
rounded = {mode: dlsim.quantize(gradients, "cb16", rounding=mode) for mode in MODES}
assert (rounded["rd"] <= gradients).all() and (gradients <= rounded["ru"]).all()
assert (np.abs(rounded["rtz"]) <= np.abs(gradients)).all()
assert ((rounded["sr"] == rounded["rd"]) | (rounded["sr"] == rounded["ru"])).all()
nearest = np.minimum(gradients - rounded["rd"], rounded["ru"] - gradients)
for mode in ("rne", "rna"):
    assert np.array_equal(np.abs(rounded[mode] - gradients), nearest)
errors = {mode: np.abs(r.astype(np.float64) - gradients).mean() for mode, r in rounded.items()}
for mode, error in errors.items():
    print(f"{mode:4} mean error {error / errors['rne']:.2f} times that of rne")

# %% [markdown]
# The error of stochastic rounding is four thirds of that of the nearest value, less than the
# twofold of truncation. Section 6 shows what it gives in return.
#
# ## 3. Where values are lost
#
# The thresholds at which a value becomes zero or infinite depend on format and mode. Rounding
# never reverses an order, so bisection over float32's bit patterns finds them, with nothing but
# `encode`:


# %%
def first(becomes) -> float:
    """The smallest positive float32 of which `becomes` is true; inf if there is none."""
    low, high = 0, 0x7F800000
    while high - low > 1:
        middle = (low + high) // 2
        value = np.array([middle], np.uint32).view(np.float32)
        low, high = (low, middle) if becomes(value) else (middle, high)
    return float(np.array([high], np.uint32).view(np.float32)[0])


def thresholds(fmt: dlsim.Format, mode: str) -> tuple[float, float]:
    """From where on a value is not zero, and from where on it is infinite."""

    def quantize(value):
        return dlsim.quantize(value, fmt, rounding=mode)

    return first(lambda v: quantize(v)[0] > 0), first(lambda v: np.isinf(quantize(v)[0]))


rows = []
for fmt in FORMATS:
    for mode in ("rne", "rna", "rtz", "ru"):
        nonzero, infinite = thresholds(fmt, mode)
        rows.append({"format": fmt.name, "rounding": mode, "kept from": nonzero, "inf": infinite})
table = pd.DataFrame(rows).set_index(["format", "rounding"])
with pd.option_context("display.float_format", lambda x: f"{x:.9g} = 2^{np.log2(x):.6g}"):
    display(table)

next_up = np.nextafter(np.float32(2.0**-25), np.float32(1))
assert table.loc[("fp16", "rne"), "kept from"] == next_up  # the tie itself goes to even: zero
assert table.loc[("fp16", "rna"), "kept from"] == 2.0**-25
assert table.loc[("fp16", "rtz"), "kept from"] == 2.0**-24
assert table.loc[("fp16", "rne"), "inf"] == dlsim.FP16.overflow_threshold == 65520
assert np.isinf(table.loc[("fp16", "rtz"), "inf"])  # truncation stops at the largest value
assert table.loc[("cb16", "rne"), "inf"] == dlsim.CB16.overflow_threshold

# %% [markdown]
# ### Subnormals
#
# Some hardware flushes subnormals to zero. That moves the left end by a factor of 2^10 for fp16.
# What is lost then depends on the loss scale:

# %%
small = (random.standard_normal(100_000) * 2.0**-18).astype(np.float32)
questions = [(scale, rule) for scale in (1.0, 2.0**10) for rule in ("keep", "flush")]
rows = []
for scale, rule in questions:
    stats = dlsim.measure(small, "fp16", scale, subnormals=rule)
    rows.append(
        {
            "scale": scale,
            "subnormals": rule,
            "become zero": f"{stats.underflow_fraction:.2%}",
            "subnormal results": stats.subnormal,
            "energy lost": f"{stats.energy_lost:.2g}",
        }
    )
    as_fp16 = np.abs((small * np.float32(scale)).astype(np.float16))
    gone = as_fp16 < (2.0**-14 if rule == "flush" else 2.0**-24)
    assert stats.underflow == np.count_nonzero(gone & (small != 0))
display(pd.DataFrame(rows))

# %% [markdown]
# Without subnormals all of these gradients are lost at scale 1, with them 1 in 160. A scale of
# 2^10 makes both nearly right.
#
# ## 4. Rounding twice
#
# Rounding twice to nearest can differ from rounding once: the first can give a tie that the second
# then breaks the wrong way. A float64 value just above the middle between two fp16 values:

# %%
x = 1 + 2.0**-11 + 2.0**-30
direct = np.float64(x).astype(np.float16)
twice = np.float64(x).astype(np.float32).astype(np.float16)
print(f"{x!r} to fp16 at once: {direct!r}; through float32: {twice!r}")
assert direct == 1 + 2.0**-10 and twice == 1
assert dlsim.quantize(np.array([x]), "fp16")[0] == twice  # dlsim measures everything in float32

# %% [markdown]
# That is rare from float64. It is frequent when a value goes through fp16 on its way to CB16,
# which has just one bit less:

# %%
values = random.uniform(1, 2, 1_000_000).astype(np.float32)
once = dlsim.quantize(values, "cb16")
through = {
    name: dlsim.quantize(dlsim.quantize(values, name), "cb16") for name in ("fp16", "tf32", "e5m12")
}
for name, result in through.items():
    print(f"through {name:5}: {np.mean(result != once):.2%} differ from rounding once")
assert 0.24 < np.mean(through["fp16"] != once) < 0.26
truncated = dlsim.quantize(dlsim.quantize(values, "fp16", rounding="rtz"), "cb16", rounding="rtz")
assert np.array_equal(truncated, dlsim.quantize(values, "cb16", rounding="rtz"))

# %% [markdown]
# One value in four is wrong: every other fp16 value is a tie of CB16, and half of these ties are
# broken the wrong way. Each further bit on the way halves the share. Truncation has no ties and
# can be repeated.
#
# A loss scale that is not a power of two moves the grid of results, and both multiplications round
# in float32:

# %%
values = random.standard_normal(1_000_000).astype(np.float32)
plain = dlsim.quantize(values, "cb16")
for scale in (2.0**15, 3e4):
    differ = np.mean(dlsim.quantize(values, "cb16", scale) != plain)
    print(f"scale {scale:g}: {differ:.1%} of the values come back different")
assert np.array_equal(dlsim.quantize(values, "cb16", 2.0**15), plain)

# %% [markdown]
# ## 5. CB16 and DLFloat
#
# IBM's DLFloat16 has the same widths as CB16, 6 and 9 bits. It drops what IEEE formats keep for
# special cases: no infinities, no subnormals; the codes become ordinary values.

# %%
dlfloat = dlsim.Format("dlfloat16")
a, b = dlsim.decode(codes, "cb16"), dlsim.decode(codes, dlfloat)
same = (a == b) | (np.isnan(a) & np.isnan(b))
print(f"{np.count_nonzero(same)} of 65536 codes mean the same, {np.count_nonzero(~same)} do not")
probes = np.array([2.0**-39, 2.0**-33, 2.0**-20, 1e-4, 2.0**31, 2.0**32, 2.0**33], np.float32)
table = pd.DataFrame({"value": [f"2^{e:.4g}" for e in np.log2(probes)]})
table["cb16"] = dlsim.quantize(probes, "cb16")
table["dlfloat16"] = dlsim.quantize(probes, dlfloat)
display(table)
differing = codes[~same & (codes < 0x8000)]
assert set(differing >> 9) == {0, 63}  # the lowest and the highest exponent only
assert table.cb16.tolist()[:2] == [2.0**-39, 2.0**-33] and table.dlfloat16.tolist()[:2] == [0, 0]
assert np.isinf(table.cb16[5]) and table.dlfloat16[5] == 2.0**32

# %% [markdown]
# They agree wherever a well-scaled gradient lies. DLFloat reaches one binade further up, CB16
# eight further down, with falling precision.
#
# ## 6. The bias of sums
#
# Rounding to nearest has the smallest error for one value and fails for sums: an increment below
# half a step is lost each time. Here 1000 weights of 1 grow by 2^-12 in each of 4096 steps, which
# should give 2. CB16's step is 2^-9 there.

# %%
steps, increment = 4096, np.float32(2.0**-12)
paths = {}
for mode in ("rne", "sr"):
    weights = np.ones(1000, np.float32)
    path = []
    for i in range(steps):
        # Another stream in each step: otherwise a weight would get the same random bits again.
        dlsim.quantize(weights + increment, "cb16", rounding=mode, seed=7, stream=i, out=weights)
        path.append(float(weights.mean()))
    paths[mode] = path
    print(f"{mode}: mean {weights.mean():.4f}, standard deviation {weights.std():.4f}")
figure = go.Figure()
for mode, path in paths.items():
    figure.add_scatter(y=path, name=mode)
figure.update_layout(title="Sums of small increments in CB16", xaxis_title="step")
figure

# %% [markdown]
# Nearest never moves. Stochastic rounding is right on average, at the price of noise: the
# probability of rounding up is the distance itself. With n draws the mean deviates by about sqrt(p
# (1 - p) / n) steps:

# %%
draws = 1_000_000
for distance in (0.1, 0.25, 0.5, 0.9):
    x = np.float32(1 + distance * 2.0**-9)
    p = (float(x) - 1) / 2.0**-9  # what float32 made of the distance
    up = dlsim.quantize(np.full(draws, x), "cb16", rounding="sr", seed=3) > 1
    deviation = (up.mean() - p) / np.sqrt(p * (1 - p) / draws)
    print(f"distance {p:.5f}: up in {up.mean():.5f} of the draws, {deviation:+.2f} sigma")
    assert abs(deviation) < 4
assert abs(paths["sr"][-1] - 2) < 0.01 and paths["rne"][-1] == 1

# %% [markdown]
# ## What we learned
#
# * fp16 holds 2^-24 to 2^16, CB16 2^-39 to 2^32, bf16 float32's range; a CB16 step is twice an
#   fp16 step, a bf16 step four times a CB16 one.
# * To nearest, fp16 keeps what is above 2^-25 and overflows at 65520, not at 65504.
# * Subnormals are worth ten binades of fp16.
# * Rounding through fp16 gives one CB16 value in four wrong. Scales should be powers of two.
# * CB16 and DLFloat differ in the first and the last exponent only.
# * Rounding to nearest is best for a value, stochastic rounding for a sum.
