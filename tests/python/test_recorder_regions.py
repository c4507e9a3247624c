# SPDX-License-Identifier: Apache-2.0
"""What a model computes with autocast turned off is float32 in 16-bit training, too."""

import threading
from pathlib import Path

import pytest
import torch
from recording import load
from torch import nn
from torch.nn import functional

import dlsim

BEFORE = {name: torch.autocast.__dict__[name] for name in ("__init__", "__enter__", "__exit__")}


class Scores(nn.Module):
    """Products and their powers, some of them with autocast turned off."""

    def __init__(self, device: str = "cpu", **options) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
        self.context = {"device_type": device, **options}

    def forward(self, x):
        x = self.fc(x)
        with torch.autocast(**self.context):
            x = x.float()
            inner = functional.linear(x, self.fc.weight) * 1e5
        return self.out(inner / 1e6)


def recorded(path: Path, model: nn.Module, before=None) -> set[str]:
    """Returns which tensors of a step autocast would keep in float32."""
    torch.manual_seed(0)
    with dlsim.Recorder(model, path, forward_every=1, on_error="raise") as rec:
        if before is not None:
            with before:
                output = model(torch.ones(3, 4))
        else:
            output = model(torch.ones(3, 4))
        with torch.autocast("cpu", enabled=False):
            outside = output @ torch.ones(4, 2)
        outside.square().mean().backward()
        rec.step(scale=1.0)
    assert {name: torch.autocast.__dict__[name] for name in BEFORE} == BEFORE
    wide = set(load(path, 0)[1]["autocast_float32"].split("\n"))
    return {name for name in wide if not name.endswith(".value")}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_a_region_without_autocast_computes_stays_in_float32(tmp_path, device) -> None:
    wide = recorded(tmp_path, Scores(device, enabled=False))
    tensors, _ = load(tmp_path, 0)
    assert {"(root)/matmul.act", "(root)/mul.act", "(root)/matmul.call1.act"} <= wide
    assert tensors["(root)/mul.act"].abs().max() > 1e4
    assert not wide & {"fc.act", "out.act", "(root)/div.act"}


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.parametrize("device", ["cuda"])
def test_autocast_that_is_missing_is_not_turned_off(tmp_path, device) -> None:
    if torch.cuda.is_available():
        pytest.skip("autocast for CUDA is there")
    assert not {"(root)/matmul.act", "(root)/mul.act"} & recorded(tmp_path, Scores(device))


def test_a_context_around_the_model_is_that_of_the_recorded_training(tmp_path) -> None:
    within = Scores(enabled=True, dtype=torch.bfloat16)
    within.forward = within.fc.forward  # type: ignore[method-assign]
    wide = recorded(tmp_path, within, torch.autocast("cpu", enabled=False))
    # Nor does that around the loss tell more than that of the model.
    assert not {"(root).act", "(root)/matmul.act"} & wide


def test_a_context_of_another_thread_does_not_count(tmp_path) -> None:
    entered, left = threading.Event(), threading.Event()

    def work() -> None:
        with torch.autocast("cpu", enabled=False):
            entered.set()
            left.wait()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            thread = threading.Thread(target=work)
            thread.start()
            entered.wait()
            x = self.fc(x)
            left.set()
            thread.join()
            return x * 2

    assert not {"fc.act", "(root).act"} & recorded(tmp_path, Model())


@pytest.mark.skipif(not hasattr(torch.nn, "attention"), reason="needs PyTorch 2.3 or later")
def test_attention_without_autocast_has_the_type_of_its_inputs(tmp_path) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            x = self.fc(x)[None, None]
            with torch.autocast("cpu", enabled=False):
                narrow = functional.scaled_dot_product_attention(x, x, x).tanh()
                x = x.float()
                wide = functional.scaled_dot_product_attention(x, x, x).tanh()
            return narrow.sum(1) + wide.sum(1)

    wide = recorded(tmp_path, Attention())
    assert "(root)/tanh.call1.act" in wide and "(root)/tanh.act" not in wide


def custom_functions(**options):
    """Returns the decorators of a function's forward and backward, for CUDA."""
    if hasattr(torch.amp, "custom_fwd"):
        options["device_type"] = "cuda"
        return torch.amp.custom_fwd(**options), torch.amp.custom_bwd(device_type="cuda")
    return torch.cuda.amp.custom_fwd(**options), torch.cuda.amp.custom_bwd


@pytest.mark.parametrize("wide", [True, False])
def test_a_function_that_casts_its_inputs_computes_in_float32(tmp_path, wide) -> None:
    to_forward, to_backward = custom_functions(**({"cast_inputs": torch.float32} if wide else {}))

    class Product(torch.autograd.Function):
        @staticmethod
        @to_forward
        def forward(ctx, x, weight):
            ctx.save_for_backward(weight)
            return (x @ weight).abs() * 1e5

        @staticmethod
        @to_backward
        def backward(ctx, gradient):
            return gradient @ ctx.saved_tensors[0].t() * 1e5, None

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.out(Product.apply(self.fc(x), self.out.weight) / 1e6)

    ours = {f"(root)/{operation}.act" for operation in ("matmul", "abs", "mul")}
    assert ours & recorded(tmp_path, Model()) == (ours if wide else set())
    assert ours <= load(tmp_path, 0)[0].keys()
    assert "is_enabled" not in torch.is_autocast_enabled.__name__


def test_the_verdict_does_not_count_them(tmp_path) -> None:
    class Large(nn.Module):
        def __init__(self, enabled: bool) -> None:
            super().__init__()
            self.fc, self.enabled = nn.Linear(4, 4), enabled

        def forward(self, x):
            x = self.fc(x)
            if self.enabled:
                return (x * 1e6) / 1e6
            with torch.autocast("cpu", enabled=False):
                return (x.float() * 1e6) / 1e6

    for enabled in (True, False):
        torch.manual_seed(0)
        path = tmp_path / f"{enabled}.profile"
        model = Large(enabled)
        with dlsim.Recorder(model, path, on_error="raise") as rec:
            model(torch.ones(3, 4)).square().mean().backward()
            rec.step(scale=1.0)
        (fp16,) = dlsim.replay(path, formats=["fp16"]).data["verdict"]["formats"]
        assert (fp16["verdict"] == "fails in forward") == enabled
