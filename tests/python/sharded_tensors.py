# SPDX-License-Identifier: Apache-2.0
"""Puts together the tensors that the ranks of sharded training recorded."""

import json
import re
from pathlib import Path

import torch
from safetensors import safe_open


def _concatenated(pieces: list[torch.Tensor], cuts: list[list[int]]) -> torch.Tensor:
    if not cuts:
        return pieces[0]
    (dimension, parts), *inner = cuts
    size = len(pieces) // parts
    groups = [pieces[i * size : (i + 1) * size] for i in range(parts)]
    return torch.cat([_concatenated(group, inner) for group in groups], dimension)


def whole_tensors(run: Path, step: int = 0) -> dict[str, torch.Tensor]:
    """Returns the tensors of a step; those whose pieces are not all there along the first axis."""
    pieces: dict[str, dict[int, torch.Tensor]] = {}
    counts, grids = {}, {}
    for path in sorted(run.glob(f"shard-*/step-{step:08d}.safetensors")):
        with safe_open(path, "pt") as file:
            grids.update(json.loads((file.metadata() or {}).get("shard_grid", "{}")))
            for name in file.keys():
                found = re.fullmatch(r"(.*)\.shard-(\d+)-of-(\d+)(\.\w+)", name)
                stem = found[1] + found[4] if found else name
                index = int(found[2]) if found else 0
                assert index not in pieces.setdefault(stem, {}), name
                pieces[stem][index] = file.get_tensor(name)
                counts[stem] = int(found[3]) if found else 1
    tensors = {}
    for name, of in pieces.items():
        ordered = [of[index] for index in sorted(of)]
        cuts = grids.get(name, [[0, counts[name]]])
        if len(ordered) < counts[name]:
            cuts = [[0, len(ordered)]]
        tensors[name] = _concatenated(ordered, cuts)
    return tensors
