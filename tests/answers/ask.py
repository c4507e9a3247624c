# SPDX-License-Identifier: Apache-2.0
"""Evaluates expressions with dlsim and prints their values as JSON, for tests/run."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

import dlsim


def parts_of(value: Any) -> Any:
    """Returns what an object holds, as lists, dictionaries or a text."""
    if isinstance(value, np.ndarray):
        return [value.dtype.str, list(value.shape), value.tobytes().hex()]
    if isinstance(value, dlsim.Result):
        names = ("report", "notes", "tables")
        shown = {name: getattr(value, name) for name in names} | {"repr": repr(value)}
        return {"data": value.to_dict(), **shown}
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return value.item() if isinstance(value, np.generic) else str(value)


def plain(value: Any) -> Any:
    """Returns a value as JSON has it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dlsim.Result):
        return plain(parts_of(value))
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return plain(parts_of(value))


def gradients(step: int = 7) -> dict[str, np.ndarray]:
    """Returns the gradients of a step of a bundled trace."""
    trace = dlsim.open_trace("data/traces/cnn-digits")
    return trace[step].gradients()


failed = False
names = {"dlsim": dlsim, "np": np, "gradients": gradients}
for expression in sys.argv[1:]:
    try:
        answer = plain(eval(expression, names))
    except Exception as error:
        failed, answer = True, [type(error).__name__, str(error)]
    print(json.dumps(answer))
sys.exit(failed)
