# SPDX-License-Identifier: Apache-2.0
"""Tensors that are tabulated in the memory of the GPU that has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .._errors import UsageError
from ..arrays._dtypes import name_of_dtype
from ._features import default_axis
from ._tensors import role_of

# What a ProfileWriter takes: name, role, and an array of the host or element type, shape, tables.
NamedArray = tuple[str, str, Any]


def check_on_device(wanted: bool, *, profile: bool, scaled_formats: Iterable[str] = ()) -> None:
    """Raises UsageError if gradients are wanted to be counted where they are, but cannot."""
    if not wanted:
        return
    for format in scaled_formats:
        raise UsageError(
            f"on_device: {format} is measured in the host's memory, expected on_device=False"
        )
    if not profile:
        raise UsageError(
            "on_device: a trace needs the gradients themselves, expected a profile, such as "
            "run.profile"
        )


def device_of(tensor: Any) -> int | None:
    """Returns the GPU that has the tensor; None for memory of the host."""
    return int(tensor.device.index or 0) if tensor.is_cuda else None


def any_on_device(tensors: Iterable[Any]) -> bool:
    """Returns whether a GPU has one of the tensors."""
    return any(device_of(tensor) is not None for tensor in tensors)


def named_arrays(
    tensors: Mapping[str, Any],
    scale: float,
    metadata: Mapping[str, str],
    mantissas: Iterable[float] = (),
) -> list[NamedArray]:
    """Returns tensors as a ProfileWriter takes them: those on a GPU are tabulated there."""
    on_device = {name: one for name, one in tensors.items() if device_of(one) is not None}
    tables = _tables(on_device, scale, metadata, list(mantissas)) if on_device else {}
    return [(name, role_of(name), tables.get(name, one)) for name, one in tensors.items()]


def _tables(
    tensors: Mapping[str, Any], scale: float, metadata: Mapping[str, str], mantissas: list[float]
) -> dict[str, Any]:
    from ..arrays._torch_tables import channels_of, tabulate_on_device, times, unscaled

    gradients = [name for name in tensors if role_of(name) in ("grad", "act_grad")]
    others = [name for name in tensors if role_of(name) in ("act", "value")]  # carry no scale
    tables: dict[str, list[Any]] = {}
    for names, carried in ((gradients, scale), (others, 1.0)):
        found = tabulate_on_device([tensors[name] for name in names], carried)
        tables.update((name, [table]) for name, table in zip(names, found, strict=True))
    axes = _stated_axes(metadata)
    for name in gradients:
        values = unscaled(tensors[name], scale)
        axis = 0 if role_of(name) == "grad" else axes.get(name, default_axis(values.dim()))
        tables[name][0].set_channels(channels_of(values, axis))
        for mantissa in mantissas:
            tables[name] += tabulate_on_device([times(values, mantissa)], 1.0)
    return {
        name: (name_of_dtype(one.dtype), tuple(one.shape), tables[name])
        for name, one in tensors.items()
    }


def _stated_axes(metadata: Mapping[str, str]) -> dict[str, int | None]:
    """Returns the axes of features that the metadata of a step name, as FeatureAxes in C++."""
    lines = (line.partition(" ") for line in metadata.get("feature_axes", "").split("\n"))
    return {name: int(axis) if axis.isdigit() else None for axis, _, name in lines}
