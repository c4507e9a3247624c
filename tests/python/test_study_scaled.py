# SPDX-License-Identifier: Apache-2.0
"""What training in formats with scales of their own was found to do: the page, and a part again."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "study"))

import row_files
import scaled
import scaled_tables

PAGE = Path(__file__).parents[2] / "docs" / "scaled-formats.md"
ROWS = row_files.read(scaled.KEPT, scaled_tables.Row)


def test_the_page_shows_the_kept_results() -> None:
    table = scaled_tables.report(ROWS)
    assert len(table.splitlines()) == 2 + len(scaled.MODELS) * len(scaled.FORMATS)
    assert f"\n\n{scaled_tables.summary(ROWS)}\n\n" in PAGE.read_text()


def test_all_trainings_in_four_bits_end_worse_and_the_lines_say_so() -> None:
    float32 = {row.model: np.mean(row.values()) for row in ROWS if row.format == "float32"}
    for row in ROWS:
        if row.format in ("mxfp4", "nvfp4"):
            assert np.mean(row.values()) > float32[row.model]
        if row.format != "float32":
            assert (row.verdict == "as is") == row.format.startswith(("fp8", "mxfp8"))


def test_a_converted_layer_is_torchs_own_where_nothing_is_lost() -> None:
    layer = torch.nn.Linear(32, 32)
    values, weights, factors = (torch.randint(-5, 6, (64, 32)).float() for _ in range(3))
    with torch.no_grad():
        layer.weight.copy_(weights[:32])

    def gradients() -> list[torch.Tensor]:
        layer.zero_grad()
        (layer(values) * factors).sum().backward()
        return [parameter.grad.clone() for parameter in layer.parameters()]

    expected = gradients()
    with scaled.converted(layer, "mxfp8"):
        found = gradients()
    assert all(map(torch.equal, found, expected))
    with scaled.converted(layer, "mxfp4:rule=up"):
        assert not all(map(torch.equal, gradients(), expected))


def test_a_training_ends_as_it_was_kept() -> None:
    kept = next(row for row in ROWS if row.model == "t5_200" and row.format == "nvfp4")
    found = scaled.train("t5_200", 0, "nvfp4")
    assert found == pytest.approx(kept.values()[0], rel=0.05)
