# SPDX-License-Identifier: Apache-2.0
"""A recorder records the tensors and steps that are selected, and refuses bad arguments."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from recording import load, small_model, steps_in, train

import dlsim

OFF = {"activations": None}
PROFILE = {"path": "run.profile"}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({**OFF, "gradients": "0.*"}, {"0.weight.grad", "0.bias.grad"}),
        ({**OFF, "gradients": ["*.bias"]}, {"0.bias.grad", "2.bias.grad"}),
        ({**OFF, "gradients": re.compile(r"^[02]\.w")}, {"0.weight.grad", "2.weight.grad"}),
        ({**OFF, "gradients": ["2.*", "!*.bias"]}, {"2.weight.grad"}),
        (
            {"gradients": ["2.*", "!*.bias"], "activations": "!0"},
            {"2.weight.grad", "1.act_grad", "2.act_grad"},
        ),
        ({"gradients": None}, {"0.act_grad", "1.act_grad", "2.act_grad"}),
        ({"gradients": (), "activations": "1"}, {"1.act_grad"}),
        (
            {"activations": [re.compile("[12]"), "!2"], "gradients": "!?.[!b]*"},
            {"0.bias.grad", "2.bias.grad", "1.act_grad"},
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
    for name, every, steps in (
        ("multiples", 3, [0, 3, 6, 9, 12]),
        ("range", range(2, 10, 3), [2, 5, 8]),
        ("later", range(12, 100), [12, 13]),
    ):
        with dlsim.Recorder(model, tmp_path / name, every=every) as rec:
            train(model, rec, 14)
        assert steps_in(tmp_path / name) == steps


def test_nothing_is_read_in_steps_that_are_not_selected(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, every=2, activations="*") as rec:
        train(model, rec, 1)
        out = model(torch.randn(4, 6))
        assert out._backward_hooks is None
        rec.step(scale=float("nan"))  # not selected: not even looked at
    assert rec.errors == 0 and steps_in(tmp_path) == [0]


@pytest.mark.parametrize("first", [100, 103])
def test_a_first_step_of_any_number_is_recorded_whole(tmp_path: Path, first: int) -> None:
    model = small_model()
    options = {"every": range(100, 200), "forward_every": 50, "on_error": "raise"}
    with dlsim.Recorder(model, tmp_path, **options) as rec:
        for step in (first, None, None):
            model.zero_grad()
            model(torch.randn(4, 6)).sum().backward()
            rec.step(scale=1.0, step=step)
    assert steps_in(tmp_path) == [first, first + 1, first + 2]
    tensors, later = load(tmp_path, first)[0].keys(), load(tmp_path, first + 1)[0].keys()
    assert {"0.act_grad", "2.bias.grad"} <= later < tensors if first == 100 else later == tensors


def test_micro_steps_have_the_number_of_the_first(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, every=range(7, 20), micro_steps=True) as rec:
        for first, last in ((7, None), (None, 8), (9, 10), (None, 11)):
            for step in (first, None):
                model(torch.randn(4, 6)).sum().backward()
                rec.micro_step(scale=1.0, step=step)
            rec.step(step=last)
    assert steps_in(tmp_path) == [7, 7, 8, 8, 11, 11]
    assert rec.report().messages == [
        "step 9: micro-steps were recorded as those of step 9, expected step=10 in the call of the "
        "first"
    ]


def test_given_step_numbers_are_used(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path) as rec:
        for step in (10, 20, 21, None):
            model.zero_grad()
            model(torch.randn(4, 6)).sum().backward()
            rec.step(scale=1.0, step=step)
    assert steps_in(tmp_path) == [10, 20, 21, 22]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"gradients": "nothing*"},
            dlsim.UsageError,
            r"gradients: nothing matches, .* such as 0.weight, 0.bias, .*, got 'nothing\*'",
        ),
        ({**OFF, "gradients": None}, dlsim.UsageError, "gradients, activations: nothing matches"),
        ({"gradients": "!*"}, dlsim.UsageError, r"gradients: nothing matches, .*, got '!\*'"),
        (
            {"activations": ["none", re.compile("x.y")]},
            dlsim.UsageError,
            r"activations: nothing matches, .* such as \(root\), 0, 1, 2, got 'none', 'x.y'",
        ),
        ({"gradients": 3}, TypeError, "gradients: expected globs or compiled .*, got int"),
        ({"gradients": [3]}, TypeError, "gradients: expected globs or compiled"),
        ({"activations": re.compile(b"x")}, TypeError, "activations: expected globs"),
        ({"every": 0}, dlsim.UsageError, "every: out of range"),
        ({"every": [1, 2]}, TypeError, "every: expected a whole number, got list"),
        ({"every": True}, TypeError, "every: expected a whole number, got bool"),
        ({"existing": "append"}, dlsim.UsageError, "existing: unknown"),
        ({"on_error": "ignore"}, dlsim.UsageError, "on_error: unknown"),
        ({"also": [3]}, dlsim.UsageError, "also: only a profile has it"),
        ({"also": "2x", **PROFILE}, dlsim.UsageError, "^also: not a number, .*, got '2x'"),
        ({"also": "x", "existing": "continue", **PROFILE}, dlsim.UsageError, "^also: unknown name"),
        ({"also": -1, **PROFILE}, dlsim.UsageError, "^also: not a loss scale, .*, got '-1'"),
        ({"also": [None], **PROFILE}, TypeError, "^also: expected a text or number"),
        ({"also": "fp16", **PROFILE}, dlsim.UsageError, "^also: unknown name, .*, got 'fp16'"),
        ({"distributed": "ddp"}, dlsim.UsageError, "distributed: unknown"),
        ({"distributed": ("reduced", 2, 2)}, dlsim.UsageError, "distributed: rank out of range"),
        ({"distributed": (None, 0, 2)}, dlsim.UsageError, "distributed: unknown how"),
        ({"distributed": ("separate", 1)}, dlsim.UsageError, r"distributed: .* \('separate', 1\)"),
    ],
)
def test_bad_arguments_are_refused_before_the_training(
    tmp_path, monkeypatch, options, error, text
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=text) as caught:
        dlsim.Recorder(small_model(), **{"path": tmp_path / "run", **options})
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("run*/*"))


def test_a_model_is_a_module(tmp_path: Path) -> None:
    for model in (None, [torch.ones(2)], {"a": 1}):
        with pytest.raises(TypeError, match=r"model: expected a torch\.nn\.Module"):
            dlsim.Recorder(model, tmp_path)


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


def test_the_model_itself_is_selected_by_its_name(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "one", activations="(root)", gradients=None) as rec:
        train(model, rec)
    assert load(tmp_path / "one", 0)[0].keys() == {"(root).act_grad"}
    options = {"activations": ["(root)", "0", "!(root)"], "gradients": None}
    with dlsim.Recorder(model, tmp_path / "two", **options) as rec:
        train(model, rec)
    assert load(tmp_path / "two", 0)[0].keys() == {"0.act_grad"}


def test_the_model_has_the_name_of_its_own_class(tmp_path: Path) -> None:
    model = small_model()
    wrapped = {"plain": model, "parallel": torch.nn.DataParallel(model)}
    if hasattr(torch, "compile"):
        wrapped["compiled"] = torch.compile(model)
        wrapped["both"] = torch.compile(wrapped["parallel"])
    for name, one in wrapped.items():
        dlsim.Recorder(one, tmp_path / name, activations=None).close()
        described = json.loads((tmp_path / name / "trace.json").read_text())
        assert described["model"] == "Sequential", name
