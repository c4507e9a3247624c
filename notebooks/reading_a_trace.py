# ---
# jupyter:
#   SPDX-License-Identifier: Apache-2.0
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Reading a trace
#
# **What is in recorded gradients, which of them would a half-precision format lose, and does it
# matter?**
#
# A trace has the gradients of a training, one set of tensors per step. We open one of a small
# transformer, look at its values with NumPy, find what underflows in fp16, and check every number
# against dlsim's own counters.

# %%
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from IPython.display import display

import dlsim

project = next(
    path for path in [Path.cwd(), *Path.cwd().parents] if (path / "tests/data/traces").is_dir()
)
LM = project / "tests/data/traces/lm-kjv-accum-cut"
TROUBLE = project / "tests/data/traces/lm-trouble-cut"

# %% [markdown]
# ## 1. Open it
#
# Opening lists the steps. No tensor is read yet.

# %%
trace = dlsim.open_trace(LM)
for key in ("model", "description", "data", "optimizer"):
    print(f"{key}: {trace.description[key]}")
print(f"steps {trace.steps}, {trace.file_bytes} bytes")

step = trace.step(299)
print(f"step {step.number}: {len(step.names)} tensors, {len(step.recordings)} micro-steps")
for name in step.names[:4] + step.names[-2:]:
    print(f"  {name:32} {step.role(name):9} {step.dtype(name)} {list(step.shape(name))}")

# %% [markdown]
# A *parameter gradient* decides whether a step is finite; an *activation gradient* does not. Each
# of the four micro-steps is a file of its own, with its loss:

# %%
for recording in step.recordings:
    print(f"micro-step {recording.micro}: loss {float(recording.metadata['loss']):.4f}")

# %% [markdown]
# ## 2. The gradient of a step
#
# `gradients()` gives the effective gradient, the float32 sum of the micro-steps in their order.
# Addition in floating point is not associative, so the order is part of the definition:

# %%
gradients = step.gradients()
name = "blocks.1.attn.out.weight.grad"
parts = [recording.tensors[name] for recording in step.recordings]

forward = ((parts[0] + parts[1]) + parts[2]) + parts[3]
backward = ((parts[3] + parts[2]) + parts[1]) + parts[0]
assert gradients[name].dtype == np.float32
assert np.array_equal(gradients[name], forward)
differ = np.count_nonzero(forward != backward)
print(f"{differ} of {forward.size} elements differ if the micro-steps are added in reverse")
assert 0 < differ < forward.size

squares = sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values())
print(f"norm of the step: {np.sqrt(squares):.6f}")

# %% [markdown]
# ## 3. Exponents
#
# The exponent of a value decides whether a format can hold it. `dlsim.exponents` counts exponents
# for every tensor of the trace, micro-step by micro-step. NumPy's `frexp` must find the same:

# %%
counted = dlsim.exponents(LM)
for name, tensor in counted.tensors.items():
    values = np.concatenate([r.tensors[name].ravel() for s in trace for r in s.recordings])
    nonzero = values[values != 0]
    expected = np.bincount(np.frexp(np.abs(nonzero))[1] - 1 + 149, minlength=277)
    assert (tensor.counts == expected).all() and tensor.zeros == values.size - nonzero.size
print(f"{len(counted.tensors)} tensors checked")


def quantile(counts: np.ndarray, q: float) -> int:
    """The exponent that a share q of the nonzero values does not exceed."""
    return int(counted.exponents[np.searchsorted(np.cumsum(counts), q * counts.sum())])


table = pd.DataFrame(
    {
        "tensor": name,
        "nonzero": tensor.counts.sum(),
        "zeros": tensor.zeros,
        "lowest": quantile(tensor.counts, 1e-9),
        "5 %": quantile(tensor.counts, 0.05),
        "median": quantile(tensor.counts, 0.5),
        "highest": quantile(tensor.counts, 1.0),
    }
    for name, tensor in counted.tensors.items()
)
display(table)

# %% [markdown]
# Most gradients lie between 2^-20 and 2^-6. Two tensors reach down to 2^-48: the biases of `qkv`.

# %%
used = np.flatnonzero(sum(tensor.counts for tensor in counted.tensors.values()))
low, high = used[0], used[-1] + 1
shares = np.array([t.counts[low:high] / t.counts.sum() for t in counted.tensors.values()])
figure = go.Figure(
    go.Heatmap(
        z=np.where(shares > 0, shares, np.nan),
        x=counted.exponents[low:high],
        y=list(counted.tensors),
        colorscale="Viridis",
        colorbar_title="share",
    )
)
for label, exponent in {"fp16": -25, "cb16": -40}.items():
    figure.add_vline(
        x=exponent - 0.5,
        line_dash="dash",
        annotation_text=f"{label}: zero below",
        annotation_position="top left",
    )
figure.update_layout(title="Exponents of the gradients", xaxis_title="exponent", height=650)
figure.update_yaxes(autorange="reversed")
figure

# %% [markdown]
# ## 4. What underflows, and does it matter?
#
# To nearest even, fp16 turns a magnitude of up to 2^-25 into zero: half of its smallest subnormal.
# NumPy has fp16, so a plain conversion can check the replay's counters, at a loss scale of 1.

# %%
replay = dlsim.replay(LM, formats=["fp16", "cb16"], policies="static", quiet=True)
tensors = replay.tensors.to_pandas().query("format == 'fp16' and role == 'grad'")
tensors = tensors.set_index("name")
for name, row in tensors.iterrows():
    underflow = lost = total = 0
    for recording in (r for s in trace for r in s.recordings):
        values = recording.tensors[name]
        squares = values.astype(np.float64) ** 2
        zero = (values != 0) & (values.astype(np.float16) == 0)
        underflow += int(zero.sum())
        lost += float(squares[zero].sum())
        total += float(squares.sum())
    assert underflow == row.underflow
    assert np.isclose(lost / total, row.energy_lost, rtol=1e-9, atol=0)
worst = tensors[tensors.underflow > 0]
display(worst[["elements", "underflow", "underflow_fraction", "energy_lost"]])

# %% [markdown]
# A third of the `qkv` biases becomes zero. Is that bad? Their share of the energy, 1e-15, says no.
# The bias has three parts, for queries, keys and values. The softmax of attention does not change
# if a constant is added to all scores of a query, which is all that the key's bias does. Its true
# gradient is 0; what was recorded is rounding noise.

# %%
bias = "blocks.0.attn.qkv.bias.grad"
thirds = {"query": slice(0, 32), "key": slice(32, 64), "value": slice(64, 96)}
share = {}
for part, rows in thirds.items():
    values = np.array([r.tensors[bias][rows] for s in trace for r in s.recordings])
    values = values[values != 0]
    share[part] = float((values.astype(np.float16) == 0).mean())
    print(f"{part:6} largest {np.abs(values).max():.2e}, underflow {share[part]:.1%}")
assert share == {"query": 0, "key": 1, "value": 0}

# %% [markdown]
# CB16 keeps more of this noise, as its smallest value is 2^-39. That is no advantage here:

# %%
fp16, cb16 = (run.summary for run in replay.runs)
display(replay.runs.summary.to_pandas()[["elements", "underflow", "subnormal", "energy_lost"]])
assert cb16.underflow < fp16.underflow

# %% [markdown]
# ## 5. The same from a profile
#
# A profile holds a table for each step and tensor: counts and sums by exponent. It answers for all
# loss scales that are powers of two, exactly, without the gradients. For a trace as small as this
# it saves little; of one of 500 MiB it is about a thousandth.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "lm.profile"
    dlsim.profile(LM, path, scales=2e15, quiet=True)  # where the policy starts
    profile = dlsim.open_profile(path)
    trace_bytes = sum(file.stat().st_size for file in LM.iterdir())
    print(f"{trace_bytes} bytes became {profile.file_bytes}")

    settings = {"formats": ["fp16", "cb16"], "policies": "cerebras-2.10", "quiet": True}
    of_trace = dlsim.replay(LM, **settings).tensors.to_pandas()
    of_profile = dlsim.replay(path, **settings).tensors.to_pandas()
    of_counts = dlsim.exponents(path)
    table = profile.step(299).table(bias, part=0)

counters = ["name", "format", "underflow", "subnormal", "overflow", "zeros", "absmax"]
assert of_trace[counters].equals(of_profile[counters])
for name, tensor in counted.tensors.items():
    assert (of_counts.tensors[name].counts == tensor.counts).all()

values = step.recordings[0].tensors[bias]
below = table.counts[table.exponents < -25].sum()
print(f"{bias}, micro-step 0: {below} of {table.elements} magnitudes below 2^-25")
assert below == ((np.abs(values) < 2.0**-25) & (values != 0)).sum()

# %% [markdown]
# ## 6. A trace with trouble
#
# The second trace is of a transformer that became unstable. Its metadata have the loss; its
# gradients show when and where it broke.

# %%
rows = []
for step in dlsim.open_trace(TROUBLE):
    gradients = step.gradients()
    bad = [name for name, g in gradients.items() if not np.isfinite(g).all()]
    with np.errstate(invalid="ignore"):
        largest = max(np.abs(g[np.isfinite(g)]).max(initial=0) for g in gradients.values())
    rows.append(
        {
            "step": step.number,
            "loss": float(step.metadata["loss"]),
            "log2 of the largest": np.log2(largest) if largest else -np.inf,
            "not finite in": f"{len(bad)} of {len(gradients)}",
            "such as": bad[0] if bad else "",
        }
    )
table = pd.DataFrame(rows)
display(table)

nonfinite = table[table["such as"] != ""].step.tolist()
steps = dlsim.replay(TROUBLE, formats="bf16", policies="static", quiet=True).steps
assert nonfinite == steps.step[steps.nonfinite > 0].tolist() == [169, 241, 305, 376]

# %% [markdown]
# Each NaN was announced. At step 168 the loss is 4e8 and a gradient reaches 2^29.9, at step 240 it
# is 2^112; the step after is NaN in every tensor. No loss scale helps with NaN. What would have
# fitted before?

# %%
before = dlsim.replay(TROUBLE, formats=["fp16", "cb16", "bf16"], policies="static", quiet=True)
steps = before.steps.to_pandas().query("step in (168, 240)")
finite = steps.pivot(index="format", columns="step", values="finite")
display(finite)
assert finite.loc["bf16"].all() and not finite.loc["fp16"].any()
assert finite.loc["cb16"].tolist() == [True, False]

# %% [markdown]
# ## What we learned
#
# * `open_trace` gives the values that dlsim measures: float32, micro-steps one by one or summed in
#   their order. NumPy gave the same counts, to the last digit.
# * In fp16 at scale 1, two biases of this transformer lose a third of their values. Counts alone
#   mislead: what is lost is the key's bias, whose true gradient is zero, 1e-15 of the energy.
# * A profile gives the same counts as its trace.
# * NaN comes a step after the explosion, which shows in the largest exponent.
