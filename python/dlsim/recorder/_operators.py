# SPDX-License-Identifier: Apache-2.0
"""What is to be known of PyTorch's operators."""

from __future__ import annotations

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
