# SPDX-License-Identifier: Apache-2.0
"""The recorder records what is selected, as it is, and never disturbs the training."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

import dlsim
from dlsim._binary import command_path
from dlsim.recorder import Selection, selections_of_config


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))


def train(model: nn.Module, rec: dlsim.Recorder, steps: int = 1, scale: float = 8.0) -> list[dict]:
    """Trains and returns the gradients of each step."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 6)).square().mean()
        (loss * scale).backward()
        rec.step(loss=loss, scale=scale)
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
        optimizer.step()
    return gradients


def load(path: Path, step: int, suffix: str = "") -> tuple[dict, dict]:
    with safe_open(path / f"step-{step:08d}{suffix}.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def steps_in(path: Path) -> list[int]:
    return [int(name.name[5:13]) for name in sorted(path.glob("step-*.safetensors"))]


def info(path: Path) -> str:
    done = subprocess.run(
        [command_path(), "info", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_gradients_are_recorded_bit_for_bit_with_their_scale(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "run", description={"data": "noise"}) as rec:
        gradients = train(model, rec, 3, scale=1024.0)
    for step in range(3):
        tensors, metadata = load(tmp_path / "run", step)
        assert tensors.keys() == {f"{name}.grad" for name in gradients[step]}
        for name, gradient in gradients[step].items():
            assert torch.equal(tensors[f"{name}.grad"], gradient)
        assert metadata["grad_scale"] == "1024.0" and float(metadata["loss"]) > 0
    assert rec.report().steps == 3 and rec.errors == 0
    assert "data: noise" in info(tmp_path / "run")
    listed = json.loads((tmp_path / "run" / "trace.json").read_text())
    assert listed["steps"] == [0, 1, 2] and listed["model"] == "Sequential"


def test_training_is_the_same_with_and_without_recorder(tmp_path: Path) -> None:
    states = []
    for options in ({"end": 0}, {"activations": "*"}, {"path": "run.dlprof", "activations": "*"}):
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


def test_calls_and_outputs_of_a_module_have_names(tmp_path: Path) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x):
            y = self.inner(self.inner(x))
            return {"a": y, "b": [2 * y, 3]}

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


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"gradients": "0.*"}, {"0.weight.grad", "0.bias.grad"}),
        ({"gradients": ["*.bias"]}, {"0.bias.grad", "2.bias.grad"}),
        ({"gradients": re.compile(r"^[02]\.w")}, {"0.weight.grad", "2.weight.grad"}),
        ({"gradients": "2.*", "exclude": "*.bias"}, {"2.weight.grad"}),
        ({"gradients": (), "activations": "1"}, {"1.act_grad"}),
        (
            {"activations": re.compile("[12]"), "gradients": "2.bias", "exclude": "2"},
            {"2.bias.grad", "1.act_grad"},
        ),
    ],
)
def test_tensors_are_selected_by_name(tmp_path: Path, options, names) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, **options) as rec:
        train(model, rec)
    assert load(tmp_path, 0)[0].keys() == names


def test_steps_are_selected(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, every=3, start=2, end=9) as rec:
        train(model, rec, 14)
    assert steps_in(tmp_path) == [3, 6, 9]
    with dlsim.Recorder(model, tmp_path / "later", every=5, first_step=100) as rec:
        train(model, rec, 7)
    assert steps_in(tmp_path / "later") == [100, 105]


def test_nothing_is_read_in_steps_that_are_not_selected(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, every=2, activations="*") as rec:
        train(model, rec, 1)
        out = model(torch.randn(4, 6))
        assert out._backward_hooks is None
        rec.step(scale=float("nan"))  # not selected: not even looked at
    assert rec.errors == 0 and steps_in(tmp_path) == [0]


def test_given_step_numbers_are_used(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path) as rec:
        model(torch.randn(4, 6)).sum().backward()
        for step in (10, 20, 21):
            rec.step(scale=1.0, step=step)
        rec.step(scale=1.0)
    assert steps_in(tmp_path) == [10, 20, 21, 22]


CONFIG = """
first:
  enabled: True
  layers:
    layer_name_regex_pattern: .*(0|2)
  transformer_engine:
    LogTensorStats:
      enabled: True
      tensors: [activation, wgrad, weight]
      stats: [max]
      freq: 2
      start_step: 2
      end_step: 4
second:
  layers:
    layer_name_regex_pattern: "1"
  transformer_engine:
    DumpTensors:
      enabled: True
      tensors_struct:
        - tensor: gradient
      start_end_list: [[0, 0], [4, 5]]
third:
  enabled: False
  layers: {layer_types: [fc]}
"""


def test_a_configuration_of_dlfw_inspect_selects(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "run", config=str(tmp_path / "config.yaml")) as rec:
        train(model, rec, 8)
    assert steps_in(tmp_path / "run") == [0, 2, 4, 5]
    parameters = {"0.weight.grad", "0.bias.grad", "2.weight.grad", "2.bias.grad"}
    assert load(tmp_path / "run", 0)[0].keys() == {"1.act_grad"}
    assert load(tmp_path / "run", 2)[0].keys() == parameters
    assert load(tmp_path / "run", 4)[0].keys() == parameters | {"1.act_grad"}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "selects nothing"),
        ({"a": 1}, "expected sections by name"),
        ({"a": {"layers": {"layer_types": ["fc1"]}}}, "expected layer_name_regex_pattern only"),
        ({"a": {"layers": {"layer_name_regex_pattern": "("}}}, "bad regular expression"),
        (
            {
                "a": {
                    "layers": {"layer_name_regex_pattern": ".*"},
                    "LogTensorStats": {"tensors": ["grad"]},
                }
            },
            "unknown tensor",
        ),
        (
            {
                "a": {
                    "layers": {"layer_name_regex_pattern": ".*"},
                    "LogTensorStats": {"tensors": ["weight"]},
                }
            },
            "selects nothing",
        ),
        ("/nonexistent.yaml", "cannot be read"),
    ],
)
def test_bad_configurations_are_refused(config, text) -> None:
    with pytest.raises(dlsim.UsageError, match=text):
        selections_of_config(config)


def test_both_ends_of_an_interval_are_included() -> None:
    selection = Selection(every=5, intervals=((0, 5), (20, None)))
    assert [step for step in range(32) if selection.includes(step)] == [0, 5, 20, 25, 30]


@pytest.mark.parametrize("shape", [(7, 16, 3), (64, 64), (1000,), (5,), (4, 0)])
def test_a_sample_meets_all_rows_and_columns(tmp_path: Path, shape) -> None:
    from dlsim.recorder._snapshot import stride_of

    stride = stride_of(shape, 20)
    elements = torch.ones(shape).numel()
    index = torch.arange(elements)[::stride]
    assert len(index) <= 20 and (elements > 20 or stride == 1)
    if len(shape) == 2 and elements:
        assert len({int(i) % shape[1] for i in index}) == len(index)


def test_a_sample_bounds_the_elements_of_a_tensor(tmp_path: Path) -> None:
    model = nn.Linear(100, 10)
    with dlsim.Recorder(model, tmp_path, sample=64) as rec:
        model(torch.randn(3, 100)).square().sum().backward()
        rec.step(scale=1.0)
    tensors, _ = load(tmp_path, 0)
    assert 32 <= tensors["weight.grad"].numel() <= 64 and tensors["bias.grad"].shape == (10,)
    assert set(tensors["weight.grad"].tolist()) <= set(model.weight.grad.flatten().tolist())
    assert "sample: 64" in info(tmp_path)


def test_values_can_be_stored_as_bfloat16(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, dtype="bfloat16") as rec:
        gradients = train(model, rec)
    tensors, _ = load(tmp_path, 0)
    assert torch.equal(tensors["0.weight.grad"], gradients[0]["0.weight"].bfloat16())


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
    for path in (tmp_path / "run", tmp_path / "run.dlprof"):
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


@pytest.mark.parametrize("output", ["run", "run.dlprof"])
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
        [command_path(), "replay", tmp_path / output, "--json", "-", "--quiet", "--format", "fp16"],
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


def test_a_missing_scale_is_never_guessed(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path) as rec:
        model(torch.randn(4, 6)).sum().backward()
        with pytest.raises(TypeError, match=r"scale: missing, expected .* scale=1.0 if"):
            rec.step(loss=1.0)
        with pytest.raises(dlsim.UsageError, match="micro_step: not prepared"):
            rec.micro_step(scale=1.0)


def test_a_scaler_is_asked(tmp_path: Path) -> None:
    class OfTorch:
        def __init__(self) -> None:
            self._per_optimizer_states = {}

        def get_scale(self) -> float:
            return 256.0

    from enum import Enum

    stage = Enum("OptState", ["READY", "UNSCALED"])
    model, scaler = small_model(), OfTorch()
    with dlsim.Recorder(model, tmp_path / "torch", scaler=scaler) as rec:
        model(torch.randn(4, 6)).sum().backward()
        rec.step()
        rec.step(scale=2.0)
        scaler._per_optimizer_states[1] = {"stage": stage.UNSCALED}
        rec.step()
    assert [load(tmp_path / "torch", i)[1]["grad_scale"] for i in (0, 1)] == ["256.0", "2.0"]
    assert rec.errors == 1 and "unscale_() or step()" in rec.report().messages[0]
    own = dlsim.LossScaler("torch", {"init_scale": "32"})
    with dlsim.Recorder(model, tmp_path / "own", scaler=own) as rec:
        rec.step()
    assert load(tmp_path / "own", 0)[1]["grad_scale"] == "32.0"


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 0.0, -1.0, 1e39, 1e-40, "big"])
@pytest.mark.parametrize("output", ["run", "run.dlprof"])
def test_a_bad_scale_costs_its_step_only(tmp_path: Path, scale, output) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / output) as rec:
        train(model, rec, 1)
        rec.step(scale=scale)
        rec.step(scale=4.0)
    assert rec.errors == 1 and rec.report().steps == 2
    assert "steps: 2 (0 to 2)" in info(tmp_path / output)


def test_errors_are_logged_once_and_summed_up_at_close(tmp_path: Path, caplog) -> None:
    model = small_model()
    with caplog.at_level(logging.WARNING):
        with dlsim.Recorder(model, tmp_path) as rec:
            for _ in range(30):
                rec.step(scale=1.0)
        assert rec.errors == 30 and len(rec.report().messages) == 20
    assert len(caplog.records) == 3  # the first error, the sum, the tensors without gradient
    assert "no gradients, expected a call after backward" in caplog.messages[0]
    assert "30 errors" in caplog.messages[1]


def test_errors_can_be_raised_instead(tmp_path: Path) -> None:
    with dlsim.Recorder(small_model(), tmp_path, on_error="raise") as rec:
        with pytest.raises(dlsim.Error, match="no gradients"):
            rec.step(scale=1.0)


@pytest.mark.parametrize("output", ["run", "run.dlprof"])
def test_an_exception_of_the_training_passes_and_leaves_a_readable_result(tmp_path, output) -> None:
    model = small_model()
    for error in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(error):
            with dlsim.Recorder(model, tmp_path / error.__name__ / output) as rec:
                train(model, rec, 2)
                raise error
        assert "steps: 2 (0 to 1)" in info(tmp_path / error.__name__ / output)
        rec.step(scale=1.0)  # after close: nothing
        rec.close()


@pytest.mark.parametrize("output", ["run", "run.dlprof"])
def test_a_path_that_cannot_be_written_costs_no_training(tmp_path: Path, output) -> None:
    (tmp_path / "file").write_text("")
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "file" / output) as rec:
        train(model, rec, 2)
        assert rec.errors == 3 and rec.report().steps == 0
        (tmp_path / "file").unlink()
        train(model, rec, 1)
    assert rec.errors == 3 and "steps: 1 (2 to 2)" in info(tmp_path / "file" / output)


@pytest.mark.parametrize("output", ["run", "run.dlprof"])
def test_a_full_disk_costs_steps_only(tmp_path: Path, output) -> None:
    script = (
        "import resource, signal, sys, torch, dlsim\n"
        "model = torch.nn.Linear(300, 300)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "with dlsim.Recorder(model, sys.argv[1]) as rec:\n"
        "    for limit in (resource.RLIM_INFINITY, 20000, resource.RLIM_INFINITY):\n"
        "        model(torch.randn(4, 300)).square().sum().backward()\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))\n"
        "        for _ in range(20):\n"
        "            rec.step(scale=1.0)\n"
        "print(rec.errors, rec.report().steps)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / output],
        capture_output=True,
        text=True,
        check=True,
    )
    errors, steps = map(int, done.stdout.split())
    assert errors > 0 and errors + steps == 60 and steps >= 40
    assert f"steps: {steps} (0 to 59)" in info(tmp_path / output)
    assert done.stderr.count("cannot be written") == 1


def killed_training(tmp_path: Path, output: str) -> None:
    script = (
        "import sys, time, torch, dlsim\n"
        "model = torch.nn.Linear(4, 4)\n"
        "rec = dlsim.Recorder(model, sys.argv[1])\n"
        "for step in range(5):\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    rec.step(scale=1.0)\n"
        "print('recorded', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path / output], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "recorded\n"
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_killed_training_leaves_a_trace(tmp_path: Path) -> None:
    killed_training(tmp_path, "run")
    assert "steps: 5 (0 to 4)" in info(tmp_path / "run")
    model = nn.Linear(4, 4)
    with pytest.raises(dlsim.UsageError, match="holds a trace already"):
        dlsim.Recorder(model, tmp_path / "run")
    with dlsim.Recorder(model, tmp_path / "run", existing="continue", first_step=3) as rec:
        model(torch.ones(2, 4)).sum().backward()
        rec.step(scale=1.0)
    assert steps_in(tmp_path / "run") == [0, 1, 2, 3]
    with dlsim.Recorder(model, tmp_path / "run", existing="replace") as rec:
        rec.step(scale=1.0)
    assert steps_in(tmp_path / "run") == [0]


def test_a_killed_training_leaves_a_profile_to_go_on_with(tmp_path: Path) -> None:
    killed_training(tmp_path, "run.dlprof")
    model = nn.Linear(4, 4)
    with pytest.raises(dlsim.UsageError, match=r"run\.dlprof\.partial: exists already"):
        dlsim.Recorder(model, tmp_path / "run.dlprof")
    with dlsim.Recorder(model, tmp_path / "run.dlprof", existing="continue", first_step=3) as rec:
        model(torch.ones(2, 4)).sum().backward()
        rec.step(scale=1.0)
    assert "steps: 4 (0 to 3)" in info(tmp_path / "run.dlprof")
    with dlsim.Recorder(model, tmp_path / "run.dlprof", existing="continue"):
        pass  # completes what is there
    assert "steps: 4 (0 to 3)" in info(tmp_path / "run.dlprof")


def test_a_recorder_that_nobody_closes_is_closed_at_exit(tmp_path: Path) -> None:
    script = (
        "import sys, torch, dlsim\n"
        "model = torch.nn.Linear(4, 4)\n"
        "rec = dlsim.Recorder(model, sys.argv[1])\n"
        "model(torch.ones(2, 4)).sum().backward()\n"
        "rec.step(scale=1.0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "run.dlprof"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    assert "steps: 1 (0 to 0)" in info(tmp_path / "run.dlprof")


@pytest.mark.parametrize("format", ["safetensors", "profile"])
def test_a_dry_run_lists_tensors_and_writes_nothing(tmp_path: Path, format) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "run", format=format, dry_run=True) as rec:
        train(model, rec)
    report = rec.report()
    assert not list(tmp_path.iterdir())
    assert [(tensor.name, tensor.shape, tensor.dtype) for tensor in report.tensors] == [
        ("0.weight.grad", (8, 6), "float32"),
        ("0.bias.grad", (8,), "float32"),
        ("2.weight.grad", (2, 8), "float32"),
        ("2.bias.grad", (2,), "float32"),
    ]
    assert report.step_bytes == 4 * (48 + 8 + 16 + 2)
    if format == "safetensors":
        assert report.bytes == report.step_bytes
    else:
        assert 100 < report.bytes < 4000


def test_a_profile_goes_into_a_directory_or_a_file(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "run", format="profile") as rec:
        train(model, rec)
    ladder = {"formats": ["fp16"], "roundings": ["rne"], "subnormals": "keep", "scales": "2^0..2^9"}
    with dlsim.Recorder(model, tmp_path / "a.b.dlprof", ladder=ladder) as rec:
        train(model, rec)
    info(tmp_path / "run" / "gradients.dlprof")
    assert "ladder: fp16; rne; subnormals keep" in info(tmp_path / "a.b.dlprof")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"gradients": "nothing*"}, dlsim.UsageError, "nothing matches"),
        ({"gradients": None}, dlsim.UsageError, "nothing matches"),
        ({"gradients": 3}, TypeError, "gradients: expected globs or compiled .*, got int"),
        ({"gradients": [3]}, TypeError, "gradients: expected globs or compiled"),
        ({"activations": re.compile(b"x")}, TypeError, "activations: expected globs"),
        ({"every": 0}, dlsim.UsageError, "every: out of range"),
        ({"every": 1.5}, TypeError, "every: expected a whole number, got float"),
        ({"start": 5, "end": 4}, dlsim.UsageError, "out of range, expected 5 or more, got 4"),
        ({"sample": 0}, dlsim.UsageError, "sample: out of range"),
        ({"dtype": "float16"}, dlsim.UsageError, "dtype: unknown"),
        ({"format": "hdf5"}, dlsim.UsageError, "format: unknown"),
        ({"existing": "append"}, dlsim.UsageError, "existing: unknown"),
        ({"on_error": "ignore"}, dlsim.UsageError, "on_error: unknown"),
        ({"ladder": {"scales": "1"}}, dlsim.UsageError, "only a profile has one"),
        ({"ladder": {"scale": "1"}, "format": "profile"}, dlsim.UsageError, "ladder: unknown"),
        ({"ladder": {"scales": "x"}, "format": "profile"}, dlsim.UsageError, "scales"),
        ({"distributed": "ddp"}, dlsim.UsageError, "distributed: unknown"),
        ({"rank": 2, "ranks": 2}, dlsim.UsageError, "rank: out of range"),
        ({"ranks": 2}, dlsim.UsageError, "distributed: cannot tell"),
        ({"first_step": -1}, dlsim.UsageError, "first_step: out of range"),
        ({"description": {"files": "x"}}, dlsim.UsageError, "'files' is not free"),
        ({"description": {"x": 1}, "format": "profile"}, TypeError, "description 'x'"),
        ({"config": {}}, dlsim.UsageError, "selects nothing"),
    ],
)
def test_bad_arguments_are_refused_before_the_training(tmp_path, options, error, text) -> None:
    with pytest.raises(error, match=text) as caught:
        dlsim.Recorder(small_model(), tmp_path / "run", **options)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("run/*"))


def test_a_model_is_a_module(tmp_path: Path) -> None:
    for model in (None, [torch.ones(2)], {"a": 1}):
        with pytest.raises(TypeError, match=r"model: expected a torch\.nn\.Module"):
            dlsim.Recorder(model, tmp_path)
    with pytest.raises(dlsim.UsageError, match="is the name of a profile"):
        dlsim.Recorder(small_model(), tmp_path / "x.dlprof", format="safetensors")


def test_without_torch_the_error_names_the_package(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None; sys.modules['torch.nn'] = None\n"
        "import dlsim\n"
        "try:\n"
        "    dlsim.Recorder(None, 'run')\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "dlsim.Recorder needs PyTorch: pip install torch\n"


def test_a_gradient_changed_in_place_after_it_was_seen_is_left_out(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, micro_steps=True) as rec:
        held = []
        model[0].weight.register_hook(held.append)
        model(torch.randn(4, 6)).sum().backward()
        held[0].mul_(2)
        rec.micro_step(scale=1.0)
        rec.step()
    assert "0.weight.grad" not in load(tmp_path, 0, ".micro-00")[0]
    assert "was changed in place" in rec.report().messages[0]


def test_memory_does_not_grow_with_steps(tmp_path: Path) -> None:
    model = small_model()
    import gc

    counts = []
    with dlsim.Recorder(model, tmp_path / "run.dlprof", activations="*") as rec:
        for _ in range(3):
            train(model, rec, 5)
            gc.collect()
            counts.append(sum(isinstance(item, torch.Tensor) for item in gc.get_objects()))
    assert counts[1] == counts[2] and rec.errors == 0


def test_time_and_bytes_are_reported(tmp_path: Path) -> None:
    model = small_model()
    began = time.perf_counter()
    with dlsim.Recorder(model, tmp_path / "run") as rec:
        train(model, rec, 3)
        assert rec.report().bytes == sum(
            path.stat().st_size for path in (tmp_path / "run").glob("step-*")
        )
    report = rec.report()
    assert 0 < report.seconds < time.perf_counter() - began
    assert str(report).startswith(f"{os.fspath(tmp_path / 'run')}: 3 steps, 4 tensors of 296 bytes")
