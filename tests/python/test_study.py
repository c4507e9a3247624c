# SPDX-License-Identifier: Apache-2.0
"""The study of docs/accuracy.md: the pages show its kept results, and a part of it gives them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

PROJECT = Path(__file__).parents[2]
sys.path.insert(0, str(PROJECT / "tools" / "study"))

import study  # noqa: E402


@pytest.mark.parametrize(
    "path, page, head",
    [
        (study.KEPT, "accuracy", "| format | recorded |"),
        (study.KEPT, "accuracy", "| model | format | wrong how |"),
        (study.SCALED, "scaled-formats", "| format | right |"),
    ],
)
def test_the_pages_show_the_kept_results(path: Path, page: str, head: str) -> None:
    tables = study.report(study.read(path)).split("\n\n")
    (table,) = (table for table in tables if table.startswith(head))
    assert len(table.splitlines()) > 3
    assert f"\n\n{table}\n\n" in (PROJECT / "docs" / f"{page}.md").read_text()


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="needs PyTorch 2.3 or later")
def test_a_model_is_judged_and_trained_as_it_was_and_the_advice_helps(tmp_path, capsys) -> None:
    assert study.check(["labels_300000"]) == 0
    assert "4 trainings, 0 differences" in capsys.readouterr().out
    rows = study.study(["labels_1e-8"], ["fp16"], 2, tmp_path / "rows.csv")
    assert study.read(tmp_path / "rows.csv") == rows
    float32, fp16 = (study.values(row.errors) for row in rows)
    advised = study.values(rows[1].advised)
    assert rows[1].fails and rows[1].keep and (fp16 > 10 * float32).all()
    assert (advised < 1.05 * float32).all()


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="needs PyTorch 2.3 or later")
def test_steps_that_are_run_tell_what_no_figure_of_a_recording_does() -> None:
    said = study.shadow(["attention_massive", "router_1"])
    assert said.endswith("\n\n6 right")
    assert "| attention_massive | fp16 | fp16 fails: 8 of 8 steps have a loss that is not" in said
    assert ": matmul in block.0, in float32 with operands up to" in said
    assert "| attention_massive | bf16 | bf16 fails: all 8 steps are finite." in said
