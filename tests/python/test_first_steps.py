# SPDX-License-Identifier: Apache-2.0
"""What a newcomer tries first: a verdict on gradients at hand, a figure, a page, a file."""

from __future__ import annotations

import inspect
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlsim
import dlsim.report

TRACE = Path(__file__).parents[1] / "data" / "traces" / "cnn-digits"


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for temporary files, which must be empty again at the end."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def gradients(step: int = 10) -> dict[str, Any]:
    found = dlsim.open_trace(TRACE).step(step)
    return {name: found.tensors[name] for name in found.names}


@pytest.mark.parametrize("step", [0, 10, 44])
def test_check_says_what_replay_says_of_the_step(step: int, temporary_folder: Path) -> None:
    file = TRACE / f"step-{step:08d}.safetensors"
    expected = dlsim.replay(file, formats=["fp16", "e4m3"], policies="torch").verdict
    got = dlsim.check(gradients(step), ["fp16", "e4m3"], policies="torch")

    def told(verdict: dlsim.results.Verdict) -> list[tuple[object, ...]]:
        def numbered_0(tensor: Any) -> Any:  # in memory there is no step but 0
            return tensor | {"first_step": 0, "last_step": 0}

        return [
            (f.verdict, f.window, f.scale, [numbered_0(one) for one in f.tensors_at_risk])
            for f in verdict
        ]

    assert told(got) == told(expected)
    assert got.looked_at == expected.looked_at and len(got["fp16"].windows) == 1
    assert not list(temporary_folder.iterdir())


def test_check_takes_arrays_of_many_kinds_and_leaves_none_out() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    values = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32) * 1e-6
    expected = dlsim.check({"w": values}, "fp16")["fp16"]
    for same in (
        torch.tensor(values),
        values.astype(np.float64),
        values.tolist(),
        values.T.copy().T,
    ):
        assert dlsim.check({"w": same, "frozen": None}, "fp16")["fp16"] == expected
    scaled = torch.tensor(values) * 1024
    assert dlsim.check({"w": scaled}, torch.float16, grad_scale="2^10")["fp16"] == expected
    assert dlsim.check({"w": [1, 2, 3]}, "fp16")["fp16"].serves


def test_check_of_a_model() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
    model[1].requires_grad_(False)
    model(torch.ones(2, 4)).sum().backward()
    verdict = dlsim.check({name: p.grad for name, p in model.named_parameters()})
    assert [one.format for one in verdict] == ["fp16", "bf16", "cb16"]
    assert verdict.parameters_only and verdict.looked_at == ["grad"]


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (np.ones(3), TypeError, "check: expected a mapping of names to arrays, got ndarray"),
        ([np.ones(3)], TypeError, "check: expected a mapping of names to arrays, got list"),
        ({}, dlsim.UsageError, "check: no gradient"),
        ({"w": None}, dlsim.UsageError, "check: no gradient"),
        ({"w": np.arange(3)}, TypeError, "tensor 'w': bad element type, .* got int64"),
        ({"w": "text"}, TypeError, "tensor 'w': bad element type"),
        ({7: np.ones(3)}, TypeError, "tensor name: expected str, got int"),
    ],
)
def test_check_refuses_what_is_no_gradient(given: Any, error: type, text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        dlsim.check(given)
    assert "\n" not in str(caught.value)


def test_check_refuses_wrong_options() -> None:
    with pytest.raises(dlsim.UsageError, match=r"^format: unknown name .*'fp16'"):
        dlsim.check({"w": np.ones(3)}, "fp61")
    with pytest.raises(dlsim.UsageError, match="loss scale"):
        dlsim.check({"w": np.ones(3)}, grad_scale=0.0)
    with pytest.raises(dlsim.UsageError, match=r"^scale: not a number"):
        dlsim.check({"w": np.ones(3)}, grad_scale="two")


def test_report_is_a_function_and_a_package(tmp_path: Path) -> None:
    result = dlsim.replay(TRACE, formats="fp16", policies="torch")
    dlsim.report(result, tmp_path / "a.html", read_trace=False)
    dlsim.report.write_report(result, tmp_path / "b.html", read_trace=False)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    from dlsim.report import write_report

    assert inspect.signature(dlsim.report) == inspect.signature(write_report)


def traces_of(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data}


def test_plot_shows_windows_and_paths() -> None:
    pytest.importorskip("plotly", reason="needs plotly")
    result = dlsim.replay(TRACE, formats="fp16", policies=["cerebras", "torch"])
    figure = result.plot()
    found = traces_of(figure)
    steps = result["runs"][0]["steps"]
    skipped = found["cerebras: skipped"]
    assert list(skipped.x) == [step["step"] for step in steps if step["skipped"]]
    path = found["cerebras"]
    assert path.y[0] == pytest.approx(np.log2(2e15), abs=1e-3)
    window = result.verdict["fp16"].window
    assert window is not None
    band = [y for y in found["safe loss scales"].y if y is not None]
    assert np.log2(window[0]) >= min(band) and np.log2(window[1]) <= max(band)
    low, high = figure.layout.yaxis.range
    assert low < min(path.y) and high > max(path.y)


def test_plot_has_a_row_for_each_format_also_of_tune() -> None:
    pytest.importorskip("plotly", reason="needs plotly")
    figure = dlsim.tune(TRACE, formats=["fp16", "bf16", "e4m3"]).plot()
    titles = [note.text.split()[0] for note in figure.layout.annotations]
    assert titles == ["fp16", "bf16", "e4m3"]
    assert figure.layout.yaxis3.title.text == "loss scale"


def test_plot_refuses_other_results() -> None:
    with pytest.raises(dlsim.UsageError, match=r"^plot: expected .* got dlsim\.scaler/1$"):
        dlsim.scaler("torch", 3).plot()


def test_scales_are_written_as_the_command_takes_them() -> None:
    values = np.float32([0.1, 1e-6])
    for text, scale in (("2^15", 2.0**15), ("1e3", 1e3), ("0x1.8p+3", 12.0)):
        assert (
            dlsim.quantize(values, "fp16", text).tolist()
            == dlsim.quantize(values, "fp16", scale).tolist()
        )
    assert [s.scale for s in dlsim.measure(values, "fp16", ["2^3", 16])] == [8.0, 16.0]
    with pytest.raises(dlsim.UsageError, match=r"^scale: "):
        dlsim.encode(values, "fp16", "2^")


def test_lists_of_integers_are_numbers() -> None:
    assert dlsim.quantize([1, 2, 70000], "fp16").tolist() == [1.0, 2.0, float("inf")]
    assert dlsim.quantize(3, "bf16") == 3.0
    assert dlsim.quantize([[1, 2], [3, 4]], "fp16").shape == (2, 2)
    assert dlsim.decode([0x3C00, 0x7C00], "fp16").tolist() == [1.0, float("inf")]
    with pytest.raises(TypeError, match="int64"):
        dlsim.quantize([2**53 + 1], "fp16")
    with pytest.raises(TypeError, match="int64"):
        dlsim.decode([-1], "fp16")


@pytest.mark.parametrize(
    ("name", "meant"), [("nearest", "rne"), ("stochastic", "sr"), ("Truncate", "rtz")]
)
def test_names_of_roundings_are_suggested(name: str, meant: str) -> None:
    for call in (
        lambda: dlsim.quantize([1.0], "fp16", rounding=name),
        lambda: dlsim.replay(TRACE, rounding=name),  # type: ignore[arg-type]
    ):
        with pytest.raises(dlsim.UsageError, match=rf"rounding: .*did you mean '{meant}'"):
            call()


def test_options_of_the_command_name_their_keyword() -> None:
    for option, keyword in (("set", "settings"), ("format", "formats")):
        with pytest.raises(TypeError, match=rf"'{option}', did you mean '{keyword}'\?"):
            dlsim.replay(TRACE, **{option: "x"})


def test_what_is_printed_tells_what_it_is() -> None:
    scaler = dlsim.LossScaler("torch")
    assert repr(scaler) == "<dlsim.LossScaler torch: scale 65536.0>"
    assert "initial scale: 2^16" in dlsim.scaler("torch", 10).report
    assert dlsim.scaler("torch", 10, quiet=True).report == ""
    found = repr(dlsim.replay(TRACE, formats="fp16", policies="torch"))
    assert found.endswith("<dlsim.Result dlsim.replay/1: 1 run>")


def test_a_dtype_is_a_format_everywhere() -> None:
    verdict = dlsim.check({"w": [1.0]}, np.float16)
    assert dlsim.Format(np.float16) == dlsim.Format(dlsim.FP16) == dlsim.FP16
    assert verdict[np.float16] is verdict[dlsim.FP16] is verdict["fp16"]
    assert dlsim.LossScaler("torch", {}, np.float16).scale == 65536.0
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    assert dlsim.Format(torch.bfloat16) == dlsim.BF16
    with pytest.raises(TypeError, match=r"^Format: expected a text or number, got dtype$"):
        dlsim.Format(torch.int8)


def test_what_is_missing_is_a_sentence() -> None:
    step = dlsim.open_trace(TRACE)[0]
    for look in (step.tensors.__getitem__, step.shape, step.role, step.dtype):
        with pytest.raises(KeyError) as missing:
            look("conv.0.weight.grad")
        assert str(missing.value).startswith(
            "no tensor 'conv.0.weight.grad' (did you mean 'convs.0.weight.grad'?), expected one of "
        )
    with pytest.raises(KeyError) as missing:
        dlsim.check({"w": [1.0]}, ["fp16", "bf16"])["fp61"]
    expected = "no format or key 'fp61' (did you mean 'fp16'?), expected one of fp16, bf16"
    assert str(missing.value) == str(pickle.loads(pickle.dumps(missing.value)).args[0]) == expected
    with pytest.raises(TypeError, match="index of a step: expected a whole number, got 'a'"):
        dlsim.open_trace(TRACE)["a"]  # type: ignore[index]


def test_what_a_notebook_shows_is_short() -> None:
    result = dlsim.replay(TRACE, formats="fp16", policies="torch")
    assert len(repr(result.verdict["fp16"])) < 500
    failing = dlsim.replay(TRACE.with_name("t5-stream"), formats="fp16").verdict["fp16"]
    assert "step=0, tensor=block.0.wo" in repr(failing.forward.first)
    assert len(repr(failing.forward)) < 300
    counted = dlsim.exponents(TRACE)
    assert repr(counted) == f"<dlsim.Exponents: 45 steps, {len(counted.tensors)} tensors>"
