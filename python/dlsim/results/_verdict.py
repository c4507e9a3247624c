# SPDX-License-Identifier: Apache-2.0
"""The verdict of replay and tune: which format works, at which loss scale, and what is at risk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .._errors import InputError, MissingKey
from .._values import text_of
from ._forward import NOT_RECORDED, ForwardVerdict, ShadowVerdict, forward_of, shadow_of

if TYPE_CHECKING:
    from .._values import FormatName

_SERVES = ("as is", "with a scale")


@dataclass(frozen=True)
class TensorAtRisk:
    """A tensor with large harm at the loss scale for which the verdict was computed.

    Harm is the relative squared error of one tensor at one step: 0 if nothing changed, 1 if all
    became zero; `mean_channel_harm` is that of its channels, averaged over channels and steps, or
    None if they are not known. One of the two is too large at some steps from `first_step` to
    `last_step`.
    """

    name: str
    mean_harm: float
    worst_harm: float
    first_step: int
    last_step: int
    mean_channel_harm: float | None = None


class StepWindow(NamedTuple):
    """The safe loss scales of a step, from `low` to `high` inclusive; both None if none is safe."""

    step: int
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Change:
    """What to keep in float32 so that a format trains, and what follows for the rest.

    `keep_float32` names modules, and operations of a module's own forward, as dlsim.keep_float32
    takes them; `sources` has for each the line of the model that calls it, or "". `because` are the
    tensors that 16 bits cannot hold. `then` is the verdict on what remains, `window` its safe loss
    scales and `scale` the one to use, as in FormatVerdict. `share` is that of the multiplications
    of the forward pass which stay in float32, None if it is not known. `steps` were run so while
    the training was recorded, and hold (`checked`). `loss_in_float32`: also what runs outside of
    the model, such as a loss, is to be computed in float32.
    """

    keep_float32: tuple[str, ...]
    because: tuple[str, ...]
    then: str
    scale: float | None
    window: tuple[float, float] | None
    share: float | None
    checked: bool = False
    sources: tuple[str, ...] = ()
    loss_in_float32: bool = False
    steps: int = 0


@dataclass(frozen=True)
class FormatVerdict:
    """The verdict on one format.

    `verdict` is "as is", "with a scale", "no scale serves", "overflows" or "fails in forward".
    "fails in forward" takes precedence: `forward` and `values` say whether outputs of the forward
    pass and parameters fit the format. "fits in forward" means that they do, but that no gradients
    were recorded, so nothing is known about training. The other fields are about gradients.
    `window` holds the lowest and the highest loss scale that are safe at all but isolated steps, or
    None. `scale` is the power of two to use as a fixed scale, or None; `steps_outside_window`
    counts the steps at which it is not safe. `steps` has the window of each step; it is empty in
    files without these. `shadow` is what steps have shown that were run in the format, None if none
    were. `change` says what to keep in float32 where it fails at these, None where no part short of
    the whole model was found to help; `instead` what else may help.
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
    forward: ForwardVerdict = NOT_RECORDED
    values: ForwardVerdict = NOT_RECORDED
    shadow: ShadowVerdict | None = None
    change: Change | None = None
    instead: str = ""

    @property
    def serves(self) -> bool:
        """Whether the format can be used, with or without a loss scale."""
        return self.verdict in _SERVES


@dataclass(frozen=True)
class PathInWindows:
    """At how many steps the loss scale of a policy was safe, too low or too high.

    Below the window of a step, tensors lose too much; above it, something overflows. At
    `steps_with_empty_window` steps no loss scale is safe.
    """

    format: str
    policy: str
    steps_inside: int
    steps_below: int
    steps_above: int
    steps_with_empty_window: int


@dataclass(frozen=True)
class RefusedSteps:
    """How many steps a recorder refused, `of` how many, and what it said of the first."""

    steps: int
    of: int
    first: str


@dataclass(frozen=True, repr=False)
class Verdict:
    """The answer: sentences in `lines`, one entry for each format first, and the figures behind.

    `formats` has the requested formats in their order; `best` is the name of the best one, and
    `verdict["fp16"]` is the verdict on one format. `looked_at` lists the roles of the tensors on
    which the answer is based: "grad", "act_grad", "act" and "value"; `parameters_only` says that
    gradients of activations, which usually underflow first, are not among them. `channels` says
    whether channels of gradients were judged as well. `recipe`, "autocast" or "half", says which
    values of the forward pass are in 16 bits; `float32` names the parts that were taken to be in
    float32 all the same. `paths` are the policies that were replayed.
    `refused` says how many steps the recorder refused, if any; `computed_in` at how many steps the
    recorded run computed in "float16" or "bfloat16". A verdict prints as its lines.
    """

    best: str
    lines: tuple[str, ...]
    formats: tuple[FormatVerdict, ...]
    parameters_only: bool = False
    paths: tuple[PathInWindows, ...] = ()
    looked_at: tuple[str, ...] = ()
    recipe: str = "autocast"
    channels: bool = False
    float32: tuple[str, ...] = ()
    refused: RefusedSteps | None = None
    computed_in: Mapping[str, int] = field(default_factory=dict)

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
        return "".join(f"<p>{_with_breaks(line)}</p>" for line in self.lines)


def _with_breaks(line: str) -> str:
    return escape(line).replace("\n", "<br>")


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
            float32=tuple(map(str, found.get("float32", ()))),
            refused=_refused(found.get("refused")),
            computed_in={str(key): int(at) for key, at in found.get("computed_in", {}).items()},
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise InputError(
            f"{place}: verdict: not of the form {data.get('schema')}: {cause}"
        ) from error


def _refused(found: Mapping[str, Any] | None) -> RefusedSteps | None:
    if found is None:
        return None
    return RefusedSteps(int(found["steps"]), int(found["of"]), str(found["first"]))


def _format(item: Mapping[str, Any]) -> FormatVerdict:
    steps = item.get("steps")
    return FormatVerdict(
        format=str(item["format"]),
        verdict=str(item["verdict"]),
        window=_range(item["window"]),
        scale=_number(item["scale"]),
        steps_outside_window=int(item["steps_outside_window"]),
        tensors_at_risk=_rows(TensorAtRisk, item["tensors_at_risk"]),
        noise_tensors=tuple(map(str, item.get("noise_tensors", ()))),
        mean_harm=_number(item.get("mean_harm")),
        steps=tuple(_window(*step) for step in steps) if isinstance(steps, list) else (),
        forward=forward_of(item.get("forward")),
        values=forward_of(item.get("values")),
        shadow=shadow_of(item.get("shadow")),
        change=_change(item.get("change")),
        instead=str(item.get("instead") or ""),
    )


def _change(item: Mapping[str, Any] | None) -> Change | None:
    if item is None:
        return None
    return Change(
        keep_float32=tuple(map(str, item["keep_float32"])),
        because=tuple(map(str, item["because"])),
        then=str(item["then"]),
        scale=_number(item["scale"]),
        window=_range(item["window"]),
        share=_number(item["share"]),
        checked=bool(item["checked"]),
        sources=tuple(map(str, item["sources"])),
        loss_in_float32=bool(item.get("loss_in_float32", False)),
        steps=int(item.get("steps", 0)),
    )


def _range(window: Sequence[float] | None) -> tuple[float, float] | None:
    return None if window is None else (float(window[0]), float(window[1]))


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
