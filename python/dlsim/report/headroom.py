# SPDX-License-Identifier: Apache-2.0
"""Head-room per layer: how far below overflow its outputs are, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .._core import Format
from ._inputs import Run
from ._json import number, packed, visible
from ._names import in_order, layer_of

MAX_LAYERS = 60  # in the chart; of more, those with the least head-room in the forward pass


def has_forward(runs: Sequence[Run]) -> bool:
    """Whether a run has outputs of the forward pass."""
    return any(tensor.get("role") == "act" for run in runs for tensor in run.data["tensors"])


def forward_alone(runs: Sequence[Run]) -> bool:
    """Whether all runs are of a forward pass without gradients; policies say nothing then."""
    roles = ("act", "value")
    tensors = [tensor for run in runs for tensor in run.data["tensors"]]
    return bool(tensors) and all(tensor.get("role") in roles for tensor in tensors)


def headroom_data(runs: Sequence[Run]) -> str | None:
    """Returns what headroom.js draws, packed: per run its layers; None without forward outputs."""
    return packed([_layers(run) for run in runs]) if has_forward(runs) else None


def headroom_html() -> str:
    """Returns the HTML of the figure."""
    return (
        "<figure><figcaption><strong>Head-room of each layer</strong> in binades, powers of two "
        "below the largest value of the format. Bars to the left of 0 overflow. A loss scale does "
        "not change the forward pass; for gradients the head-room is that at scale 1, which is the "
        "exponent of the largest possible loss scale.</figcaption>"
        '<div class="chart" data-chart="layer-headroom"></div></figure>'
    )


def _layers(run: Run) -> dict[str, Any]:
    """The layers of a run in the order of the model, with the head-room of both passes."""
    rooms: dict[str, list[float | None]] = {}
    kept = _kept_in_float32(run)
    for tensor in run.data["tensors"]:
        side = ("act", "act_grad").index(tensor["role"]) if _is_output(tensor) else None
        if side is None or tensor["name"] in kept:
            continue
        both = rooms.setdefault(layer_of(tensor["name"]), [None, None])
        room = _room(run.format, number(tensor.get("absmax")))
        known = both[side]
        both[side] = room if known is None or (room is not None and room < known) else known
    names = [name for name, both in rooms.items() if both[0] is not None]
    tightest = sorted(names, key=lambda name: rooms[name][0] or 0.0)[:MAX_LAYERS]
    shown = [name for name in names if name in set(tightest)]
    ordered = [shown[i] for i in in_order(shown)]
    return {
        "name": [visible(name) for name in ordered],
        "forward": [rooms[name][0] for name in ordered],
        "backward": [rooms[name][1] for name in ordered],
        "left_out": len(names) - len(ordered),
    }


def _is_output(tensor: dict[str, Any]) -> bool:
    return tensor.get("role") in ("act", "act_grad")


def _kept_in_float32(run: Run) -> frozenset[str]:
    """The tensors that the recipe does not hold in 16 bits."""
    verdict = run.result.verdict
    for found in verdict or ():
        if found.format == run.format:
            return frozenset(found.forward.kept_in_float32)
    return frozenset()


def _room(name: str, absmax: float | None) -> float | None:
    if absmax is None or not math.isfinite(absmax) or absmax <= 0:
        return None
    return round(math.log2(Format(name).max_finite / absmax), 3)
