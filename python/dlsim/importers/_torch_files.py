# SPDX-License-Identifier: Apache-2.0
"""Reads files of torch.save without running what is pickled in them."""

from __future__ import annotations

import inspect
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from .._errors import InputError
from ._gradients import Notes, check_name

# torch.load(weights_only=True) of older versions can be made to run code: CVE-2025-32434 before
# 2.6, CVE-2026-24747 before 2.10.
_SAFE_VERSION = (2, 10)
_DEEPEST = 32
# Tensors whose elements share memory may be this much larger than the file in all.
_MOST_EXPANDED = 1 << 30
_FOREIGN = re.compile(r"Unsupported (?:class|global: GLOBAL|global) ([\w.]+)")
# What the safe loader of an old torch does not know, such as plain numbers with a fraction.
_UNKNOWN_CODE = re.compile(r"Unsupported operand \d+")


def import_torch() -> ModuleType:
    """Returns the module torch. Raises ModuleNotFoundError that says what to install."""
    try:
        import torch
    except ImportError as error:
        raise ModuleNotFoundError("reading .pt files needs PyTorch: pip install torch") from error
    return torch


def age_note() -> str | None:
    """Returns a warning if the installed torch has a known hole in its safe loader."""
    version = str(import_torch().__version__)
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) >= _SAFE_VERSION:
        return None
    return (
        f"torch {version}: a hostile .pt file may run code in spite of the safe loader "
        "(CVE-2026-24747); import only files that you trust, or use torch 2.10 or later"
    )


def load(path: Path) -> Any:
    """Returns what torch.save wrote: tensors, dicts, lists, numbers, text; nothing is executed.

    The tensors are on the CPU; where torch can, their elements stay in the file until they are
    used. Raises InputError for anything else.
    """
    torch = import_torch()
    options: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
    if _check_archive(path) and "mmap" in inspect.signature(torch.load).parameters:
        options["mmap"] = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path if "mmap" in options else str(path), **options)
    except Exception as error:
        raise InputError(f"{path}: {_reason(error)}") from error


def _check_archive(path: Path) -> bool:
    """Refuses archives that torch.save does not write; returns whether it is an archive."""
    try:
        size = path.stat().st_size
        if not zipfile.is_zipfile(path):
            return False
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if any(m.filename.endswith("/constants.pkl") or "/code/" in m.filename for m in members):
        raise InputError(f"{path}: refused: a TorchScript archive, which is code")
    if sum(member.file_size for member in members) > size:
        raise InputError(f"{path}: members larger together than the archive, expected no more")
    return True


def _reason(error: Exception) -> str:
    text = str(error)
    foreign = _FOREIGN.search(text)
    if foreign:
        return f"refused: it asks for {foreign[1]}, expected tensors, dicts, lists and numbers only"
    if _UNKNOWN_CODE.search(text):
        version = import_torch().__version__
        return (
            f"the safe loader of torch {version} cannot read it, expected tensors, whole numbers, "
            "text, dicts and lists, or torch 2.6 or later"
        )
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    lines = [line.strip() for line in text.replace("WeightsUnpickler error:", "\n").splitlines()]
    shown = next((line for line in reversed(lines) if line), type(error).__name__)
    return f"cannot be read as a file of torch.save: {type(error).__name__}: {shown[:160]}"


def descend(place: object, tree: Any, key: str) -> Any:
    """Returns the part of a nested dict under the dotted `key`. Raises InputError."""
    for part in key.split(".") if key else ():
        if not isinstance(tree, Mapping) or part not in tree:
            keys = ", ".join(sorted(map(str, tree))[:8]) if isinstance(tree, Mapping) else "no dict"
            raise InputError(f"{place}: no key {part!r} of {key!r}, expected one of {keys}")
        tree = tree[part]
    return tree


def tensors_in(path: Path, tree: Any, name: str, notes: Notes) -> dict[str, Any]:
    """Returns the floating-point tensors of nested dicts and lists, by their dotted names.

    A lone tensor gets `name`. What holds no gradient values is left out with a note.
    """
    torch = import_torch()
    tensors: dict[str, Any] = {}
    budget = path.stat().st_size + _MOST_EXPANDED
    for found, value in _leaves(path, tree, "", 0):
        label = check_name(path, found or name)
        if label in tensors:
            raise InputError(f"{path}: two tensors are named {label!r}")
        if value.is_sparse or str(value.layout) != "torch.strided":
            notes.add(f"left out {label!r}: sparse, save its to_dense()")
        elif value.is_quantized or not value.is_floating_point():
            notes.add(f"left out {label!r}: {value.dtype} is no floating-point type")
        else:
            budget -= value.numel() * max(value.element_size(), 2)
            if budget < 0:
                raise InputError(f"{path}: tensors are far larger than the file that holds them")
            tensors[label] = as_gradient(torch, value)
    return tensors


def _leaves(path: Path, tree: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > _DEEPEST:
        raise InputError(f"{path}: nested deeper than {_DEEPEST} levels")
    if isinstance(tree, import_torch().Tensor):
        yield name, tree
        return
    if isinstance(tree, Mapping):
        items = list(tree.items())
    elif isinstance(tree, (list, tuple)):
        items = list(enumerate(tree))
    else:
        return
    for key, value in items:
        part = key if isinstance(key, str) else str(key)
        yield from _leaves(path, value, f"{name}.{part}" if name else part, depth + 1)


def as_gradient(torch: ModuleType, tensor: Any) -> Any:
    """Returns a tensor as a NumPy array, bfloat16 as a tensor; 8-bit types become float32."""
    plain = tensor.detach()
    if plain.dtype == torch.bfloat16:
        return plain.contiguous()
    if plain.dtype not in (torch.float16, torch.float32, torch.float64):
        plain = plain.to(torch.float32)  # exact for all smaller types
    return plain.contiguous().numpy()


def step_in(path: Path, tree: Any) -> int | None:
    """Returns the step number that a dict holds under "step", if it is one. Raises InputError."""
    if not isinstance(tree, Mapping) or "step" not in tree:
        return None
    step = tree["step"]
    if isinstance(step, bool) or not isinstance(step, int):
        return None
    if step < 0:
        raise InputError(f"{path}: a negative step number: {step}")
    return step
