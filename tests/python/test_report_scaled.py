# SPDX-License-Identifier: Apache-2.0
"""The section of the report about formats with scales of their own."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from report_samples import HOSTILE, TRACES, command, write

import dlsim
from dlsim.report._text import format_share
from dlsim.report.scaled import MAX_TENSORS


def tables(page: str) -> list[list[list[str]]]:
    """The rows of each table of the section."""
    section = re.search(r'<section id="scaled".*?</section>', page, re.S)
    assert section is not None
    return [
        [
            [html.unescape(re.sub("<[^>]*>", "", cell)) for cell in cells]
            for row in table.split("</tr>")
            if (cells := re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row))
        ]
        for table in re.findall(r"<tbody>(.*?)</tbody>", section[0], re.S)
    ]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    options = ("--format", "mxfp8", "--format", "nvfp4")
    return command("replay", TRACES / "t5-stream", *options)


def test_a_result_of_scaled_formats_alone_is_a_page(found: dict[str, Any], tmp_path: Path) -> None:
    page = write(tmp_path, found, read_trace=False)
    for line in found["verdict"]["lines"]:
        assert html.escape(line) in page
    formats, *of_tensors = tables(page)
    assert [row[:2] for row in formats] == [
        ["mxfp8", "trains"],
        ["nvfp4", "loses too much in backward"],
    ]
    # The figures of the sentence.
    assert formats[0][2] == "0.072\u202f%" and formats[0][4] == "0.0687\u202f%"
    assert formats[0][6] == "0 / 5"
    for table, entry in zip(of_tensors, found["verdict"]["formats"], strict=True):
        judged = [t for t in entry["scaled"]["tensors"] if t["judged"]]
        assert len(table) == min(len(judged), MAX_TENSORS)
        worst = max(judged, key=lambda tensor: tensor["mean_harm"] or 0.0)
        row = worst["row"]["underflow_fraction"], worst["column"]["underflow_fraction"]
        assert table[0][0] == worst["name"]
        assert table[0][2] == format_share(worst["mean_harm"])
        assert table[0][5] == format_share(max(row))
    assert '<section id="policies"' not in page


def test_clipped_elements_are_counted(tmp_path: Path) -> None:
    document = command("replay", TRACES / "t5-stream", "--format", "mxfp4")
    steps = document["verdict"]["formats"][0]["scaled"]["steps"]
    clipped = sum(step["clipped"] for step in steps)
    formats, tensors = tables(write(tmp_path, document, read_trace=False))
    assert clipped > 0
    assert formats[0][7].replace("\u202f", "") == str(clipped)
    assert any(row[7] != "0" for row in tensors)


def test_a_trace_is_judged_in_scaled_formats(tmp_path: Path) -> None:
    for formats, titles in (
        (["mxfp8"], {"scaled"}),
        (["fp16", "mxfp8:rule=floor"], {"scaled", "policies", "recommendation"}),
    ):
        page = tmp_path / "page.html"
        dlsim.report(TRACES / "cnn-digits", page, formats=formats, read_trace=False)
        found = set(re.findall(r'<section id="(\w+)"', page.read_text(encoding="utf-8")))
        assert found >= titles
        assert "policies" in titles or "policies" not in found


def test_names_are_shown_and_never_obeyed(found: dict[str, Any], tmp_path: Path) -> None:
    document = json.loads(json.dumps(found))
    entry = document["verdict"]["formats"][0]
    entry["format"] = HOSTILE[0]
    for tensor, name in zip(entry["scaled"]["tensors"], HOSTILE, strict=False):
        tensor["name"] = name
        tensor["judged"] = True
    page = write(tmp_path, document, read_trace=False)
    assert "<img src=x" not in page
    assert tables(page)[0][0][0] == HOSTILE[0]
