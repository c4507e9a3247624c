# ---
# jupyter:
#   SPDX-License-Identifier: Apache-2.0
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The evidence
#
# **Which figure, computed from a recorded run, shows that a training in 16 or 8 bits ends worse?**
#
# Twelve small models were trained in float32 and, five times each, with every gradient rounded to a
# format under static scales and policies. Here the kept results are read and drawn; nothing is
# trained. [docs/evidence.md](../docs/evidence.md) says how it was done and what follows.

# %%
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from IPython.display import display

results = next(
    path / "tools/study/results/trainings.csv"
    for path in [Path.cwd(), *Path.cwd().parents]
    if (path / "tools/study").is_dir()
)
rows = pd.read_csv(results, keep_default_na=False, na_values=[""])
losses = rows["losses"].str.split().map(lambda texts: np.array(texts, dtype=float))
rows["loss"] = losses.map(np.mean)

# %% [markdown]
# ## 1. What float32 reaches
#
# A training is harmed if the mean of its final losses exceeds that of float32 by more than the
# standard deviation that float32 has over its seeds: by more than one *spread*.

# %%
float32 = rows[rows["under"] == "float32"].set_index("model")[["loss"]]
float32["spread"] = losses[rows["under"] == "float32"].map(lambda one: one.std(ddof=1)).to_numpy()
float32["held out"] = float32.index.isin(["conv_norm", "lstm", "transformer_post"])
with pd.option_context("display.float_format", "{:.4f}".format):
    display(float32)

# %% [markdown]
# Settings whose recorded run overflows are left out: there overflow decides, not what is lost.

# %%
rows = rows.join(float32.add_prefix("float32 "), on="model")
rows["excess"] = (rows["loss"] - rows["float32 loss"]) / rows["float32 spread"]
rows["harmed"] = ~(rows["excess"] <= 1)
static = rows[rows["under"].str.startswith("2^") & (rows["overflow"] == 0)].copy()
inside, outside = (static[static["float32 held out"] == part] for part in (False, True))
print(f"{len(rows)} settings, {len(static)} without overflow, {static['harmed'].sum()} harmed")

# %% [markdown]
# ## 2. One model under all scales
#
# Harm rises over few binades, and with it the final loss.

# %%
figure = go.Figure()
static["exponent"] = static["under"].str[2:].astype(int)
for format in ("fp16", "cb16", "fp8-e5m2"):
    chosen = (static["model"] == "transformer_pre") & (static["format"] == format)
    line = static[chosen].sort_values("exponent")
    figure.add_scatter(x=line["exponent"], y=line["loss"], name=format)
figure.add_hline(y=float32.loss["transformer_pre"], annotation_text="float32")
figure.update_layout(
    title="Final loss of the transformer", xaxis_title="log2 of the scale", yaxis_title="loss"
)
figure

# %% [markdown]
# ## 3. ROC of the figures
#
# The curves show how well each figure separates harmed trainings from sound ones, at every
# threshold, for all models but those held out. A figure is the mean over the steps of the recorded
# float32 run. The area is the chance that a harmed training has a larger figure than a sound one.


# %%
def roc(cases: pd.DataFrame, name: str) -> tuple[list[float], list[float], float]:
    """Returns shares of false alarms and of hits by threshold, and the area under them."""
    harmed, sound = (cases[cases["harmed"] == one][name].fillna(1).to_numpy() for one in (1, 0))
    thresholds = [np.inf, *np.unique(np.concatenate([harmed, sound]))[::-1]]
    alarms, hits = ([float(np.mean(part >= t)) for t in thresholds] for part in (sound, harmed))
    above = harmed[:, None] - sound[None, :]
    return alarms, hits, float(np.mean((above > 0) + 0.5 * (above == 0)))


NAMES = {
    "act_channel": "harm of channels of activations",
    "act_mean": "harm of activations",
    "act_underflow": "elements of activations that underflow",
    "param_channel": "harm of channels of parameters",
    "param_mean": "harm of parameters",
    "param_energy": "energy lost of all parameters",
}
areas = {}
figure = go.Figure()
for name, title in NAMES.items():
    alarms, hits, areas[name] = roc(inside, name)
    figure.add_scatter(x=alarms, y=hits, mode="lines", name=f"{title}: {areas[name]:.3f}")
figure.update_layout(xaxis_title="sound but warned of", yaxis_title="harmed and warned of")
figure

# %%
assert round(areas["act_channel"], 3) == 0.979
assert round(areas["act_mean"], 3) == 0.915

# %% [markdown]
# ## 4. The rule of the verdict, and what it gets wrong

# %%
LIMITS = {"act_mean": 0.013, "param_mean": 0.013, "act_channel": 0.06, "param_channel": 0.02}


def errors(cases: pd.DataFrame, limits: dict[str, float]) -> tuple[float, float]:
    """Returns the shares missed and of false alarms, in per cent, if any figure is too large."""
    warned = sum(cases[name].fillna(1) > limit for name, limit in limits.items()) > 0
    missed, alarms = (warned[cases["harmed"] == one] for one in (True, False))
    return round(100 * float((~missed).mean()), 1), round(100 * float(alarms.mean()), 1)


for title, part in (("held in", inside), ("held out", outside)):
    missed, alarms = errors(part, LIMITS)
    print(f"{title}: {missed} % missed, {alarms} % false alarms")
assert errors(inside, LIMITS) == (2.1, 13.1)
assert errors(outside, LIMITS) == (0.0, 9.1)
assert errors(inside, {"act_channel": 0.06}) == (2.1, 7.7)

# %% [markdown]
# ## 5. Recommended from the first tenth, and the stacks' policies
#
# Excess of the final loss over float32's in spreads: what `dlsim tune` recommended never harms.

# %%
columns = ["recommended", "torch", "cerebras-2.10", "megatron"]
policies = rows[rows["under"].isin(columns)].pivot(
    index=["model", "format"], columns="under", values="excess"
)[columns]
with pd.option_context("display.float_format", "{:.1f}".format):
    display(policies)
assert len(policies) == 48
assert (~(policies <= 1)).sum().to_dict() == {
    "recommended": 0, "torch": 0, "cerebras-2.10": 1, "megatron": 19,
}  # fmt: skip
