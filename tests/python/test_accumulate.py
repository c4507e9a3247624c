# SPDX-License-Identifier: Apache-2.0
"""dlsim.accumulate against torch: every addition of 16-bit tensors."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import DLSIM
from safetensors.numpy import save_file

import dlsim

torch = pytest.importorskip("torch")

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
TRACES = Path(__file__).parents[1] / "data" / "traces"
TRACE = TRACES / "reg-diabetes-cut"
ELEMENTS = 240  # a multiple of each number of ranks


def write_ranks(directory: Path, ranks: int) -> np.ndarray:
    """Writes gradients with a mean of their own and noise, and returns them."""
    rng = np.random.default_rng(ranks)
    mean = rng.normal(size=ELEMENTS)
    values = (mean + rng.normal(size=(ranks, ELEMENTS))).astype(np.float32)
    for r in range(ranks):
        save_file({"w.grad": values[r]}, directory / f"step-00000001.rank-{r:05d}.safetensors")
    return values


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


ALGORITHMS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "ring": ring,
    "tree": tree,
}


@pytest.mark.parametrize("ranks", [2, 3, 5, 16])
def test_every_reduction_has_the_bits_of_torch(ranks: int, tmp_path: Path) -> None:
    values = write_ranks(tmp_path, ranks)
    exact = np.array([math.fsum(map(float, column)) / ranks for column in values.T])
    result = dlsim.accumulate(tmp_path, world_size=ranks, scale=1)
    assert len(result["runs"]) == 12
    for run in result["runs"]:
        before, after = (ranks, 1) if run["division"] == "before" else (1, ranks)
        sent = [torch.from_numpy(x).to(DTYPES[run["format"]]).div(before) for x in values]
        mean = ALGORITHMS[run["algorithm"]](sent).div(after).double().numpy()
        error = np.linalg.norm(mean - exact) / np.linalg.norm(exact)
        assert run["error"] == pytest.approx(error, rel=1e-7, abs=1e-16), run["name"]
        assert run["lost"] == np.mean(np.abs(mean - exact) > np.abs(exact) / 2)


# Printed by `dlsim accumulate` of the tag before-less: error and safe scale over 64 ranks, whose
# drawn ranks have other values.
BEFORE = {
    "bf16 ring before": (8.7e-3, None),
    "bf16 tree before": (4.2e-3, None),
    "fp16 ring before": (9.8e-4, 2**17),
    "fp16 ring after": (1.0e-3, 2**11),
    "fp16 tree before": (4.8e-4, 2**17),
    "fp32 ring before": (1.2e-7, None),
}


def test_drawn_ranks_have_about_the_figures_of_those_in_cpp() -> None:
    result = dlsim.accumulate(TRACES / "lm-kjv-accum-cut")
    runs = {run["name"]: run for run in result["runs"]}
    for name, (error, safe_scale) in BEFORE.items():
        assert runs[name]["error"] == pytest.approx(error, rel=0.25), name
        assert safe_scale is None or runs[name]["safe_scale"] == safe_scale, name
        assert runs[name]["overflows"] == (name == "fp16 ring after")
    assert result["based_on"] == "4 micro-steps taken as ranks"
    assert result["lines"][1].startswith("fp16 ring before over 64 ranks: error ")
    assert result["lines"][1].endswith(
        "Overflows at loss scale 2^16, divided after (safe up to 2^11)."
    )


def test_a_scale_is_safe_up_to_the_one_that_is_named() -> None:
    def runs(scale: float) -> list[dict[str, Any]]:
        found = dlsim.accumulate(TRACE, scale=scale, world_size=16)["runs"]
        return [run for run in found if run["format"] == "fp16"]

    for i, run in enumerate(runs(2.0**-110)):
        assert not run["overflows"]
        assert not runs(run["safe_scale"])[i]["overflows"]
        assert runs(run["safe_scale"] * 16)[i]["overflows"]


def test_256_and_1_in_bf16_is_lost(tmp_path: Path) -> None:
    for rank in range(512):
        values = np.array([256 if rank == 0 else 1, 1], np.float32)
        save_file({"w.grad": values}, tmp_path / f"step-00000001.rank-{rank:05d}.safetensors")
    runs = dlsim.accumulate(tmp_path, world_size=512)["runs"]
    (run,) = (run for run in runs if run["name"] == "bf16 ring after")
    # Ones add up to 256 and no further; the first element gets the other 256 at its last hop.
    off, exact = np.array([767 / 512 - 1, 0.5]), np.array([767 / 512, 1])
    assert run["error"] == pytest.approx(np.linalg.norm(off) / np.linalg.norm(exact), rel=1e-12)
    assert not run["overflows"]


def test_wrong_arguments_and_traces_are_one_line(tmp_path: Path) -> None:
    for wrong in ({"world_size": 1}, {"world_size": 513}, {"scale": 0}):
        with pytest.raises(dlsim.UsageError):
            dlsim.accumulate(TRACE, **wrong)
    save_file({"w.grad": np.ones(3, np.float32)}, tmp_path / "step-00000001.safetensors")
    with pytest.raises(dlsim.InputError, match="expected finite gradients of two ranks"):
        dlsim.accumulate(tmp_path)


def test_the_command_prints_what_the_function_returns(tmp_path: Path) -> None:
    def run(*words: Any) -> Any:
        return subprocess.run(
            [*DLSIM, "accumulate", *words], check=False, capture_output=True, text=True
        )

    told = run(TRACE, "--world-size", "4", "--scale", "8", "--json", tmp_path / "j")
    result = dlsim.accumulate(TRACE, world_size=4, scale=8)
    assert (told.returncode, told.stdout, told.stderr) == (0, result.report, "")
    assert json.loads((tmp_path / "j").read_text()) == result
    for code, words in ((2, [TRACE, "--world-size", "513"]), (3, [tmp_path / "none"])):
        failed = run(*words)
        assert (failed.returncode, failed.stderr.count("\n"), failed.stdout) == (code, 1, "")
        assert failed.stderr.startswith("dlsim accumulate: ")
