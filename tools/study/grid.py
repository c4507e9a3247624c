# SPDX-License-Identifier: Apache-2.0
"""What is trained: models, formats, scales and policies, and how each is named in the results."""

from __future__ import annotations

from dataclasses import dataclass

import dlsim

SEEDS = range(5)
# Exponents of static scales: from where most gradients vanish to where they overflow.
SCALES = {
    "fp16": (-20, -16, -12, -8, -4, 0, 4, 8, 12, 16),
    "bf16": (-124, -120, -116, -112, -108, -100, 0, 96),
    "cb16": (-36, -32, -28, -24, -20, -16, -8, 0, 16, 28),
    "fp8-e5m2": (-12, -8, -4, 0, 4, 8, 12, 16),
}
REAL_FORMATS = ("fp16", "bf16", "cb16")  # in which real training is compared
# Runs are short, so intervals of growth are, too; initial scales are those of the stacks.
POLICIES = {
    "torch": {"growth_interval": 20},
    "cerebras-2.10": {"steps_per_increase": 20},
    "megatron": {"growth_interval": 20},
}


@dataclass(frozen=True)
class Setting:
    """A format, and a static scale, as `2^-8`, or a policy."""

    format: str
    under: str

    @property
    def exponent(self) -> int | None:
        """The log2 of the static scale, None for a policy."""
        return int(self.under[2:]) if self.under.startswith("2^") else None

    def scaler(self) -> dlsim.LossScaler:
        """Returns the policy at its start."""
        if self.exponent is None:
            return dlsim.LossScaler(self.under, POLICIES[self.under], self.format)
        return dlsim.LossScaler("static", {"loss_scale": 2.0**self.exponent}, self.format)


FLOAT32 = Setting("", "float32")
RECOMMENDED = [Setting(format, "recommended") for format in SCALES]


def settings() -> list[Setting]:
    """Returns all settings, formats in the order of SCALES."""
    return [
        Setting(format, under)
        for format, exponents in SCALES.items()
        for under in (*(f"2^{exponent}" for exponent in exponents), *POLICIES)
    ]
