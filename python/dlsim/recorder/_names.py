# SPDX-License-Identifier: Apache-2.0
"""Names of parameters and modules, as the model has them without wrappers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# What wrappers put before the names of a model's own parameters and modules.
_WRAPPERS = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")
_WRAPPER_CLASSES = (
    "CheckpointWrapper",
    "DataParallel",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "OptimizedModule",
)


def _own_name(name: str, *, wrapped: bool) -> str:
    parts = name.split(".") if name else []
    if wrapped and parts and parts[0] == "module":
        parts = parts[1:]
    return ".".join(part for part in parts if part not in _WRAPPERS)


def _wraps(model: Any) -> bool:
    return type(model).__name__ in ("DistributedDataParallel", "DataParallel")


def class_of(model: Any) -> str:
    """Returns the name of a model's own class, without wrappers."""
    while type(model).__name__ in _WRAPPER_CLASSES:
        model = next(getattr(model, one) for one in (*_WRAPPERS, "module") if hasattr(model, one))
    # fully_shard makes a class of its own, which inherits the model's.
    sharded = "FSDPModule" in (base.__name__ for base in type(model).__mro__)
    own = [base.__name__ for base in type(model).__mro__[int(sharded) :]]
    return next(name for name in own if name != "FSDPModule")


def _prefixed(models: Mapping[str, Any], kind: str) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for prefix, model in models.items():
        for name, item in getattr(model, kind)():
            if id(item) in seen:
                continue
            seen.add(id(item))
            own = _own_name(name, wrapped=_wraps(model))
            yield ".".join(part for part in (prefix, own) if part), item


def parameters_of(models: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters, also those that are frozen now, by their names without wrappers."""
    return dict(_prefixed(models, "named_parameters"))


def modules_of(models: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the modules by their names without wrappers; a model itself is its prefix or ''."""
    found: dict[str, Any] = {}
    for name, module in _prefixed(models, "named_modules"):
        found[name] = module  # a wrapper's name is that of what it wraps, which comes later
    return found


def smallest_of(parameters: Mapping[str, Any], elements: int = 0) -> str | None:
    """Returns the smallest trained parameter that has at least this number of elements."""
    sizes = {name: one.numel() for name, one in parameters.items() if one.requires_grad}
    large = (name for name, size in sizes.items() if size >= elements)
    return min(large, key=sizes.__getitem__, default=None)
