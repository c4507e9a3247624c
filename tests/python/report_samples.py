# SPDX-License-Identifier: Apache-2.0
"""Results for the tests of the report, and what their pages hold."""

from __future__ import annotations

import base64
import itertools
import json
import random
import zlib
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import dlsim

TRACES = Path(__file__).parents[1] / "data" / "traces"
LOGS = Path(__file__).parents[1] / "data" / "logs"
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


def replay(
    names: Sequence[str] = NAMES,
    steps: int = 20,
    formats: Sequence[str] = ("fp16", "cb16"),
    bins: int = 0,
) -> dict[str, Any]:
    """A replay in which every fourth step or so overflows; with `bins` it has heat maps."""
    chance = random.Random(1)
    trace = {
        **{"paths": ["gone/trace"], "steps": steps, "first_step": 0, "last_step": steps - 1},
        **{"file_bytes": 12345, "description": {"model": "sample", "description": "a sample"}},
    }
    runs = [_run(name, names, steps, bins, chance) for name in formats]
    return {"schema": "dlsim.replay/1", "trace": trace, "options": {}, "runs": runs}


def _run(
    name: str, names: Sequence[str], steps: int, bins: int, chance: random.Random
) -> dict[str, Any]:
    rows, scale = [], 65536.0
    for i in range(steps):
        bad = chance.random() < 0.25
        row: dict[str, Any] = {"step": i, "scale": scale, "finite": not bad, "skipped": bad}
        if bad:
            row["cause"] = chance.choice(("overflow", "input", "norm"))
            row["cause_tensor"] = chance.choice(names)
            row["lower_scale_helps"] = row["cause"] == "overflow"
        rows.append(row)
        scale = scale / 2 if bad else min(scale * chance.choice((1, 2)), 2.0**40)
    scales = [row["scale"] for row in rows]
    skipped = sum(row["skipped"] for row in rows)
    summary = {
        **{"steps": steps, "skipped_steps": skipped, "first_applied_step": 0, "overflow": 7},
        **{"stopped_at_step": None, "final_scale": scale, "min_scale": min(scales)},
        **{"max_scale": max(scales), "underflow_fraction": 0.125, "worst_harm": 2e-5},
    }
    run = {
        **{"format": name, "policy": "torch", "params": {}, "notes": [], "events": []},
        **{"summary": summary, "steps": rows, "tensors": [_tensor(n, chance) for n in names]},
    }
    if bins:
        edges = [b * steps // bins for b in range(bins + 1)]
        counts = [b - a for a, b in itertools.pairwise(edges)]
        run["heat_map"] = {
            "bins": {"first_step": edges[:-1], "steps": counts, "skipped_steps": [0] * bins},
            "tensors": [
                {
                    **{"name": n, "role": "grad", "nonzero": [10**6] * bins},
                    **{"overflow": [0] * bins, "sum_of_squares": [1.0] * bins},
                    "underflow": [chance.randrange(10**6) for _ in range(bins)],
                    "error_sum_of_squares": [chance.random() ** 9 for _ in range(bins)],
                }
                for n in names
            ],
        }
    return run


def _tensor(name: str, chance: random.Random) -> dict[str, Any]:
    counters = {key: chance.randrange(10**8) for key in ("subnormal", "overflow", "nonfinite")}
    shares = {key: chance.random() ** 9 for key in ("mean_harm", "worst_harm", "absmax")}
    known = {"name": name, "role": "grad", "elements": 10**9, "underflow_fraction": 0.5}
    return {**known, **counters, **shares}


def verdict(document: dict[str, Any], windows: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """A verdict on a replay whose steps have these windows in all formats, as exponents."""
    steps = [
        [i, *(None if end is None else 2.0**end for end in window)]
        for i, window in enumerate(windows)
    ]
    known = {"verdict": "with a scale", "window": [2.0**3, 2.0**16], "scale": 2.0**14}
    known |= {"steps_outside_window": 1, "tensors_at_risk": [], "steps": steps}
    names = dict.fromkeys(run["format"] for run in document["runs"])
    return {
        "formats": [{"format": name, **known} for name in names],
        "best": "fp16",
        "lines": ["Use fp16 with a loss scale of 2^14.", "Or another.", "No tensor is at risk."],
    }


def write(folder: Path, *results: Any, **options: Any) -> str:
    """Writes a page, without its trace unless asked for, and returns its text."""
    page = folder / "report.html"
    dlsim.report.write_report(list(results), page, **{"read_trace": False, **options})
    return page.read_text(encoding="utf-8")


class Page(HTMLParser):
    """What a browser makes of a page: tags, attributes, sections, rows of tables, figures."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: dict[str, list[list[str]]] = {}
        self.figures: dict[str, list[Any]] = {}
        self.texts: dict[str, str] = {}
        self._section = ""
        self._cell: list[str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "section":
            self._section = str(found["id"])
        if tag == "tr":
            self.rows.setdefault(self._section, []).append([])
        if tag in ("td", "th"):
            self._cell = []
        if "data-figure" in found:
            made = json.loads(zlib.decompress(base64.b64decode(str(found["data-figure"]))))
            self.figures.setdefault(self._section, []).append(made)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._cell is not None:
            self.rows[self._section][-1].append("".join(self._cell))
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)
        self.texts[self._section] = self.texts.get(self._section, "") + data


def numbers(values: Any) -> Any:
    """An array of a figure, which plotly writes as base64 of its bytes."""
    import numpy as np

    if not isinstance(values, dict):
        return np.array(values, float)
    found = np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"])
    return (
        found.reshape([int(n) for n in values["shape"].split(",")]) if "shape" in values else found
    )
