# SPDX-License-Identifier: Apache-2.0
"""The keywords of `dlsim.replay` and the others: which option of the command each one is.

A keyword is the option's name with `_`; what may be given several times is in the plural. Numbers
may be texts that the command understands, such as "2^15". None is as if not given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple, TypedDict

from ._core import Format
from ._errors import UsageError

PathText = str | os.PathLike[str]
Number = float | str
Names = str | Format | Sequence[str | Format]
Settings = Mapping[str, "bool | float | str"]


class InfoOptions(TypedDict, total=False):
    """Keywords of `dlsim.info`: how recorded gradients are read."""

    tensors: str | None
    mmap: bool
    ranks: str | None
    npy_void: str | None


class InputOptions(InfoOptions, total=False):
    """How recorded gradients are read, and `quiet`: no report, notes or progress."""

    quiet: bool


class ConversionOptions(TypedDict, total=False):
    """How values become codes of a format."""

    rounding: str | None
    overflow: str | None
    subnormals: str | None
    seed: int | None


class ConfigOptions(TypedDict, total=False):
    """A training configuration that gives format, policy and parameters."""

    config: PathText | None
    config_kind: str | None
    backend: str | None


class _VerdictOptions(InputOptions, ConversionOptions, total=False):
    formats: Names
    policies: Names
    settings: Settings
    finite_test: str | None
    check: str | None
    accumulate: str | None
    on_fatal: str | None
    grad_accum_steps: int | None
    device: str | None
    csv: PathText | None
    top: int | None


class ReplayOptions(_VerdictOptions, ConfigOptions, total=False):
    """Keywords of `dlsim.replay`."""

    max_gradient_norm: Number | None
    max_gradient_value: Number | None
    clip_rule: str | None
    clip_at: str | None
    optimizers: Mapping[str, str]
    state: Settings
    resume_at: int | None
    heat_map: bool | int  # True, or the largest number of bins
    details: bool


class SweepOptions(_VerdictOptions, total=False):
    """Keywords of `dlsim.sweep`."""

    vary: Mapping[str, Number | Sequence[Number]]
    grid: PathText | None
    random: int | None
    limit: int | None
    sort: str | None


class TuneOptions(InputOptions, ConversionOptions, total=False):
    """Keywords of `dlsim.tune`."""

    formats: Names
    policy: str | None
    emit: str | None
    check: str | None
    device: str | None
    top: int | None


class ProfileOptions(InputOptions, total=False):
    """Keywords of `dlsim.profile`."""

    formats: Names
    roundings: Names
    subnormals: str | None
    scales: Number | Sequence[Number]
    accumulate: str | None
    grad_accum_steps: int | None
    device: str | None
    shard: str | tuple[int, int] | None
    extend: bool
    restart: bool


class ScalerOptions(ConfigOptions, total=False):
    """Keywords of `dlsim.scaler`."""

    settings: Settings
    state: Settings
    resume_at: int | None
    overflow_at: str | Sequence[int]
    absmax: str | Sequence[Number]
    histogram: str | Sequence[str | tuple[int, int]]
    format: str | None
    on_fatal: str | None


class SummariesOptions(InputOptions, total=False):
    """Keywords of `dlsim.summaries`."""

    precision: str | None
    format: str | None
    scale: Number | None
    quantize: bool
    tensorflow_histogram: bool
    csv: PathText | None
    top: int | None


class AccumulateOptions(InputOptions, ConversionOptions, total=False):
    """Keywords of `dlsim.accumulate`."""

    reduce: Names
    dot: str | tuple[str, str] | Sequence[str | tuple[str, str]]
    matmul: str | tuple[str, str] | Sequence[str | tuple[str, str]]
    operation: str | None
    levels: int | Sequence[int]
    formats: Names
    accumulators: Names
    chunks: int | Sequence[int]
    combiner: str | None
    products: str | None
    scale: Number | None
    csv: PathText | None
    top: int | None


def text_of(place: str, value: object) -> str:
    """Returns a value as the command reads it, numbers with all their bits."""
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, Format):
        return value.name
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()  # a scalar of NumPy or PyTorch
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    raise TypeError(f"{place}: expected a text or number, got {type(value).__name__}")


def _items(place: str, value: object) -> list[object]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        return [value]
    return list(value)


def _pair(place: str, value: object) -> str:
    parts = [text_of(place, part) for part in _items(place, value)]
    if len(parts) not in (1, 2):
        raise UsageError(f"{place}: expected two, got {len(parts)}")
    return ":".join(parts)


def _joined(place: str, value: object) -> str:
    return ",".join(text_of(place, item) for item in _items(place, value))


def _one(place: str, flag: str, value: object) -> list[str]:
    return [f"{flag}={text_of(place, value)}"]


def _each(place: str, flag: str, value: object) -> list[str]:
    return [f"{flag}={text_of(place, item)}" for item in _items(place, value)]


def _list(place: str, flag: str, value: object) -> list[str]:
    text = _joined(place, value)
    return [f"{flag}={text}"] if text else []


def _pairs(place: str, flag: str, value: object) -> list[str]:
    """Several A:B, each a text or a pair of texts; a tuple of two texts is one."""
    one = isinstance(value, tuple) and len(value) == 2 and ":" not in "".join(map(str, value))
    items = [value] if one else _items(place, value)
    return [f"{flag}={_pair(place, item)}" for item in items]


def _pair_list(place: str, flag: str, value: object) -> list[str]:
    text = ",".join(_pair(place, item) for item in _items(place, value))
    return [f"{flag}={text}"] if text else []


def _shard(place: str, flag: str, value: object) -> list[str]:
    return [f"{flag}={_pair(place, value).replace(':', '/')}"]


def _mapping(place: str, flag: str, value: object) -> list[str]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{place}: expected a mapping, got {type(value).__name__}")
    return [f"{flag}={key}={_joined(f'{place}[{key!r}]', item)}" for key, item in value.items()]


def _truth(place: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{place}: expected True or False, got {type(value).__name__}")
    return value


def _if_true(place: str, flag: str, value: object) -> list[str]:
    return [flag] if _truth(place, value) else []


def _if_false(place: str, flag: str, value: object) -> list[str]:
    return [] if _truth(place, value) else [flag]


def _true_or_one(place: str, flag: str, value: object) -> list[str]:
    return _if_true(place, flag, value) if isinstance(value, bool) else _one(place, flag, value)


class _Option(NamedTuple):
    flag: str
    arguments: Callable[[str, str, object], list[str]]


# The keywords that are not `--name-with-dashes=value`.
_OTHERS: dict[str, _Option] = {
    "absmax": _Option("--absmax", _list),
    "accumulators": _Option("--accumulator", _each),
    "chunks": _Option("--chunk", _each),
    "details": _Option("--details", _if_true),
    "dot": _Option("--dot", _pairs),
    "extend": _Option("--extend", _if_true),
    "formats": _Option("--format", _each),
    "heat_map": _Option("--heat-map", _true_or_one),
    "histogram": _Option("--histogram", _pair_list),
    "levels": _Option("--level", _each),
    "matmul": _Option("--matmul", _pairs),
    "mmap": _Option("--no-mmap", _if_false),
    "optimizers": _Option("--optimizer", _mapping),
    "overflow_at": _Option("--overflow-at", _list),
    "policies": _Option("--policy", _each),
    "quantize": _Option("--quantize", _if_true),
    "quiet": _Option("--quiet", _if_true),
    "reduce": _Option("--reduce", _each),
    "restart": _Option("--restart", _if_true),
    "roundings": _Option("--rounding", _each),
    "scales": _Option("--scales", _list),
    "settings": _Option("--set", _mapping),
    "shard": _Option("--shard", _shard),
    "state": _Option("--state", _mapping),
    "tensorflow_histogram": _Option("--tensorflow-histogram", _if_true),
    "vary": _Option("--vary", _mapping),
}


def arguments_of(function: str, known: Iterable[str], options: Mapping[str, object]) -> list[str]:
    """Returns the command's options for keywords.

    Raises TypeError for a keyword that is not in `known`, as Python does, and for a wrong type.
    """
    known = list(known)
    arguments: list[str] = []
    for name, value in options.items():
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f", did you mean {close[0]!r}?" if close else f", expected {', '.join(known)}"
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
        if value is None:
            continue
        option = _OTHERS.get(name) or _Option("--" + name.replace("_", "-"), _one)
        arguments += option.arguments(f"{function}: {name}", option.flag, value)
    return arguments
