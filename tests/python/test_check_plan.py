# SPDX-License-Identifier: Apache-2.0
"""What dlsim.check_plan promises: CUDA's autocast on any machine, and a training left alone."""

from __future__ import annotations

import math
import os
import random
import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import dlsim
from dlsim._errors import UsageError
from dlsim.emulation import _cuda_autocast
from dlsim.emulation._cuda_autocast import CudaAutocast

HAS_FP16 = _cuda_autocast._can_autocast(torch.float16)
needs_fp16 = pytest.mark.skipif(not HAS_FP16, reason="this PyTorch autocasts to bf16 only")
FORMATS = ["bf16", pytest.param("fp16", marks=needs_fp16), pytest.param("cb16", marks=needs_fp16)]


class Squares(nn.Module):
    """An MLP whose activation overflows in fp16, in the input of `down`."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 1)
        self.up.weight.data.mul_(gain)

    def forward(self, x):
        return self.down(self.up(x).relu() ** 2) / 1e6


class Masked(nn.Module):
    """Attention whose mask is a number that fp16 does not have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(-1, -2)
        future = torch.ones(3, 3, dtype=torch.bool).triu(1)
        return scores.masked_fill(future, -1e9).softmax(-1) @ x


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))


def batches(count: int = 4, shape: tuple[int, ...] = (8, 4)) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


def loss_of(model, batch):
    return (model(batch).float() - 1).square().mean()


# -- what holds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_a_healthy_model_holds_in_each_format(format):
    found = dlsim.check_plan(mlp(), loss_of, batches(), format=format)
    assert found.holds and found.bad_steps == ()
    assert 0 <= found.loss_difference < 0.02  # rounded, but little
    assert re.fullmatch(
        rf"{format} holds: all 4 steps are finite\. The mean loss differs from float32's by "
        r"\S+ %, mean gradients of rows by \S+ %\.",
        str(found),
    )


@needs_fp16
def test_an_overflow_fails_until_its_module_is_kept():
    model = Squares(600.0)
    found = dlsim.check_plan(model, loss_of, batches())
    assert not found.holds and found.bad_steps == (0, 1, 2, 3)
    (culprit,) = found.culprits
    assert (culprit.module, culprit.operation, culprit.call) == ("down", "linear", 0)
    assert culprit.operands > 65504 and culprit.error == ""
    assert str(found) == (
        "fp16 fails: 4 of 4 steps have a loss that is not finite, first step 0: linear in down, in "
        f"float32 with operands up to {culprit.operands:.6g} and results up to "
        f"{culprit.result:.6g}."
    )
    kept = dlsim.check_plan(model, loss_of, batches(), keep_float32=["down"])
    assert kept.holds, kept
    assert str(kept).startswith("fp16 holds with down in float32: all 4 steps are finite.")
    assert "forward" not in vars(model.down)  # the plan was in force meanwhile only


@needs_fp16
def test_a_plan_brings_its_names_and_its_scale():
    @dataclass
    class Change:
        keep_float32: tuple[str, ...]
        scale: float | None

    found = dlsim.check_plan(
        Squares(600.0), loss_of, batches(), keep_float32=Change(("down",), 8.0)
    )
    assert found.holds and found.keep_float32 == ("down",)
    assert [step.scale for step in found.steps] == [8.0] * 4


@needs_fp16
def test_a_number_that_pytorch_refuses_raises_as_in_reality():
    found = dlsim.check_plan(Masked(), loss_of, batches(shape=(2, 3, 4)))
    assert not found.holds
    assert found.steps[0].error.startswith("RuntimeError: value cannot be converted to type")
    assert "4 of 4 steps raise, first step 0 (RuntimeError: value cannot" in str(found)
    assert str(found).endswith("overflow): masked_fill in (root).")
    kept = dlsim.check_plan(Masked(), loss_of, batches(shape=(2, 3, 4)), keep_float32="(root)")
    assert kept.holds and kept.loss_difference == 0


def test_the_same_number_is_one_of_bf16():
    assert dlsim.check_plan(Masked(), loss_of, batches(shape=(2, 3, 4)), format="bf16").holds


def test_bce_raises_as_under_cuda():
    def loss_of(model, batch):
        return functional.binary_cross_entropy(model(batch).sigmoid(), torch.ones(8, 1))

    found = dlsim.check_plan(mlp(), loss_of, batches(), format="bf16")
    assert not found.holds and "unsafe to autocast" in found.steps[0].error


@needs_fp16
def test_the_scale_falls_as_the_scaler_would_and_a_few_skips_are_allowed():
    def large(model, batch):
        return loss_of(model, batch) * 100

    found = dlsim.check_plan(mlp(), large, batches(30), scale=2.0**12)
    skips = len(found.bad_steps)
    assert found.holds and 0 < skips <= 6 and found.bad_steps == tuple(range(skips))
    assert [one.scale for one in found.steps[: skips + 1]] == [
        2.0 ** (12 - i) for i in range(skips + 1)
    ]
    assert f"{skips} of 30 steps have gradients that are not finite" in str(found)
    assert not dlsim.check_plan(mlp(), large, batches(3), scale=2.0**30).holds


@needs_fp16
def test_gradients_that_vanish_do_not_hold():
    def small(model, batch):
        return loss_of(model, batch) * 1e-8

    unscaled = dlsim.check_plan(mlp(), small, batches(), scale=1.0)
    assert unscaled.loss_difference < 0.05
    assert unscaled.gradient_error > 0.05
    assert not unscaled.holds
    assert dlsim.check_plan(mlp(), small, batches(), scale=2.0**20).holds


@needs_fp16
def test_a_part_with_small_gradients_counts_like_a_large_one():
    def two(model, batch):
        return loss_of(model["a"], batch) + 1e-5 * loss_of(model["b"], batch)

    model = nn.ModuleDict({"a": mlp(), "b": mlp()})
    found = dlsim.check_plan(model, two, batches(), scale=2.0**-8)
    assert found.loss_difference < 0.01 and not found.holds
    errors = found.gradient_errors
    assert {name for name in errors if errors[name] > 0.2} == {"b.0.weight", "b.2.weight"}
    assert str(found).endswith(" %, most in b.2, b.0.")
    assert dlsim.check_plan(model, two, batches(), scale=2.0**-8, keep_float32="b").holds


def test_noise_before_a_normalization_is_not_an_error():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    found = dlsim.check_plan(model, loss_of, batches(), format="bf16")
    assert found.holds and max(found.gradient_errors.values()) < 0.01, found


def test_a_loss_that_rounding_changes_does_not_hold():
    def years(model, batch):
        return (model[0](batch).float() * 0 + torch.mm(batch[:, :1] / batch[:, :1], year)).mean()

    year = torch.tensor([[2023.0]])

    def difference(model, batch):
        return (years(model, batch) - 2022.5).square() + 0 * loss_of(model, batch)

    found = dlsim.check_plan(mlp(), difference, batches(), format="bf16")
    assert not found.holds and found.loss_difference > 0.05


# -- what a training must not notice ---------------------------------------------------------------


class Stateful(nn.Module):
    """Draws random numbers of every kind, and has buffers that change."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.head = nn.Linear(8, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        factor = 1 + random.random() + np.random.rand()
        return self.head(self.body(x)) * factor


def state_of(model):
    return {
        **{name: one.clone() for name, one in model.state_dict().items()},
        **{f"{name}.grad": one.grad.clone() for name, one in model.named_parameters()},
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].copy(),
        "modes": [one.training for one in model.modules()],
    }


@pytest.mark.parametrize("keep", [(), ("head",)])
@pytest.mark.parametrize("format", FORMATS)
def test_nothing_of_the_training_changes(format, keep):
    model = Stateful()
    loss_of(model, batches()[0]).backward()
    model.body[1].eval()
    gradient, calls, before = model.head.weight.grad, model.calls, state_of(model)

    def noisy(model, batch):
        model.train()
        return loss_of(model, batch)

    dlsim.check_plan(model, noisy, batches(), format=format, keep_float32=keep)
    after = state_of(model)
    for name, one in before.items():
        same = torch.equal(one, after[name]) if isinstance(one, torch.Tensor) else None
        np.testing.assert_equal(after[name], one) if same is None else None
        assert same is not False, name
    assert model.head.weight.grad is gradient and model.calls is calls


def test_both_passes_draw_the_same_numbers_and_steps_draw_others():
    drawn: list[float] = []

    def loss(model, batch):
        drawn.append(float(torch.rand(())) + random.random())
        return loss_of(model, batch)

    dlsim.check_plan(mlp(), loss, batches(2), format="bf16")
    assert drawn[0] == drawn[1] != drawn[2] == drawn[3]


def test_an_optimizer_in_backward_does_not_step():
    model = mlp()
    if not hasattr(model[0].weight, "register_post_accumulate_grad_hook"):
        pytest.skip("this PyTorch has no such hooks")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    before = model[0].weight.detach().clone()
    dlsim.check_plan(model, loss_of, batches(), format="bf16")
    assert torch.equal(model[0].weight, before)
    loss_of(model, batches()[0]).backward()
    assert not torch.equal(model[0].weight, before)


def test_an_error_in_float32_is_the_users_and_leaves_all_as_it_was():
    model = mlp()
    before = torch.get_rng_state()

    def broken(model, batch):
        torch.rand(3)
        raise ValueError("no label")

    with pytest.raises(ValueError, match="no label"):
        dlsim.check_plan(model, broken, batches(), keep_float32=["2"], format="bf16")
    assert torch.equal(torch.get_rng_state(), before) and "forward" not in vars(model[2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss_of": lambda m, x: m(x)}, "loss_of: bad loss, expected a tensor of one number"),
        ({"batches": []}, "batches: nothing to compare"),
        ({"loss_of": lambda m, x: m(x).sum() * float("nan")}, "batches: nothing to compare"),
        ({"scale": 0.0}, "scale: bad number"),
        ({"model": mlp().bfloat16()}, r"0\.weight: bad type, expected float32"),
    ],
)
def test_what_cannot_be_compared_is_refused(change, message):
    given = {"model": mlp(), "loss_of": loss_of, "batches": batches(), "format": "bf16"} | change
    with pytest.raises(UsageError, match=message):
        dlsim.check_plan(given.pop("model"), given.pop("loss_of"), given.pop("batches"), **given)


def test_a_pytorch_without_float16_on_the_cpu_is_refused(monkeypatch):
    monkeypatch.setattr(_cuda_autocast, "_can_autocast", lambda dtype: dtype == torch.bfloat16)
    with pytest.raises(UsageError, match="format: bad format 'fp16', expected bf16"):
        dlsim.check_plan(mlp(), loss_of, batches())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_it_is_torchs_own_autocast():
    model = Squares(600.0).cuda()
    found = [one.cuda() for one in batches()]
    assert not dlsim.check_plan(model, loss_of, found).holds
    assert dlsim.check_plan(model, loss_of, found, keep_float32=["down"]).holds


# -- the rules -------------------------------------------------------------------------------------


def cuda_lists() -> dict[str, bool | None]:
    """Returns the lists of PyTorch's own header: 16 bits, float32, or None for the widest."""
    header = os.path.join(os.path.dirname(torch.__file__), "include/ATen/autocast_mode.h")
    if not os.path.exists(header):
        pytest.skip("this PyTorch has no such header")
    text = open(header, encoding="utf-8").read().replace("\\\n", " ")
    lists: dict[str, bool | None] = {}
    for macro, policy in {
        "LOWER_PRECISION_FP": True, "FP32": False, "FP32_SET_OPT_DTYPE": False, "PROMOTE": None,
    }.items():  # fmt: skip
        line = re.search(rf"#define AT_FORALL_{macro}\(_\)(.*)", text)
        if line is None:
            pytest.skip("the header of this PyTorch has another form")
        for names in re.findall(r"_\(([^)]*)\)", line.group(1)):
            lists[".".join(part.strip() for part in names.split(","))] = policy
    return lists


def test_the_lists_are_those_of_pytorchs_header():
    makers = {
        _cuda_autocast._in_16_bits: True,
        _cuda_autocast._in_float32: False,
        _cuda_autocast._in_widest: None,
    }
    ours = {
        str(operator).removeprefix("aten.").removesuffix(".default"): makers.get(make, "banned")
        for operator, make in _cuda_autocast._operators()
    }
    expected = cuda_lists()
    assert len(expected) > 100
    assert {name: ours.get(name, "missing") for name in expected} == expected


def everything(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Returns a sum over what goes through most of the rules, with views and in-place changes."""
    hidden = model["norm"](functional.gelu(model["linear"](x)))
    hidden = hidden + model["attention"](hidden[None], hidden[None], hidden[None])[0][0]
    hidden = hidden + model["lstm"](hidden[None])[0][0]
    hidden = functional.layer_norm(hidden, (8,)).masked_fill(hidden > 3, -5.0)
    other = hidden.clone()
    other[:, 0] = 0.5
    other = other.view(4, 2, 8).transpose(0, 1).reshape(8, 8)
    other.mul_(1.25)
    stacked = torch.stack([other.std(), other.float().mean(), other.chunk(2, -1)[0].mean()])
    return stacked.sum() + hidden.pow(2).sum(-1).mean() + functional.dropout(other).exp().mean()


def parts() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "linear": nn.Linear(8, 8),
            "norm": nn.BatchNorm1d(8),
            "attention": nn.MultiheadAttention(8, 2, batch_first=True),
            "lstm": nn.LSTM(8, 8),
        }
    )


def computed(format: str, carried: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model = parts()
    torch.manual_seed(1)
    with CudaAutocast(format, carried=carried) as rules:
        with rules.forward():
            loss = everything(model, torch.randn(8, 8))
        (loss * 1024).backward()
    return loss.detach(), [one.grad for one in model.parameters() if one.grad is not None]


@pytest.mark.parametrize("format", FORMATS[:2])
def test_values_carried_in_float32_are_those_of_16_bit_tensors(format):
    # So cb16, which only has the first way, follows the rules that PyTorch's own types follow.
    loss, gradients = computed(format, carried=False)
    other, others = computed(format, carried=True)
    assert torch.equal(loss, other) and len(gradients) == len(others) > 8
    for one, two in zip(gradients, others, strict=True):
        assert type(two) is torch.Tensor
        torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4 * float(one.abs().max()))


@needs_fp16
def test_cb16_rounds_forward_and_backward_to_its_own_values():
    weight = torch.randn(4, 4, requires_grad=True)
    x = torch.randn(3, 4)
    seen: list[torch.Tensor] = []
    with CudaAutocast("cb16") as rules:
        with rules.forward():
            y = x @ weight
            y.register_hook(lambda gradient: seen.append(gradient.float()))
            z = y.float().square().sum()
        z.backward()
        y = y.float()
    exact = dlsim.quantize(x, "cb16") @ dlsim.quantize(weight.detach(), "cb16")
    assert torch.equal(y.detach(), dlsim.quantize(exact, "cb16"))
    gradient = dlsim.quantize(2 * y.detach(), "cb16")
    assert torch.equal(seen[0], gradient)
    back = dlsim.quantize(dlsim.quantize(x, "cb16").T @ gradient, "cb16")
    assert torch.equal(weight.grad, back)


@pytest.mark.parametrize("format", FORMATS)
def test_a_region_without_autocast_is_float32(format):
    x = torch.randn(4, 4)
    with CudaAutocast(format) as rules, rules.forward():
        narrow = x @ x
        with torch.autocast("cpu", enabled=False):
            assert (x @ x).dtype == torch.float32
            assert torch.equal(x @ x, torch.mm(x, x)) and narrow.float().dtype == torch.float32
        assert narrow.dtype == rules.dtype and narrow.softmax(-1).dtype == torch.float32


@pytest.mark.parametrize("format", FORMATS)
def test_checkpoints_are_computed_again_under_the_same_rules(format):
    checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint
    gradients = []
    for again in (False, True):
        model = mlp()
        x = batches()[0].requires_grad_()
        with CudaAutocast(format) as rules:
            with rules.forward():
                y = checkpoint(model, x, use_reentrant=False) if again else model(x)
                loss = y.float().square().mean()
            loss.backward()
        gradients.append(model[0].weight.grad)
    assert torch.equal(*gradients)


def test_autocast_is_afterwards_as_before():
    def types():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = torch.randn(4, 4) @ torch.randn(4, 4)
            return y.dtype, y.softmax(-1).dtype, y.exp().dtype, y.sum().dtype

    before = types()
    dlsim.check_plan(mlp(), loss_of, batches(), format="bf16")
    assert types() == before


@needs_fp16
def test_what_a_cpu_cannot_do_in_16_bits_is_carried(monkeypatch):
    raised = []

    def loss(model, batch):
        y = model(batch)
        if type(y) is torch.Tensor and y.dtype == torch.float16:
            raised.append(1)
            raise RuntimeError("\"some_cpu\" not implemented for 'Half'")
        return (y.float() - 1).square().mean()

    found = dlsim.check_plan(mlp(), loss, batches())
    assert found.holds and len(raised) == 1
    assert found.loss_difference == dlsim.check_plan(mlp(), loss_of, batches()).loss_difference


# -- where it breaks -------------------------------------------------------------------------------


class Scores(nn.Module):
    """Two calls of a product, of which the second overflows in fp16, and a mask."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q = nn.Linear(4, 4)

    def forward(self, x):
        q = self.q(x)
        first, second = q @ q.transpose(-1, -2), (300 * q) @ (300 * q).transpose(-1, -2)
        future = torch.ones(3, 3, dtype=torch.bool).triu(1)
        both = (first + 0 * second).masked_fill(future, -math.inf)
        return both.softmax(-1) @ x


@needs_fp16
def test_the_culprit_is_where_something_begins_and_not_what_passes_it_on():
    found = dlsim.check_plan(nn.Sequential(Scores()), loss_of, batches(shape=(2, 3, 4)))
    (culprit,) = found.culprits
    assert (culprit.module, culprit.operation, culprit.call) == ("0", "matmul", 1)
    assert culprit.operands < 65504 < culprit.result
    assert ": matmul (call 1) in 0, in float32 with operands up to" in str(found)


@needs_fp16
def test_gradients_that_break_are_named_from_the_loss_on():
    class Amplified(torch.autograd.Function):
        """Backward multiplies by a million."""

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 1e6

    class Middle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.c(Amplified.apply(self.b(self.a(x))))

    found = dlsim.check_plan(Middle(), loss_of, batches(), scale=1.0)
    assert found.culprits == () and found.broken_gradients == ("a", "b")
    assert "gradients that are not finite, first step 0: those of b, a." in str(found)


# -- in a training ---------------------------------------------------------------------------------


@needs_fp16
def test_a_training_does_not_notice_its_shadow():
    def trained(shadowed: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = mlp()
        shadow = dlsim.shadow(model, loss_of)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step, batch in enumerate(batches(20)):
            optimizer.zero_grad()
            loss_of(model, batch + torch.randn(1)).backward()
            if shadowed and step % 5 == 0:
                before = [one.grad.clone() for one in model.parameters()]
                assert shadow.step(batch).finite
                assert all(map(torch.equal, before, (one.grad for one in model.parameters())))
            optimizer.step()
        if shadowed:
            assert shadow.check().holds and len(shadow.check().steps) == 4
        else:
            with pytest.raises(UsageError, match="nothing to compare"):
                shadow.check()
        return [one.detach().clone() for one in model.parameters()]

    assert all(map(torch.equal, trained(False), trained(True)))


@needs_fp16
def test_a_shadow_adds_up_its_steps():
    model = mlp()
    shadow = dlsim.shadow(model, loss_of, format="fp16", scale=2.0**10)
    for batch in batches(4):
        shadow.step(batch)
    found = shadow.check()
    expected = dlsim.check_plan(model, loss_of, batches(4), scale=2.0**10)
    assert found.steps == expected.steps and found.holds
    assert found.gradient_errors == expected.gradient_errors
    with torch.no_grad():
        model[2].weight[0, 0] = 1e6
    step = shadow.step(batches(1)[0])
    assert not step.finite and step.counts
    assert [one.module for one in shadow.check().culprits] == ["2"]


@pytest.mark.skipif(not hasattr(torch, "get_autocast_dtype"), reason="needs PyTorch 2.4")
@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_regions_without_autocast_are_float32_on_any_machine(device) -> None:
    class Region(Squares):
        def forward(self, x):
            with torch.autocast(device, enabled=False):
                return self.down(self.up(x.float()).relu() ** 2) / 1e6

    assert not dlsim.check_plan(Squares(1e4), loss_of, batches()).holds
    assert dlsim.check_plan(Region(1e4), loss_of, batches()).holds
    assert torch.autocast.__init__.__module__ == "torch.amp.autocast_mode"
