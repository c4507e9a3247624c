# SPDX-License-Identifier: Apache-2.0
"""dlsim.updates: the float32 replay has the recorded weights, recipes have those of torch.optim and
of published definitions, and the verdicts are what training shows."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import DLSIM

import dlsim

torch = pytest.importorskip("torch", minversion="2.4")  # older ones round otherwise in 16 bits

from dlsim import _updates  # noqa: E402  # needs no PyTorch, but its use here does
from dlsim._updates import add_with_kahan, round_stochastically  # noqa: E402

COUNT, STEPS = 4096, 40
TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {"lr": 1e-3, "weight_decay": 0.1}),
    "momentum": ("SGD", {"lr": 0.03, "momentum": 0.9, "weight_decay": 1e-3}),
    "adam": ("Adam", {"lr": 1e-4, "betas": (0.8, 0.99)}),
    "amsgrad": ("AdamW", {"lr": 1e-3, "amsgrad": True}),
    "nesterov": ("SGD", {"lr": 0.03, "momentum": 0.9, "nesterov": True, "foreach": True}),
    "adagrad": ("Adagrad", {"lr": 0.01}),
    "rmsprop": ("RMSprop", {"lr": 1e-3, "momentum": 0.5, "centered": True}),
    "nadam": ("NAdam", {"lr": 1e-3}),
    "adadelta": ("Adadelta", {}),
}


class One(torch.nn.Module):
    """A model of one parameter."""

    def __init__(self, count: int = COUNT) -> None:
        super().__init__()
        values = np.random.default_rng(1).normal(size=count).astype(np.float32)
        self.w = torch.nn.Parameter(torch.from_numpy(values))


def gradients(count: int = COUNT, steps: int = STEPS) -> Iterator[Any]:
    """Normal numbers of sizes from 1e-4 to 10."""
    rng = np.random.default_rng(2)
    sizes = 10.0 ** rng.uniform(-4, 1, size=count)
    drawn = rng.normal(size=(steps, count)) * sizes
    return iter(torch.from_numpy(drawn.astype(np.float32)))


def trained(name: str, folder: Path | None, dtype: Any = torch.float32, **how: Any) -> Any:
    """Trains, and records a float32 training."""
    kind, settings = TRAININGS[name]
    model = One().to(dtype)
    optimizer = getattr(torch.optim, kind)(model.parameters(), **{**settings, **how})
    recorder = None if folder is None else dlsim.ProbeRecorder(model, folder, elements=COUNT)
    for gradient in gradients():
        model.w.grad = gradient.to(dtype, copy=True)
        optimizer.step()
    if recorder is not None:
        recorder.close()
    return model.w.detach().float()


def replayed(probe: Path, recipe: _updates._Recipe, seed: int = 0) -> Any:
    """The weights that a recipe ends with."""
    found = _updates._updates_in(probe)
    run, plain = (_updates._Replay(one, found, seed) for one in (recipe, _updates._Recipe()))
    _updates._replay_all(found, [run], plain)
    return run.weights


@pytest.mark.parametrize("name", TRAININGS)
def test_float32_and_16_bits_are_those_of_training(name: str, tmp_path: Path) -> None:
    end = trained(name, tmp_path / "p")
    assert torch.equal(replayed(tmp_path / "p", _updates._Recipe()), end)
    assert dlsim.updates(tmp_path / "p")["probe"]["distance_from_recorded"] == 0
    for dtype, recipe in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
        narrow = trained(name, None, dtype)
        found = replayed(tmp_path / "p", _updates._Recipe(recipe, recipe))
        assert torch.equal(found.nan_to_num(7), narrow.nan_to_num(7)), recipe


# Printed by `dlsim updates` of the tag before-less, which had optimizers of its own, for the same
# trainings: verdict, drift, progress, share lost in percent. Stochastic rounding drew other bits.
BEFORE = {
    "adamw": {
        "bf16": ("drifts", 0.9427, 0.1413, 92.04),
        "bf16 + sr": ("drifts", 0.8804, 0.9667, 85.4),
        "bf16 + kahan": ("drifts", 0.2945, 1.009, 0.6763),
        "bf16, fp32 states": ("drifts", 0.9405, 0.1431, 92.21),
        "fp32 master, bf16 states": ("sound", 0.002574, 1, 0),
        "fp16": ("not finite", 0.5909, 0.6522, None),
    },
    "momentum": {
        "bf16": ("sound", 0.009502, 1.002, 53.02),
        "bf16 + sr": ("sound", 0.01175, 1.001, 49.5),
        "bf16 + kahan": ("sound", 0.003944, 1, 0.09766),
        "bf16, fp32 states": ("sound", 0.007647, 0.9996, 53.04),
        "fp32 master, bf16 states": ("sound", 0.003108, 1, 0),
        "fp16": ("sound", 0.001718, 1, 29.95),
    },
    "adam": {
        "bf16": ("drifts", 2.676, -0.0002348, 98.97),
        "bf16 + sr": ("drifts", 4.467, 0.9576, 97.16),
        "bf16 + kahan": ("drifts", 2.629, 0.3661, 1.865),
        "bf16, fp32 states": ("drifts", 2.676, -0.0001261, 98.97),
        "fp32 master, bf16 states": ("sound", 0.002614, 0.9999, 0),
        "fp16": ("not finite", 0.9719, 0.1635, None),
    },
}


@pytest.mark.parametrize("name", BEFORE)
def test_figures_are_those_of_the_replay_in_cpp(name: str, tmp_path: Path) -> None:
    trained(name, tmp_path / "p", foreach=False)
    result = dlsim.updates(tmp_path / "p")
    assert [run["name"] for run in result["runs"]] == list(BEFORE[name])
    for run in result["runs"]:
        verdict, drift, progress, lost = BEFORE[name][run["name"]]
        by_chance = run["rounding"] == "sr"
        assert run["verdict"] == verdict, run
        assert run["drift"] == pytest.approx(drift, rel=0.25 if by_chance else 0.005), run["name"]
        assert run["progress"] == pytest.approx(progress, abs=0.3 if by_chance else 0.001)
        if lost is not None:
            assert 100 * run["lost"] == pytest.approx(lost, rel=0.07), run["name"]
    first = result["lines"][0]
    share = {"adamw": "92 %", "momentum": "53 %", "adam": "99 %"}[name]
    assert first.startswith("bf16 drifts: the weights end away" if name != "momentum" else "bf16 f")
    assert first.endswith(f"; {share} of the updates are lost (first at update 0, w).")
    fix = "Float32 master weights would prevent this."
    assert (fix in result["lines"]) == (name != "momentum")
    assert result["runs"][-1]["nonfinite"] == {"adamw": 1661, "momentum": 0, "adam": 1273}[name]


def test_small_updates_need_stochastic_rounding_or_kahan(tmp_path: Path) -> None:
    """Steps of an eighth of half a unit: bf16 stays where it is, the others move as float32."""
    model = torch.nn.Linear(64, 64, bias=False)
    torch.nn.init.constant_(model.weight, 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-12)
    with dlsim.ProbeRecorder(model, tmp_path / "p", elements=4096):
        for _ in range(128):
            model.weight.grad = torch.full((64, 64), -1.0)
            optimizer.step()
    assert (model.weight == 1 + 2.0**-5).all()
    result = dlsim.updates(tmp_path / "p")
    bf16 = result["runs"][0]
    assert (bf16["progress"], bf16["lost"], bf16["first_lost"]) == (0, 1, 0)
    assert result["fixes"] == ["Kahan summation", "float32 master weights"]
    kahan = replayed(tmp_path / "p", _updates._Recipe("bf16", "bf16", "kahan"))
    assert (kahan == 1 + 2.0**-5).all()
    by_chance = replayed(tmp_path / "p", _updates._Recipe("bf16", "bf16", "sr"), seed=3)
    # Of each weight 128 steps of 2^-7 with a chance of 1/32: variance 3.9 of those steps.
    assert float(by_chance.mean()) == pytest.approx(
        1 + 2.0**-5, abs=5 * 2.0**-7 * (3.9 / 4096) ** 0.5
    )
    assert by_chance.unique().numel() > 5
    again = replayed(tmp_path / "p", _updates._Recipe("bf16", "bf16", "sr"), seed=3)
    assert torch.equal(again, by_chance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stochastic_rounding_is_right_in_the_mean(dtype: Any) -> None:
    eps, tiny = torch.finfo(dtype).eps, torch.finfo(dtype).smallest_normal
    ones = torch.tensor([1 + eps / 4, -1 - eps / 4, 1.5, -tiny * (1 + eps / 2), tiny * eps / 8, 0])
    rounded = round_stochastically(ones.repeat(1 << 14, 1), dtype, torch.Generator().manual_seed(0))
    assert torch.equal(rounded.to(dtype).float(), rounded)
    units = torch.tensor([eps, eps, eps, tiny * eps, tiny * eps, 1])
    mean = (rounded.double().mean(0) - ones.double()) / units.double()
    assert (mean.abs() < 5 * (0.25 / (1 << 14)) ** 0.5).all()
    assert rounded[:, 0].unique().tolist() == [1, 1 + eps]
    assert rounded[:, 1].unique().tolist() == [-1 - eps, -1]
    assert rounded[:, 4].unique().tolist() == [0, tiny * eps]
    assert (rounded[:, 2] == 1.5).all() and (rounded[:, 5] == 0).all()


def test_kahan_keeps_in_rest_what_rounding_takes() -> None:
    weights, rest = torch.ones(1), torch.zeros(1)
    for _ in range(4):
        weights = add_with_kahan(weights, torch.tensor([2.0**-10]), rest, torch.bfloat16)
        assert float(weights.double() + rest.double()) == 1 + 2.0**-10 * (_ + 1)


def loss_of(model: Any, step: int) -> Any:
    batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
    return model(batch).float().square().mean()


def test_groups_schedules_clipping_closures_and_gaps(tmp_path: Path) -> None:
    """With sampled elements and two optimizers; the float32 replay still has every weight."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 192), torch.nn.GELU(), torch.nn.Linear(192, 16))
    groups = [{"params": model[0].parameters(), "weight_decay": 0.1}, {"params": [model[2].weight]}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    second = torch.optim.SGD([model[2].bias], lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)

    def train(steps: range) -> None:
        for step in steps:
            model.zero_grad()
            loss_of(model, step).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            if step % 20 == 3:
                model[0].bias.grad = None
            optimizer.step(lambda step=step: loss_of(model, step) * 0)
            second.step()
            schedule.step()

    train(range(5))  # so that the recording begins with states
    with dlsim.ProbeRecorder(model, tmp_path / "p", elements=512) as rec:
        train(range(5, 30))
    assert rec.updates == 50 and rec.left_out == {}
    result = dlsim.updates(tmp_path / "p")
    facts = result["probe"]
    assert facts["distance_from_recorded"] < 1e-6  # ends of small tensors are computed otherwise
    assert (facts["tensors"], facts["elements"], facts["updates"]) == (4, 512 + 192 + 512 + 16, 50)
    assert facts["optimizers"] == ["AdamW", "SGD"]


def test_a_scaler_skips_and_a_closure_is_read_when_it_has_run(tmp_path: Path) -> None:
    model = One(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = (
        torch.amp.GradScaler("cpu", init_scale=4.0) if hasattr(torch.amp, "GradScaler") else None
    )
    with dlsim.ProbeRecorder(model, tmp_path / "p") as rec:

        def closure() -> float:
            model.w.grad = torch.full((64,), 0.25)
            return 0.0

        optimizer.step(closure)
        if scaler is not None:
            for value in (8.0, float("inf")):
                loss = scaler.scale((model.w * value).sum())
                model.zero_grad()
                loss.backward()
                scaler.step(optimizer)
                scaler.update()
    assert rec.updates == (1 if scaler is None else 2)
    from safetensors.torch import load_file

    files = sorted((tmp_path / "p").iterdir())
    read = [float(load_file(file)["gradients/w"][0]) for file in files]
    assert read == ([0.25] if scaler is None else [0.25, 8.0])


def test_a_replay_that_is_not_the_training_says_so(tmp_path: Path) -> None:
    model = One(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with dlsim.ProbeRecorder(model, tmp_path / "p"):
        for gradient in gradients(64, 12):
            model.w.grad = gradient
            optimizer.step()
            model.w.data.clamp_(-0.1, 0.1)
    lines = dlsim.updates(tmp_path / "p")["lines"]
    assert lines[-1].startswith("note: the float32 replay misses the recorded weights by ")


class Lion(torch.optim.Optimizer):
    """Steps by signs."""

    @torch.no_grad()
    def step(self, closure: Any) -> None:
        closure()
        for group in self.param_groups:
            for w in group["params"]:
                w.sub_(group["lr"] * w.grad.sign())


def test_what_samples_cannot_replay_is_left_out(tmp_path: Path) -> None:
    model = One(64)
    for optimizer in (Lion(model.parameters(), {"lr": 0.1}), torch.optim.LBFGS(model.parameters())):
        before, name = model.w.detach().clone(), type(optimizer).__name__
        rec = dlsim.ProbeRecorder(model, tmp_path / name)
        model.w.grad = torch.ones(64)
        optimizer.step(lambda: torch.zeros(()))
        assert not torch.equal(model.w, before)
        assert list(rec.left_out) == [name]
        with pytest.warns(UserWarning, match=r"no optimizer of torch\.optim has stepped"):
            rec.close()


def test_a_second_optimizer_of_a_parameter_ends_the_recording(tmp_path: Path) -> None:
    model = One(64)
    model.w.grad = torch.ones(64)
    with dlsim.ProbeRecorder(model, tmp_path / "p") as rec:
        torch.optim.SGD(model.parameters(), lr=0.5).step()
        before = model.w.detach().clone()
        with pytest.warns(UserWarning, match="w: a second optimizer updates it, expected one"):
            torch.optim.SGD(model.parameters(), lr=0.5).step()
        assert torch.equal(model.w, before - 0.5)
    assert rec.updates == 1 and dlsim.updates(tmp_path / "p")["probe"]["updates"] == 1


def test_wrong_arguments_and_files_are_one_line(tmp_path: Path) -> None:
    trained("adam", tmp_path / "p")
    with pytest.raises(dlsim.UsageError, match="exists, expected a new folder"):
        dlsim.ProbeRecorder(One(), tmp_path / "p")
    with pytest.raises(dlsim.UsageError, match="elements: expected at least 1"):
        dlsim.ProbeRecorder(One(), tmp_path / "q", elements=0)
    with pytest.warns(UserWarning, match=r"no optimizer of torch\.optim has stepped"):
        dlsim.ProbeRecorder(One(), tmp_path / "q").close()
    with pytest.raises(dlsim.UsageError, match="weights: expected one of fp32, bf16, fp16"):
        dlsim.updates(tmp_path / "p", weights="fp61")
    with pytest.raises(dlsim.UsageError, match="rounding: float32 weights need none"):
        dlsim.updates(tmp_path / "p", weights="fp32", rounding="sr")
    file = min((tmp_path / "p").iterdir())
    whole = file.read_bytes()
    for damage in (b"", whole[:100], whole[:-9], whole.replace(b"weights/w", b"weightz/w")):
        file.write_bytes(damage)
        with pytest.raises(dlsim.InputError, match="not a file of a probe, or damaged"):
            dlsim.updates(tmp_path / "p")
    file.write_bytes(whole.replace(b"dlsim.probe/2", b"dlsim.probe/9"))
    with pytest.raises(dlsim.InputError, match=r"expected the schema dlsim\.probe/2"):
        dlsim.updates(tmp_path / "p")
    with pytest.raises(dlsim.InputError, match=r"no update-\*"):
        dlsim.updates(tmp_path)


def test_a_recording_that_fails_lets_the_training_go_on(tmp_path: Path) -> None:
    model = One(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rec = dlsim.ProbeRecorder(model, tmp_path / "p")
    (tmp_path / "p").write_text("in the way")
    model.w.grad = torch.ones(64)
    before = model.w.detach().clone()
    with pytest.warns(UserWarning, match="the recording has ended"):
        optimizer.step()
    rec.close()
    assert torch.equal(model.w, before - 0.5)


def test_the_command_prints_what_the_function_returns(tmp_path: Path) -> None:
    trained("momentum", tmp_path / "p")

    def run(*words: Any) -> Any:
        return subprocess.run(
            [*DLSIM, "updates", *words], check=False, capture_output=True, text=True
        )

    told = run(tmp_path / "p", "--weights", "bf16", "--states", "fp32", "--json", tmp_path / "j")
    result = dlsim.updates(tmp_path / "p", weights="bf16", states="fp32")
    assert (told.returncode, told.stdout, told.stderr) == (0, result.report, "")
    assert json.loads((tmp_path / "j").read_text()) == result
    assert dlsim.read_result(tmp_path / "j").tables == ["runs"]
    for code, words in ((2, ["--set", "lr=1"]), (2, ["--rounding", "up"]), (3, [])):
        failed = run(tmp_path / "p" if code == 2 else tmp_path, *words)
        assert (failed.returncode, failed.stderr.count("\n"), failed.stdout) == (code, 1, "")
        assert failed.stderr.startswith("dlsim updates: ")
