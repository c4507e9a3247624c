# SPDX-License-Identifier: Apache-2.0
"""Which tensors are recorded at which steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

from .._errors import UsageError
from ._names import ROOT

Pattern = str | re.Pattern[str]
Patterns = Pattern | Iterable[Pattern] | None


@dataclass(frozen=True)
class Selection:
    """Parameters and modules by name, and the steps at which their gradients are recorded.

    A pattern is a glob over the whole name (`*`, `?`, `[...]`) or a compiled regular expression,
    which is searched for. A step is recorded if it is a multiple of `every` and lies in one of the
    `intervals`, both ends included; None = no end.
    """

    gradients: tuple[Pattern, ...] = ("*",)
    activations: tuple[Pattern, ...] = ("*",)
    exclude: tuple[Pattern, ...] = ()
    every: int = 1
    intervals: tuple[tuple[int, int | None], ...] = ((0, None),)

    def includes(self, step: int) -> bool:
        """Returns whether the step is recorded."""
        return step % self.every == 0 and any(
            first <= step and (last is None or step <= last) for first, last in self.intervals
        )

    def parameter(self, name: str) -> bool:
        """Returns whether the gradient of the parameter is recorded."""
        return _any_matches(self.gradients, name) and not _any_matches(self.exclude, name)

    def module(self, name: str) -> bool:
        """Returns whether the gradient of the module's output is recorded."""
        names = (name,) if name else ("", ROOT)
        return any(_any_matches(self.activations, one) for one in names) and not any(
            _any_matches(self.exclude, one) for one in names
        )


# The steps before this one whose forward pass is recorded by default are powers of two, later ones
# its multiples: what a model begins with is far from what it ends with.
FORWARD_EVERY = 50


def is_early(step: int) -> bool:
    """Returns whether a step is 0, 1, 2, 4, ..., 32, the first ones that are recorded."""
    return step < FORWARD_EVERY and step & (step - 1) == 0


@dataclass(frozen=True)
class ForwardSteps:
    """The steps whose forward pass is recorded; `every` None = those of the default, 0 = none."""

    every: int | None = 0

    def includes(self, step: int) -> bool:
        """Returns whether the forward pass of a recorded step is recorded, too."""
        if self.every is not None:
            return self.every > 0 and step % self.every == 0
        return is_early(step) or step % FORWARD_EVERY == 0

    @property
    def any(self) -> bool:
        """Whether there are such steps."""
        return self.every != 0


def check_inference(**arguments: object) -> None:
    """Raises UsageError if an argument is given that says something of gradients."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise UsageError(f"{name}: not with inference, which has no gradients")


def forward_steps(every: int | None, *, profile: bool) -> ForwardSteps:
    """Returns what an argument selects; by default something in a profile alone."""
    if every is None:
        return ForwardSteps(None if profile else 0)
    return ForwardSteps(whole_number("forward_every", every, 0))


def _any_matches(patterns: Iterable[Pattern], name: str) -> bool:
    return any(
        fnmatchcase(name, pattern) if isinstance(pattern, str) else bool(pattern.search(name))
        for pattern in patterns
    )


def patterns_of(argument: str, given: Patterns) -> tuple[Pattern, ...]:
    """Returns one pattern, several or none as a tuple; raises TypeError for anything else."""
    if given is None:
        return ()
    patterns: tuple[object, ...] = (given,)
    if not isinstance(given, (str, re.Pattern)) and isinstance(given, Iterable):
        patterns = tuple(given)
    for pattern in patterns:
        if not isinstance(pattern, (str, re.Pattern)) or (
            isinstance(pattern, re.Pattern) and not isinstance(pattern.pattern, str)
        ):
            raise TypeError(
                f"{argument}: expected globs or compiled regular expressions, "
                f"got {type(pattern).__name__}"
            )
    return cast(tuple[Pattern, ...], patterns)


def whole_number(argument: str, value: object, least: int) -> int:
    """Returns `value` if it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument}: expected a whole number, got {type(value).__name__}")
    if value < least:
        raise UsageError(f"{argument}: out of range, expected {least} or more, got {value}")
    return value


def interval(argument: str, first: object, last: object) -> tuple[int, int | None]:
    """Returns the steps from `first` to `last`, both included; None = from 0, without end."""
    start = whole_number(argument, 0 if first is None else first, 0)
    return (start, None) if last is None else (start, whole_number(argument, last, start))


def selections_of(
    config: Mapping[str, Any] | str | None,
    gradients: Patterns,
    activations: Patterns,
    exclude: Patterns,
    *,
    every: int,
    start: int,
    end: int | None,
) -> tuple[Selection, ...]:
    """Returns the selections of a configuration, or without one that of the other arguments."""
    if config is not None:
        return selections_of_config(config)
    selection = Selection(
        gradients=patterns_of("gradients", gradients),
        activations=patterns_of("activations", activations),
        exclude=patterns_of("exclude", exclude),
        every=whole_number("every", every, 1),
        intervals=(interval("start, end", start, end),),
    )
    return (selection,)


# What dlfw-inspect calls the tensors that are recorded here: which of the two patterns they are.
_TENSORS_OF_CONFIG = {"wgrad": "gradients", "gradient": "activations"}
_TENSORS_LEFT_OUT = ("activation", "weight", "output", "dgrad")  # no gradients of this layer's own
_FEATURES_WITH_TENSORS = ("LogTensorStats", "LogFp8TensorStats", "DumpTensors")


def selections_of_config(config: Mapping[str, Any] | str) -> tuple[Selection, ...]:
    """Returns what a configuration of Nvidia-DL-Framework-Inspect selects.

    `config` is the parsed file or its path (YAML). Each enabled section has
    `layers.layer_name_regex_pattern`, which begins at the start of the name, and features with
    `tensors`, `freq`, `start_step`, `end_step` and `start_end_list`. `wgrad` is a layer's parameter
    gradients, `gradient` the gradient of its output; activations and weights are left out. Raises
    UsageError if nothing is left, and for layers chosen in other ways.
    """
    sections = _parsed(config)
    selections = [
        _selection(f"{name}.{feature}", pattern, settings)
        for name, section in sections.items()
        if section.get("enabled", True)
        for pattern in [_layer_pattern(name, section)]
        for feature, settings in _features(name, section)
        if settings.get("enabled", True)
    ]
    useful = tuple(found for found in selections if found.gradients or found.activations)
    if not useful:
        raise UsageError(
            "config: selects nothing that is recorded, expected a feature with the tensors wgrad "
            "or gradient"
        )
    return useful


def _parsed(config: Mapping[str, Any] | str) -> Mapping[str, Any]:
    parsed: object = config
    if not isinstance(config, Mapping):
        try:
            import yaml  # type: ignore[import-untyped, unused-ignore]
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "a configuration in YAML needs PyYAML: pip install pyyaml"
            ) from None
        try:
            with open(config, encoding="utf-8") as file:
                parsed = yaml.safe_load(file)
        except (OSError, UnicodeError, yaml.YAMLError) as error:
            raise UsageError(f"{config}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(parsed, Mapping) or not all(
        isinstance(section, Mapping) for section in parsed.values()
    ):
        raise UsageError("config: expected sections by name")
    return parsed


def _layer_pattern(name: str, section: Mapping[str, Any]) -> re.Pattern[str]:
    layers = section.get("layers")
    if not isinstance(layers, Mapping) or set(layers) != {"layer_name_regex_pattern"}:
        raise UsageError(
            f"config: {name}.layers: expected layer_name_regex_pattern only, got {layers!r}"
        )
    try:
        return re.compile(rf"\A(?:{layers['layer_name_regex_pattern']})")
    except re.error as error:
        raise UsageError(f"config: {name}.layers: bad regular expression: {error}") from None


def _features(name: str, section: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns features with their settings, one for each entry of a `tensors_struct`."""
    groups = [
        group
        for key, group in section.items()
        if key not in ("enabled", "layers") and isinstance(group, Mapping)
    ]
    found = [(key, value) for group in [section, *groups] for key, value in group.items()]
    features = [(key, value) for key, value in found if key in _FEATURES_WITH_TENSORS]
    for key, value in features:
        if not isinstance(value, Mapping):
            raise UsageError(f"config: {name}.{key}: expected settings by name, got {value!r}")
    return [
        (key, {**value, **entry, "tensors": entry.get("tensor", value.get("tensors", ()))})
        for key, value in features
        for entry in value.get("tensors_struct", ({},))
    ]


def _selection(place: str, layer: re.Pattern[str], settings: Mapping[str, Any]) -> Selection:
    tensors = settings.get("tensors", ())
    tensors = (tensors,) if isinstance(tensors, str) else tuple(tensors)
    for tensor in tensors:
        if tensor not in _TENSORS_OF_CONFIG and tensor not in _TENSORS_LEFT_OUT:
            raise UsageError(
                f"config: {place}.tensors: unknown tensor, expected wgrad or gradient, "
                f"got {tensor!r}"
            )
    kinds = {_TENSORS_OF_CONFIG.get(tensor) for tensor in tensors}
    return Selection(
        gradients=(layer,) if "gradients" in kinds else (),
        activations=(layer,) if "activations" in kinds else (),
        every=whole_number(f"config: {place}.freq", settings.get("freq", 1), 1),
        intervals=_intervals(place, settings),
    )


def _intervals(place: str, settings: Mapping[str, Any]) -> tuple[tuple[int, int | None], ...]:
    pairs: Sequence[Any] = settings.get("start_end_list") or [
        (settings.get("start_step"), settings.get("end_step"))
    ]
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        raise UsageError(f"config: {place}.start_end_list: expected pairs of steps, got {pairs!r}")
    return tuple(interval(f"config: {place}", first, last) for first, last in pairs)
