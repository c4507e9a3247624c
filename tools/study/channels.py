# SPDX-License-Identifier: Apache-2.0
"""Harm of the parts of tensors: of channels, and of single elements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

DEAD = 0.5  # the harm from which a tensor or a part of it counts as dead
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Parts:
    """The part of its tensor to which each element belongs, and the tensor of each part."""

    part_of: np.ndarray
    tensor_of: np.ndarray


@cache
def channels(shapes: Shapes, kind: str) -> Parts:
    """Returns features of activations, rows of weights, elements of vectors."""
    ids, owners = [], []
    first = 0
    for number, shape in enumerate(shapes):
        axis = 0 if kind == "param" else 1 if len(shape) == 4 else len(shape) - 1
        count = shape[axis]
        view = [1] * len(shape)
        view[axis] = count
        own = first + np.arange(count).reshape(view)
        ids.append(np.broadcast_to(own, shape).ravel())
        owners.append(np.full(count, number))
        first += count
    return Parts(np.concatenate(ids), np.concatenate(owners))


def elements(shapes: Shapes) -> Parts:
    """Returns every element as a part of its own."""
    sizes = [math.prod(shape) for shape in shapes]
    return Parts(np.arange(sum(sizes)), np.repeat(np.arange(len(sizes)), sizes))


def mean_harm(
    parts: Parts, errors: np.ndarray, squares: np.ndarray, floor: float
) -> tuple[float, float]:
    """Returns the mean over tensors of the mean harm of their parts, and of the share of dead ones.

    Parts without a gradient are not counted.
    """
    count = len(parts.tensor_of)
    energies = np.bincount(parts.part_of, squares, count)
    alive = energies > 0
    lost = np.bincount(parts.part_of, errors, count)[alive] / energies[alive]
    harm = np.clip(lost - floor, 0, 1)
    owners = parts.tensor_of[alive]
    sizes = np.bincount(owners)
    present = sizes > 0
    mean, dead = (np.bincount(owners, weights)[present] for weights in (harm, harm > DEAD))
    return float((mean / sizes[present]).mean()), float((dead / sizes[present]).mean())
