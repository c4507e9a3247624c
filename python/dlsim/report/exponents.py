# SPDX-License-Identifier: Apache-2.0
"""How many recorded values have which exponent, and which of them a format can hold at a scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .._core import Format
from ._inputs import Run
from ._json import number, packed
from ._names import NameTable, in_order, layer_of


def exponent_counts(counted: Any, names: NameTable, runs: Sequence[Run] = ()) -> str:
    """Returns `dlsim.exponents(...)` packed for exponents.js.

    Rows are [name, role, layer, exponent of the first count, counts, zeros, not finite, log2 of the
    largest magnitude, which is null if the runs do not tell it], where
    counts are trimmed on both sides; layers come in the order of `in_order`.
    """
    found = list(dict.fromkeys(layer_of(name) for name in counted.tensors))
    layers = {found[place]: i for i, place in enumerate(in_order(found))}
    largest = _largest(runs)
    rows = []
    for name, tensor in counted.tensors.items():
        counts = [int(count) for count in tensor.counts]
        low = next((i for i, count in enumerate(counts) if count), 0)
        high = max((i for i, count in enumerate(counts) if count), default=-1)
        rows.append(
            [
                names.index(name),
                tensor.role,
                layers[layer_of(name)],
                int(counted.exponents[low]),
                counts[low : high + 1],
                int(tensor.zeros),
                int(tensor.nan) + int(tensor.inf),
                _within(int(counted.exponents[high]), largest.get(name, set())),
            ]
        )
    return packed(
        {"layers": [names.index(layer) for layer in layers], "rows": rows, "exact": counted.exact}
    )


def _largest(runs: Sequence[Run]) -> dict[str, set[float]]:
    """Returns the binary logarithms of the largest magnitude that the runs tell of each tensor."""
    found: dict[str, set[float]] = {}
    for tensor in (tensor for run in runs for tensor in run.data["tensors"]):
        absmax = number(tensor.get("absmax"))
        if absmax is not None and 0 < absmax < math.inf:
            found.setdefault(tensor["name"], set()).add(math.log2(absmax))
    return found


def _within(exponent: int, logarithms: set[float]) -> float | None:
    """Returns the only logarithm in a binade; results of other traces may tell others."""
    fitting = [value for value in logarithms if exponent <= value < exponent + 1]
    return fitting[0] if len(fitting) == 1 else None


def format_range(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the binary logarithms that bound a format at scale 1.

    `zero`: from there down magnitudes become zero; `normal`: from there up they keep all their
    bits; `subnormal`: below there results are; `over`: from there up they overflow or are clamped;
    `infinite`: from there up the counters say overflow. Other rounding modes than to nearest even
    and toward zero have the values of the former and are not `known`, nor are sums of micro-steps,
    which are counted one by one here.
    """
    known = Format(name)
    flushed = options.get("subnormals") == "flush"
    toward_zero = options.get("rounding") == "rtz"
    smallest = known.min_normal if flushed else known.min_positive
    # Half of the smallest subnormal rounds to zero; flushing looks at the rounded value.
    zero = smallest if toward_zero else _flush_edge(known) if flushed else smallest / 2
    clamped = 2 * 2.0 ** math.floor(math.log2(known.max_finite))
    over = math.log2(clamped if toward_zero else known.overflow_threshold)
    return {
        "name": name,
        "zero": math.log2(zero),
        "normal": math.log2(known.min_normal),
        "subnormal": math.log2(known.min_normal if toward_zero else _flush_edge(known)),
        "over": over,
        # Toward zero only what is infinite already, scaled in float32; clamped values count too
        # where they are asked for.
        "infinite": 128.0 if toward_zero and options.get("overflow") != "saturate" else over,
        "max": math.log2(known.max_finite),
        "known": options.get("rounding", "rne") in ("rne", "rtz")
        and options.get("accumulate") != "sum-first",
    }


def _flush_edge(known: Format) -> float:
    return float(known.min_normal - known.min_positive / 2)


def format_ranges(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Returns the ranges of fp16, bf16, cb16 and all other formats of the runs."""
    named: dict[str, dict[str, Any]] = {name: {} for name in ("fp16", "bf16", "cb16")}
    named |= {run.format: _options(run) for run in runs}
    return [format_range(name, options) for name, options in named.items()]


def _options(run: Run) -> dict[str, Any]:
    options = run.result.data.get("options")
    return options if isinstance(options, dict) else {}
