# SPDX-License-Identifier: Apache-2.0
"""The bundled trace t5-stream: what dlsim says of it, who made it, and whether training agrees."""

from __future__ import annotations

import math
import runpy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bundled_traces import TRACES

import dlsim

torch = pytest.importorskip("torch", reason="needs PyTorch")

TRACE = TRACES / "t5-stream"
MAKER = str(TRACES / "make_t5_stream.py")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small train several times faster so where processors are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def assert_verdicts(trace: Path) -> None:
    verdict = dlsim.replay(trace).verdict
    assert verdict is not None and not verdict.parameters_only
    fp16, bf16, cb16 = (verdict[name] for name in ("fp16", "bf16", "cb16"))
    assert fp16.verdict == "fails in forward" and fp16.forward.first is not None
    assert (fp16.forward.first.step, fp16.forward.first.tensor) == (0, "block.0.wo.act")
    assert 1.2e6 < fp16.forward.first.absmax < 1.3e6
    overflowing = [one.tensor for one in fp16.forward.overflowing]
    if fp16.shadow is None:  # before PyTorch 2.3, then nothing tells what autocast has in float32
        overflowing = [name for name in overflowing if name.endswith(".wo.act")]
    assert overflowing == ["block.0.wo.act", "block.1.wo.act"]
    assert fp16.values.state == bf16.forward.state == cb16.forward.state == "fits"
    assert bf16.verdict == "as is" and bf16.scale == 1
    assert cb16.verdict == "with a scale" and cb16.window is not None
    assert 1 < cb16.window[0] <= 2**6 and cb16.window[1] >= 2**40


def test_one_format_fails_one_needs_a_scale_and_one_trains() -> None:
    assert_verdicts(TRACE)
    assert sum(file.stat().st_size for file in TRACE.iterdir()) < 300_000


def test_its_maker_records_it_again(tmp_path: Path) -> None:
    runpy.run_path(MAKER)["record"](str(tmp_path / "again"))
    kept, again = dlsim.open_trace(TRACE), dlsim.open_trace(tmp_path / "again")
    assert kept.steps == again.steps == (0, 60, 120, 180, 240)
    assert [sorted(step.names) for step in kept] == [sorted(step.names) for step in again]
    first, repeated = kept.step(0).tensors, again.step(0).tensors
    for name in first:  # later steps part, since another PyTorch sums in another order
        scale = float(np.abs(first[name]).max())
        np.testing.assert_allclose(repeated[name], first[name], rtol=1e-3, atol=1e-4 * scale)
    assert_verdicts(tmp_path / "again")


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="needs PyTorch 2.3 or later")
def test_training_agrees() -> None:
    train = runpy.run_path(MAKER)["train"]
    float32, _ = train(0, "float32", 1.0)
    fp16, skipped = train(0, "fp16", 2.0**16)
    assert math.isnan(fp16) and skipped > 100
    assert train(0, "bf16", 1.0) == (pytest.approx(float32, abs=0.03), 0)
    assert train(0, "cb16", 2.0**4) == (pytest.approx(float32, abs=0.03), 0)
    assert train(0, "cb16", 1.0)[0] > float32 + 0.2
