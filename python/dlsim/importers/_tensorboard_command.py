# SPDX-License-Identifier: Apache-2.0
"""`dlsim import tensorboard`: two profiles, or a table of bounds."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .._errors import UsageError
from .._files import replacing
from ._bounds import Bounds, tensorboard_bounds
from ._runs import Imported
from ._tensorboard import import_tensorboard

_BOUNDS_OPTIONS = {"formats": None, "scales": None, "rounding": "rne", "json": None}
_SHOWN = 48


def run_tensorboard(
    inputs: list[str],
    output: str | None,
    *,
    bounds: bool,
    force: bool,
    act_grad: Sequence[str],
    subnormals: str,
    **given: Any,
) -> Imported | None:
    """Runs the command; prints the table itself, and returns what was imported if it was."""
    if not bounds:
        if output is None:
            raise UsageError("output: expected -o OUTPUT, or --bounds")
        for name, default in _BOUNDS_OPTIONS.items():
            if given.pop(name) != default:
                raise UsageError(f"{name}: is for --bounds only")
        return import_tensorboard(inputs, output, act_grad=act_grad, force=force, **given)
    if output is not None:
        raise UsageError("output: --bounds writes no profile, expected one of both")
    target = given.pop("json")
    given["formats"] = given["formats"] or ["fp16"]
    given["scales"] = given["scales"] or [1.0]
    rows, notes = tensorboard_bounds(inputs, flush=subnormals == "flush", **given)
    for note in notes:
        print(f"dlsim import: note: {note}", file=sys.stderr)
    if target is not None:
        _write_json(target, rows, given["rounding"], subnormals)
    if target != "-":
        _print(rows)
    return None


def _write_json(target: str, rows: list[Bounds], rounding: str, subnormals: str) -> None:
    data = {
        "schema": "dlsim.tensorboard-bounds/1",
        "options": {"rounding": rounding, "subnormals": subnormals},
        "bounds": [_json_of(row) for row in rows],
    }
    text = json.dumps(data, separators=(",", ":")).replace('{"tensor"', '\n{"tensor"') + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    with replacing(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _json_of(row: Bounds) -> dict[str, Any]:
    """Keys as in results of profiles, docs/results.md."""
    data = asdict(row)
    del data["nonzero"]
    keys = ("underflow", "overflow", "underflow_fraction")
    data["bracket"] = {key: data.pop(key) for key in keys}
    data["worst_underflow_fraction_bracket"] = data.pop("worst_fraction")
    return data


def _print(rows: list[Bounds]) -> None:
    rows = sorted(rows, key=lambda row: (row.format, row.scale, -row.underflow_fraction[1]))
    width = min(_SHOWN, max(len(_shown_name(row.tensor)) for row in rows))
    print(
        f"  {'tag':<{width}}  format      scale  steps      underflow, %  at worst step, %  step"
        "  overflow"
    )
    for row in rows:
        print(
            f"  {_shown_name(row.tensor):<{width}}  {row.format:<6} {row.scale:>10.6g} "
            f"{row.steps:>6}  {_percents(row.underflow_fraction):>16}  "
            f"{_percents(row.worst_fraction):>16}  {row.worst_step:>4}  {_counts(row.overflow)}"
        )
    print("\n  low..high: the truth lies between; underflow: share of finite nonzero values that")
    print("  become zero. Buckets that touch zero hold values that may be zero or not.")


def _shown_name(name: str) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in name)
    return printable if len(printable) <= _SHOWN else printable[: _SHOWN - 3] + "..."


def _percents(fraction: tuple[float, float]) -> str:
    low, high = (f"{100 * part:.3g}" for part in fraction)
    return low if low == high else f"{low}..{high}"


def _counts(counts: tuple[int, int]) -> str:
    return str(counts[0]) if counts[0] == counts[1] else f"{counts[0]}..{counts[1]}"
