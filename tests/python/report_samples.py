# SPDX-License-Identifier: Apache-2.0
"""Results of the documented schemas for the tests of the report."""

from __future__ import annotations

import base64
import itertools
import json
import random
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dlsim
from dlsim.traces._writer import TraceWriter

TRACES = Path(__file__).parents[1] / "data" / "traces"
NAMES = ("blocks.0.attn.weight.grad", "blocks.0.attn.bias.grad", "head.weight.grad")

# Names that a page must show and never obey.
HOSTILE = (
    "</script><img src=x onerror=alert(1)>.weight.grad",
    "\"quotes'&amp;<b>bold</b>.weight.grad",
    "\u202egnirts\u202c.weight.grad",
    "Gr\u00f6\u00dfe.\u6b0a\u91cd.\U0001f600.grad",
    "line\u2028break\u2029.\u0000null.grad",
    "\ud800lone.grad",
    "javascript:alert(1)<a href='javascript:alert(1)'>x</a>.grad",
    "-->]]><!--.grad",
)


def replay(  # noqa: PLR0917
    names: Sequence[str] = NAMES,
    steps: int = 20,
    formats: Sequence[str] = ("fp16", "cb16"),
    policies: Sequence[str] = ("torch",),
    bins: int = 0,
    seed: int = 1,
) -> dict[str, Any]:
    """A replay in which every fourth step or so overflows; with `bins` it has heat maps."""
    chance = random.Random(seed)
    runs = [_run(f, p, names, steps, bins, chance) for f in formats for p in policies]
    return {
        "schema": "dlsim.replay/1",
        "trace": {
            "paths": ["gone/trace"],
            "steps": steps,
            "first_step": 0,
            "last_step": steps - 1,
            "file_bytes": 12345,
            "description": {"model": "sample", "description": "a sample of a model"},
        },
        "options": {"rounding": "rne", "subnormals": "keep"},
        "runs": runs,
    }


def _run(  # noqa: PLR0917
    name: str, policy: str, names: Sequence[str], steps: int, bins: int, chance: random.Random
) -> dict[str, Any]:
    rows, scale = [], 65536.0
    for i in range(steps):
        bad = chance.random() < 0.25
        after = scale / 2 if bad else min(scale * chance.choice((1, 2)), 2.0**40)
        row: dict[str, Any] = {"step": i, "scale": scale, "next_scale": after}
        row |= {"finite": not bad, "skipped": bad}
        if bad:
            row["cause"] = chance.choice(("overflow", "input", "norm"))
            row["cause_tensor"] = chance.choice(names)
            row["lower_scale_helps"] = row["cause"] == "overflow"
        rows.append(row)
        scale = max(after, 2.0**-10)
    skipped = sum(row["skipped"] for row in rows)
    applied = [row["step"] for row in rows if not row["skipped"]]
    run = {
        "format": name,
        "policy": policy,
        "params": {"init_scale": 65536.0},
        "finite_test": "elementwise",
        "notes": [],
        "summary": {
            "steps": steps,
            "skipped_steps": skipped,
            "longest_skip_run": 1,
            "nonfinite_steps": skipped,
            "first_applied_step": applied[0] if applied else None,
            "stopped_at_step": None,
            "final_scale": scale,
            "min_scale": min(row["scale"] for row in rows),
            "max_scale": max(row["scale"] for row in rows),
            "underflow_fraction": 0.125,
            "energy_lost": 1e-9,
            "worst_step_energy_lost": 2e-5,
            "overflow": 7,
        },
        "events": [],
        "steps": rows,
        "tensors": [_tensor(tensor, chance) for tensor in names],
    }
    if bins:
        run["heat_map"] = _heat_map(names, steps, bins, chance)
    return run


def _tensor(name: str, chance: random.Random) -> dict[str, Any]:
    return {
        "name": name,
        "role": "grad",
        "elements": 10**9,
        "zeros": 0,
        "nonfinite": 0,
        "underflow": chance.randrange(10**8),
        "subnormal": chance.randrange(10**8),
        "overflow": chance.randrange(100),
        "underflow_fraction": chance.random(),
        "energy_lost": chance.random() ** 9,
        "worst_step_energy_lost": chance.random() ** 9,
        "absmax": chance.random(),
        "first_overflow_step": None,
    }


def _heat_map(names: Sequence[str], steps: int, bins: int, chance: random.Random) -> dict[str, Any]:
    edges = [b * steps // bins for b in range(bins + 1)]
    return {
        "bins": {
            "first_step": edges[:-1],
            "last_step": [edge - 1 for edge in edges[1:]],
            "steps": [b - a for a, b in itertools.pairwise(edges)],
            "skipped_steps": [0] * bins,
        },
        "tensors": [
            {
                "name": name,
                "role": "grad",
                "nonzero": [10**6] * bins,
                "underflow": [chance.randrange(10**6) for _ in range(bins)],
                "overflow": [0] * bins,
                "sum_of_squares": [1.0] * bins,
                "underflow_sum_of_squares": [chance.random() ** 9 for _ in range(bins)],
            }
            for name in names
        ],
    }


def verdict(
    document: dict[str, Any], windows: Sequence[Sequence[float | None]], best: str = "fp16"
) -> dict[str, Any]:
    """A verdict on a replay whose steps have these windows in all formats, as exponents."""
    steps = [
        [i, *(None if end is None else 2.0**end for end in window)]
        for i, window in enumerate(windows)
    ]
    names = dict.fromkeys(run["format"] for run in document["runs"])
    return {
        "formats": [
            {
                "format": name,
                "verdict": "with a scale",
                "window": [2.0**3, 2.0**16],
                "scale": 2.0**14,
                "steps_outside_window": 1,
                "tensors_at_risk": [],
                "steps": steps,
            }
            for name in names
        ],
        "best": best,
        "lines": [f"Use {best} with a loss scale of 2^14.", "Or another.", "No tensor is at risk."],
    }


def command(*arguments: str | Path) -> dict[str, Any]:
    """What the C++ command writes as JSON for these arguments."""
    import subprocess

    from running import DLSIM

    process = subprocess.run(
        [*DLSIM, *map(str, arguments), "--json", "-", "--quiet"],
        capture_output=True,
        check=True,
    )
    return json.loads(process.stdout)


def sweep(trace: str = "lm-trouble-cut") -> dict[str, Any]:
    """A small sweep of a bundled trace."""
    vary = ("--vary", "init_scale=2^0..2^40", "--set", "growth_interval=4")
    formats = ("--format", "fp16", "--format", "cb16")
    policies = ("--policy", "torch", "--policy", "cerebras")
    return command("sweep", TRACES / trace, *formats, *policies, *vary)


def diff(folder: Path, trace: str = "lm-trouble-cut") -> dict[str, Any]:
    """A bundled trace, but for its last tensor, and its bf16 twin, which is written below."""
    original = TRACES / trace
    with TraceWriter(folder / "bf16") as writer:
        for step in dlsim.open_trace(original):
            kept = list(step.tensors.items())[:-1]
            tensors = {name: dlsim.quantize(values, "bf16") for name, values in kept}
            writer.write(step.number, tensors)
    return command("diff", original, folder / "bf16")


def tune(trace: str = "lm-trouble-cut") -> dict[str, Any]:
    """What tune recommends for fp16 on a bundled trace."""
    return command("tune", TRACES / trace, "--format", "fp16")


def data_of(page: str) -> dict[str, Any]:
    """The data that a page holds."""
    found = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page)
    assert found is not None
    return json.loads(found[1])


def unpacked(text: str) -> Any:
    """A part of many numbers, as page.js unpacks it."""
    return json.loads(zlib.decompress(base64.b64decode(text)))


def write(folder: Path, *results: dict[str, Any], **options: Any) -> str:
    """Writes a page and returns its text."""
    page = folder / "report.html"
    dlsim.report.write_report(list(results), page, **options)
    return page.read_text(encoding="utf-8")


def run_of(document: dict[str, Any], index: int = 0) -> Any:
    """A run of a replay as the report reads it."""
    from dlsim.report._inputs import check_result, runs_of

    return runs_of([check_result("sample.json", document)])[index]
