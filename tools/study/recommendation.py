# SPDX-License-Identifier: Apache-2.0
"""What `dlsim tune` recommends from the beginning of a float32 run."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from typing import Any

import models
from grid import SCALES
from offline import FIRST
from torch import Tensor
from training import train_float32

import dlsim
from dlsim.traces._writer import TraceWriter


@dataclass(frozen=True)
class Recommendation:
    """A policy with its parameters, and whether the verdict says that some scale is safe."""

    policy: str
    parameters: dict[str, Any]
    format: str
    serves: bool

    def scaler(self) -> dlsim.LossScaler:
        """Returns the policy at its start."""
        return dlsim.LossScaler(self.policy, self.parameters, self.format)


def recommendations(name: str, seed: int) -> dict[str, Recommendation]:
    """Records the first tenth of a run and returns what the command recommends for each format."""
    training = models.make(name, seed)
    count = math.ceil(FIRST * training.recipe.steps)
    with tempfile.TemporaryDirectory() as folder:
        writer = TraceWriter(folder)

        def keep(step: int, gradients: dict[str, Tensor]) -> None:
            if step < count:
                writer.write(step, gradients)

        train_float32(training, keep)
        writer.close()
        tuned = dlsim.tune(folder, formats=list(SCALES), quiet=True).data
    verdicts = {of["format"]: of["verdict"] for of in tuned["verdict"]["formats"]}
    result = {}
    for found in tuned["formats"]:
        format, chosen = found["format"], found["recommended"]
        serves = verdicts[format] in ("as is", "with a scale")
        result[format] = Recommendation(chosen["policy"], chosen["params"], format, serves)
    return result
