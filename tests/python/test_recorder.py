# SPDX-License-Identifier: Apache-2.0
"""The recorder records gradients as they are and leaves the training as it is."""

import dataclasses
import json
import os
import subprocess
import time
from pathlib import Path

import pytest
import torch
from recording import info, load, small_model, steps_in, train
from running import DLSIM
from torch import nn

import dlsim
from dlsim.recorder._output import HostCopies


def test_gradients_are_recorded_bit_for_bit_with_their_scale(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "run") as rec:
        rec.describe(data="noise")
        gradients = train(model, rec, 3, scale=1024.0)
    for step in range(3):
        tensors, metadata = load(tmp_path / "run", step)
        expected = {f"{name}.grad" for name in gradients[step]}
        assert tensors.keys() == expected | {f"{i}.act_grad" for i in range(3)}
        for name, gradient in gradients[step].items():
            assert torch.equal(tensors[f"{name}.grad"], gradient)
        assert metadata["grad_scale"] == "1024.0" and float(metadata["loss"]) > 0
    assert rec.report().steps == 3 and rec.errors == 0
    assert "data: noise" in info(tmp_path / "run")
    listed = json.loads((tmp_path / "run" / "trace.json").read_text())
    assert listed["steps"] == [0, 1, 2] and listed["model"] == "Sequential"


def test_training_is_the_same_with_and_without_recorder(tmp_path: Path) -> None:
    states = []
    for options in ({"every": range(1)}, {"activations": None}, {}, {"path": "run.profile"}):
        model = small_model()
        path = tmp_path / options.pop("path", f"run{len(states)}")
        with dlsim.Recorder(model, path, **options) as rec:
            train(model, rec, 4)
        assert rec.errors == 0
        assert not any(module._forward_hooks for module in model.modules())
        states.append(model.state_dict())
    for state in states[1:]:
        assert all(torch.equal(state[name], states[0][name]) for name in state)


def test_activation_gradients_are_those_of_module_outputs(tmp_path: Path) -> None:
    model = small_model()
    x = torch.randn(4, 6)
    hidden = model[0](x)
    hidden.retain_grad()
    before_relu = hidden.clone()
    output = model[2](model[1](before_relu))
    output.retain_grad()
    output.square().mean().backward()
    model.zero_grad()
    with dlsim.Recorder(model, tmp_path, gradients=None, activations=["?", "re"]) as rec:
        model(x).square().mean().backward()
        rec.step(scale=1.0)
    tensors, _ = load(tmp_path, 0)
    assert tensors.keys() == {"0.act_grad", "1.act_grad", "2.act_grad"}
    assert torch.equal(tensors["2.act_grad"], output.grad)
    assert torch.equal(tensors["0.act_grad"], hidden.grad)


@pytest.mark.parametrize("output", ["run", "run.profile"])
def test_activation_gradients_are_recorded_unless_they_are_turned_off(tmp_path, output) -> None:
    names = {}
    for off in ({}, {"activations": None}, {"activations": ()}):
        model = small_model()
        path = tmp_path / str(len(names)) / output
        with dlsim.Recorder(model, path, forward_every=0, **off) as rec:
            train(model, rec, 2)
        assert rec.errors == 0 and not rec.report().left_out
        names[str(off)] = {tensor.name for tensor in rec.report().tensors}
        assert ("act_grad" in info(path)) == (not off)
    every, none, empty = names.values()
    assert none == empty == {f"{i}.{kind}.grad" for i in (0, 2) for kind in ("weight", "bias")}
    assert every == none | {"0.act_grad", "1.act_grad", "2.act_grad"}


def test_a_tensor_that_several_modules_return_is_recorded_once(tmp_path: Path) -> None:
    inner = nn.Sequential(nn.Linear(3, 3), nn.Identity())
    model = nn.Sequential(inner, nn.ReLU(inplace=True), nn.Sequential(nn.Linear(3, 1)))
    with dlsim.Recorder(model, tmp_path, gradients=None, on_error="raise") as rec:
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            rec.step(scale=1.0)
    for step in range(2):
        assert load(tmp_path, step)[0].keys() == {"0.0.act_grad", "1.act_grad", "2.0.act_grad"}


def test_modules_that_take_no_hooks_are_left_out(tmp_path: Path) -> None:
    scripted = torch.jit.trace(nn.Linear(3, 3), torch.ones(2, 3))
    model = nn.Sequential(nn.Linear(3, 3), scripted, nn.Linear(3, 1))
    with dlsim.Recorder(model, tmp_path) as rec:
        model(torch.ones(2, 3)).sum().backward()
        rec.step(scale=1.0)
    assert rec.errors == 0
    tensors = load(tmp_path, 0)[0]
    assert {"0.act_grad", "1.weight.grad", "2.act_grad"} <= tensors.keys()
    refused = {"1.act_grad"} - tensors.keys()  # newer PyTorch takes them
    assert rec.report().left_out == dict.fromkeys(refused, "its module takes no hooks")


def test_calls_and_outputs_of_a_module_have_names(tmp_path: Path) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x):
            y = self.inner(self.inner(x))
            return {"a": 3 * y, "b": [2 * y, 3], "inner": y}

    model = Pair()
    with dlsim.Recorder(model, tmp_path, gradients=(), activations="*") as rec:
        for _ in range(2):
            out = model(torch.randn(2, 3))
            (out["a"].sum() + out["b"][0].sum()).backward()
            with torch.no_grad():
                model(torch.randn(2, 3))
            rec.step(scale=1.0)
    assert load(tmp_path, 1)[0].keys() == {
        "(root).act_grad",
        "(root).out1.act_grad",
        "inner.act_grad",
        "inner.call1.act_grad",
    }
    assert "act_grad" in info(tmp_path) and " grad " not in info(tmp_path)


def test_outputs_in_a_dataclass_are_recorded(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor
        hidden: list[torch.Tensor]

    class Model(nn.Linear):
        def forward(self, x):
            return Output(super().forward(x), [x])

    model = nn.Sequential(nn.Linear(3, 3), Model(3, 2))
    with dlsim.Recorder(model, tmp_path, gradients=None, forward_every=1) as rec:
        model(torch.ones(2, 3)).logits.sum().backward()
        rec.step(scale=1.0)
    assert rec.errors == 0
    assert load(tmp_path, 0)[0].keys() == {
        *("0.act_grad", "1.act_grad", "0.act", "1.act"),
    }


def test_other_element_types_and_layouts(tmp_path: Path) -> None:
    model = nn.ParameterDict(
        {
            "narrow": nn.Parameter(torch.ones(3, dtype=torch.float16)),
            "brain": nn.Parameter(torch.ones(3, dtype=torch.bfloat16)),
            "wide": nn.Parameter(torch.ones(3, dtype=torch.float64)),
            "complex": nn.Parameter(torch.ones(3, dtype=torch.complex64)),
            "strided": nn.Parameter(torch.ones(4, 3).t()),
            "unused": nn.Parameter(torch.ones(3)),
            "table": nn.Parameter(torch.ones(5, 2)),
        }
    )
    for name in ("narrow", "brain", "wide", "complex", "strided"):
        model[name].grad = model[name].detach() * 2
    model["table"].grad = torch.sparse_coo_tensor([[1, 1]], [[1.0, 2.0], [3.0, 4.0]], (5, 2))
    for path in (tmp_path / "run", tmp_path / "run.profile"):
        with dlsim.Recorder(model, path) as rec:
            rec.step(scale=1.0)
        assert rec.report().left_out == {
            "complex.grad": "has elements of type complex64",
            "unused.grad": "has no gradient in step 0",
        }
        assert rec.errors == 0
        assert "F64" in info(path) and "BF16" in info(path)
    tensors, _ = load(tmp_path / "run", 0)
    assert tensors["table.grad"][1].tolist() == [4.0, 6.0]
    assert tensors["strided.grad"].shape == (3, 4)


def test_several_models_have_prefixes(tmp_path: Path) -> None:
    models = {"generator": nn.Linear(2, 2), "critic": nn.Linear(2, 1)}
    with dlsim.Recorder(models, tmp_path, gradients="*.weight", activations="critic") as rec:
        models["critic"](models["generator"](torch.randn(3, 2))).sum().backward()
        rec.step(scale=1.0)
    assert load(tmp_path, 0)[0].keys() == {
        "generator.weight.grad",
        "critic.weight.grad",
        "critic.act_grad",
    }


@pytest.mark.parametrize("output", ["run", "run.profile"])
def test_micro_steps_are_recorded_alone(tmp_path: Path, output) -> None:
    model = small_model()
    micro_gradients = []
    with dlsim.Recorder(model, tmp_path / output, micro_steps=True, activations="2") as rec:
        for _ in range(2):
            model.zero_grad()
            before = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
            for _ in range(3):
                (model(torch.randn(4, 6)).square().mean() / 3 * 16).backward()
                rec.micro_step(scale=16.0, loss=0.5)
                micro_gradients.append(
                    {name: p.grad - before[name] for name, p in model.named_parameters()}
                )
                before = {name: p.grad.clone() for name, p in model.named_parameters()}
            rec.step()
    assert rec.errors == 0 and rec.report().steps == 2, rec.report()
    done = subprocess.run(
        [*DLSIM, "replay", tmp_path / output, "--json", "-", "--quiet", "--format", "fp16"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(json.loads(done.stdout)["runs"][0]["steps"]) == 2
    if output == "run":
        tensors, metadata = load(tmp_path / "run", 1, ".micro-02")
        assert metadata["micro_step"] == "2" and metadata["grad_scale"] == "16.0"
        for name, gradient in micro_gradients[5].items():
            assert torch.allclose(tensors[f"{name}.grad"], gradient, atol=1e-5)
        assert tensors["2.act_grad"].shape == (4, 2)


def test_a_step_whose_micro_step_failed_is_not_recorded(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, micro_steps=True) as rec:
        for scale in (1.0, float("inf"), 2.0):
            for micro in range(2):
                model(torch.randn(4, 6)).sum().backward()
                rec.micro_step(scale=scale if micro else 1.0)
            rec.step()
        rec.step()  # without micro-steps
        model(torch.randn(4, 6)).sum().backward()
        rec.micro_step(scale=1.0)  # never completed
    assert steps_in(tmp_path) == [0, 0, 2, 2]
    assert rec.errors == 2
    assert sorted(path.name for path in tmp_path.iterdir())[-1] == "trace.json"
    info(tmp_path)


def test_a_dry_run_lists_tensors_and_writes_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, sizes = small_model(), []
    for path in (None, tmp_path / "run.profile"):
        with dlsim.Recorder(model, path, activations=None, forward_every=0, shadow=None) as rec:
            for _ in range(2):
                train(model, rec)
                sizes.append(rec.report().bytes)
        if path is None:
            assert not list(tmp_path.iterdir())
            assert str(rec.report()).startswith("dry run: 2 steps, 4 tensors of 0.3 KiB per step")
            assert [(one.name, one.shape, one.dtype) for one in rec.report().tensors] == [
                ("0.weight.grad", (8, 6), "float32"),
                ("0.bias.grad", (8,), "float32"),
                ("2.weight.grad", (2, 8), "float32"),
                ("2.bias.grad", (2,), "float32"),
            ]
            assert rec.report().step_bytes == 4 * (48 + 8 + 16 + 2)
    dry, written = sizes[:2], sizes[2:]
    assert dry[1] - dry[0] == pytest.approx(written[1] - written[0], abs=64) and dry[0] > 100


def test_a_profile_answers_also_what_it_is_asked_for(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "a.b.profile", also=["mxfp8", 2e15, "2^4"]) as rec:
        train(model, rec)
        size = rec.report().bytes
    assert "mxfp8" in info(tmp_path / "a.b.profile")
    assert size == dlsim.open_profile(tmp_path / "a.b.profile").file_bytes
    dlsim.replay(
        tmp_path / "a.b.profile", formats=["fp16"], settings={"loss_scale": 2e15}, policies="static"
    )


@pytest.mark.parametrize("name", ["run", "run.profile"])
def test_an_output_is_described_before_its_first_step(tmp_path: Path, name: str) -> None:
    open_it = dlsim.open_profile if name.endswith(".profile") else dlsim.open_trace
    model, path = small_model(), tmp_path / name
    for existing in ("refuse", "replace", "continue"):
        with dlsim.Recorder(model, path, existing=existing, on_error="raise") as rec:
            rec.describe(model="small", data="noise")
            train(model, rec)
            with pytest.raises(dlsim.UsageError, match="describe: expected before the first step"):
                rec.describe(data="other")
        described = open_it(path).description
        assert (described["model"], described["data"]) == ("small", "noise")
        assert described["recorder"].startswith("dlsim ")
    with dlsim.Recorder(model, path, existing="continue") as rec:  # without the words
        train(model, rec)
    assert rec.errors == name.endswith(".profile")
    with dlsim.Recorder(model, tmp_path / "other") as rec:
        with pytest.raises(TypeError, match="describe: data: expected text, got int"):
            rec.describe(data=1)
        with pytest.raises(dlsim.UsageError, match="'files' is not free"):
            rec.describe(files="x")
        train(model, rec)
    assert rec.errors == 0


def test_time_and_bytes_are_reported(tmp_path: Path) -> None:
    model = small_model()
    began = time.perf_counter()
    with dlsim.Recorder(model, tmp_path / "run", activations=None) as rec:
        train(model, rec, 3)
        assert rec.report().bytes == sum(
            path.stat().st_size for path in (tmp_path / "run").glob("step-*")
        )
    report = rec.report()
    assert 0 < report.seconds < time.perf_counter() - began
    assert str(report).startswith(
        f"{os.fspath(tmp_path / 'run')}: 3 steps, 4 tensors of 0.3 KiB per step, "
        f"{report.bytes / 1024:.1f} KiB written, "
    )


def test_gradients_of_a_device_are_copied_with_one_synchronization(monkeypatch) -> None:
    """Stands in for CUDA: tensors that say they are there, and buffers that are not pinned."""

    class OnDevice(torch.Tensor):
        is_cuda = True

    empty, synchronized = torch.empty, []
    monkeypatch.setattr(torch.cuda, "synchronize", synchronized.append)

    def unpinned(*shape: int, pin_memory: bool, **options: object) -> torch.Tensor:
        assert pin_memory
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", unpinned)
    copies = HostCopies()
    found = {
        "a": torch.arange(6.0).reshape(2, 3).t().as_subclass(OnDevice),
        "b": torch.ones(4, dtype=torch.bfloat16).as_subclass(OnDevice),
        "c": torch.ones(2),
    }
    first = copies.take(found, {})
    assert len(synchronized) == 1
    for name, tensor in found.items():
        assert torch.equal(first[name], tensor) and first[name].is_contiguous()
        assert not first[name].is_cuda
    addresses = [first[name].data_ptr() for name in ("a", "b")]
    second = copies.take({**found, "b": torch.zeros(4).as_subclass(OnDevice)}, {})
    assert second["a"].data_ptr() == addresses[0] and second["b"].dtype == torch.float32
    assert len(synchronized) == 2


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"),
    reason="needs PyTorch 2.1 or later",
)
@pytest.mark.parametrize(
    ("optimizer", "trains"),
    [
        (lambda heads: torch.optim.SGD(heads.parameters(), 0.1, momentum=0.9), True),
        (lambda heads: torch.optim.Adam(heads.parameters()), False),
        (lambda heads: torch.optim.SGD([{"params": [one], "lr": 0.1 / (1 + i)} for i, one in
                                        enumerate(heads.parameters())], 0.1), False),
    ],
)  # fmt: skip
def test_gradients_that_hardly_move_a_parameter_do_not_count(tmp_path, optimizer, trains) -> None:
    heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(4))
    moves = optimizer(heads)
    with dlsim.Recorder(heads, tmp_path / "t", on_error="raise") as rec:
        for _ in range(3):
            x = torch.randn(4, 4)
            sum((head(x).mean() * 1e-6**i) ** 2 for i, head in enumerate(heads)).backward()
            rec.step(scale=1.0)
            moves.step()
    assert [load(tmp_path / "t", step)[1].get("descent") for step in (0, 2)] == [
        None,
        "SGD" if trains else None,
    ]
    fp16 = dlsim.replay(tmp_path / "t", quiet=True).verdict["fp16"]
    assert (fp16.verdict != "no scale serves") == trains
