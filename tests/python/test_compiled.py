# SPDX-License-Identifier: Apache-2.0
"""Models whose compiled forward has run before are rounded and recorded like any other."""

import gc
import logging
from pathlib import Path

import pytest
import torch
from torch import nn

import dlsim
from dlsim import _compiled
from dlsim.recorder._recorder import complete_abandoned

needs_compile = pytest.mark.skipif(
    not hasattr(getattr(torch, "compiler", None), "set_stance"),
    reason="torch.compiler.set_stance needs PyTorch 2.6",
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(6, 8)
        self.b = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).relu())


def compiled(kind: str) -> tuple[nn.Module, Model]:
    """Returns a compiled model that has run, and the one in it."""
    torch._dynamo.reset()
    inner = Model()
    if kind == "function":
        model = torch.compile(inner, backend="aot_eager")
    else:
        inner.compile(backend="aot_eager")
        model = inner
    for _ in range(2):
        model(X).sum().backward()
    inner.zero_grad()
    return model, inner


X = torch.linspace(-1, 1, 24).reshape(4, 6)
KINDS = ["function", "method"]


@needs_compile
@pytest.mark.parametrize("kind", KINDS)
def test_emulation_rounds_what_was_compiled(kind) -> None:
    model, inner = compiled(kind)
    plain = Model()
    with dlsim.autocast_emulation(plain, "fp8-e4m3"):
        expected = plain(X)
    with dlsim.autocast_emulation(model, "fp8-e4m3") as emulation:
        assert torch.equal(model(X), expected)
    assert all(list(places) == ["input", "output"] for places in emulation.statistics().values())
    assert torch.allclose(model(X), Model()(X))
    with dlsim.amp.autocast("bfloat16"):
        rounded = model(X)
    with dlsim.amp.autocast("bfloat16"):
        assert torch.equal(rounded, inner(X))
    assert not torch.equal(rounded, model(X))


@needs_compile
@pytest.mark.parametrize("kind", KINDS)
def test_activations_of_what_was_compiled_are_recorded(kind, tmp_path: Path) -> None:
    model, _ = compiled(kind)
    with dlsim.Recorder(model, tmp_path, on_error="raise") as rec:
        model(X).sum().backward()
        rec.step(scale=1.0)
    names = {tensor.name for tensor in rec.report().tensors}
    assert {"a.act_grad", "b.act_grad"} < names


@needs_compile
def test_compiled_code_runs_where_no_activation_is_recorded(tmp_path: Path) -> None:
    stance = torch._dynamo.eval_frame
    model, _ = compiled("method")
    with dlsim.Recorder(model, tmp_path, every=2, on_error="raise") as rec:
        for expected in ("force_eager", "default"):
            assert stance._stance.stance == expected
            model(X).sum().backward()
            rec.step(scale=1.0)
    with dlsim.Recorder(model, tmp_path / "none", activations=None, shadow=None):
        assert stance._stance.stance == "default"
    first, second = dlsim.autocast_emulation(model), dlsim.autocast_emulation(model)
    first.remove()
    assert stance._stance.stance == "force_eager"
    second.remove()
    assert stance._stance.stance == "default"


@needs_compile
def test_compiled_models_are_refused_where_hooks_would_do_nothing(
    monkeypatch, tmp_path: Path
) -> None:
    model, _ = compiled("method")
    monkeypatch.delattr(torch.compiler, "set_stance")
    with pytest.raises(dlsim.UsageError, match="model: is compiled"):
        dlsim.autocast_emulation(model)
    with pytest.raises(dlsim.UsageError, match="model: is compiled"):
        dlsim.Recorder(model, tmp_path / "run")
    dlsim.Recorder(model, tmp_path / "run", activations=None).close()


class Unused(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x)


def test_modules_that_never_ran_are_named(caplog, tmp_path: Path) -> None:
    model = Unused()
    with caplog.at_level(logging.WARNING), dlsim.autocast_emulation(model):
        model(X)
    assert caplog.messages == ["dlsim emulation: rounded nothing in b: never called"]
    with dlsim.Recorder(model, tmp_path, gradients="a.*") as rec:
        model(X).sum().backward()
        rec.step(scale=1.0)
    assert rec.report().left_out == {"b.act_grad": "its module was never called in a recorded step"}


@needs_compile
def test_compiled_code_runs_again_after_a_recorder_was_collected(tmp_path: Path) -> None:
    model, _ = compiled("function")
    gc.collect()
    complete_abandoned()  # those of other tests
    before = _compiled._eager._users
    rec = dlsim.Recorder(model, tmp_path / "forgotten")
    assert _compiled._eager._users == before + 1
    del rec
    gc.collect()
    complete_abandoned()  # as the next recorder does
    assert _compiled._eager._users == before
