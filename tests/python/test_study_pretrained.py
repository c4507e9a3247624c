# SPDX-License-Identifier: Apache-2.0
"""A trained network fails in 16 bits where the command says, and only then."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "study"))

import pretrained
import pretrained_runs
import pretrained_tables

PAGE = Path(__file__).parents[2] / "docs" / "pretrained.md"


def test_the_page_shows_the_kept_results() -> None:
    tables = pretrained.tables().split("\n\n")
    networks, said, larger = (table.splitlines() for table in tables)
    assert f"\n\n{tables[1]}\n\n" in PAGE.read_text()
    assert len(networks) == 2 + 7 and len(said) == 2 + 14 and len(larger) == 2 + 26


@pytest.fixture(scope="module")
def detector():
    if not hasattr(torch, "set_autocast_dtype"):
        pytest.skip("needs PyTorch 2.4 or later")
    if importlib.util.find_spec("silero_vad") is None:
        pytest.skip("needs silero-vad")
    known = pretrained.NETWORKS["silero"]
    return known.load(), known.inputs()[:6]


def test_hears_a_voice_and_no_noise(detector) -> None:
    network, chunks = detector
    noise = 0.1 * torch.randn(chunks.shape, generator=torch.Generator().manual_seed(0))
    assert pretrained_runs.run(network, chunks).output[1:].min() > 0.5
    assert pretrained_runs.run(network, noise).output.max() < 0.5


@pytest.mark.parametrize("recipe", pretrained.RECIPES)
def test_fails_where_the_command_says(detector, recipe) -> None:
    """One binade above the largest input that fits, in the operation named, in fp16 alone."""
    larger = pretrained.Larger("silero", recipe, *detector)
    binades = pretrained.first(lambda one: larger.failure(one) is not None, pretrained.LARGEST)
    assert larger.said(0).state == "fits" and larger.said(binades - 1).state == "fits"
    above = larger.said(binades)
    assert above.state == "overflows"
    assert pretrained_tables.is_at(above.first, larger.failure(binades))
    for format in ("bf16", "cb16"):
        network, chunks = detector
        found = pretrained_runs.run(network, chunks * 2.0**binades, recipe, format)
        assert all(found.finite)


@pytest.mark.parametrize("recipe", pretrained.RECIPES)
def test_emulation_computes_what_torch_computes(detector, recipe) -> None:
    float32 = pretrained_runs.run(*detector)
    real, emulated = (
        pretrained_runs.run(*detector, recipe, "fp16", emulated=emulated)
        for emulated in (False, True)
    )
    assert real.error(float32) < 0.003
    assert real.error(emulated) < real.error(float32) + emulated.error(float32)


def test_weights_are_put_back(detector) -> None:
    network, chunks = detector
    before = pretrained_runs.run(network, chunks).output
    with pretrained_runs.enlarged(network.conv1, 12):
        assert not all(pretrained_runs.run(network, chunks, "autocast", "fp16").finite)
    assert torch.equal(pretrained_runs.run(network, chunks).output, before)


def test_kept_results_are_those_of_today(detector) -> None:
    kept = pretrained_tables.read(pretrained.KEPT, pretrained_tables.Judged)
    expected = {(row.recipe, row.format): row for row in kept if row.network == "silero"}
    for row in pretrained.judged("silero"):
        before = expected.pop((row.recipe, row.format))
        assert (row.state, row.tensor, row.failed) == (before.state, before.tensor, before.failed)
        assert abs(float(row.headroom) - float(before.headroom)) < 0.05
    assert not expected
