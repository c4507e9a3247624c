# SPDX-License-Identifier: Apache-2.0
"""What is to be known of PyTorch's operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._autocast import operation_of

# What gives no new values: copies and choices of old ones, constants, random numbers.
_MOVES = frozenset(
    """
    arange bernoulli cat clone constant_pad_nd contiguous copy detach empty empty_permuted
    empty_strided expand_copy exponential eye fill flip full gather index index_select lift
    lift_fresh linspace masked_select normal ones rand randint randn random repeat reshape_alias
    resize roll scalar_tensor scatter set split_with_sizes_copy stack to_copy tril triu uniform
    unsafe_split unsafe_view zero zeros
    """.split()
)

# Which argument is a constant that is made of the type of the result, which refuses one that it
# cannot hold, and what readers know the operation by. Not `clamp`: it computes in float32 on a GPU.
_CONSTANTS = {
    "constant_pad_nd": (2, "pad"),
    "fill": (1, "fill"),
    "full": (1, "full"),
    "full_like": (1, "full_like"),
    "hardshrink": (1, "hardshrink"),
    "index_fill": (3, "index_fill"),
    "masked_fill": (2, "masked_fill"),
    "new_full": (2, "new_full"),
    "scatter": (3, "scatter"),
    "threshold": (2, "threshold"),
}

# Of these also a tensor without dimensions, as a number.
_READS_NUMBER = frozenset(("index_fill", "masked_fill"))

# Half of the largest value of float32. What is not less is a share of `torch.finfo(dtype).max`,
# which is another number in 16 bits.
OF_TYPE = (1 - 2.0**-24) * 2.0**127


@dataclass(frozen=True)
class Operator:
    """What is to be known of an operator."""

    operation: str
    in_place: bool
    view: bool
    moves: bool
    creates: bool
    random: bool
    foreign: bool  # not PyTorch's own, as those of other libraries and between processes


def constant_of(operation: str, args: Sequence[Any]) -> tuple[str, Any] | None:
    """Returns the constant that an operation makes its result of, and what it is known by.

    That is a number, or a tensor without dimensions. None if there is none.
    """
    at, name = _CONSTANTS.get(operation, (len(args), ""))
    if at >= len(args):
        return None
    if isinstance(args[at], (int, float)):
        return name, args[at]
    is_number = operation in _READS_NUMBER and hasattr(args[at], "dim") and args[at].dim() == 0
    return (name, args[at]) if is_number else None


def described(func: Any) -> Operator:
    schema = func._schema
    name = operation_of(schema.name)
    aliases = [one.alias_info for one in schema.returns if one.alias_info is not None]
    tags = {tag.name for tag in getattr(func, "tags", ())}
    foreign = not schema.name.startswith("aten::")
    creates = name.endswith("_like") or name.startswith("new_")
    return Operator(
        name,
        in_place=any(alias.is_write for alias in aliases),
        view=any(not alias.is_write for alias in aliases)
        or name in ("unsafe_view", "detach")
        or "inplace_view" in tags,
        moves=creates or name in _MOVES or foreign,
        creates=creates,
        random="nondeterministic_seeded" in tags,
        foreign=foreign,
    )
