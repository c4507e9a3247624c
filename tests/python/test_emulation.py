# SPDX-License-Identifier: Apache-2.0
"""What dlsim.autocast_emulation promises: which bits it makes, and what it leaves alone."""

from __future__ import annotations

import collections
import copy
import dataclasses
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dlsim
from dlsim._rounding import Rounding, map_tensors, straight_through

FORMATS = ["fp16", "bf16", "cb16", "fp8-e5m2", "e4m3"]


def bits(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy().view(np.uint32)


def assert_same_bits(a: torch.Tensor, b: torch.Tensor) -> None:
    assert a.shape == b.shape
    np.testing.assert_array_equal(bits(a), bits(b))


def wide(*shape: int, seed: int = 0) -> torch.Tensor:
    """Values of every binade that fp16 and cb16 have, and beyond, with both zeros."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(shape) * np.exp2(generator.integers(-50, 40, shape))
    values.flat[:2] = [0.0, -0.0]
    return torch.from_numpy(values.astype(np.float32))


def quantize(x: torch.Tensor, format, gradient=None, **how) -> torch.Tensor:
    """Returns a tensor rounded in a graph, as the emulation rounds those of modules."""
    backward = None if gradient is None else Rounding(gradient, **how)
    return straight_through(x, Rounding(format, **how), backward)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


class TwoOutputs(nn.Module):
    """Gives back what it is asked for, made of its input."""

    def __init__(self, pack) -> None:
        super().__init__()
        self.pack = pack

    def forward(self, x):
        return self.pack(x * 1.0, x * 3.0)


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor


Named = collections.namedtuple("Named", ["first", "second"])


# -- forward ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_outputs_are_those_of_quantize_bit_for_bit(format):
    model = nn.Linear(16, 16, bias=False)
    nn.init.eye_(model.weight)
    x = wide(4, 16)
    exact = model(dlsim.quantize(x, format))
    with dlsim.autocast_emulation(model, format):
        y = model(x)
    assert_same_bits(y, dlsim.quantize(exact.detach(), format))


@pytest.mark.parametrize(("format", "dtype"), [("fp16", torch.half), ("bf16", torch.bfloat16)])
def test_rounding_is_that_of_torchs_own_types(format, dtype):
    x = wide(64, 64)
    model = nn.Sequential(nn.Identity())
    with dlsim.autocast_emulation(model, format, modules="0"):
        y = model(x)
    assert_same_bits(y, x.to(dtype).float())


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=20), st.sampled_from(FORMATS))
def test_quantize_and_its_gradient_round_any_float(values, format):
    x = torch.tensor(values, dtype=torch.float32, requires_grad=True)
    y = quantize(x, format, gradient=format)
    assert_same_bits(y, dlsim.quantize(x.detach(), format))
    y.backward(x.detach())
    assert_same_bits(x.grad, dlsim.quantize(x.detach(), format))


def test_linear_layers_compute_what_16_bit_layers_compute():
    # With few terms of few bits each, float32 sums are exact: nothing but the roundings differs.
    model = mlp()
    x = torch.randint(-4, 5, (6, 5)).float() / 4
    emulated = copy.deepcopy(model)
    with dlsim.autocast_emulation(emulated, "fp16", weights=True):
        y = emulated(x)
    with torch.no_grad():
        weight, bias = model[0].weight.half().float(), model[0].bias.half().float()
        hidden = nn.functional.linear(x, weight, bias).half().float()
        hidden = torch.tanh(hidden).half().float()
        weight, bias = model[2].weight.half().float(), model[2].bias.half().float()
        expected = nn.functional.linear(hidden, weight, bias).half().float()
    assert_same_bits(y, expected)


def test_rounding_modes_reach_the_kernels():
    x = wide(40, 40)
    for how in (
        {"rounding": "rtz"},
        {"rounding": "ru"},
        {"overflow": "saturate"},
        {"subnormals": "flush"},
    ):
        y = quantize(x, "fp16", **how)
        assert_same_bits(y, dlsim.quantize(x, "fp16", **how))
        assert not np.array_equal(bits(y), bits(quantize(x, "fp16")))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_types_other_than_float32_keep_their_type(dtype):
    x = torch.linspace(-3, 3, 50).to(dtype)
    y = quantize(x, "fp8-e5m2")
    assert y.dtype == dtype
    assert torch.equal(y.float(), dlsim.quantize(x.float(), "fp8-e5m2"))


# -- backward --------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["fp16", "cb16", "bf16"])
def test_gradients_are_those_of_quantize_bit_for_bit(format):
    model = nn.Linear(4, 4, bias=False)
    nn.init.eye_(model.weight)
    x = torch.ones(4, 4, requires_grad=True)
    gradient = wide(4, 4)
    with dlsim.autocast_emulation(model, format):
        model(x).backward(gradient)
    rounded = dlsim.quantize(gradient, format)
    assert_same_bits(x.grad, dlsim.quantize(rounded @ torch.eye(4), format))
    expected = dlsim.quantize(rounded.t() @ torch.ones(4, 4), format)
    assert_same_bits(model.weight.grad, expected)


def test_gradients_equal_those_of_a_half_layer():
    # Halves in, halves out, float32 products: what a 16-bit matrix unit does.
    torch.manual_seed(1)
    model = nn.Linear(8, 8)
    x = torch.randn(3, 8, requires_grad=True)
    gradient = torch.randn(3, 8) * 1e-5
    with dlsim.autocast_emulation(model, "fp16", weights=True):
        model(x).backward(gradient)
    g = gradient.half().float()
    assert_same_bits(x.grad, (g @ model.weight.detach().half().float()).half().float())
    assert_same_bits(model.weight.grad, (g.t() @ x.detach().half().float()).half().float())
    assert_same_bits(model.bias.grad, g.sum(0).half().float())


def test_the_scaled_gradient_is_what_is_rounded():
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    nn.init.ones_(model[0].weight)
    tiny = 2.0**-30
    grads = {}
    for scale in (1.0, 2.0**15):
        model.zero_grad(set_to_none=True)
        with dlsim.autocast_emulation(model, "fp16") as handle:
            (model(torch.ones(1, 1)).sum() * tiny * scale).backward()
        grads[scale] = model[0].weight.grad.item() / scale
        lost = handle.statistics()["0"]["output.grad"].underflow
        assert lost == (1 if scale == 1 else 0)
    assert grads == {1.0: 0.0, 2.0**15: tiny}


def test_straight_through_is_the_derivative_of_the_identity():
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5)
    y = quantize(x, "cb16")
    (gradient,) = torch.autograd.grad((y * weight).sum(), x)
    assert torch.equal(gradient, weight.double())
    # Also where values overflow or underflow.
    x = torch.tensor([1e30, 1e-30, -1e30], requires_grad=True)
    quantize(x, "fp16").sum().backward()
    assert torch.equal(x.grad, torch.ones(3))


def test_gradients_can_be_differentiated_again():
    x = torch.tensor([0.5, -1.25], requires_grad=True)
    y = quantize(x, "cb16", gradient="cb16") ** 3
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert torch.equal(first, 3 * x.detach() ** 2)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    assert torch.equal(second, 6 * x.detach())
    (third,) = torch.autograd.grad(second.sum(), x)
    assert torch.equal(third, torch.full((2,), 6.0))


def test_a_gradient_penalty_trains_through_the_emulation():
    model = mlp()
    x = torch.randn(4, 5, requires_grad=True)
    with dlsim.autocast_emulation(model, "cb16"):
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (gradient**2).sum().backward()
    rounded = model[0].weight.grad.clone()
    model.zero_grad()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (gradient**2).sum().backward()
    exact = model[0].weight.grad
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.01)


def test_the_gradient_of_a_rounded_gradient_is_rounded():
    x = torch.ones(1, requires_grad=True)
    weight = torch.tensor([1.01], requires_grad=True)
    y = quantize(x, "e4m3", gradient="e4m3") * weight
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    assert first.item() == 1.0
    (second,) = torch.autograd.grad(first, weight, torch.tensor([3.03]))
    assert second.item() == 3.0


def test_sparse_gradients_are_rounded():
    model = nn.Sequential(nn.Embedding(10, 3, sparse=True))
    only = {"activations": False, "gradients": False, "parameter_gradients": True}
    with dlsim.autocast_emulation(model, "fp16", modules=nn.Embedding, **only) as handle:
        (model(torch.tensor([1, 1, 4])) * 1.0001).sum().backward()
    gradient = model[0].weight.grad
    assert gradient.is_sparse
    expected = torch.zeros(10, 3)
    expected[1] = 2.0
    expected[4] = 1.0
    assert_same_bits(gradient.to_dense(), expected)
    assert handle.statistics()["0"]["weight.grad"].elements == 6


# -- what is rounded -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pack",
    [
        lambda a, b: (a, b),
        lambda a, b: [a, b],
        lambda a, b: {"first": a, "second": b},
        lambda a, b: collections.OrderedDict(first=a, second=b),
        Pair,
        Named,
        lambda a, b: (a, {"deep": [b]}),
    ],
)
def test_nested_outputs_keep_their_structure(pack):
    model = TwoOutputs(pack)
    x = wide(3, 3).requires_grad_()
    with dlsim.autocast_emulation(model, "cb16", modules=TwoOutputs):
        output = model(x)
    assert type(output) is type(pack(x, x))
    tensors = []
    map_tensors(output, lambda tensor: tensors.append(tensor) or tensor)
    rounded = dlsim.quantize(x.detach(), "cb16")
    assert_same_bits(tensors[0], rounded)
    assert_same_bits(tensors[1], dlsim.quantize(rounded * 3, "cb16"))
    assert all(tensor.requires_grad for tensor in tensors)


def test_a_tensor_that_is_passed_twice_stays_one_tensor():
    class Same(nn.Module):
        def forward(self, query, key):
            assert query is key
            return query, key

    x = torch.randn(4)
    model = Same()
    with dlsim.autocast_emulation(model, "fp16", modules=Same) as handle:
        first, second = model(x, x)
    assert first is second
    assert handle.statistics()[""]["input"].elements == 4


def test_integers_and_other_values_pass_untouched():
    model = TwoOutputs(lambda a, b: (a, torch.tensor([3]), None, "text", 1.5))
    with dlsim.autocast_emulation(model, modules=TwoOutputs):
        output = model(torch.ones(2))
    assert output[1].dtype == torch.int64
    assert output[2:] == (None, "text", 1.5)


def test_inputs_are_never_modified():
    model = nn.Sequential(nn.ReLU(inplace=True))
    x = wide(4, 4)
    before = x.clone()
    with dlsim.autocast_emulation(nn.Sequential(nn.Linear(4, 4)), "fp16") as handle:
        pass
    assert handle.modules == ("0",)
    with dlsim.autocast_emulation(linear := nn.Linear(4, 4), "fp16"):
        linear(x)
    assert_same_bits(x, before)
    # A module that works in place still does.
    with dlsim.autocast_emulation(model, "fp16", modules=nn.ReLU):
        y = model(x)
    assert_same_bits(y, before.relu().half().float())
    assert_same_bits(x, before.relu())


def test_in_place_modules_after_rounded_outputs_train():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    with dlsim.autocast_emulation(model, "fp16", modules=(nn.Linear, nn.ReLU)):
        model(torch.randn(3, 4)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_shared_module_is_rounded_at_each_call():
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    with dlsim.autocast_emulation(model, "cb16") as handle:
        model(torch.randn(2, 3)).sum().backward()
    assert handle.modules == ("0",)
    statistics = handle.statistics()["0"]
    assert statistics["output"].elements == 12
    assert statistics["weight.grad"].elements == 9  # autograd adds both uses before


def test_attention_and_recurrent_layers_run():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    recurrent = nn.LSTM(8, 4, num_layers=2, batch_first=True)
    x = torch.randn(2, 5, 8)
    for model, inputs in ((attention, (x, x, x)), (recurrent, (x,))):
        names = [name for name, _ in model.named_parameters()]
        with dlsim.autocast_emulation(model, "fp16", weights=True) as handle:
            output = model(*inputs)[0]
            output.sum().backward()
        assert_same_bits(output, output.half().float())
        for name, parameter in model.named_parameters():
            assert_same_bits(parameter.grad, parameter.grad.half().float())
            assert f"{name}.grad" in handle.statistics()[""]
        assert names == [name for name, _ in model.named_parameters()]


def test_rounded_weights_of_recurrent_layers_are_used():
    torch.manual_seed(0)
    model = nn.GRU(3, 3)
    x = torch.randn(4, 1, 3)
    with dlsim.autocast_emulation(model, "e4m3", weights=True, activations=False):
        emulated = model(x)[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(dlsim.quantize(parameter.detach(), "e4m3"))
    assert_same_bits(emulated, model(x)[0])


@pytest.mark.parametrize("padding", [None, torch.tensor([[False] * 5, [False] * 3 + [True] * 2])])
def test_fused_transformer_layers_are_rounded_too(padding):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 5, 8)
    attributes = [dict(vars(module)) for module in model.modules()]
    with torch.no_grad():
        fused = model(x, src_key_padding_mask=padding)
        with dlsim.autocast_emulation(model, "e4m3") as handle:
            emulated = model(x, src_key_padding_mask=padding)
    statistics = handle.statistics()
    for name in ("layers.0.self_attn", "layers.0.linear1", "layers.1.linear2"):
        assert statistics[name]["output"].elements > 0
    kept = slice(None) if padding is None else ~padding
    assert not torch.allclose(emulated[kept], fused[kept], rtol=1e-4)
    torch.testing.assert_close(emulated[kept], fused[kept], rtol=0.2, atol=0.4)
    assert [dict(vars(module)) for module in model.modules()] == attributes


def test_each_switch_does_its_part_alone():
    x = torch.randn(4, 5)

    def run(**switches):
        model = mlp()
        with dlsim.autocast_emulation(model, "e4m3", **switches) as handle:
            y = model(x)
            y.sum().backward()
        return y.detach(), model[0].weight.grad, set(handle.statistics()["0"])

    off = dict(activations=False, gradients=False, weights=False)
    exact, gradient, kinds = run(**off)
    assert kinds == set()
    y, _, kinds = run(**{**off, "activations": True})
    assert kinds == {"input", "output"}
    assert not torch.equal(y, exact)
    y, rounded, kinds = run(**{**off, "gradients": True})
    assert kinds == {"output.grad", "weight.grad", "bias.grad"}
    assert torch.equal(y, exact)
    assert not torch.equal(rounded, gradient)
    y, _, kinds = run(**{**off, "weights": True})
    assert kinds == {"weight", "bias"}
    assert not torch.equal(y, exact)
    _, rounded, kinds = run(**{**off, "parameter_gradients": True})
    assert kinds == {"weight.grad", "bias.grad"}
    assert torch.equal(rounded, dlsim.quantize(gradient, "e4m3"))


def test_modules_are_chosen_by_type_glob_and_regular_expression():
    model = nn.Sequential(
        collections.OrderedDict(
            embed=nn.Embedding(4, 4),
            body=nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)),
            head=nn.Linear(4, 2),
        )
    )

    def chosen(modules=None):
        with dlsim.autocast_emulation(model, modules=modules) as handle:
            return handle.modules

    assert chosen() == ("body.0", "body.2", "head")
    assert chosen(nn.LayerNorm) == ("body.1",)
    assert chosen([nn.Embedding, nn.LayerNorm]) == ("embed", "body.1")
    assert chosen("body.*") == ("body.0", "body.1", "body.2")
    assert chosen(re.compile(r"body\.[02]|head")) == ("body.0", "body.2", "head")
    assert chosen(re.compile(r"\.[02]$")) == ("body.0", "body.2")  # searched, as in Recorder
    assert chosen(("head", nn.Embedding)) == ("embed", "head")


def test_frozen_parameters_are_left_alone_until_they_train():
    model = mlp()
    model[0].weight.requires_grad_(False)
    with dlsim.autocast_emulation(model, "e4m3") as handle:
        model(torch.randn(2, 5)).sum().backward()
        assert model[0].weight.grad is None
        assert "weight.grad" not in handle.statistics()["0"]
        model[0].weight.requires_grad_(True)
        model(torch.randn(2, 5)).sum().backward()
        assert handle.statistics()["0"]["weight.grad"].elements == 35
    assert torch.equal(model[0].weight.grad, dlsim.quantize(model[0].weight.grad, "e4m3"))


# -- statistics ------------------------------------------------------------------------------------


def test_statistics_are_those_of_measure():
    model = nn.Sequential(nn.Linear(16, 16, bias=False))
    nn.init.eye_(model[0].weight)
    x = wide(8, 16).clamp(-6e4, 6e4).requires_grad_()
    gradient = wide(8, 16, seed=1)
    with dlsim.autocast_emulation(model, "fp16") as handle:
        model(x).backward(gradient)
    statistics = handle.statistics()["0"]
    output = dlsim.quantize(x.detach(), "fp16")
    rounded = dlsim.quantize(gradient, "fp16")
    expected = {
        "input": dlsim.measure(x.detach(), "fp16"),
        "output": dlsim.measure(output, "fp16"),
        "output.grad": dlsim.measure(gradient, "fp16"),
        "input.grad": dlsim.measure(rounded @ torch.eye(16), "fp16"),
        "weight.grad": dlsim.measure(rounded.t() @ output, "fp16"),
    }
    assert statistics.keys() == expected.keys()
    for kind, stats in statistics.items():
        assert repr(stats) == repr(expected[kind])  # NaN is not equal to itself
    assert statistics["input"].underflow > 0
    assert statistics["input"].subnormal > 0
    assert statistics["output.grad"].overflow > 0
    assert statistics["output"].underflow == 0


def test_statistics_add_up_over_calls_and_begin_anew():
    model = nn.Sequential(nn.Linear(2, 2))
    with dlsim.autocast_emulation(model, "fp16") as handle:
        model(torch.tensor([[1e-30, 1e30]]))
        model(torch.tensor([[1e-30, 0.0]]))
        counted = handle.statistics()["0"]["input"]
        assert (counted.elements, counted.zeros) == (4, 1)
        assert (counted.underflow, counted.overflow) == (2, 1)
        assert counted.underflow_fraction == 2 / 3
        assert counted.absmax == np.float32(1e30)
        handle.reset_statistics()
        assert handle.statistics() == {"0": {}}
    assert counted.underflow == 2


def test_statistics_can_be_left_out():
    model = mlp()
    with dlsim.autocast_emulation(model, "fp16", statistics=False) as handle:
        y = model(torch.randn(3, 5))
    assert_same_bits(y, y.half().float())
    assert handle.statistics() == {"0": {}, "2": {}}


# -- the model afterwards --------------------------------------------------------------------------


def test_the_model_is_as_before_after_removal():
    model = mlp()
    x = torch.randn(4, 5)
    model(x).sum().backward()
    before, gradient = model(x), model[0].weight.grad.clone()
    parameters = dict(model.named_parameters())
    state = copy.deepcopy(model.state_dict())
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    handle = dlsim.autocast_emulation(model, "e4m3", weights=True)
    model(x).sum().backward()
    handle.remove()
    handle.remove()  # a second time has no effect
    assert torch.equal(model(x), before)
    assert list(dict(model.named_parameters())) == list(parameters)
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    model.zero_grad(set_to_none=True)
    model(x).sum().backward()
    assert torch.equal(model[0].weight.grad, gradient)


def test_an_exception_leaves_the_model_as_it_was():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)
            self.fail = True

        def forward(self, x):
            y = self.inner(x)
            if self.fail:
                raise RuntimeError("stop")
            return y

    model = Fails()
    x = torch.randn(1, 2)
    exact = model.inner(x)
    with pytest.raises(RuntimeError, match="stop"):
        with dlsim.autocast_emulation(model, "e4m3", modules=Fails, weights=True):
            model(x)
    assert all(isinstance(p, nn.Parameter) for p in model.inner._parameters.values())
    model.fail = False
    assert torch.equal(model(x), exact)
    # A caller who catches the error may go on: weights are rounded again.
    with dlsim.autocast_emulation(model, "e4m3", modules=Fails, weights=True):
        model.fail = True
        with pytest.raises(RuntimeError, match="stop"):
            model(x)
        model.fail = False
        with torch.no_grad():
            model.inner.weight.mul_(2)
        y = model(x)
    weight, bias = (dlsim.quantize(p.detach(), "e4m3") for p in model.inner.parameters())
    inputs = dlsim.quantize(x, "e4m3")
    assert_same_bits(y, dlsim.quantize(nn.functional.linear(inputs, weight, bias), "e4m3"))


def test_a_copied_model_ends_with_the_original():
    model = mlp()
    x = torch.randn(3, 5)
    exact = model(x)
    with dlsim.autocast_emulation(model, "e4m3"):
        twin = copy.deepcopy(model)
        assert_same_bits(twin(x), model(x))
    assert torch.equal(twin(x), exact)


def test_a_value_and_its_gradient_may_have_formats_of_their_own():
    # As docs/emulation.md rounds one tensor.
    model = nn.Sequential(nn.Identity())
    x, gradient = wide(3, 5).requires_grad_(), wide(3, 5, seed=1)
    with dlsim.autocast_emulation(model, "e4m3", modules="0", gradients=False) as first:
        with dlsim.autocast_emulation(model, "e5m2", modules="0", activations=False) as second:
            y = model(x)
            y.backward(gradient)
    assert_same_bits(y, dlsim.quantize(x.detach(), "e4m3"))
    assert_same_bits(x.grad, dlsim.quantize(gradient, "e5m2"))
    assert first.statistics()["0"].keys() == {"input", "output"}
    assert second.statistics()["0"].keys() == {"input.grad", "output.grad"}


def test_emulations_may_end_in_any_order():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    attributes = [dict(vars(module)) for module in model.modules()]
    first = dlsim.autocast_emulation(model, "fp16")
    second = dlsim.autocast_emulation(model, "fp16")
    first.remove()
    with torch.no_grad():
        model(torch.randn(2, 5, 8))
    assert second.statistics()["layers.1.linear2"]["output"].elements == 80
    second.remove()
    assert [dict(vars(module)) for module in model.modules()] == attributes


# -- the same every time ---------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", ["rne", "sr"])
def test_training_is_deterministic(rounding):
    def train(seed):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(3)
        with dlsim.autocast_emulation(model, "e4m3", rounding=rounding, seed=seed):
            for _ in range(5):
                optimizer.zero_grad()
                model(torch.randn(8, 5, generator=generator)).pow(2).sum().backward()
                optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    first = train(0)
    assert torch.equal(first, train(0))
    assert torch.equal(first, train(1)) == (rounding == "rne")


def test_stochastic_rounding_differs_between_calls_and_is_unbiased():
    model = nn.Sequential(nn.Identity())
    x = torch.full((4096,), 1 + 2.0**-4)
    with dlsim.autocast_emulation(model, "e4m2", modules="0", rounding="sr") as handle:
        first, second = model(x), model(x)
    assert not torch.equal(first, second)
    assert set(first.tolist()) == {1.0, 1.25}
    assert abs(first.mean().item() - x[0].item()) < 0.01
    assert handle.statistics()["0"]["input"].elements == 8192


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"model": "net"}, TypeError, "model: bad type, expected torch.nn.Module, got str"),
        ({"format": "fp17"}, ValueError, "fp17"),
        ({"format": 16}, TypeError, "format: no format"),
        ({"rounding": "nearest"}, ValueError, "nearest"),
        ({"overflow": "wrap"}, ValueError, "wrap"),
        ({"subnormals": "lose"}, ValueError, "lose"),
        (
            {"modules": "nothing*"},
            ValueError,
            "such as (root), 0, 1, 2, got 'nothing*'",
        ),
        ({"modules": [3]}, TypeError, "modules: bad choice"),
        ({"modules": 3}, TypeError, "modules: bad choice"),
    ],
)
def test_bad_arguments_are_named_at_once(arguments, error, text):
    model = mlp()
    with pytest.raises(error, match=re.escape(text)) as raised:
        dlsim.autocast_emulation(**{"model": model, **arguments})
    assert "\n" not in str(raised.value)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_missing_torch_is_one_clear_line():
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import dlsim\n"
        "try:\n    dlsim.autocast_emulation\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    expected = "dlsim.emulation: PyTorch is missing, expected `pip install torch`\n"
    assert (done.stdout, done.stderr) == (expected, "")


def test_a_format_may_be_a_dtype():
    with dlsim.autocast_emulation(mlp(), torch.bfloat16) as handle:
        assert handle.format == dlsim.BF16
