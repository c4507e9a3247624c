# SPDX-License-Identifier: Apache-2.0
"""What a verdict says of the forward pass of one format: what no loss scale moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class FirstOverflow(NamedTuple):
    """The first tensor that overflows: at a step, with the largest magnitude that it has there."""

    step: int
    tensor: str
    absmax: float


@dataclass(frozen=True)
class ForwardOverflow:
    """A tensor that overflows from `first_step` on; `absmax` is its largest over all steps.

    `constant` says that the first overflow is a single value below -1e4, such as a mask fills in.
    """

    tensor: str
    first_step: int
    absmax: float
    constant: bool = False


@dataclass(frozen=True)
class VanishingTensor:
    """An output that loses most of itself to underflow at most steps: at `steps` of them.

    `energy_lost` is the largest share of its energy that it loses at a step, `worst_step`.
    """

    tensor: str
    steps: int
    energy_lost: float
    worst_step: int


@dataclass(frozen=True)
class NonfiniteTensor:
    """A tensor that was recorded with infinite values or NaN, which do not count."""

    tensor: str
    first_step: int
    inf: int
    nan: int


@dataclass(frozen=True)
class ForwardVerdict:
    """Whether outputs of the forward pass, or parameters, fit a format as they are.

    `state` is "fits", "overflows" or "not recorded"; `steps` counts the steps that had such
    tensors. `headroom` is how many binades lie between the largest value, `absmax`, and the largest
    finite one of the format: inf if all is 0, None if nothing was recorded. `loss_growth` is the
    share by which the loss is larger, at the last step, if inputs and outputs are rounded to the
    format; None if that is little or not known.
    """

    state: str = "not recorded"
    steps: int = 0
    absmax: float | None = None
    headroom: float | None = None
    first: FirstOverflow | None = None
    # In the order in which they do.
    overflowing: tuple[ForwardOverflow, ...] = field(default=(), repr=False)
    vanishing: tuple[VanishingTensor, ...] = field(default=(), repr=False)  # outputs of modules
    loss_growth: float | None = None
    nonfinite: tuple[NonfiniteTensor, ...] = field(default=(), repr=False)
    # Recorded, but the recipe does not round them.
    kept_in_float32: tuple[str, ...] = field(default=(), repr=False)


NOT_RECORDED = ForwardVerdict()


def forward_of(item: object) -> ForwardVerdict:
    """Returns what is said in a verdict's JSON; files of older versions say nothing."""
    if not isinstance(item, Mapping):
        return NOT_RECORDED
    first = item["first"]
    return ForwardVerdict(
        state=str(item["state"]),
        steps=int(item["steps"]),
        absmax=_number(item["absmax"]),
        headroom=_number(item["headroom"]),
        first=None if first is None else _first(first),
        overflowing=tuple(map(_overflow, item["overflowing"])),
        vanishing=tuple(map(_vanishing, item.get("vanishing", ()))),
        loss_growth=_number(item.get("loss_growth")),
        nonfinite=tuple(map(_nonfinite, item.get("nonfinite", ()))),
        kept_in_float32=tuple(map(str, item.get("kept_in_float32", ()))),
    )


def _first(item: Mapping[str, Any]) -> FirstOverflow:
    return FirstOverflow(int(item["step"]), str(item["tensor"]), float(item["absmax"]))


def _overflow(item: Mapping[str, Any]) -> ForwardOverflow:
    return ForwardOverflow(
        str(item["tensor"]),
        int(item["first_step"]),
        float(item["absmax"]),
        bool(item.get("constant", False)),
    )


def _vanishing(item: Mapping[str, Any]) -> VanishingTensor:
    return VanishingTensor(
        str(item["tensor"]),
        int(item["steps"]),
        float(item["energy_lost"]),
        int(item["worst_step"]),
    )


def _nonfinite(item: Mapping[str, Any]) -> NonfiniteTensor:
    return NonfiniteTensor(
        str(item["tensor"]), int(item["first_step"]), int(item["inf"]), int(item["nan"])
    )


def _number(value: float | str | None) -> float | None:
    return None if value is None else float(value)
