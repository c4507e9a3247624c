# SPDX-License-Identifier: Apache-2.0
"""amp.autocast rounds as autocast_emulation does, inside its block and nowhere else."""

from __future__ import annotations

import copy
import re
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.checkpoint import checkpoint

import dlsim
from dlsim import amp

FORMATS = {"float16": "fp16", "bfloat16": "bf16", "cbfloat16": "cb16"}


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Each test starts with float16, and leaves no hook."""
    amp.set_half_dtype("float16")
    yield
    amp.set_half_dtype("float16")
    assert not torch_module._global_forward_pre_hooks
    assert not torch_module._global_forward_hooks


def assert_same_bits(a: torch.Tensor, b: torch.Tensor) -> None:
    np.testing.assert_array_equal(a.detach().view(torch.int32), b.detach().view(torch.int32))


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 5))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 6, num_layers=2)
        self.cell = nn.GRUCell(6, 5)

    def forward(self, x):
        outputs, _ = self.lstm(x)
        return self.cell(outputs[-1], x[0])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2
        )
        self.head = nn.Linear(8, 11)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)))


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.prelu = nn.PReLU()
        self.both = nn.Bilinear(4, 4, 2)

    def forward(self, x):
        x = self.prelu(self.norm(self.conv(x)))
        return self.both(x, x.flip(-1))


CASES = {
    "mlp": (mlp, lambda: torch.randn(6, 5)),
    "recurrent": (Recurrent, lambda: torch.randn(4, 3, 5)),
    "attention": (Attention, lambda: torch.randint(11, (2, 6))),
    "mixed": (Mixed, lambda: torch.randn(2, 2, 6, 6)),
}


def run(model, x, context, scale):
    """Returns the output of a forward pass in `context`, and the gradients of a backward after."""
    x = x.clone().requires_grad_(x.is_floating_point())
    model.zero_grad(set_to_none=True)
    with context:
        y = model(x)
    # Tiny and large gradients: some underflow, some overflow.
    weight = torch.logspace(-8, 2, y.numel()).view_as(y)
    (y * weight).sum().mul(scale).backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    return [y, *([x.grad] if x.is_floating_point() else []), *grads.values()]


def emulated(model, x, format, scale):
    # Its roundings stay in the graph of this forward pass, so that the backward after it has them.
    return run(model, x, dlsim.autocast_emulation(model, format, parameter_gradients=False), scale)


# -- which bits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("half_dtype", FORMATS)
@pytest.mark.parametrize("case", CASES)
def test_forward_and_backward_are_those_of_autocast_emulation(case, half_dtype):
    torch.manual_seed(1)
    make, inputs = CASES[case]
    model, x = make(), inputs()
    amp.set_half_dtype(half_dtype)
    twin = copy.deepcopy(model)
    got = run(model, x, amp.autocast(), 128.0)
    expected = emulated(twin, x, FORMATS[half_dtype], 128.0)
    exact = run(copy.deepcopy(model), x, amp.autocast(enabled=False), 128.0)
    for one, other in zip(got, expected, strict=True):
        assert_same_bits(one, other)
    assert not any(torch.equal(one, other) for one, other in zip(got, exact, strict=True))


@pytest.mark.parametrize("half_dtype", FORMATS)
def test_rounded_values_are_those_of_quantize(half_dtype):
    generator = np.random.default_rng(0)
    values = generator.standard_normal((8, 16)) * np.exp2(generator.integers(-50, 40, (8, 16)))
    x = torch.from_numpy(values.astype(np.float32)).requires_grad_()
    model = nn.PReLU(init=1.0)
    with amp.autocast(half_dtype):
        y = model(x)
    y.backward(x.detach())
    expected = dlsim.quantize(x.detach(), FORMATS[half_dtype])
    assert not torch.equal(expected, x)
    assert_same_bits(y, expected)
    assert_same_bits(x.grad, expected)


def test_fused_transformer_layers_are_rounded_too():
    torch.manual_seed(1)
    make, inputs = CASES["attention"]
    model, tokens = make().eval(), inputs()
    before = [dict(vars(module)) for module in model.modules()]
    with torch.no_grad():
        exact = model(tokens)
        with amp.autocast("bfloat16"):
            y = model(tokens)
            assert [dict(vars(module)) for module in model.modules()] == before
        with dlsim.autocast_emulation(model, "bf16"):
            assert_same_bits(y, model(tokens))
        assert_same_bits(model(tokens), exact)
    assert not torch.equal(y, exact)
    assert [dict(vars(module)) for module in model.modules()] == before


def test_training_with_a_scaler_is_that_of_the_whole_emulation():
    """unscale_ rounds the gradients of parameters, which autocast leaves to it."""

    def train(loop_context, model_context):
        torch.manual_seed(2)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        scaler = amp.GradScaler("dynamic", init_scale=2.0**15, steps_per_increase=2)
        with model_context(model):
            for _ in range(8):
                with loop_context():
                    loss = model(torch.randn(6, 5)).square().sum()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        return [*model.parameters()], int(scaler.get_num_skipped_steps())

    off = {"enabled": False}
    got, skipped = train(amp.autocast, lambda _: amp.autocast(**off))
    expected, _ = train(lambda: amp.autocast(**off), lambda m: dlsim.autocast_emulation(m, "fp16"))
    plain, _ = train(lambda: amp.autocast(**off), lambda _: amp.autocast(**off))
    assert 0 < skipped < 8
    for one, other, exact in zip(got, expected, plain, strict=True):
        assert_same_bits(one, other)
        assert not torch.equal(one, exact)


def test_the_scaled_gradient_is_what_is_rounded():
    model, tiny = nn.Linear(1, 1, bias=False), 2.0**-30
    grads = {}
    for scale in (1.0, 2.0**15):
        model.zero_grad(set_to_none=True)
        with amp.autocast():
            y = model(torch.ones(1, 1))
        (y.sum() * tiny * scale).backward()
        grads[scale] = model.weight.grad.item() / scale
    assert grads == {1.0: 0.0, 2.0**15: tiny}


def test_a_model_that_is_emulated_already_computes_the_same():
    model, x = mlp(), torch.randn(6, 5)
    expected = emulated(model, x, "fp16", 128.0)
    with dlsim.autocast_emulation(model, "fp16", parameter_gradients=False):
        got = run(model, x, amp.autocast(), 128.0)
    for one, other in zip(got, expected, strict=True):
        assert_same_bits(one, other)


def test_gradients_can_be_differentiated_again():
    model, x = mlp(), torch.randn(3, 5, requires_grad=True)

    def penalty(context):
        with context:
            y = model(x)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), model[0].weight)[0]

    expected = penalty(dlsim.autocast_emulation(model, "fp16", parameter_gradients=False))
    assert_same_bits(penalty(amp.autocast()), expected)


def test_other_types_other_values_and_inputs_in_place_are_as_in_the_emulation():
    class InPlace(nn.Linear):
        inplace = True

        def forward(self, x):
            return {"out": x.mul_(3.0), "count": 2, "index": torch.tensor([1])}

    model = InPlace(2, 2)
    x = torch.tensor([1.0001, 70000.0], dtype=torch.float64)
    with amp.autocast():
        output = model(x)
    assert x.tolist() == [1.0001 * 3.0, 210000.0]
    assert output["out"].dtype == torch.float64
    assert output["out"].tolist() == [3.0, float("inf")]
    assert (output["count"], output["index"].dtype) == (2, torch.int64)


# -- which type ------------------------------------------------------------------------------------

X = torch.tensor([1 + 2.0**-9, 70000.0, 2.0**-28])
IDENTITY = nn.PReLU(init=1.0).requires_grad_(False)


def format_of(**arguments) -> str:
    """Returns the format that a block of these arguments rounds to, or "none"."""
    with amp.autocast(**arguments):
        y = IDENTITY(X)
    if torch.equal(y, X):
        return "none"
    (name,) = (name for name in FORMATS.values() if torch.equal(y, dlsim.quantize(X, name)))
    return name


def test_the_type_is_that_of_set_half_dtype_when_the_block_begins():
    context = amp.autocast()
    for half_dtype, name in FORMATS.items():
        amp.set_half_dtype(half_dtype)
        assert format_of() == name
        with context:
            amp.set_half_dtype("float16")
            assert torch.equal(IDENTITY(X), dlsim.quantize(X, name))


def test_a_type_can_be_given():
    for half_dtype, name in FORMATS.items():
        assert format_of(dtype=half_dtype) == name
    assert format_of(dtype=torch.float16) == "fp16"
    assert format_of(dtype=torch.bfloat16) == "bf16"
    assert format_of(dtype=torch.float32) == "none"
    assert format_of(dtype="float32") == "none"
    assert format_of(cache_enabled=False) == "fp16"
    assert format_of(dtype=torch.bfloat16, enabled=False) == "none"


def test_float16_stands_for_cbfloat16_as_in_get_half_dtype():
    dtype = amp.set_half_dtype("cbfloat16")
    assert format_of(dtype=dtype) == format_of(dtype=torch.float16) == "cb16"
    assert format_of(dtype="float16") == "fp16"


def test_nothing_is_rounded_once_mixed_precision_is_off():
    amp.enable_mixed_precision(False)
    assert format_of() == "none"
    assert format_of(dtype="float16") == "fp16"


@pytest.mark.parametrize(
    ("dtype", "error", "text"),
    [
        ("half", ValueError, "autocast.dtype: unknown type, expected float16, bfloat16, cbfloat16"),
        ("cuda", ValueError, "got 'cuda'"),
        (torch.float64, ValueError, "got 'torch.float64'"),
        (
            True,
            TypeError,
            "autocast.dtype: bad type, expected a torch.dtype, its name or None, got",
        ),
        (mlp, TypeError, "got function"),
    ],
)
def test_other_types_are_refused_at_once(dtype, error, text):
    with pytest.raises(error, match=re.escape(text)) as raised:
        amp.autocast(dtype)
    assert "\n" not in str(raised.value)


# -- where -----------------------------------------------------------------------------------------


def test_nothing_is_rounded_outside():
    model, x = mlp(), torch.randn(6, 5)
    exact = model(x)
    with amp.autocast():
        assert torch_module._global_forward_pre_hooks
        y = model(x)
    assert not torch.equal(y, exact)
    assert_same_bits(model(x), exact)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_the_outside_of_a_disabled_block_has_no_hooks():
    with amp.autocast(enabled=False), amp.autocast(torch.float32):
        assert not torch_module._global_forward_pre_hooks


def test_modules_of_16_bits_only():
    x = torch.tensor([[1.0, 1 + 2.0**-20]])
    with amp.autocast():
        for module in (nn.Softmax(-1), nn.LayerNorm(2), nn.ReLU(), nn.MSELoss()):
            arguments = (x, x * 1.5) if isinstance(module, nn.MSELoss) else (x,)
            y = module(*arguments)
            assert_same_bits(y, module.forward(*arguments))
        assert torch.equal(nn.functional.linear(x, torch.eye(2)), x)


def test_blocks_nest():
    def rounded(name):
        return torch.equal(IDENTITY(X), dlsim.quantize(X, name) if name else X)

    with amp.autocast():
        assert rounded("fp16")
        with amp.autocast(enabled=False):
            assert rounded(None)
            with amp.autocast("cbfloat16"):
                assert rounded("cb16")
            assert rounded(None)
            with amp.autocast(torch.float32):
                assert rounded(None)
        assert rounded("fp16")
        with amp.autocast(torch.bfloat16):
            assert rounded("bf16")
        assert rounded("fp16")
    assert rounded(None)


def test_one_object_can_be_entered_again_and_again():
    context = amp.autocast()
    for _ in range(2):
        with context, context:
            with context:
                pass
            assert not torch.equal(IDENTITY(X), X)
        assert torch.equal(IDENTITY(X), X)


def test_functions_and_methods_are_decorated():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = mlp()

        @amp.autocast()
        def forward(self, x):
            """Applies the layer."""
            return self.layer(x)

    model, x = Model(), torch.randn(6, 5)
    for half_dtype in FORMATS:
        amp.set_half_dtype(half_dtype)
        with amp.autocast():
            expected = model.layer(x)
        assert_same_bits(model(x), expected)
    assert model.forward.__doc__ == "Applies the layer."


def test_a_decorated_function_may_call_itself():
    @amp.autocast()
    def twice(x, depth=1):
        y = twice(x, depth - 1) if depth else x
        return IDENTITY(y)

    assert torch.equal(twice(X), dlsim.quantize(X, "fp16"))


def test_an_exception_ends_the_block():
    make, inputs = CASES["attention"]
    model, tokens = make().eval(), inputs()
    before = [dict(vars(module)) for module in model.modules()]
    with torch.no_grad():
        exact = model(tokens)
        with pytest.raises(RuntimeError), amp.autocast(), amp.autocast("bfloat16"):
            model.encoder(torch.ones(2, 6, 7))  # a width of 7 instead of 8: fails in a layer
        assert_same_bits(model(tokens), exact)
        with amp.autocast():
            with pytest.raises(RuntimeError):
                model.encoder(torch.ones(2, 6, 7))
            rounded = model(tokens)
        with amp.autocast():
            assert_same_bits(model(tokens), rounded)
    assert [dict(vars(module)) for module in model.modules()] == before


def test_a_block_is_one_threads_own():
    model, x = mlp(), torch.randn(6, 5)
    exact = model(x)
    results = {}

    def other():
        results["plain"] = model(x)
        with amp.autocast("bfloat16"):
            results["bfloat16"] = model(x)

    with amp.autocast():
        expected = model(x)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert_same_bits(model(x), expected)
    assert_same_bits(results["plain"], exact)
    with amp.autocast("bfloat16"):
        assert_same_bits(results["bfloat16"], model(x))


def test_blocks_on_threads_may_overlap():
    make, inputs = CASES["attention"]
    model, tokens = make().eval(), inputs()
    before = [dict(vars(module)) for module in model.modules()]
    context = amp.autocast()
    barrier = threading.Barrier(2)
    inside, outside = [], []

    def work(index):
        with torch.no_grad():
            for _ in range(5):
                barrier.wait(timeout=60)
                with context:
                    inside.append(model(tokens))
                    if index:
                        barrier.wait(timeout=60)
                if not index:
                    barrier.wait(timeout=60)
            barrier.wait(timeout=60)
            outside.append(model(tokens))

    with torch.no_grad():
        exact = model(tokens)
        with context:
            expected = model(tokens)
    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(inside), len(outside)) == (10, 2)
    assert all(torch.equal(y, expected) for y in inside)
    assert all(torch.equal(y, exact) for y in outside)
    assert [dict(vars(module)) for module in model.modules()] == before


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_decorated_function_is_rounded_when_a_checkpoint_computes_it_again(use_reentrant):
    model, x = mlp(), torch.randn(6, 5)
    expected = run(model, x, amp.autocast(), 128.0)

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x):
            return checkpoint(amp.autocast()(self.model), x, use_reentrant=use_reentrant)

    got = run(Checkpointed(), x, amp.autocast(), 128.0)
    for one, other in zip(got, expected, strict=True):
        assert_same_bits(one, other)
