# SPDX-License-Identifier: Apache-2.0
"""How well a figure tells two groups apart: ROC, its area, error rates and the best threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Errors:
    """What a rule gets wrong: shares of the harmed that it misses and of the sound it warns of."""

    missed: float
    false_alarms: float
    harmed: int
    sound: int

    @property
    def balanced(self) -> float:
        """The mean of both."""
        return (self.missed + self.false_alarms) / 2


def errors_of(warned: np.ndarray, harmed: np.ndarray) -> Errors:
    """Returns the error rates of a rule; 0 for a group that is empty."""
    missed = float(np.mean(~warned[harmed])) if harmed.any() else 0.0
    false_alarms = float(np.mean(warned[~harmed])) if (~harmed).any() else 0.0
    return Errors(missed, false_alarms, int(harmed.sum()), int((~harmed).sum()))


def area(values: np.ndarray, harmed: np.ndarray) -> float:
    """Returns the chance that a harmed one has a larger value than a sound one; ties count half.

    NaN if all are of one kind.
    """
    if harmed.all() or not harmed.any():
        return float("nan")
    above = values[harmed][:, None] - values[~harmed][None, :]
    return float(np.mean((above > 0) + 0.5 * (above == 0)))


def curve(values: np.ndarray, harmed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the shares of false alarms and of hits, from the strictest threshold on."""
    thresholds = np.concatenate([[np.inf], np.unique(values)[::-1]])
    hits = [float(np.mean(values[harmed] >= threshold)) for threshold in thresholds]
    alarms = [float(np.mean(values[~harmed] >= threshold)) for threshold in thresholds]
    return np.array(alarms), np.array(hits)


def candidates(values: np.ndarray) -> np.ndarray:
    """Returns a threshold between each two neighboring values: their geometric mean."""
    distinct = np.unique(np.maximum(values, 1e-30))
    return np.sqrt(distinct[1:] * distinct[:-1])


def best_threshold(values: np.ndarray, harmed: np.ndarray) -> float:
    """Returns the threshold with the least balanced error; of several, the middle of the widest."""
    edges = candidates(values)
    missed, quiet = (
        np.searchsorted(np.sort(part), edges, "right") / max(len(part), 1)
        for part in (values[harmed], values[~harmed])
    )
    balanced = (missed + 1 - quiet) / 2
    best = edges[balanced <= balanced.min() + 1e-12]
    return float(np.exp(np.mean(np.log(best[[0, -1]]))))
