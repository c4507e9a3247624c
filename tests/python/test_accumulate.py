# SPDX-License-Identifier: Apache-2.0
"""dlsim.accumulate against torch: every addition of 16-bit tensors, and a real all-reduce."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import dlsim

torch = pytest.importorskip("torch")

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ELEMENTS = 240  # a multiple of each number of ranks


def write_ranks(directory: Path, ranks: int) -> np.ndarray:
    """Writes gradients with a mean of their own and noise, and returns them."""
    rng = np.random.default_rng(ranks)
    mean = rng.normal(size=ELEMENTS)
    values = (mean + rng.normal(size=(ranks, ELEMENTS))).astype(np.float32)
    for r in range(ranks):
        save_file({"w.grad": values[r]}, directory / f"step-00000001.rank-{r:05d}.safetensors")
    return values


def divisors(ranks: int, division: str) -> tuple[int, float]:
    if division == "before":
        return ranks, 1
    if division == "after":
        return 1, ranks
    before = 1
    while ranks % before == 0 and ranks / before > before:
        before *= 2
    return before, ranks / before


def ring(sent: Sequence[Any]) -> Any:
    chunks = [x.chunk(len(sent)) for x in sent]
    sums = []
    for c in range(len(sent)):
        total = chunks[(c + 1) % len(sent)][c]
        for hop in range(1, len(sent)):
            total = total + chunks[(c + 1 + hop) % len(sent)][c]
        sums.append(total)
    return torch.cat(sums)


def tree_from(sent: Sequence[Any], at: int) -> Any:
    total = sent[at]
    for child in range(1, len(sent)):
        bit = child & -child
        parent = (child ^ bit) | (bit << 1)
        if parent >= len(sent):
            parent = child ^ bit
        if parent == at:
            total = total + tree_from(sent, child)
    return total


def tree(sent: Sequence[Any]) -> Any:
    other = sent[::-1] if len(sent) % 2 == 0 else [*sent[1:], sent[0]]
    half = ELEMENTS // 2
    return torch.cat([tree_from(sent, 0)[:half], tree_from(other, 0)[half:]])


def all_to_all(sent: Sequence[Any]) -> Any:
    total = sent[0].float()
    for x in sent[1:]:
        total = total + x.float()
    return total.to(sent[0].dtype)


ALGORITHMS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "ring": ring,
    "tree": tree,
    "all-to-all": all_to_all,
}


def differences(values: np.ndarray, orders: Any, name: str) -> np.ndarray:
    """The differences from float64, a row for each order."""
    dtype, algorithm, division = name.split()
    before, after = divisors(len(values), division)
    sent = [torch.from_numpy(x).to(DTYPES[dtype]).div(before) for x in values]
    rows = []
    for order in orders:
        mean = ALGORITHMS[algorithm]([sent[r] for r in order]).div(after)
        rows.append(mean.double().numpy() - values.astype(np.float64).mean(axis=0))
    return np.array(rows)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 16])
def test_every_reduction_has_the_bits_of_torch(ranks: int, tmp_path: Path) -> None:
    values = write_ranks(tmp_path, ranks)
    norm = np.linalg.norm(values.astype(np.float64).mean(axis=0))
    result = dlsim.accumulate(
        tmp_path,
        formats=list(DTYPES),
        algorithms=list(ALGORITHMS),
        world_size=ranks,
        elements=ELEMENTS,
        scale=1,
    )
    assert len(result.data["runs"]) == 27
    orders = list(itertools.permutations(range(ranks))) if ranks <= 4 else [range(ranks)]
    for run in result.data["runs"]:
        found = differences(values, orders, run["name"])
        assert run["error"] == pytest.approx(np.linalg.norm(found[0]) / norm, rel=1e-9), run
        if ranks <= 4:
            low, high = np.abs(found).min(axis=0), np.abs(found).max(axis=0)
            assert run["low"] == pytest.approx(np.linalg.norm(low) / norm, rel=1e-9), run
            assert run["high"] == pytest.approx(np.linalg.norm(high) / norm, rel=1e-9), run
        assert run["low"] <= run["error"] <= run["high"] <= run["certain"]


def reduce_by_gloo(values: np.ndarray, directory: Path) -> np.ndarray:
    np.save(directory / "values.npy", values)
    script = Path(__file__).with_name("gloo_run.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(len(values)), directory],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(len(values))
    ]
    errors = [rank.communicate(timeout=300)[1] for rank in ranks]
    if any("scalar type" in error for error in errors):
        pytest.skip("the Gloo of this PyTorch has no bf16")
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), errors
    return np.load(directory / "reduced.npy").astype(np.float64)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_gloos_all_reduce_is_a_ring_in_another_order(ranks: int, tmp_path: Path) -> None:
    traced, outside = tmp_path / "trace", tmp_path / "gloo"
    traced.mkdir()
    outside.mkdir()
    values = write_ranks(traced, ranks)
    reduced = reduce_by_gloo(values, outside)
    exact = values.astype(np.float64).mean(axis=0)
    every = differences(values, itertools.permutations(range(ranks)), "bf16 ring before") + exact
    assert (every == reduced).any(axis=0).all()
    run = dlsim.accumulate(
        traced,
        formats="bf16",
        algorithms="ring",
        divide="before",
        world_size=ranks,
        elements=ELEMENTS,
    ).data["runs"][0]
    error = np.linalg.norm(reduced - exact) / np.linalg.norm(exact)
    assert run["low"] * (1 - 1e-9) <= error <= run["high"] * (1 + 1e-9)
