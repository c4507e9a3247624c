# SPDX-License-Identifier: Apache-2.0
"""An inference is recorded without gradients, and answered for from the forward pass alone."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from recording import load, small_model, steps_in, train
from torch import nn
from torch.nn import functional

import dlsim
from dlsim.emulation import _cuda_autocast
from dlsim.report import write_report

CONTEXTS = (nullcontext, torch.no_grad, torch.inference_mode)


class Network(nn.Module):
    """Convolution, running statistics, attention by hand and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv1d(4, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.query, self.lstm = nn.Linear(8, 8), nn.LSTM(8, 8, batch_first=True)

    def forward(self, x):
        x = self.norm(self.conv(x)).transpose(1, 2)
        query = self.query(x)
        x = functional.dropout((query @ query.transpose(1, 2)).softmax(-1), 0.1, self.training) @ x
        return functional.silu(self.lstm(x)[0])


TOO_OLD = " No step could be run in the formats: PyTorch 2.3 or later is needed."
HAS_FP16 = _cuda_autocast._can_autocast(torch.float16)


def forward_of(path: Path, step: int = 0) -> tuple[dict, set[str]]:
    tensors, metadata = load(path, step)
    kept = {name: one for name, one in tensors.items() if name.endswith((".act", ".value"))}
    return kept, set(metadata["autocast_float32"].split("\n"))


def test_it_has_the_forward_pass_of_a_training(tmp_path: Path) -> None:
    model, x = Network().eval(), torch.randn(3, 4, 6)
    with dlsim.Recorder(model, tmp_path / "trained", forward_every=1, on_error="raise") as rec:
        model(x).backward(torch.ones(3, 6, 8))
        rec.step(scale=1.0)
    expected, wide = forward_of(tmp_path / "trained")
    model.requires_grad_(False)
    for context in CONTEXTS:
        path = tmp_path / context.__name__
        with dlsim.Recorder(model, path, inference=True, on_error="raise") as rec:
            for _ in range(2):
                with context():
                    model(x)
                rec.step()
        assert steps_in(path) == [0, 1] and len(rec.report().tensors) == len(expected)
        found, found_wide = forward_of(path, 1)
        assert load(path, 1)[0].keys() == found.keys() == expected.keys() and found_wide == wide
        for name in expected:
            assert torch.allclose(found[name].ravel(), expected[name].ravel(), atol=1e-6), name
    assert {"norm.running_var.value", "query.act", "lstm.act"} <= found.keys()


def test_the_verdict_answers_from_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.profile"
    model = small_model()
    with dlsim.Recorder(model, path, inference=True, on_error="raise") as rec, torch.no_grad():
        for batch in (1.0, 1e6):
            model(torch.full((4, 6), batch))
            rec.step()
    for result in (dlsim.replay(path, quiet=True), dlsim.tune(path, quiet=True)):
        verdict = result.verdict
        assert verdict.looked_at == ["act", "value"] and not verdict["bf16"].serves
        assert verdict["fp16"].verdict == "fails in forward"
        assert verdict["bf16"].verdict == "fits in forward" and verdict["bf16"].scale is None
        assert verdict.lines[3] == (
            "Based on the forward pass of 2 of 2 steps only: no gradients were recorded."
            + (" 2 steps were run again in fp16, bf16 and cb16." if HAS_FP16 else TOO_OLD)
        )
    assert dlsim.tune(path, quiet=True)["formats"] == []


def test_an_overflow_counts_that_outputs_show(tmp_path: Path) -> None:
    class Gate(nn.Linear):
        def forward(self, x):
            x = super().forward(x) * 1e5
            return torch.sigmoid(x) if self.bias.sum() > 50 else x / 1e5

    for bias, verdict in ((100, "fits in forward"), (10, "fails in forward")):
        model, path = Gate(4, 4), tmp_path / str(bias)
        nn.init.constant_(model.bias, bias)
        with dlsim.Recorder(model, path, inference=True, on_error="raise") as rec:
            model(torch.ones(2, 4))
            rec.step()
        found = dlsim.replay(path, quiet=True).verdict["fp16"]
        assert found.verdict == verdict or not HAS_FP16


def test_the_report_shows_outputs_and_no_policies(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    path, page, model = tmp_path / "a.profile", tmp_path / "page.html", small_model()
    with dlsim.Recorder(model, path, inference=True, on_error="raise") as rec, torch.no_grad():
        model(torch.ones(4, 6))
        rec.step()
    write_report([path, dlsim.tune(path, quiet=True)], page)
    text = page.read_text(encoding="utf-8")
    assert 'id="losses"' in text and 'id="policies"' not in text
    assert text.count("data-figure=") == 1 and "Largest outputs of each layer" in text


def test_all_passes_until_step_belong_to_it(tmp_path: Path) -> None:
    model = small_model()
    options = {"inference": True, "every": 2, "gradients": None}
    with dlsim.Recorder(model, tmp_path, **options, on_error="raise") as rec, torch.no_grad():
        for _ in range(3):
            model(torch.ones(4, 6))
            model(torch.zeros(4, 6))
            rec.step(scale=1.0)
    assert steps_in(tmp_path) == [0, 2]
    names = {f"{i}{call}.act" for i in range(3) for call in ("", ".call1")}
    assert load(tmp_path, 2)[0].keys() == names


def test_a_model_that_did_not_run_is_an_error(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, inference=True) as rec, torch.no_grad():
        rec.step()
        model(torch.ones(4, 6))
        rec.step()
        rec.step()
    assert steps_in(tmp_path) == [1] and rec.errors == 2
    assert rec.report().messages[0] == (
        "step 0: no forward pass, expected a call after the model has run"
    )


def test_a_backward_pass_leaves_nothing_in_it(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, inference=True, on_error="raise") as rec:
        train(model, rec, 2)
    assert all(name.endswith((".act", ".value")) for name in load(tmp_path, 1)[0])


@pytest.mark.parametrize(
    ("argument", "value"),
    [("micro_steps", True), ("forward_every", 2), ("scaler", object())],
)
def test_what_needs_gradients_is_refused(tmp_path: Path, argument: str, value: object) -> None:
    with pytest.raises(dlsim.UsageError, match=f"{argument}: not with inference"):
        dlsim.Recorder(small_model(), tmp_path, inference=True, **{argument: value})


def test_modules_are_needed(tmp_path: Path) -> None:
    with pytest.raises(dlsim.UsageError, match="nothing matches"):
        dlsim.Recorder(small_model(), tmp_path, inference=True, activations=None)
