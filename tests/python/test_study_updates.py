# SPDX-License-Identifier: Apache-2.0
"""What training with weights in bf16 was found to do: the page, and a part of it trained again."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "study"))

import row_files
import updates
import updates_tables

PAGE = Path(__file__).parents[2] / "docs" / "updates.md"
FINE = next(iter(updates.TRAININGS))
NEW = pytest.mark.skipif(
    not hasattr(torch, "set_autocast_dtype"), reason="needs PyTorch 2.4 or later"
)


def test_the_page_shows_the_kept_results() -> None:
    rows = row_files.read(updates.KEPT, updates_tables.Row)
    table = updates_tables.report(rows)
    assert len(table.splitlines()) == 2 + len(updates.TRAININGS) * len(updates.VARIANTS)
    shown = updates_tables.those_that_ended_worse(rows)
    assert f"\n\n{shown}\n\n" in PAGE.read_text()
    left_out = [line for line in table.splitlines() if line not in shown.splitlines()]
    assert len(left_out) == 11  # as the page says
    assert all(line.endswith("| sound | right | right |") for line in left_out)


def test_stochastic_rounding_is_right_in_the_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.tensor([1 + 2.0**-9, -(1 + 2.0**-9), 1.5]).repeat(4096, 1)
    rounded = updates.stochastic(values, generator)
    assert torch.equal(rounded.bfloat16().float(), rounded)
    up = (rounded[:, 0] > 1).double().mean()
    assert abs(up - 0.25) < 5 * (0.25 * 0.75 / 4096) ** 0.5
    assert rounded[:, 0].unique().tolist() == [1, 1 + 2.0**-7]
    assert rounded[:, 1].unique().tolist() == [-1 - 2.0**-7, -1]
    assert (rounded[:, 2] == 1.5).all()


@NEW
def test_kahan_keeps_what_rounding_takes() -> None:
    """Updates of a sixteenth of half a unit are lost but for the compensation."""
    ends = []
    for kahan in (True, False):
        network = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(network.weight)
        optimizer = (
            updates.Stored(network, _sgd, "bf16 + kahan", 0)
            if kahan
            else _sgd(network.bfloat16().parameters())
        )
        for _ in range(64):
            network.weight.grad = torch.full((1, 1), -(2.0**-12), dtype=torch.bfloat16)
            optimizer.step()
        ends.append(float(network.weight.detach()))
    assert ends == [1 + 2.0**-6, 1]


def _sgd(weights) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=1.0)


@NEW
def test_a_slice_gives_the_kept_results() -> None:
    kept = {
        row.variant: row
        for row in row_files.read(updates.KEPT, updates_tables.Row)
        if row.training == FINE
    }
    rows = updates.rows_of(FINE, [0], list(updates.VARIANTS)[:3])
    assert len(rows) == 4
    for row in rows:
        before = kept[row.variant]
        assert row.verdict == before.verdict
        assert row.values() == pytest.approx(before.values()[:1], rel=0.02)
