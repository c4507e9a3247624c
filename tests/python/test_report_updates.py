# SPDX-License-Identifier: Apache-2.0
"""The section of the report about a probe whose updates were replayed."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from report_samples import HOSTILE, data_of, replay, unpacked, updates, write

import dlsim
from dlsim.report._json import visible
from dlsim.report.updates import LIMIT, MAX_TENSORS

torch = pytest.importorskip("torch")


def rows(page: str) -> list[list[str]]:
    table = re.search(r"<table class=.sortable updates.>.*?<tbody>(.*?)</tbody>", page, re.S)
    assert table is not None
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in table[1].split("</tr>")]
    return [[html.unescape(re.sub("<[^>]*>", "", cell)) for cell in row] for row in cells if row]


def drawn(page: str) -> dict[str, Any]:
    return dict(unpacked(data_of(page)["updates"][0]))


def sections(page: str) -> list[str]:
    return re.findall(r'<section id="(\w+)"', page)


def recorded(folder: Path, steps: int = 30) -> Path:
    """Weights of 0.05 that AdamW moves by 1e-5 a step: bf16 holds nothing so near."""
    model = torch.nn.Linear(8, 8)
    torch.nn.init.constant_(model.weight, 0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    with dlsim.ProbeRecorder(model, folder / "run.dlprobe"):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(1, 8)).sum().backward()
            optimizer.step()
    return folder / "run.dlprobe"


def test_updates_alone_are_a_page(tmp_path: Path) -> None:
    page = write(tmp_path, updates())
    assert sections(page) == ["updates"]
    assert "<title>probe.dlprobe: updates</title>" in page
    for line in updates()["lines"]:
        assert html.escape(line) in page
    assert "128 elements of 2 tensors, 1\u202f000 updates of adamw (steps 1 to 1\u202f000)" in page
    first, second = rows(page)
    assert first[:5] == [
        *("bf16", "drifts", "Kahan summation or float32 master weights", "0.9", "0.1")
    ]
    assert first[5:] == ["90\u202f%", "5\u202f%", "1.5", "0", "3", "bf16", "bf16"]
    assert second[1:3] == ["sound", ""] and second[9] == ""
    found = drawn(page)
    assert found["limit"] == LIMIT and found["runs"] == ["bf16", "bf16, other 1"]
    assert found["points"][0] == [[0.9, 0.9, 0.05, 1.5, 0, 3]] * 2
    assert found["points"][1] == [[0.001, 0, 0.05, 1.5, 0, None]] * 2


def test_formats_of_a_setting_are_told(tmp_path: Path) -> None:
    document = updates()
    document["runs"][1] |= {"master": "fp32", "second": "fp32"}
    assert rows(write(tmp_path, document))[1][10:] == ["bf16, master fp32", "bf16, fp32"]


def test_the_section_follows_the_verdict(tmp_path: Path) -> None:
    page = write(tmp_path, replay(), updates(), read_trace=False)
    assert sections(page)[:2] == ["verdict", "updates"] and sections(page)[-1] == "about"


def test_of_many_tensors_those_that_drift_most_are_drawn(tmp_path: Path) -> None:
    names = [f"t{i}" for i in range(90)]
    document = updates(names)
    for i, tensor in enumerate(document["runs"][1]["tensors"]):
        tensor["drift"] = i / 10
    document["runs"][0]["tensors"][4] |= {"nonfinite": 2, "drift": None}
    for tensor in document["runs"][0]["tensors"]:
        tensor["drift"] = None
    found = drawn(write(tmp_path, document))
    assert found["tensors"] == ["t4", *(f"t{i}" for i in range(89, 90 - MAX_TENSORS, -1))]
    assert found["left"] == 90 - MAX_TENSORS
    assert found["points"][0][0][0] is None and found["points"][0][0][4] == 2


def test_hostile_names_are_text(tmp_path: Path) -> None:
    document = updates(HOSTILE, runs=len(HOSTILE))
    for run, name in zip(document["runs"], HOSTILE, strict=True):
        run["name"] = run["verdict"] = run["weights"] = name
        run["fixes"] = [name]
    document["lines"] = list(HOSTILE)
    document["probe"] |= {"path": HOSTILE[1], "optimizers": [HOSTILE[0]]}
    page = write(tmp_path, document)
    assert [row[0] for row in rows(page)] == [visible(name) for name in HOSTILE]
    assert "<img" not in page.split("<script>")[0] and "<b>bold" not in page.split("<script>")[0]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"runs": []}, "runs: empty, expected at least one"),
        ({"runs": [{"name": "a", "verdict": "sound"}]}, r"runs\[0\].tensors: missing or wrong"),
        (
            {"runs": [{"name": "a", "verdict": "sound", "tensors": [{}]}]},
            r"runs\[0\].tensors\[0\].tensor: missing or wrong, expected a text",
        ),
    ],
)
def test_damaged_results_are_one_line(tmp_path: Path, change: dict[str, Any], line: str) -> None:
    with pytest.raises(dlsim.InputError, match=line):
        write(tmp_path, updates() | change)


def test_missing_figures_are_empty_cells(tmp_path: Path) -> None:
    document = updates()
    document["runs"] = [{"name": "a", "verdict": "drifts", "tensors": [{"tensor": "w"}]}]
    page = write(tmp_path, {key: document[key] for key in ("schema", "runs")})
    assert rows(page) == [["a", "drifts", *[""] * 10]]
    assert drawn(page)["points"] == [[[None, None, None, None, 0, None]]]


def test_a_probe_is_replayed_by_the_report(tmp_path: Path) -> None:
    probe = recorded(tmp_path)
    dlsim.report(probe, tmp_path / "probe.html")
    shown = rows((tmp_path / "probe.html").read_text(encoding="utf-8"))
    result = dlsim.updates(probe, weights="bf16")
    dlsim.report(result, tmp_path / "result.html")
    asked = rows((tmp_path / "result.html").read_text(encoding="utf-8"))
    assert shown[0] == asked[0] and shown[0][:2] == ["bf16", "drifts"]
    assert [row[0] for row in asked] == [run["name"] for run in result.data["runs"]]
    assert float(asked[0][3]) == pytest.approx(result.data["runs"][0]["drift"], rel=1e-2)
