# SPDX-License-Identifier: Apache-2.0
"""The table of exponents and the counters of a replay: exact or marked as an estimate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_browser import Driver, chromium, opened, reveal, rows
from report_samples import TRACES

import dlsim
from dlsim.traces._writer import TraceWriter

FORMATS = ("fp16", "bf16", "cb16")
COUNTERS = ("underflow", "subnormal", "overflow")


@pytest.fixture(scope="module")
def browser() -> Iterator[Driver]:
    yield from chromium()


def static(trace: Path, scale: int, **options: Any) -> dlsim.results.Result:
    settings = {"static.loss_scale": 2.0**scale}
    return dlsim.replay(trace, formats=FORMATS, policies="static", settings=settings, **options)


def counted(result: Any, of: int) -> dict[str, list[float]]:
    """The exact shares of the parameter gradients, by format."""
    found = {}
    for run in result.data["runs"]:
        tensors = [t for t in run["tensors"] if t["role"] == "grad"]
        found[run["format"]] = [sum(t[key] for t in tensors) / of for key in COUNTERS]
    return found


def shown(browser: Driver, scale: int) -> dict[str, list[str]]:
    browser.execute_script(
        "const s = document.getElementById('exponent-scale'); s.value = arguments[0];"
        "s.dispatchEvent(new Event('input'))",
        scale,
    )
    reveal(browser, "exponents")
    return {row[0]: row[1:] for row in rows(browser, "exponent-lost")}


def nonzero(trace: Path) -> int:
    tensors = dlsim.exponents(trace).tensors.values()
    return sum(int(t.counts.sum()) for t in tensors if t.role == "grad")


@pytest.mark.parametrize(
    ("name", "options"),
    [("cnn-digits", {"rounding": "rtz"}), ("lm-trouble-cut", {})],
)
def test_shares_agree_with_the_counters(
    browser: Driver, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    trace = TRACES / name
    dlsim.report.write_report(static(trace, 0, **options), tmp_path / "report.html")
    opened(browser, tmp_path / "report.html")
    exact_cells = 0
    for scale in (-20, -9, 0, 15, 16, 17, 40):
        exact = counted(static(trace, scale, **options), nonzero(trace))
        for format, cells in shown(browser, scale).items():
            for cell, value in zip(cells, exact[format], strict=True):
                if cell.startswith("~"):
                    assert scale != 0  # that of the run
                    assert number(cell[1:]) == pytest.approx(value, rel=0.3, abs=1e-3)
                else:
                    assert number(cell) == pytest.approx(value, rel=6e-3)
                    exact_cells += 1
    assert exact_cells > 30


def number(text: str) -> float:
    digits = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b"
    plain = text.translate({ord(digit): str(i) for i, digit in enumerate(digits[:10])})
    plain = plain.replace("\u207b", "-").replace("\u00b710", "e").replace("\u202f", "")
    return float(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)


def test_the_largest_magnitude_bounds_the_estimate(browser: Driver, tmp_path: Path) -> None:
    values = np.float32([1 - 2**-12, 1 - 2**-11, 0.75, 0.5])  # times 2^16: 65504 does not overflow
    with TraceWriter(tmp_path / "trace") as writer:
        writer.write(0, {"w.grad": values})
        writer.write(1, {"w.grad": values * np.float32(2**-8)})
    result = dlsim.replay(tmp_path / "trace", formats="fp16", policies="cerebras")
    dlsim.report.write_report(result, tmp_path / "report.html")
    opened(browser, tmp_path / "report.html")
    assert values[1] * 2**16 == 65504 and float(values[0]) * 2**16 == 65520
    assert shown(browser, 15)["fp16"] == ["0", "0", "0"]
    assert shown(browser, 16)["fp16"][2] == "~12.5\u202f%"  # one at least
    assert shown(browser, 17)["fp16"][2] == "50\u202f%"
    with TraceWriter(tmp_path / "lower") as writer:
        writer.write(0, {"w.grad": values[1:]})
    result = dlsim.replay(tmp_path / "lower", formats="fp16", policies="cerebras")
    dlsim.report.write_report(result, tmp_path / "report.html")
    opened(browser, tmp_path / "report.html")
    assert shown(browser, 16)["fp16"][2] == "0"
