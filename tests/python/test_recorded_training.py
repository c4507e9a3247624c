# SPDX-License-Identifier: Apache-2.0
"""What a real training's scaler did is what a replay of its recording finds, step by step."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from running import DLSIM
from torch import nn

import dlsim

STEPS = 120
CONTEXT = 8
TEXT = (Path(__file__).parents[2] / "LICENSE").read_bytes()


@dataclass
class Live:
    """What the training loop saw in one step."""

    scale: float
    next_scale: float
    skipped: bool
    norm: float  # of the unscaled gradients that are recorded
    half_norm: float  # of those in half precision
    underflow: int


def language_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Embedding(128, 16),
        nn.Flatten(),
        nn.Linear(16 * CONTEXT, 64),
        nn.LayerNorm(64),
        nn.GELU(),
        nn.Linear(64, 128),
    )


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    data = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
    at = torch.randint(0, len(data) - CONTEXT - 1, (32,), generator=generator)
    windows = torch.stack([data[i : i + CONTEXT + 1] for i in at])
    return windows[:, :-1], windows[:, -1]


def norm_of(model: nn.Module) -> float:
    return sum(float(p.grad.double().square().sum()) for p in model.parameters()) ** 0.5


def to_half(model: nn.Module) -> int:
    """Rounds gradients to float16, as a half-precision backward stores them; counts underflow."""
    lost = 0
    for parameter in model.parameters():
        half = parameter.grad.half()
        lost += int(((half == 0) & (parameter.grad != 0)).sum())
        parameter.grad.copy_(half)
    return lost


def train(path: Path, policy: str, settings: dict[str, str], *, record_half: bool, **options):
    """Trains with float16 gradients under a dlsim.LossScaler, recording each step."""
    model = language_model(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = dlsim.LossScaler(policy, settings, "fp16")
    generator = torch.Generator().manual_seed(2)
    live, losses = [], []
    with dlsim.Recorder(model, path, every=1, on_error="raise", **options) as rec:
        for _ in range(STEPS):
            x, y = batch(generator)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            scale = scaler.scale
            (loss * scale).backward()
            if record_half:
                lost = to_half(model)
            rec.step(loss=loss, scale=scale)
            norm = norm_of(model) / scale
            if not record_half:
                lost = to_half(model)
            finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
            reciprocal = torch.tensor(1.0) / torch.tensor(scale)
            for parameter in model.parameters():
                parameter.grad *= reciprocal
            half_norm = norm_of(model)
            skipped = scaler.next(not finite)["skip"]
            if not skipped:
                optimizer.step()
            live.append(Live(scale, scaler.scale, skipped, norm, half_norm, lost))
            losses.append(float(loss))
    assert rec.report().steps == STEPS and rec.errors == 0
    return live, losses


def replayed(path: Path, policy: str, settings: dict[str, str]) -> list[dict]:
    options = [f"--set={key}={value}" for key, value in settings.items()]
    if not path.suffix:  # clipping looks at the values, and at the norm of what is converted
        options.append("--max-gradient-norm=1e30")
    done = subprocess.run(
        [
            *(*DLSIM, "replay", path, "--format=fp16", f"--policy={policy}"),
            *options,
            *("--json", "-", "--quiet"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["runs"][0]["steps"]


def expect_same(steps: list[dict], live: list[Live], relative: float) -> None:
    assert [step["scale"] for step in steps] == [seen.scale for seen in live]
    assert [step["next_scale"] for step in steps] == [seen.next_scale for seen in live]
    assert [step["skipped"] for step in steps] == [seen.skipped for seen in live]
    assert [step["finite"] for step in steps] == [not seen.skipped for seen in live]
    for step, seen in zip(steps, live, strict=True):
        if seen.skipped:
            continue
        assert step["grad_norm"] == pytest.approx(seen.norm, rel=relative)
        if "converted_grad_norm" in step:
            assert step["converted_grad_norm"] == pytest.approx(seen.half_norm, rel=relative)


POWERS_OF_TWO = [
    ("torch", {"init_scale": "1048576", "growth_interval": "10"}),
    ("deepspeed", {"init_scale": "2^18", "scale_window": "8", "delayed_shift": "2"}),
]


def expect_nearly(one: object, other: object) -> None:
    """Expects the same but for float64 sums, which tensors in another order change."""
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys()
        for key in one.keys() - {"worst_harm_tensor"}:  # of equal ones the first
            expect_nearly(one[key], other[key])
    elif isinstance(one, list) and isinstance(other, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            expect_nearly(*pair)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-12)
    else:
        assert one == other


@pytest.mark.parametrize("output", ["trace", "run.profile"])
@pytest.mark.parametrize(("policy", "settings"), POWERS_OF_TWO)
def test_replay_takes_the_path_of_the_live_scaler(tmp_path, policy, settings, output) -> None:
    live, losses = train(tmp_path / output, policy, settings, record_half=False)
    skipped = sum(seen.skipped for seen in live)
    assert 5 <= skipped < STEPS / 2 and losses[-1] < losses[0]
    steps = replayed(tmp_path / output, policy, settings)
    expect_same(steps, live, 1e-12)
    # A scale that is a power of two changes no bit of what is rounded.
    assert [step["underflow"] for step in steps] == [seen.underflow for seen in live]


@pytest.mark.parametrize("output", ["trace", "run.profile"])
def test_gradients_that_overflowed_while_training_overflow_again(tmp_path, output) -> None:
    policy, settings = POWERS_OF_TWO[0]
    live, _ = train(tmp_path / output, policy, settings, record_half=True)
    assert any(seen.skipped for seen in live)
    expect_same(replayed(tmp_path / output, policy, settings), live, 1e-12)


def test_scales_that_are_no_powers_of_two(tmp_path) -> None:
    settings = {"initial_loss_scale": "2e7", "steps_per_increase": "10"}
    live, _ = train(tmp_path / "trace", "cerebras", settings, record_half=False)
    assert 2e7 in [seen.scale for seen in live] and any(seen.skipped for seen in live)
    # Unscaling and scaling again rounds twice in float32: half a unit of its last place each.
    expect_same(replayed(tmp_path / "trace", "cerebras", settings), live, 1e-6)


def test_losses_and_scales_are_written_down(tmp_path) -> None:
    policy, settings = POWERS_OF_TWO[0]
    live, losses = train(tmp_path / "trace", policy, settings, record_half=False)
    from safetensors import safe_open

    for step in (0, STEPS - 1):
        with safe_open(tmp_path / "trace" / f"step-{step:08d}.safetensors", "pt") as file:
            metadata = file.metadata()
        assert float(metadata["loss"]) == losses[step]
        assert float(metadata["grad_scale"]) == live[step].scale
        assert metadata["step"] == str(step)


def test_a_profile_recorded_directly_answers_as_one_of_the_trace(tmp_path) -> None:
    policy, settings = POWERS_OF_TWO[0]
    train(tmp_path / "trace", policy, settings, record_half=False)
    train(tmp_path / "direct.profile", policy, settings, record_half=False, forward_every=0)
    subprocess.run(
        [*DLSIM, "profile", tmp_path / "trace", "-o", tmp_path / "made.profile", "--quiet"],
        check=True,
    )
    direct = replayed(tmp_path / "direct.profile", policy, settings)
    made = replayed(tmp_path / "made.profile", policy, settings)
    assert len(direct) == STEPS
    expect_nearly(direct, made)
