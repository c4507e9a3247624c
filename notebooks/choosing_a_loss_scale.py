# ---
# jupyter:
#   SPDX-License-Identifier: Apache-2.0
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Choosing a loss scale
#
# **Which loss scale should a training use, does it need one, and how much does a wrong one cost?**
#
# *Replay* what the configured policy would have done to recorded gradients, *sweep* over its
# parameters, *tune*, and paste the result. We do this for a small CNN in fp16, where almost
# anything works except what the documentation says; for the same CNN in an 8-bit format, which
# needs a scale; and for a training that diverges, where no scale is right.
#
# A replay is open loop: it shows what these recorded gradients meet, not how the training would
# have ended.

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
CNN = project / "tests/data/traces/cnn-digits"  # 45 steps of a CNN on handwritten digits
DIABETES = project / "tests/data/traces/reg-diabetes-cut"  # 25 of 300 steps; it diverges


pd.set_option("display.max_colwidth", 100)


def show(frame: pd.DataFrame, **renamed: str) -> None:
    """Shows some columns under short names."""
    columns = list(renamed) or list(frame.columns)
    display(frame[columns].rename(columns=renamed))


# %% [markdown]
# ## 1. Replay: the misprint that costs a training
#
# Cerebras documents an initial loss scale of `2e15`. The code says `2 ** 15`. Taken literally,
# 2e15 is 2^50.8, and fp16 ends at 2^16. dlsim has both: `cerebras` is the documentation,
# `cerebras-2.10` the code of release 2.10.

# %%
replay = dlsim.replay(CNN, formats="fp16", policies=["cerebras", "cerebras-2.10"], quiet=True)
show(
    replay.runs.to_pandas(),
    **{
        "policy": "policy",
        "summary.steps": "steps",
        "summary.skipped_steps": "skipped",
        "summary.first_applied_step": "first applied",
        "summary.max_scale": "from",
        "summary.final_scale": "to",
    },
)
documented, real = replay.runs.summary.skipped_steps
assert (documented, real) == (35, 0)

# %% [markdown]
# The documented value skips 35 of 45 steps: the scale halves at each until the gradients fit. The
# code's default skips none. The figure shows the scale of each step, the scales that are safe, and
# a cross for each skipped step:

# %%
replay.plot()

# %% [markdown]
# ### How far could the scale go?
#
# The largest scale of a step is 65520 / max |g|, since fp16 overflows at 65520. We compute it from
# the recorded values, and `tune` must say the same.

# %%
trace = dlsim.open_trace(CNN)
absmax = np.array([max(np.abs(g).max() for g in step.gradients().values()) for step in trace])
limit = dlsim.FP16.overflow_threshold / absmax.astype(np.float64)

tuned = dlsim.tune(CNN, formats=["fp16", "fp8-e4m3"], quiet=True)
assert np.allclose(limit, tuned.formats[0].headroom.steps.largest_scale, rtol=1e-6)
first = int(np.argmax(2.0 ** (50.83 - np.arange(45)) < limit))
print(f"largest scales: 2^{np.log2(limit.min()):.2f} to 2^{np.log2(limit.max()):.2f}")
print(f"from 2^50.83, halving at every step, the first scale that fits comes at step {first}")
assert first == documented

# %% [markdown]
# So one number predicts the skipped steps: 50.8 - 16 halvings, one step each.
#
# ## 2. Sweep: which parameters matter
#
# One pass over the trace answers for every combination of parameters. The column `gradient lost`
# is a mean over the steps: 1 for a skipped step, the harm of its tensors for one whose scale was
# too low, else 0. Harm is what a tensor loses, relative to itself.

# %%
sweep = dlsim.sweep(
    CNN,
    formats="fp16",
    policies="cerebras-2.10",
    vary={"init_scale": ["2^-13", "2^0", "2^5", "2^15"], "steps_per_increase": [5, 10, 2000]},
    quiet=True,
).runs.to_pandas()
show(
    sweep.sort_values(["params.init_scale", "params.steps_per_increase"]),
    **{
        "params.init_scale": "init_scale",
        "params.steps_per_increase": "steps_per_increase",
        "summary.skipped_steps": "skipped",
        "summary.final_scale": "final",
        "summary.mean_loss": "gradient lost",
    },
)
assert sweep["summary.skipped_steps"].max() == 0
high, lost = sweep["params.init_scale"] >= 1, sweep["summary.mean_loss"]
assert lost[high].max() == 0 and lost[~high].min() > 0

# %% [markdown]
# Only a start of 2^-13 loses anything, in the steps before the scale has grown. What does each
# scale lose if it is held for the whole training? A static scale never skips: a step that is not
# finite is applied, and counts as lost.

# %%
exponents = range(-24, 37)
statics = dlsim.sweep(
    CNN,
    formats=["fp16", "fp8-e4m3", "cb16"],
    policies="static",
    vary={"loss_scale": [2.0**e for e in exponents]},
    quiet=True,
).runs.to_pandas()
figure = go.Figure()
statics = statics.sort_values("params.loss_scale")
statics["log2_scale"] = np.log2(statics["params.loss_scale"])
for name, of_format in statics.groupby("format", sort=False):
    figure.add_scatter(
        x=of_format.log2_scale,
        y=of_format["summary.mean_loss"].clip(lower=1e-17),
        mode="lines+markers",
        name=name,
    )
figure.update_layout(
    title="What is lost of the gradient under a constant scale",
    xaxis_title="log2 of the scale",
    yaxis={"title": "gradient lost", "type": "log"},
)
figure

# %% [markdown]
# The left wall of each valley is underflow, slow and smooth; the right wall is overflow. The
# valley of cb16 reaches 2^16 times higher than that of fp16 and 2^15 times lower. That of fp8-e4m3
# is so narrow that one must look for it.
#
# ## 3. Tune: is a scale needed, and which
#
# `tune` finds the safe scales of each step: nothing overflows, and the harm of the tensors stays
# below a threshold. The verdict comes first; then a policy's parameters.

# %%
print(tuned.verdict)
fp16, fp8 = tuned.verdict.formats
assert fp16.verdict == "as is" and fp8.verdict == "with a scale"
verdicts = tuned.formats.to_pandas().set_index("format")
for name, row in verdicts.iterrows():
    print(f"{name}: {row.verdict}")
    print(f"   {row.reason}")
    print(f"   recommended initial scale {row['recommended.params.init_scale']:g}")
    print(
        f"   gradient lost {row['recommended.mean_loss']:.3g}, at scale 1 "
        f"{row.mean_loss_at_scale_1:.3g}, by hindsight {row.least_possible_mean_loss:.3g}"
    )
assert verdicts["recommended.params.init_scale"]["fp16"] == 2.0**14
assert verdicts["recommended.mean_loss"]["fp16"] == 0
assert verdicts["recommended.mean_loss"]["fp8-e4m3"] < verdicts.mean_loss_at_scale_1["fp8-e4m3"] / 7

# %% [markdown]
# In fp16 scales from 2^-8 to 2^16 are safe at all steps. In fp8-e4m3 those from 2^6 to 2^9 are,
# and at scale 1 the loss is more than seven times as large. These tensors lose most there:

# %%
tensors = tuned.tensors.to_pandas().query("format == 'fp8-e4m3'")
show(
    tensors.nlargest(5, "worst_harm"),
    name="tensor",
    worst_harm="worst step",
    mean_harm="mean over steps",
    absmax="absmax",
)

# %% [markdown]
# The biases of the convolutions are lost at this scale, which does no harm: a batch norm follows
# each convolution and subtracts any constant, so the true gradient of these biases is zero and the
# recorded one is rounding noise. The verdict names such tensors and does not count them.

# %%
print("not counted:", ", ".join(fp16.noise_tensors))
assert set(fp16.noise_tensors) == {f"convs.{i}.bias.grad" for i in range(3)}

# %% [markdown]
# ### The configuration to paste

# %%
block = dlsim.tune(CNN, formats="fp16", emit="zoo", quiet=True).report
print(block)

# %% [markdown]
# That is for the Model Zoo; `emit="deepspeed"` and `emit="torch"` print theirs. A replay that
# reads it as a configuration gets the same parameters:

# %%
with tempfile.TemporaryDirectory() as folder:
    config = Path(folder) / "params.yaml"
    config.write_text(block)
    pasted = dlsim.replay(CNN, config=config, quiet=True).runs[0]
assert pasted.params.init_scale == verdicts["recommended.params.init_scale"]["fp16"]
assert pasted.summary.skipped_steps == 0

# %% [markdown]
# ## 4. A training where no scale is right
#
# The second trace is of a small regression whose learning rate rises until it diverges. Two steps
# have infinities and NaN as recorded.

# %%
tuned = dlsim.tune(DIABETES, formats="fp16", quiet=True)
row = tuned.formats[0]
print(f"{row.verdict}: {row.reason}")
print(f"steps that no scale makes finite: {row.never_finite_steps}")
print(f"a window of scales that suits all other steps: {'none' if row.window.empty else 'yes'}")
show(
    tuned.comparisons.to_pandas(),
    label="",
    mean_loss="gradient lost",
    skipped_steps="skipped",
    skipped_before_first_applied="before the first",
)
assert row.window.empty and row.never_finite_steps == 2
assert row.recommended.mean_loss > row.least_possible_mean_loss > 0

# %%
headroom = row.headroom.steps
figure = go.Figure()
figure.add_scatter(
    x=headroom.step, y=np.log2(headroom.largest_scale), mode="markers", name="largest"
)
figure.update_layout(
    title="Largest scale of each step in fp16: 114 binades apart",
    xaxis_title="step",
    yaxis_title="log2 of the scale",
)
figure

# %% [markdown]
# The best scale still loses four steps of 25. Two of them are not finite at any scale. The others
# are explosions of up to 2^109: a scale that lets them pass loses everything else. They should be
# skipped, and the learning rate should be lowered.
#
# ### Policies next to each other
#
# Stacks differ in how they recover. All policies that dlsim has, with their own defaults:

# %%
everything = dlsim.replay(DIABETES, formats="fp16", policies="all", quiet=True)
everything = everything.runs.to_pandas()
by_skips = everything.groupby("summary.skipped_steps").policy.agg(["count", ", ".join])
display(by_skips)
skips = everything.set_index("policy")["summary.skipped_steps"]
assert skips["cerebras"] == 25 and skips["torch"] == skips["cerebras-2.10"] == 7
assert skips["megatron"] == 24 and skips["static"] == 0

# %% [markdown]
# * Cerebras' real GradScaler and PyTorch's skip seven steps: the six that overflow, and step 0,
#   which does not fit at 2^15 or 2^16.
# * Megatron and DeepSpeed's class begin at 2^32 and end at 2^9: 24 and 23 of 25 steps are skipped.
#   In a training of 100,000 steps such a start hardly matters.
# * A static scale skips nothing. It *applies* steps that are not finite, so a count of skips alone
#   says little.
#
# ## What we learned
#
# * `2e15` and `2 ** 15` differ by 35.8 binades. Each binade too many costs a skipped step.
# * The largest scale of a step is 65520 / max |g| in fp16: look at the head-room before any
#   policy.
# * Energy over all tensors hides small ones. Harm is each tensor's own.
# * Where steps are 114 binades apart, no scale helps. Some skips are right.
