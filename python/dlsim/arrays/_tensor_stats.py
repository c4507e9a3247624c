# SPDX-License-Identifier: Apache-2.0
"""What a conversion does to an array: the counters of docs/numerics.md, section 4."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from .._core import Format


@dataclass(frozen=True, slots=True)
class TensorStats:
    """Counters and sums of one array for one format and scale; sums are float64 in a fixed order.

    The input is the float32 value before scaling; the output is scaled and encoded.
    """

    format: Format
    scale: float
    elements: int
    zeros: int  # input is +0 or -0
    nan: int  # input
    inf: int  # input
    underflow: int  # finite nonzero input, output +-0
    subnormal: int  # finite nonzero input, output a nonzero subnormal
    overflow: int  # finite input, output infinite (or clamped when saturating)
    nonfinite_outputs: int  # output is infinity or NaN
    absmax: float  # largest magnitude of the finite inputs
    sum_of_squares: float  # of the finite inputs
    error_sum_of_squares: float  # of output / scale - input, where both are finite
    underflow_sum_of_squares: float  # of the inputs that underflow
    quantized_sum_of_squares: float  # of the outputs after unscaling; may be inf or nan

    @property
    def nonfinite(self) -> int:
        """Inputs that are infinite or NaN."""
        return self.nan + self.inf

    @property
    def nonzero_finite(self) -> int:
        """Inputs that are finite and not zero."""
        return self.elements - self.zeros - self.nonfinite

    @property
    def underflow_fraction(self) -> float:
        """Share of the nonzero finite inputs that became zero; 0 without any."""
        return self.underflow / self.nonzero_finite if self.nonzero_finite else 0.0

    @property
    def energy_lost(self) -> float:
        """Share of the inputs' sum of squares that became zero; 0 if it is 0."""
        return self.underflow_sum_of_squares / self.sum_of_squares if self.sum_of_squares else 0.0

    @property
    def harm(self) -> float:
        """Relative squared error: 0 if nothing changed, 1 if all became zero; 0 if all is zero."""
        return self.error_sum_of_squares / self.sum_of_squares if self.sum_of_squares else 0.0

    def as_dict(self) -> dict[str, str | int | float]:
        """Returns all of it by name, the format as its name: a row of a table."""
        row: dict[str, str | int | float] = asdict(self) | {"format": self.format.name}
        for name in ("nonfinite", "nonzero_finite", "underflow_fraction", "energy_lost", "harm"):
            row[name] = getattr(self, name)
        return row
