# SPDX-License-Identifier: Apache-2.0
"""The scalars of TensorBoard's event files as the CSV that `dlsim explain` reads."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from .._errors import InputError, UsageError

_EVENT_FILE = "tfevents"
# The last part of a tag: Megatron-LM, fairseq, DeepSpeed, and what people write themselves.
_SCALE_TAGS = ("loss_scale", "loss-scale", "lossscale", "grad_scale", "grad-scale", "scale")
# DeepSpeed counts samples in place of steps.
_BY_SAMPLES = "train/samples/"
_SHOWN = 5


def is_event_log(path: str) -> bool:
    """Whether a path is an event file, or a directory with some."""
    given = Path(path)
    if os.path.isdir(given):  # False for a name that is too long, too
        return any(given.rglob(f"*{_EVENT_FILE}*"))
    return _EVENT_FILE in given.name


def scales_as_csv(path: str, tag: str | None) -> bytes:
    """Returns the scales of an event log as CSV with the columns step and loss_scale.

    Raises InputError for files without them, UsageError where it is open which are meant, and
    ModuleNotFoundError without tensorboard.
    """
    accumulator = _accumulator(path)
    chosen = _tag(path, accumulator, tag)
    scales = _scales(accumulator, chosen)
    if not scales:
        raise InputError(f"{path}: {chosen!r} has no values")
    stride = _stride(scales) if chosen.lower().startswith(_BY_SAMPLES) else 1
    rows = (f"{step // stride},{scale!r}\n" for step, scale in scales)
    return "".join(["step,loss_scale\n", *rows]).encode("ascii")


def _accumulator(place: str) -> Any:
    name = "tensorboard.backend.event_processing.event_accumulator"
    try:
        module = import_module(name)
    except ImportError as error:
        raise ModuleNotFoundError(
            "event files need TensorBoard: pip install 'dlsim-numerics[import]'", name="tensorboard"
        ) from error
    everything = {"scalars": 0, "tensors": 0, "histograms": 1, "images": 1, "audio": 1}
    accumulator = module.EventAccumulator(_one_run(place), size_guidance=everything)
    try:
        accumulator.Reload()
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{place}: cannot be read as an event log: {error}") from error
    return accumulator


def _one_run(place: str) -> str:
    """Returns the directory of the only run below a directory."""
    given = Path(place)
    if not given.is_dir():
        return place
    runs = sorted({file.parent for file in given.rglob(f"*{_EVENT_FILE}*")})
    if len(runs) == 1:
        return str(runs[0])
    raise UsageError(f"{place}: several runs, expected one of {_list(map(str, runs))}")


def _tag(place: str, accumulator: Any, tag: str | None) -> str:
    tags = accumulator.Tags()
    known: list[str] = sorted({*tags["scalars"], *tags["tensors"]})
    if tag is not None:
        if tag in known:
            return tag
        raise UsageError(f"tag: expected one of {_list(known)}, got {tag!r}")
    found = [name for name in known if name.lower().rpartition("/")[2] in _SCALE_TAGS]
    if not found:
        raise InputError(f"{place}: no tag of loss scales, expected tag= one of {_list(known)}")
    if len(found) > 1:
        raise UsageError(
            f"{place}: several tags of loss scales, expected tag= one of {_list(found)}"
        )
    return found[0]


def _scales(accumulator: Any, tag: str) -> list[tuple[int, float]]:
    """Returns the last value of each step, in their order."""
    if tag in accumulator.Tags()["scalars"]:
        found = {event.step: float(event.value) for event in accumulator.Scalars(tag)}
    else:
        found = {e.step: _number_in(e.tensor_proto) for e in accumulator.Tensors(tag)}
    return sorted(found.items())


def _number_in(tensor: Any) -> float:
    """Returns the number that a TensorProto holds, NaN if that is not one."""
    for numbers in (tensor.float_val, tensor.double_val):
        if len(numbers) == 1:
            return float(numbers[0])
    kind = {4: "<f", 8: "<d"}.get(len(tensor.tensor_content))
    return math.nan if kind is None else float(struct.unpack(kind, tensor.tensor_content)[0])


def _stride(scales: list[tuple[int, float]]) -> int:
    return math.gcd(*(step for step, _ in scales)) or 1


def _list(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more if names else "none"
