# SPDX-License-Identifier: Apache-2.0
"""What to change: the parts to keep in float32, from recordings of models that fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundled_traces import TRACES

import dlsim

torch: Any = pytest.importorskip("torch", reason="needs PyTorch")
nn = torch.nn
pytestmark = pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="needs PyTorch 2.3, to run steps in fp16"
)
WIDTH, BATCH = 8, 16


class Feed(nn.Module):
    """Two layers, of which the second reaches `size`."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.wi, self.wo = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            self.wo.weight.mul_(size)

    def forward(self, x: Any) -> Any:
        return self.wo(torch.relu(self.wi(x)))


class Stream(nn.Module):
    """Blocks of which some overflow fp16, and a head that is given `last` of what they reach."""

    def __init__(self, sizes: tuple[float, ...], last: Callable[[Any], Any]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in sizes)
        self.blocks = nn.ModuleList(map(Feed, sizes))
        self.head = nn.Linear(WIDTH, 1)
        self.last = last

    def forward(self, x: Any) -> Any:
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x))
        return self.head(self.last(x))


class Attention(nn.Module):
    """Scores of its own, which overflow, between projections that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        with torch.no_grad():
            self.q.weight.mul_(3e3)
            self.k.weight.mul_(3e3)

    def forward(self, x: Any) -> Any:
        scores = self.q(x) @ self.k(x).transpose(-1, -2)
        return self.out((scores / 1e7).softmax(-1) @ x)


class Squares(nn.Module):
    """A norm by hand, which squares what it is given."""

    def forward(self, x: Any) -> Any:
        return x / (x * x).mean(-1, keepdim=True).sqrt()


class Towers(nn.Module):
    """Two towers whose outputs have units that are far apart."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Feed(1), Feed(1)

    def forward(self, x: Any) -> Any:
        return self.a(x), self.b(x)


def recorded(
    path: Path, model: Any, loss_of: Callable[[Any, Any], Any] | None = None, shape: Any = (BATCH,)
) -> Path:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    with dlsim.Recorder(model, path, forward_every=1, every=1) as recorder:
        for _ in range(4):
            optimizer.zero_grad()
            x = torch.randn(*shape, WIDTH, generator=generator)
            output = model(x)
            loss = loss_of(output, x) if loss_of else (output.float() - x[..., :1]).square().mean()
            loss.backward()
            recorder.step(loss=loss, scale=1)
            optimizer.step()
    return path


def fp16_of(path: Path, **options: Any) -> Any:
    verdict = dlsim.replay(path, formats=["fp16"], quiet=True, **options).verdict
    assert verdict is not None
    return verdict["fp16"], str(verdict)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_keeps_what_overflows_and_nothing_else(tmp_path: Path) -> None:
    norm = nn.LayerNorm(WIDTH)
    model = Stream((1e6, 1, 1e6), norm)
    path = recorded(tmp_path / "run.profile", model)
    fp16, text = fp16_of(path)
    assert fp16.verdict == "fails in forward"
    change = fp16.change
    assert change.keep_float32 == ["blocks.0.wo", "blocks.2.wo"]
    assert change.because[0] == "blocks.0.wo.act"
    assert change.then == "with a scale" and change.window[0] <= change.scale <= change.window[1]
    assert 2 / 8 < change.share < 2 / 6 and change.checked and change.steps == 4
    assert change.sources[0].startswith("test_change.py:")
    assert "Keep blocks.0.wo and blocks.2.wo in float32" in text
    assert "dlsim.keep_float32(model, ['blocks.0.wo', 'blocks.2.wo'])" in text


def test_the_plan_holds_where_it_is_recorded_and_in_training(tmp_path: Path) -> None:
    model = Stream((1e6, 1), nn.LayerNorm(WIDTH))
    change = fp16_of(recorded(tmp_path / "run.profile", model))[0].change
    x = torch.randn(BATCH, WIDTH)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        dlsim.keep_float32(model, change.keep_float32),
    ):
        assert model.blocks[0].wo(x).dtype == torch.float32
    dlsim.keep_float32(model, change.keep_float32)
    again = fp16_of(recorded(tmp_path / "kept.profile", model))[0]
    assert again.verdict == change.then and again.change is None


def test_what_the_next_module_copies_is_kept_as_well(tmp_path: Path) -> None:
    fp16, _ = fp16_of(recorded(tmp_path / "run.profile", Stream((1e6, 1), lambda x: x / 4)))
    assert fp16.change.keep_float32 == ["blocks.0.wo", "head"]


def test_operations_of_a_module_are_named_with_their_line(tmp_path: Path) -> None:
    model = nn.Sequential(Attention(), nn.Linear(WIDTH, 1))
    fp16, text = fp16_of(recorded(tmp_path / "run.profile", model, shape=(BATCH, 4)))
    assert fp16.verdict == "fails in forward"
    assert fp16.change.keep_float32 == ["0/matmul"]
    assert "Keep 0/matmul (test_change.py:" in text
    dlsim.keep_float32(model, fp16.change.keep_float32)
    again = fp16_of(recorded(tmp_path / "kept.profile", model, shape=(BATCH, 4)))[0]
    assert again.verdict != "fails in forward"


def test_a_norm_by_hand_is_kept_whole(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Squares(), nn.Linear(WIDTH, 1))
    with torch.no_grad():
        model[0].weight.mul_(1e3)
    fp16, text = fp16_of(recorded(tmp_path / "run.profile", model))
    assert fp16.change.keep_float32 == ["1"] and fp16.change.share == 0
    assert "none of the multiplications" in text


def test_one_of_two_towers_is_kept(tmp_path: Path) -> None:
    def loss_of(outputs: Any, x: Any) -> Any:
        a, b = outputs
        return (a.float() * 1e6 - 1e6 * x).square().sum() + (1e-6 * (b.float() - x)).square().mean()

    path = recorded(tmp_path / "run.profile", Towers(), loss_of)
    fp16, text = fp16_of(path)
    assert fp16.verdict == "no scale serves" and fp16.window is None
    change = fp16.change
    assert change.keep_float32 in (["a"], ["b"]) and 0.4 < change.share < 0.6
    assert change.then in ("as is", "with a scale") and change.window is not None
    assert "fails in backward" in text and f"Keep {change.keep_float32[0]} in float32" in text
    then, what_if = fp16_of(path, float32=list(change.keep_float32))
    assert then.verdict == change.then and then.window == change.window
    assert f"Judged as if {change.keep_float32[0]} stayed in float32." in what_if


def test_what_if_parts_were_in_float32(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.profile", Stream((1e6, 1, 1e6), nn.LayerNorm(WIDTH)))
    assert fp16_of(path, float32=["blocks.0.wo"])[0].change.keep_float32 == ["blocks.2.wo"]
    assert fp16_of(path, float32=["blocks.*.wo"])[0].verdict == "with a scale"
    with pytest.raises(dlsim.UsageError, match=r"--float32: no module of the recording matches"):
        dlsim.replay(path, float32=["block.0"], quiet=True)


def test_no_part_helps_where_all_overflows(tmp_path: Path) -> None:
    fp16, text = fp16_of(recorded(tmp_path / "run.profile", Feed(1e9)))
    assert fp16.verdict == "fails in forward" and fp16.change is not None
    whole = nn.Sequential(nn.Linear(WIDTH, 1))
    with torch.no_grad():
        whole[0].weight.mul_(1e9)
    fp16, text = fp16_of(recorded(tmp_path / "whole.profile", whole))
    assert fp16.change is None
    assert "No part of the model was found that helps" in text


def test_of_a_healthy_model_nothing_is_to_be_changed(tmp_path: Path) -> None:
    fp16, text = fp16_of(recorded(tmp_path / "run.profile", Feed(1)))
    assert fp16.change is None and fp16.instead is None and "Keep" not in text


def test_the_bundled_t5(capfd: pytest.CaptureFixture[str]) -> None:
    verdict = dlsim.replay(TRACES / "t5-stream", quiet=True).verdict
    assert verdict is not None
    change = verdict["fp16"].change
    assert change is not None and change.keep_float32 == ["block.0.wo", "block.1.wo"]
    assert verdict["fp16"].instead == "use bf16"


def test_damaged_figures_of_steps_are_one_line(tmp_path: Path) -> None:
    from dlsim.traces._writer import TraceWriter

    with TraceWriter(tmp_path / "run", {}) as writer:
        tensors = {"a.act": torch.full((4,), 1e6), "a.weight.grad": torch.ones(4)}
        writer.write(0, tensors, {"grad_scale": "1", "shadow": '{"fp16": 3}'})
    with pytest.raises(dlsim.InputError, match=r"^shadow: damaged, expected .* got "):
        dlsim.replay(tmp_path / "run", quiet=True)


def test_tune_hands_out_no_scaler_where_none_helps(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.profile", Stream((1e6, 1), nn.LayerNorm(WIDTH)))
    result = dlsim.tune(path, formats=["fp16"], quiet=True)
    (of_format,) = result["formats"]
    assert of_format["verdict"] == "no scale helps"
    assert of_format["recommended"] is of_format["static"] is None
    assert not any(of_format["config"].values())
    assert "GradScaler" not in str(result) and "keep_float32" in str(result.verdict)
    for target in ("torch", "deepspeed", "trainer", "accelerate"):
        arguments = ["tune", str(path), "--format", "fp16", "--emit", target]
        ended = subprocess.run(
            [sys.executable, "-m", "dlsim", *arguments], capture_output=True, text=True, check=False
        )
        assert ended.returncode == 1 and ended.stderr == ""
        lines = ended.stdout.splitlines()
        assert all(line.startswith(("# ", "// ")) for line in lines)
        assert "No loss scale helps." in lines[0] and "keep_float32" in lines[-1]
    after = dlsim.tune(path, formats=["fp16"], float32=["blocks.0.wo"], quiet=True)
    assert after["formats"][0]["recommended"]["params"]


def test_report_and_picture_show_no_safe_band_where_none_helps(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    path = recorded(tmp_path / "run.profile", Stream((1e6, 1), nn.LayerNorm(WIDTH)))
    result = dlsim.replay(path, formats=["fp16"], quiet=True)
    assert not any(trace.fill for trace in result.plot().data)
    dlsim.report(path, formats=["fp16"], output=tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "fails in forward: no loss scale helps" in page
    assert "grade good" not in page and "card good" not in page and "use 2<sup>" not in page
    assert "Keep blocks.0.wo in float32" in page
