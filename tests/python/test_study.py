# SPDX-License-Identifier: Apache-2.0
"""The study of docs/evidence.md: a slice of it gives the kept results, and the pages quote them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROJECT = Path(__file__).parents[2]
_RUN = _PROJECT / "tools" / "study" / "run"


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(_RUN), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_slice_gives_the_kept_results():
    assert " 0 differences" in run("--slice")


def test_noise_is_what_float64_says_it_is():
    lines = run("--noise").splitlines()
    assert len(lines) == 24
    assert all("as float64 says" in line for line in lines)


def test_the_page_quotes_the_report():
    report = run("--report").splitlines()
    page = (_PROJECT / "docs" / "evidence.md").read_text()
    tables = page.partition("## Figures")[2].split("## A larger batch")
    rest = tables[0] + tables[1].partition("## ")[2]
    short = [line[2:] for line in rest.splitlines() if line.startswith(("* static", "* policies"))]
    quoted = short + [line for line in rest.splitlines() if line[:1] == "|"]
    assert len(quoted) > 13
    assert [line for line in quoted if line not in report] == []


def test_the_page_about_accuracy_quotes_the_report():
    report = run("--report").splitlines()
    page = (_PROJECT / "docs" / "accuracy.md").read_text()
    quoted = [line for line in page.splitlines() if "|" in line]
    assert len(quoted) > 10
    assert [line for line in quoted if line not in report] == []
    wrong = report.index("| model | format | wrong how | sentence | outcome |")
    assert set(report[wrong : report.index("", wrong)]) <= set(quoted)  # none is left out
