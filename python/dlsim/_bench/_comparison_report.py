# SPDX-License-Identifier: Apache-2.0
"""A comparison as a table, and as JSON of schema dlsim.bench.compare/1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._text import counted
from ._comparison import (
    LEAST_REPETITIONS,
    VERDICTS,
    Comparison,
    KernelComparison,
    Sample,
    describe_rule,
)
from ._results import Results, printable


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows with the first column on the left and the others on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        f"  {row[0]:<{widths[0]}}"
        + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    )
    return "".join(line.rstrip() + "\n" for line in lines)


def format_comparison(base: Results, current: Results, comparison: Comparison) -> str:
    """Returns the rule, a table of the kernels and a summary."""
    count = comparison.judged()
    rows = _time_rows(comparison) if comparison.kind == "time" else _count_rows(comparison)
    counts = ", ".join(f"{comparison.count(verdict)} {verdict}" for verdict in VERDICTS[:-1])
    references = comparison.count("unjudged")
    return (
        _describe_file("base", base)
        + _describe_file("new", current)
        + _rule_text(comparison)
        + "\n"
        + format_table(rows)
        + "".join(f"  only in base: {printable(name)}\n" for name in comparison.only_in_base)
        + "".join(f"  only in new: {printable(name)}\n" for name in comparison.only_in_new)
        + f"\n{counted(count, 'kernels')} compared: {counts}"
        + (f"; {references} limits and peers unjudged" if references else "")
        + "\n"
    )


def comparison_json(base: Results, current: Results, comparison: Comparison) -> dict[str, Any]:
    """Returns the document."""
    return {
        "schema": "dlsim.bench.compare/1",
        "kind": comparison.kind,
        "base": {"file": base.place, **dict(sorted(base.identity.items()))},
        "new": {"file": current.place, **dict(sorted(current.identity.items()))},
        "rule": {
            "threshold": comparison.rule.threshold,
            "alpha": comparison.rule.alpha,
            "min_repetitions": LEAST_REPETITIONS,
            "text": _rule_text(comparison),
        },
        "summary": {verdict: comparison.count(verdict) for verdict in VERDICTS},
        "kernels": [_kernel_json(comparison.kind, kernel) for kernel in comparison.kernels],
        "only_in_base": comparison.only_in_base,
        "only_in_new": comparison.only_in_new,
    }


def _rule_text(comparison: Comparison) -> str:
    return describe_rule(comparison.kind, comparison.rule, counted(comparison.judged(), "kernels"))


def _describe_file(role: str, results: Results) -> str:
    known = [results.identity.get(name) for name in ("cpu_model", "simd_target", "gpu")]
    parts = [results.place, *(printable(value) for value in known if value is not None)]
    if results.kind == "time" and results.processes:
        parts.append(f"{printable(results.processes)} processes")
    return f"{role:<5}{', '.join(parts)}\n"


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _time(nanoseconds: float) -> str:
    if nanoseconds < 1e3:
        return f"{nanoseconds:.1f} ns"
    if nanoseconds < 1e6:
        return f"{nanoseconds / 1e3:.2f} us"
    return f"{nanoseconds / 1e6:.2f} ms"


def _time_rows(comparison: Comparison) -> list[list[str]]:
    head = ["kernel", "verdict", "median", "shortest", "P(slower)", "p", "base", "new"]
    rows = [[*head, "GB/s", "of stream", ""]]
    for kernel in comparison.kernels:
        rate, share = kernel.current.bytes_per_second, kernel.current.fraction_of_stream
        rows.append(
            [
                printable(kernel.name),
                kernel.verdict,
                _change(kernel.median_ratio),
                _change(kernel.min_ratio),
                f"{kernel.superiority:.2f}",
                f"{kernel.corrected_p:.2g}",
                _time(kernel.base.median),
                _time(kernel.current.median),
                f"{rate / 1e9:.1f}" if rate > 0 else "-",
                f"{100 * share:.0f} %" if share > 0 else "-",
                kernel.reason,
            ]
        )
    return rows


def _count_rows(comparison: Comparison) -> list[list[str]]:
    rows = [["kernel", "verdict", "change", "base", "new"]]
    for kernel in comparison.kernels:
        change = f"{100 * (kernel.median_ratio - 1):+.2f} %"
        counts = [f"{kernel.base.median:.0f}", f"{kernel.current.median:.0f}"]
        rows.append([printable(kernel.name), kernel.verdict, change, *counts])
    return rows


def _sample_json(kind: str, sample: Sample) -> dict[str, Any]:
    unit = "ns" if kind == "time" else "instructions"
    document: dict[str, Any] = {
        "repetitions": sample.count,
        f"median_{unit}": sample.median,
        f"min_{unit}": sample.min,
        "relative_interquartile_range": sample.spread,
    }
    if sample.bytes_per_second > 0:
        document["bytes_per_second"] = sample.bytes_per_second
    if sample.fraction_of_stream > 0:
        document["fraction_of_stream"] = sample.fraction_of_stream
    return document


def _kernel_json(kind: str, kernel: KernelComparison) -> dict[str, Any]:
    document: dict[str, Any] = {"name": kernel.name, "verdict": kernel.verdict}
    if kernel.reason:
        document["reason"] = kernel.reason
    document["median_ratio"] = kernel.median_ratio
    document["min_ratio"] = kernel.min_ratio
    if kind == "time":
        document["probability_slower"] = kernel.superiority
        document["u"] = kernel.u
        document["p"] = kernel.p
        document["p_holm"] = kernel.corrected_p
    document["base"] = _sample_json(kind, kernel.base)
    document["new"] = _sample_json(kind, kernel.current)
    return document
