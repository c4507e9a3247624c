# SPDX-License-Identifier: Apache-2.0
"""dlsim.updates against torch.optim on 16-bit parameters, bit for bit, and against the published
definitions of stochastic rounding and Kahan summation, by distribution."""

from __future__ import annotations

import copy
import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlsim
from dlsim._core import run_command

torch = pytest.importorskip("torch", minversion="2.4")  # older ones compute in another order

STEPS = 40
COUNT = 4096
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# The lowest learning rate leaves most updates of a 16-bit weight without effect.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {"lr": 1e-3, "weight_decay": 0.1, "eps": 1e-4}),
    "amsgrad": ("AdamW", {"lr": 1e-3, "amsgrad": True, "eps": 1e-4}),
    "adam": ("Adam", {"lr": 1e-4, "betas": (0.8, 0.99), "eps": 1e-4}),
    "tensor_betas": ("Adam", {"betas": (torch.tensor(0.87), torch.tensor(0.95)), "eps": 1e-4}),
    "adafactor": ("Adafactor", {"lr": 0.01, "weight_decay": 0.1}),
    "adam_l2": ("Adam", {"lr": 1e-2, "weight_decay": 0.01, "eps": 1e-4}),
    "sgd": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.03, "momentum": 0.9, "weight_decay": 1e-3}),
    "nesterov": ("SGD", {"lr": 0.03, "momentum": 0.9, "nesterov": True}),
}


class Followed(torch.nn.Module):
    """A parameter whose gradient is what the caller passes."""

    def __init__(self, count: int) -> None:
        super().__init__()
        values = torch.from_numpy(np.random.default_rng(1).normal(size=count).astype(np.float32))
        self.w = torch.nn.Parameter(values)

    def forward(self, gradient: Any) -> Any:
        return (self.w * gradient).sum()


def gradients(count: int, steps: int) -> list[Any]:
    """Normal numbers of sizes from 1e-4 to 10."""
    rng = np.random.default_rng(2)
    sizes = 10.0 ** rng.uniform(-4, 1, size=count)
    drawn = rng.normal(size=(steps, count)) * sizes
    return list(torch.from_numpy(drawn.astype(np.float32)))


def recorded(
    path: Path, name: str, count: int = COUNT, steps: int = STEPS, *, foreach: bool = False
) -> Path:
    """Records the float32 training."""
    kind, settings = OPTIMIZERS[name]
    model = Followed(count)
    optimizer = getattr(torch.optim, kind)(model.parameters(), foreach=foreach, **settings)
    probe = path / f"{name}.dlprobe"
    with dlsim.ProbeRecorder(model, probe, elements=count):
        for gradient in gradients(count, steps):
            optimizer.zero_grad()
            model(gradient).backward()
            optimizer.step()
    return probe


def replayed(probe: Path, **how: Any) -> dict[str, np.ndarray]:
    """Where the run that is asked for ends: columns of its rows."""
    elements = probe.with_suffix(".csv")
    result = dlsim.updates(probe, elements=elements, **how)
    with elements.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["run"] == result.data["runs"][0]["name"]]
    assert [int(row["index"]) for row in rows] == list(range(len(rows)))
    return {
        name: np.array([row[name] or "nan" for row in rows], dtype=np.float32)
        for name in ("weight", "first", "second")
    }


COLUMNS = {
    "exp_avg": "first",
    "momentum_buffer": "first",
    "exp_avg_sq": "second",
    "variance": "second",
}
KERNELS = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
WITHOUT = {("tensor_betas", "foreach"), ("tensor_betas", "fused"), ("adafactor", "fused")}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_moments_are_those_of_torch(
    name: str, dtype: str, kernel: str, tmp_path: Path
) -> None:
    kind, settings = OPTIMIZERS[name]
    if (name, kernel) in WITHOUT:
        pytest.skip("PyTorch has no such kernel")
    if dtype == "fp32" and kind != "SGD":
        pytest.skip("torch's float32 square roots may be off by one unit in the last place")
    start = Followed(COUNT).w.detach().to(DTYPES[dtype])
    weights = torch.nn.Parameter(start.clone())
    optimizer = getattr(torch.optim, kind)([weights], **KERNELS[kernel], **settings)
    for gradient in gradients(COUNT, STEPS):
        weights.grad = gradient.to(DTYPES[dtype], copy=True)  # foreach=True writes to it
        optimizer.step()
    ends = replayed(
        recorded(tmp_path, name, foreach=kernel == "foreach"),
        weights=dtype,
        states=dtype,
        gradients=dtype,
        kernel="fused" if kernel == "fused" else "foreach",
    )
    assert not torch.equal(weights, start)
    np.testing.assert_array_equal(ends["weight"], weights.detach().float().numpy())
    for state, values in optimizer.state[weights].items():
        column = COLUMNS.get(state)
        if column and values is not None:
            np.testing.assert_array_equal(ends[column], values.float().numpy())


def rounded_by_chance(values: Any) -> Any:
    """bf16 by 16 random bits that are added below its last bit, which then are cut off."""
    noise = torch.randint(0, 1 << 16, values.shape, dtype=torch.int32)
    return ((values.view(torch.int32) + noise) & -65536).view(torch.float32)


class AdamWInBf16:
    """AdamW in float32 on weights and moments that are kept in bf16."""

    def __init__(self, weights: Any, lr: float, weight_decay: float, eps: float) -> None:
        self.lr, self.decay, self.eps = lr, weight_decay, eps
        self.weights = weights.to(torch.bfloat16).float()
        self.first, self.second = torch.zeros_like(weights), torch.zeros_like(weights)
        self.rest = torch.zeros_like(weights)
        self.steps = 0

    def update(self, gradient: Any) -> Any:
        """Moves the moments; returns what is to be added to the weights."""
        gradient = gradient.to(torch.bfloat16).float()
        self.steps += 1
        first = self.first + 0.1 * (gradient - self.first)
        second = 0.999 * self.second + 0.001 * gradient * gradient
        self.first, self.second = (x.to(torch.bfloat16).float() for x in (first, second))
        root = (second / (1 - 0.999**self.steps)).sqrt() + self.eps
        step = self.lr * first / (1 - 0.9**self.steps) / root
        return -self.lr * self.decay * self.weights - step

    def by_chance(self, gradient: Any) -> None:
        self.weights = rounded_by_chance(self.weights + self.update(gradient))

    def compensated(self, gradient: Any) -> None:
        self.rest = (self.rest + self.update(gradient)).to(torch.bfloat16).float()
        moved = (self.weights + self.rest).to(torch.bfloat16).float()
        self.rest = (self.rest + (self.weights - moved)).to(torch.bfloat16).float()
        self.weights = moved


SEEDS = 64


def test_stochastic_rounding_has_the_distribution_of_its_definition(tmp_path: Path) -> None:
    count, steps = 512, 30
    probe = recorded(tmp_path, "adamw", count, steps)
    how = {"lr": 1e-3, "weight_decay": 0.1, "eps": 1e-4}
    mine, theirs = [], []
    for seed in range(SEEDS):
        ends = replayed(probe, weights="bf16", states="bf16", rounding="sr", seed=seed)
        mine.append(ends["weight"])
        torch.manual_seed(seed)
        defined = AdamWInBf16(Followed(count).w.detach(), **how)
        for gradient in gradients(count, steps):
            defined.by_chance(gradient)
        theirs.append(defined.weights.numpy())
    a, b = np.array(mine, dtype=np.float64), np.array(theirs, dtype=np.float64)
    variance = (a.var(axis=0, ddof=1) + b.var(axis=0, ddof=1)) / SEEDS
    moving = variance > 0
    assert moving.mean() > 0.99
    z = (a.mean(axis=0) - b.mean(axis=0))[moving] / np.sqrt(variance[moving])
    # Of n normal numbers: the mean within 4 / sqrt(n) of 0, that of squares 4 sqrt(2 / n) of 1.
    assert abs(np.mean(z)) < 4 / np.sqrt(len(z))
    assert abs(np.mean(z * z) - 1) < 4 * np.sqrt(2 / len(z)) + 2 / SEEDS
    ratio = a.var(axis=0, ddof=1)[moving].mean() / b.var(axis=0, ddof=1)[moving].mean()
    assert abs(ratio - 1) < 4 * np.sqrt(4 / (SEEDS - 1) / len(z))


def test_kahan_summation_is_its_definition(tmp_path: Path) -> None:
    """The order of float32 operations is free: hardly any weight may end at a neighbor."""
    count, steps = 4096, 60
    probe = recorded(tmp_path, "adamw", count, steps)
    ends = replayed(probe, weights="bf16", states="bf16", compensation="kahan")
    defined = AdamWInBf16(Followed(count).w.detach(), lr=1e-3, weight_decay=0.1, eps=1e-4)
    for gradient in gradients(count, steps):
        defined.compensated(gradient)
    expected = defined.weights.numpy()
    assert np.mean(ends["weight"] != expected) < 0.01
    np.testing.assert_allclose(ends["weight"], expected, rtol=2**-7, atol=1e-4)


class FusedAdam(torch.optim.Optimizer):
    """Adam with the settings of DeepSpeed's and Apex's class of this name."""

    def __init__(self, parameters: Any, adam_w_mode: bool, bias_correction: bool) -> None:
        settings = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.3}
        super().__init__(parameters, {**settings, "bias_correction": bias_correction})
        self.adam_w_mode, self.steps = int(adam_w_mode), 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        for group in self.param_groups:
            lr, decay, corrects = group["lr"], group["weight_decay"], group["bias_correction"]
            for w in group["params"]:
                state = self.state.setdefault(w, {"exp_avg": w * 0, "exp_avg_sq": w * 0})
                gradient = w.grad if self.adam_w_mode else w.grad + decay * w
                first = state["exp_avg"].lerp_(gradient, 0.1)
                second = state["exp_avg_sq"].lerp_(gradient * gradient, 0.01)
                if self.adam_w_mode:
                    w.mul_(1 - lr * decay)
                a, b = (1 - beta**self.steps if corrects else 1 for beta in group["betas"])
                w.sub_(lr / a * first / ((second / b).sqrt() + group["eps"]))


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("adam_w_mode", [False, True])
def test_adam_of_deepspeed_is_what_its_settings_say(
    adam_w_mode: bool, bias_correction: bool, tmp_path: Path
) -> None:
    model = Followed(512)
    optimizer = FusedAdam(model.parameters(), adam_w_mode, bias_correction)
    with dlsim.ProbeRecorder(model, tmp_path / "a.dlprobe", elements=512):
        for gradient in gradients(512, 101):  # the values come again before the last
            optimizer.zero_grad()
            model(gradient).backward()
            optimizer.step()
    result = dlsim.updates(tmp_path / "a.dlprobe", weights="bf16")
    assert result.data["probe"]["distance_from_recorded"] < 1e-4
    assert result.data["runs"][0]["kernel"] == "fused"
    _, text, _, _ = run_command([b"updates", bytes(tmp_path / "a.dlprobe")])
    assert "\nCheck: after 100 of 101 updates, the float32 replay reproduces the recorded" in text


class SGD(torch.optim.Optimizer):
    """Steps by signs, under a name of PyTorch's."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for w in group["params"]:
                w.sub_(group["lr"] * w.grad.sign())


def test_a_replay_that_is_not_the_training_says_so(tmp_path: Path) -> None:
    model = Followed(64)
    with dlsim.ProbeRecorder(model, tmp_path / "a.dlprobe"):
        optimizer = SGD(model.parameters(), {"lr": 0.01})
        for gradient in gradients(64, 12):
            optimizer.zero_grad()
            model(gradient).backward()
            optimizer.step()
    lines = dlsim.updates(tmp_path / "a.dlprobe").data["lines"]
    assert lines[-1].startswith("note: the float32 replay misses the recorded weights by ")


@pytest.mark.parametrize("resumed", [False, True])
def test_a_new_optimizer_begins_without_states(tmp_path: Path, resumed: bool) -> None:
    model, path = Followed(64), tmp_path / "a.dlprobe"
    rec = dlsim.ProbeRecorder(model, path)
    kept = []
    for make in (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adam):
        kept.append(make(model.parameters(), lr=0.1))  # the earlier ones with their states
        for gradient in gradients(64, 15):
            kept[-1].zero_grad()
            model(gradient).backward()
            kept[-1].step()
        if resumed and len(kept) == 2:
            rec.close()
            rec = dlsim.ProbeRecorder(model, path, existing="continue", first_step=30)
    rec.close()
    assert len(dlsim.open_probe(path)) == 45
    assert dlsim.updates(path).data["probe"]["distance_from_recorded"] < 1e-6


@pytest.mark.parametrize("change", ["clear", "load"])
def test_states_that_are_replaced_are_seen(tmp_path: Path, change: str) -> None:
    model, path = Followed(64), tmp_path / "a.dlprobe"
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with dlsim.ProbeRecorder(model, path):
        for step, gradient in enumerate(gradients(64, 30)):
            optimizer.zero_grad()
            model(gradient).backward()
            if step == 1:
                early = copy.deepcopy(optimizer.state_dict())
            elif step == 15 and change == "clear":
                optimizer.state.clear()
            elif step == 15:
                optimizer.load_state_dict(early)  # which is not followed
            optimizer.step()
    result = dlsim.updates(path).data
    is_noted = any(line.startswith("note: the float32 replay") for line in result["lines"])
    assert is_noted == (change == "load")
    assert is_noted or result["probe"]["distance_from_recorded"] < 1e-6


def test_adafactor_of_matrices_is_rough(tmp_path: Path) -> None:
    for shape, notes in ((64,), 0), ((8, 8), 1):
        weights = torch.nn.ParameterDict({"w": torch.ones(shape)})
        optimizer = torch.optim.Adafactor(weights.parameters())
        path = tmp_path / f"{notes}.dlprobe"
        with dlsim.ProbeRecorder(weights, path):
            for gradient in gradients(64, 3):
                weights["w"].grad = gradient.reshape(shape)
                optimizer.step()
        lines = dlsim.updates(path).data["lines"]
        assert sum(line.startswith("note: Adafactor keeps") for line in lines) == notes


def test_a_result_has_verdict_and_tables(tmp_path: Path) -> None:
    probe = recorded(tmp_path, "adamw", 512)
    result = dlsim.updates(probe)
    assert result.data["lines"][0].startswith("bf16 drifts: ")
    assert repr(result).startswith(result.data["lines"][0])
    assert result.verdict is None  # that of a loss scale
    names = [run["name"] for run in result.data["runs"]]
    assert names[0] == "bf16" and "fp32 master, bf16 states" in names
    assert list(result.to_frame("runs")["name"]) == names
    bf16 = result.data["runs"][0]
    assert bf16["lost"] > 0 and bf16["updates"] == 512 * STEPS
