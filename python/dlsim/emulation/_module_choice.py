# SPDX-License-Identifier: Apache-2.0
"""Which modules of a PyTorch model are meant: by type, glob or regular expression."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

from .._errors import UsageError
from .._text import some_of
from ._rounding import torch

Module = torch.nn.Module
Choice = type | str | re.Pattern[str]

# What torch.autocast computes in 16 bits, as far as it is a module: its lists name linear, conv*,
# matmul, prelu and the RNN operations. Embedding is not among them.
DEFAULT_MODULES: tuple[type, ...] = (
    torch.nn.Linear,
    torch.nn.Bilinear,
    torch.nn.modules.conv._ConvNd,
    torch.nn.MultiheadAttention,
    torch.nn.RNNBase,
    torch.nn.RNNCellBase,
    torch.nn.PReLU,
)


def works_in_place(module: Module) -> bool:
    """Returns whether `module` says that it changes its input."""
    return bool(getattr(module, "inplace", False))


def chosen_modules(
    model: Module, modules: Choice | Iterable[Choice] | None = None
) -> dict[str, Module]:
    """Returns the modules of `model` that a choice means, by name; a shared module once."""
    if not isinstance(model, Module):
        raise TypeError(f"model: bad type, expected torch.nn.Module, got {type(model).__name__}")
    choices = DEFAULT_MODULES if modules is None else _choices(modules)
    chosen = {
        name: module
        for name, module in model.named_modules()
        if any(_is_chosen(name, module, choice) for choice in choices)
    }
    if not chosen:
        names = (name for name, _ in model.named_modules())
        raise UsageError(
            "modules: no module is chosen, expected types, globs or regular expressions that match "
            f"one of model.named_modules() such as {some_of(names)}, got {modules!r}"
        )
    return chosen


def _choices(modules: Choice | Iterable[Choice]) -> tuple[Choice, ...]:
    choices: tuple[object, ...]
    if isinstance(modules, Iterable) and not isinstance(modules, (type, str)):
        choices = tuple(modules)
    else:
        choices = (modules,)
    for choice in choices:
        if not isinstance(choice, (type, str, re.Pattern)):
            raise TypeError(
                "modules: bad choice, expected a type, a glob or a compiled regular expression, "
                f"got {type(choice).__name__}"
            )
    return choices  # type: ignore[return-value]


def _is_chosen(name: str, module: Module, choice: Choice) -> bool:
    if isinstance(choice, type):
        return isinstance(module, choice)
    if isinstance(choice, str):
        return fnmatch.fnmatchcase(name, choice)
    return choice.search(name) is not None
