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
    finite one of the format: inf if all is 0, None if nothing was recorded.
    """

    state: str = "not recorded"
    steps: int = 0
    absmax: float | None = None
    headroom: float | None = None
    first: FirstOverflow | None = None
    # In the order in which they do.
    overflowing: tuple[ForwardOverflow, ...] = field(default=(), repr=False)
    vanishing: tuple[VanishingTensor, ...] = field(default=(), repr=False)  # outputs of modules
    nonfinite: tuple[NonfiniteTensor, ...] = field(default=(), repr=False)
    # Recorded, but the recipe does not round them.
    kept_in_float32: tuple[str, ...] = field(default=(), repr=False)


NOT_RECORDED = ForwardVerdict()


@dataclass(frozen=True)
class ShadowCulprit:
    """An operation at which a step breaks in a format: `result` is its largest in float32.

    `operands` are the same of what it is given; both are None if it does not run in float32.
    """

    module: str
    operation: str
    operands: float | None
    result: float | None


@dataclass(frozen=True)
class ShadowCeiling:
    """A step at which gradients overflow above a loss `scale`, those of `module` first."""

    step: int
    scale: float
    module: str


@dataclass(frozen=True)
class ShadowVerdict:
    """What steps have shown that the recorder has run again in a format (docs/verdict.md).

    `fails` is "not finite", "loss", "gradients" or None. Of the `steps` that are finite in float32,
    `bad` are not so in the format, or raise; `error` is what the first of them raises. By
    `loss_difference` the mean loss is off, None if it was not run, and by `gradient_error` the mean
    gradients of rows. `scale` is the loss scale of the last step, `ceiling` what ends the safe
    scales if recorded gradients do not, `culprits` are where the first bad step breaks, and
    `modules` those with wrong gradients.
    """

    fails: str | None
    steps: int
    bad: int
    error: str | None
    loss_difference: float | None
    gradient_error: float | None
    scale: float
    ceiling: ShadowCeiling | None = None
    culprits: tuple[ShadowCulprit, ...] = field(default=(), repr=False)
    modules: tuple[str, ...] = field(default=(), repr=False)


def shadow_of(item: Mapping[str, Any] | None) -> ShadowVerdict | None:
    """Returns what is said in a verdict's JSON; None if no step was run in the format."""
    if item is None:
        return None
    return ShadowVerdict(
        fails=None if item["fails"] is None else str(item["fails"]),
        steps=int(item["steps"]),
        bad=int(item["bad"]),
        error=None if item["error"] is None else str(item["error"]),
        loss_difference=_number(item["loss_difference"]),
        gradient_error=_number(item["gradient_error"]),
        scale=float(item["scale"]),
        ceiling=None if item["ceiling"] is None else ShadowCeiling(**item["ceiling"]),
        culprits=tuple(
            ShadowCulprit(
                str(one["module"]),
                str(one["operation"]),
                _number(one["operands"]),
                _number(one["result"]),
            )
            for one in item["culprits"]
        ),
        modules=tuple(map(str, item["modules"])),
    )


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
