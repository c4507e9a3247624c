# ---
# jupyter:
#   SPDX-License-Identifier: Apache-2.0
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A trained network in fp16
#
# **Which layer of a trained network has the least head-room in fp16, and what breaks when its
# input is louder?**
#
# The network is [silero-vad](https://pypi.org/project/silero-vad/) (MIT), which detects voice in
# sound; its weights come with the package. We record it once, in float32, then run it in fp16 with
# louder and louder inputs.

# %%
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
from IPython.display import display

import dlsim

study = next(
    path / "tools/study"
    for path in [Path.cwd(), *Path.cwd().parents]
    if (path / "tools/study").is_dir()
)
sys.path.insert(0, str(study))

import pretrained_networks
import pretrained_runs

torch.set_num_threads(1)
known = pretrained_networks.NETWORKS["silero"]
network, sound = known.load(), known.inputs()
heard = pretrained_runs.run(network, sound)
print(f"heard in {(heard.output > 0.5).sum()} of {len(sound)} chunks up to {sound.abs().max():.2f}")
assert (heard.output > 0.5).sum() == 10

# %% [markdown]
# ## 1. Head-room of each layer
#
# Only the forward pass is recorded. Head-room is how often a value can double before fp16
# overflows, at 65520. Under autocast squares and roots stay in float32, with `model.half()` they
# do not.


# %%
def recorded(x: torch.Tensor, recipe: str, format: str = "fp16") -> tuple[dict, pd.Series]:
    """Returns what dlsim says, and the binades up to 65504 of each tensor that is in 16 bits."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.dlprof"
        with dlsim.Recorder(network, path, inference=True, on_error="raise") as recorder:
            with torch.no_grad():
                network(x)
            recorder.step()
        data = dlsim.replay(path, formats=[format], recipe=recipe, quiet=True).data
    said = data["verdict"]["formats"][0]["forward"]
    largest = {
        one["name"].removesuffix(".act"): one["absmax"]
        for one in data["runs"][0]["tensors"]
        if one["role"] == "act" and one["name"] not in said["kept_in_float32"] and one["absmax"]
    }
    return said, np.log2(65504 / pd.Series(largest)).sort_values()


rooms = {recipe: recorded(sound, recipe)[1] for recipe in ("autocast", "half")}
figure = go.Figure()
for recipe, room in rooms.items():
    layers = room[~room.index.str.contains("lstm_cell")]
    figure.add_bar(x=layers.index, y=layers, name=recipe)
figure.update_layout(
    title="Head-room in fp16", yaxis_title="binades up to overflow", xaxis_type="category"
)
figure

# %%
for recipe, room in rooms.items():
    print(f"{recipe}: least head-room in {room.index[0]}, {room.iloc[0]:.2f} binades")
assert rooms["autocast"].index[0] == "conv2"
assert rooms["half"].index[0] == "(root)/add"

# %% [markdown]
# Both have ten binades. So may the sound be a thousand times louder?
#
# ## 2. Louder
#
# Sound between -1 and 1 may come as 16-bit integers that nobody divided by 2^15. Each doubling of
# the sound doubles the Fourier transform, and takes *two* binades from its squares: with `half`
# only five doublings are left. For each doubling, the table has what dlsim says of a float32
# recording of the louder sound, and what the network does in fp16.

# %%
REAL = hasattr(torch, "set_autocast_dtype")  # PyTorch before 2.4 has no fp16 on CPUs: emulated
rows = []
for recipe in ("autocast", "half"):
    for doublings in (0, 3, 5, 6, 10, 11, 15):
        louder = sound * 2.0**doublings
        said, room = recorded(louder, recipe)
        float32 = pretrained_runs.run(network, louder)
        fp16 = pretrained_runs.run(network, louder, recipe, "fp16", emulated=not REAL)
        rows.append(
            {
                "recipe": recipe,
                "louder": f"2^{doublings}",
                "dlsim says": said["state"],
                "first": said["first"]["tensor"] if said["first"] else "",
                "least head-room": room.iloc[0],
                "really fails in": fp16.first_failure(float32) or "",
                "heard in float32": (float32.output > 0.5).sum().item(),
                "heard in fp16": (fp16.output > 0.5).sum().item(),
            }
        )
table = pd.DataFrame(rows)
with pd.option_context("display.float_format", "{:.2f}".format):
    display(table)
assert ((table["dlsim says"] == "overflows") == (table["really fails in"] != "")).all()

# %% [markdown]
# dlsim is right at each doubling, also about the place: under autocast the first convolution, with
# `half` the squares, five doublings earlier. The answer does not always show it: under autocast at
# 2^11 the infinities saturate what follows, and the voice is heard as in float32; at 2^15 they are
# NaN, and no voice is heard.
#
# ## 3. What helps
#
# No loss scale does, since nothing here is a gradient. Dividing the sound by 2^15 does, and so
# does bf16. CB16 has 16 binades more than fp16, which is enough under autocast; with `half` the
# squares, 2^30 times as large, need more.

# %%
for format in ("bf16", "cb16"):
    for recipe in ("autocast", "half"):
        said, _ = recorded(louder, recipe, format)
        other = pretrained_runs.run(network, louder, recipe, format, emulated=not REAL)
        error = f"{other.error(float32):.2g}"
        print(f"{format} {recipe}: dlsim says {said['state']}, error of the output {error}")
        fits = (format, recipe) != ("cb16", "half")
        assert (said["state"] == "fits") == all(other.finite) == fits
