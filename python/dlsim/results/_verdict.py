# SPDX-License-Identifier: Apache-2.0
"""The verdict of replay and tune: which format serves, at which loss scale, and what is at risk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .._errors import InputError, MissingKey
from .._values import text_of
from ._forward import NOT_RECORDED, ForwardVerdict, forward_of

if TYPE_CHECKING:
    from .._values import FormatName

_SERVES = ("as is", "with a scale")


@dataclass(frozen=True)
class TensorAtRisk:
    """A tensor that loses much of its own energy at the scale that the verdict is about.

    Harm is the relative squared error of one tensor at one step: 0 if nothing changed, 1 if all
    became zero; `mean_channel_harm` is that of its channels, averaged over them and the steps, None
    where they are not known. One of both is too large at some steps from `first_step` to
    `last_step`.
    """

    name: str
    mean_harm: float
    worst_harm: float
    first_step: int
    last_step: int
    mean_channel_harm: float | None = None


class StepWindow(NamedTuple):
    """The loss scales that serve a step, both ends included; None and None if there are none."""

    step: int
    low: float | None
    high: float | None


@dataclass(frozen=True)
class FormatVerdict:
    """What is said of one format.

    `verdict` is "as is", "with a scale", "no scale serves", "overflows" or "fails in forward",
    which wins over the others: `forward` and `values` tell whether outputs of the forward pass and
    parameters fit. It is "fits in forward" if they do and no gradients were recorded: nothing is
    said of training then. All else is of gradients. `window` has the lowest and the highest scale
    that serve all steps but isolated ones, None if none does. `scale` is the power of two to use as
    a static scale, if one serves; `steps_outside_window` steps are not served by it. `steps` has
    the window of each step; it is empty in files that lack it.
    """

    format: str
    verdict: str
    window: tuple[float, float] | None
    scale: float | None
    steps_outside_window: int
    tensors_at_risk: tuple[TensorAtRisk, ...]  # the worst first
    noise_tensors: tuple[str, ...] = ()  # not counted: rounding noise of float32
    mean_harm: float | None = None
    steps: tuple[StepWindow, ...] = field(default=(), repr=False)
    forward: ForwardVerdict = field(default=NOT_RECORDED, repr=False)
    values: ForwardVerdict = field(default=NOT_RECORDED, repr=False)

    @property
    def serves(self) -> bool:
        """Whether the format can be used, as it is or with a loss scale."""
        return self.verdict in _SERVES


@dataclass(frozen=True)
class PathInWindows:
    """How many steps of a policy's run had a scale in their window, below it or above it.

    Below, tensors lose too much; above, something overflows. No scale serves the last ones.
    """

    format: str
    policy: str
    steps_inside: int
    steps_below: int
    steps_above: int
    steps_with_empty_window: int


@dataclass(frozen=True, repr=False)
class Verdict:
    """The answer: `lines` in words, and what they are about.

    `formats` are those of the call in their order; `best` is the name of the one that ranks first,
    and `verdict["fp16"]` is what is said of a format. `looked_at` has the roles of the tensors that
    the answer is based on: "grad", "act_grad", "act" and "value"; `parameters_only` tells that
    gradients of activations, which usually underflow first, are not among them. `channels` tells
    whether channels of gradients were judged, too. `recipe`,
    "autocast" or "half", says which values of the forward pass are held in 16 bits. `paths` are the
    policies that were replayed. A verdict prints as its lines.
    """

    best: str
    lines: tuple[str, ...]
    formats: tuple[FormatVerdict, ...]
    parameters_only: bool = False
    paths: tuple[PathInWindows, ...] = ()
    looked_at: tuple[str, ...] = ()
    recipe: str = "autocast"
    channels: bool = False

    def __getitem__(self, format: FormatName) -> FormatVerdict:
        name = text_of("verdict", format)
        for found in self.formats:
            if found.format == name:
                return found
        raise MissingKey("format", name, [found.format for found in self.formats])

    def __iter__(self) -> Iterator[FormatVerdict]:
        return iter(self.formats)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Returns all attributes as dictionaries, tuples, texts and numbers."""
        return asdict(self)

    def _repr_html_(self) -> str:
        return "".join(f"<p>{escape(line)}</p>" for line in self.lines)


def verdict_of(data: Mapping[str, Any], place: str = "result") -> Verdict | None:
    """Returns the verdict of a result's JSON, None if it has none.

    Raises InputError for one of another form, which begins with `place`.
    """
    found = data.get("verdict")
    if not isinstance(found, Mapping):
        return None
    try:
        return Verdict(
            best=str(found["best"]),
            lines=tuple(map(str, found["lines"])),
            formats=tuple(_format(item) for item in found["formats"]),
            parameters_only=bool(found.get("parameters_only")),
            paths=_rows(PathInWindows, found.get("paths", ())),
            looked_at=tuple(map(str, found.get("looked_at", ()))),
            recipe=str(found.get("recipe", "autocast")),
            channels=bool(found.get("channels")),
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise InputError(
            f"{place}: verdict: not of the form {data.get('schema')}: {cause}"
        ) from error


def _format(item: Mapping[str, Any]) -> FormatVerdict:
    window, steps = item["window"], item.get("steps")
    return FormatVerdict(
        format=str(item["format"]),
        verdict=str(item["verdict"]),
        window=None if window is None else (float(window[0]), float(window[1])),
        scale=_number(item["scale"]),
        steps_outside_window=int(item["steps_outside_window"]),
        tensors_at_risk=_rows(TensorAtRisk, item["tensors_at_risk"]),
        noise_tensors=tuple(map(str, item.get("noise_tensors", ()))),
        mean_harm=_number(item.get("mean_harm")),
        steps=tuple(_window(*step) for step in steps) if isinstance(steps, list) else (),
        forward=forward_of(item.get("forward")),
        values=forward_of(item.get("values")),
    )


def _window(step: int, low: float | None, high: float | None) -> StepWindow:
    return StepWindow(int(step), _number(low), _number(high))


_Row = TypeVar("_Row", TensorAtRisk, PathInWindows)


def _rows(kind: type[_Row], items: Iterable[Mapping[str, Any]]) -> tuple[_Row, ...]:
    """Returns objects as dataclasses, whose fields have the keys' names and are of plain types."""
    types: dict[Any, Any] = {"str": str, "int": int, "float": float}

    def value(item: Mapping[str, Any], name: str, of_type: Any) -> Any:
        if of_type not in types:  # newer than some files
            return _number(item.get(name))
        return types[of_type](item[name])

    return tuple(
        kind(**{each.name: value(item, each.name, each.type) for each in fields(kind)})
        for item in items
    )


def _number(value: float | str | None) -> float | None:
    return None if value is None else float(value)
