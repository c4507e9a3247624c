# SPDX-License-Identifier: Apache-2.0
"""The section of the report about two runs that were compared."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from report_samples import HOSTILE, TRACES, command, data_of, diff, replay, unpacked, write

import dlsim
from dlsim.report._json import visible
from dlsim.report.differences import MAX_POINTS, MAX_TENSORS


def sections(page: str) -> list[str]:
    return re.findall(r'<section id="(\w+)"', page)


def rows(page: str) -> list[list[str]]:
    table = re.search(r"<table class=.sortable differences.>.*?<tbody>(.*?)</tbody>", page, re.S)
    assert table is not None
    return [
        [html.unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)]
        for row in re.findall("<tr>(.*?)</tr>", table[1])
    ]


def points(page: str) -> list[list[Any]]:
    return list(unpacked(data_of(page)["differences"][0])["points"])


def test_two_runs_alone_are_a_page(tmp_path: Path) -> None:
    document = diff(tmp_path)
    page = write(tmp_path, document)
    assert sections(page) == ["differences"]
    assert "<title>lm-trouble-cut and bf16, compared</title>" in page
    for line in document["lines"]:
        assert html.escape(line) in page
    drawn = [[step[k] for k in ("step", "tensor", "tensors_beyond")] for step in document["steps"]]
    assert [[p[0], p[2], p[3]] for p in points(page)] == drawn
    expected = [step["difference"] for step in document["steps"]]
    assert [p[1] for p in points(page)] == pytest.approx(expected, rel=1e-3)
    table = rows(page)
    worst_first = sorted(document["tensors"], key=lambda t: t["difference"], reverse=True)
    assert [row[0] for row in table] == [tensor["name"] for tensor in worst_first]
    assert [float(row[1]) for row in table] == pytest.approx(
        [tensor["max_relative_difference"] for tensor in worst_first], rel=1e-2
    )
    beyond = [f"{tensor['steps_beyond']} / {tensor['steps']}" for tensor in worst_first]
    assert [row[6] for row in table] == beyond
    left_out = document["unmatched"]["tensors"][0]["name"]
    assert f"<li>{left_out}: only in a</li>" in page


def test_histograms_have_their_own_figures(tmp_path: Path) -> None:
    trace = TRACES / "lm-trouble-cut"
    profile = tmp_path / "run.dlprof"
    dlsim.profile(trace, profile)
    document = command("diff", trace, profile)
    page = write(tmp_path, document)
    assert "distance in binades" in page and "cosine" not in page
    assert all(row[1] == "0" for row in rows(page))


def test_the_section_follows_those_of_other_results(tmp_path: Path) -> None:
    page = write(tmp_path, replay(), diff(tmp_path), read_trace=False)
    found = sections(page)
    assert found[0] == "verdict" and found[-2:] == ["differences", "about"]
    assert "unnamed trace" not in page


def test_of_very_many_steps_and_tensors_the_worst_are_shown(tmp_path: Path) -> None:
    document = diff(tmp_path)
    step, tensor = document["steps"][0], document["tensors"][0]
    document["steps"] = [{**step, "step": i, "difference": 1e-6} for i in range(9001)]
    document["steps"][4321]["difference"] = 0.5
    document["steps"][9000]["difference"] = "inf"
    document["tensors"] = [{**tensor, "name": f"t{i}", "difference": i} for i in range(900)]
    page = write(tmp_path, document)
    shown = points(page)
    assert len(shown) <= MAX_POINTS
    assert [p[:2] for p in shown if p[1] != 1e-6] == [[4321, 0.5], [9000, "inf"]]
    assert len(rows(page)) == MAX_TENSORS and rows(page)[0][0] == "t899"
    assert "400 tensors that differ less are left out" in page


def test_hostile_names_are_text(tmp_path: Path) -> None:
    document = diff(tmp_path)
    for tensor, step, name in zip(document["tensors"], document["steps"], HOSTILE, strict=False):
        tensor["name"] = step["tensor"] = name
    document["lines"] = list(HOSTILE)
    document["a"]["paths"] = [HOSTILE[0]]
    document["unmatched"]["tensors"][0]["name"] = HOSTILE[1]
    page = write(tmp_path, document)
    named = [visible(name) for name in HOSTILE]
    assert {row[0] for row in rows(page)} >= set(named)
    assert "<img" not in page.split("<script>")[0] and "<b>bold" not in page.split("<script>")[0]
