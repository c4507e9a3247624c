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
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from IPython.display import display

study = next(
    path / "tools/study"
    for path in [Path.cwd(), *Path.cwd().parents]
    if (path / "tools/study").is_dir()
)
sys.path.insert(0, str(study))

import kept
import tables
from evidence import (
    CHOSEN,
    HELD_OUT,
    THRESHOLD,
    cases,
    harmed_of,
    is_held_out,
    values_of,
    warned_by,
)
from roc import area, curve, errors_of

rows = kept.read(study / "results/trainings.csv")
static = cases(rows)
inside = [case for case in static if not is_held_out(case)]
outside = [case for case in static if is_held_out(case)]
print(
    f"{len(rows)} settings, {len(static)} static without overflow, {harmed_of(static).sum()} harmed"
)

# %% [markdown]
# ## 1. What float32 reaches
#
# A training is harmed if the mean of its final losses exceeds that of float32, for the same seeds,
# by more than the standard deviation that float32 has over its seeds.
#
# Settings whose recorded run overflows are left out: there overflow decides, not what is lost.

# %%
float32 = pd.DataFrame(
    [(row.model, row.loss, np.std(row.losses, ddof=1)) for row in rows if not row.format],
    columns=["model", "loss", "spread"],
).set_index("model")
float32["held out"] = [model in HELD_OUT for model in float32.index]
with pd.option_context("display.float_format", "{:.4f}".format):
    display(float32)

# %% [markdown]
# ## 2. One model under all scales
#
# Harm rises over few binades, and with it the final loss.

# %%
figure = go.Figure()
for format in ("fp16", "cb16", "fp8-e5m2"):
    line = sorted(
        (int(c.row.under[2:]), c.row.loss)
        for c in static
        if c.row.model == "transformer_pre" and c.row.format == format
    )
    figure.add_scatter(x=[x for x, _ in line], y=[y for _, y in line], name=format)
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
# float32 run.

# %%
NAMES = {
    "act_channel": "harm of channels of activations",
    "act_mean": "harm of activations",
    "act_dead": "share of dead activations",
    "act_underflow": "elements of activations that underflow",
    "param_mean": "harm of parameters",
    "param_energy": "energy lost of all parameters",
}
figure = go.Figure()
for name, title in NAMES.items():
    values = values_of(inside, name)
    alarms, hits = curve(values, harmed_of(inside))
    score = area(values, harmed_of(inside))
    figure.add_scatter(x=alarms, y=hits, mode="lines", name=f"{title}: {score:.3f}")
figure.update_layout(xaxis_title="sound but warned of", yaxis_title="harmed and warned of")
figure

# %%
print(tables.figures_table([j for j in tables.judgments(static) if ":" not in j.figure]))

# %% [markdown]
# ## 4. The chosen rule, and what it gets wrong

# %%
print(CHOSEN, THRESHOLD)
for name, part in (("held in", inside), ("held out", outside)):
    print(tables.rule_line(name, part))
print(tables.misses_table(static))

errors = errors_of(warned_by(outside), harmed_of(outside))
assert errors.missed < 0.1
assert errors.false_alarms < 0.1

# %% [markdown]
# ## 5. Recommended from the first tenth, and the stacks' policies
#
# Excess of the final loss over float32's in spreads, and skipped steps.

# %%
print(tables.comparison_table(rows))
