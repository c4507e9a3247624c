# SPDX-License-Identifier: Apache-2.0
"""Operations inside of modules and losses are recorded, forward and backward, by their names."""

from pathlib import Path

import pytest
import torch
from recording import load, small_model
from torch import library, nn
from torch.nn import functional

import dlsim
from dlsim.recorder import _attention


class Attention(nn.Module):
    """Attention by hand, and in one function."""

    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        self.qkv, self.fused = nn.Linear(8, 24), fused

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.fused:
            return functional.scaled_dot_product_attention(q, k, v)
        return (q @ k.transpose(1, 2)).div(8**0.5).softmax(-1) @ v


def recorded(path: Path, model: nn.Module, x: torch.Tensor, **options) -> tuple[dict, set[str]]:
    """Returns the tensors of a step, and which of them autocast would keep in float32."""
    torch.manual_seed(0)
    with dlsim.Recorder(model, path, forward_every=1, on_error="raise", **options) as rec:
        output = model(x)
        functional.mse_loss(output, torch.ones_like(output)).backward()
        rec.step(scale=1.0)
    tensors, metadata = load(path, 0)
    return tensors, set(metadata["autocast_float32"].split("\n"))


def names(tensors: dict, end: str, within: str = "") -> set[str]:
    return {
        name[: -len(end)]
        for name in tensors
        if name.endswith(end) and name.startswith(within) and "call" not in name
    }


def test_operations_of_an_attention_have_names(tmp_path: Path) -> None:
    model = nn.Sequential(Attention(), nn.Linear(8, 8))
    x = torch.randn(2, 4, 8)
    tensors, wide = recorded(tmp_path, model, x)
    of_attention = {"0.qkv", "0/matmul", "0/div", "0/softmax", "0"}
    assert names(tensors, ".act", "0") == {*of_attention, "0.qkv/to"}
    assert torch.equal(tensors["0.qkv/to.act"], x)
    assert names(tensors, ".act_grad", "0") == of_attention
    q, k, _ = model[0].qkv(x).chunk(3, -1)
    assert torch.equal(tensors["0/matmul.act"], q @ k.transpose(1, 2))
    assert torch.allclose(tensors["0/softmax.act"].sum(-1), torch.ones(2, 4))
    of_softmax, p = tensors["0/softmax.act_grad"], tensors["0/softmax.act"]
    expected = p * (of_softmax - (of_softmax * p).sum(-1, keepdim=True))
    assert torch.allclose(tensors["0/div.act_grad"], expected, atol=1e-7)
    # Softmax stays in float32, but the product with v has a copy in 16 bits.
    assert not any(name.startswith("0") for name in wide)
    assert "0.qkv.weight.value" in tensors


@pytest.mark.skipif(not hasattr(torch.nn, "attention"), reason="needs PyTorch 2.3 or later")
@pytest.mark.parametrize("limit", [1 << 24, 0])
def test_fused_attention_is_decomposed_if_it_is_small(tmp_path: Path, monkeypatch, limit) -> None:
    monkeypatch.setattr(_attention, "_DECOMPOSED_UP_TO", limit)
    model = Attention(fused=True)
    x = torch.randn(2, 4, 8)
    tensors, wide = recorded(tmp_path, model, x)
    assert ("softmax" in " ".join(tensors)) == (limit > 0)
    if limit:  # the fused kernels have scores in float32, and round their gradients
        assert "(root)/matmul.act" in wide and "(root)/matmul.act_grad" in tensors
        assert "(root)/softmax.act" not in wide


def test_losses_outside_of_the_model_are_seen(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, forward_every=1, on_error="raise") as rec:
        for _ in range(2):
            model.zero_grad()
            output = model(torch.ones(4, 6))
            with torch.no_grad():
                (output * 1e30).exp()  # a metric
            torch.randn(3).exp()  # no part of the training
            loss = functional.cross_entropy(output.exp(), torch.zeros(4, dtype=torch.long))
            loss.backward()
            rec.step(scale=1.0)
    for step in range(2):
        tensors, metadata = load(tmp_path, step)
        assert names(tensors, ".act", "(root)") == {"(root)/exp", "(root)/log_softmax"}
        assert "(root)/exp.act" in metadata["autocast_float32"].split("\n")
        assert not any(tensor.dim() == 0 for tensor in tensors.values())


def test_changes_in_place_are_recorded_and_views_are_not(tmp_path: Path) -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x):
            hidden = self.fc(x)
            hidden *= 1000
            hidden += x
            return hidden.reshape(-1).unsqueeze(0).transpose(0, 1) + 1

    model = InPlace()
    x = torch.ones(2, 3)
    tensors, _ = recorded(tmp_path, model, x, gradients=None, activations="*")
    first = model.fc(x)
    assert names(tensors, ".act") == {"fc/to", "fc", "(root)/mul", "(root)/add", "(root)"}
    assert torch.equal(tensors["fc.act"], first)
    assert torch.equal(tensors["(root)/mul.act"], first * 1000)
    assert torch.equal(tensors["(root)/add.act"], first * 1000 + x)


def test_modules_that_are_not_chosen_have_no_operations(tmp_path: Path) -> None:
    model = nn.Sequential(Attention(), nn.Linear(8, 8))
    tensors, _ = recorded(tmp_path, model, torch.randn(2, 4, 8), activations="1")
    assert names(tensors, ".act") == {"1"}


def test_a_sum_that_overflows_fp16_is_seen(tmp_path: Path) -> None:
    class Pooling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x):
            hidden = self.fc(x)
            return (hidden * 1e4).sum(0) / hidden.square().mean(0)

    model = Pooling()
    nn.init.ones_(model.fc.weight)
    tensors, wide = recorded(tmp_path, model, torch.ones(8, 3))
    assert tensors["(root)/mul.act"].max() > 2e4 and "(root)/mul.act" not in wide
    assert tensors["(root)/sum.act"].max() > 65504 and "(root)/sum.act" in wide


@pytest.mark.skipif(
    not hasattr(torch._C, "_current_graph_task_id"), reason="needs PyTorch 2 or later"
)
def test_derivatives_in_the_forward_pass_belong_to_it(tmp_path: Path) -> None:
    class Derivative(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(1, 4, bias=False)

        def forward(self, x):
            x.requires_grad_()
            slope = torch.autograd.grad(self.fc(x).tanh().sum(), x, create_graph=True)[0]
            return slope * 2

    model = Derivative()
    x = torch.ones(3, 1)
    tensors, _ = recorded(tmp_path, model, x)
    hidden = torch.tanh(model.fc(x))
    assert torch.allclose(tensors["(root)/tanh_backward.act"], 1 - hidden**2)
    assert torch.allclose(tensors["(root)/matmul.act"], (1 - hidden**2) @ model.fc.weight)
    assert "(root).act" in tensors  # what comes after them, too
    # A gradient within forward is none of the loss.
    assert torch.allclose(tensors["(root).act_grad"], 2 * (tensors["(root).act"] - 1) / 3)


def test_what_autocast_rounds_has_one_name(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.whole, self.also = nn.LayerNorm(4), nn.Linear(4, 3), nn.Linear(4, 3)
            self.left, self.right, self.kept = nn.Linear(2, 3), nn.Linear(2, 3), nn.LayerNorm(4)

        def forward(self, x):
            x = torch.cat([x, 1e6 * x], -1)  # no operation gives it a name
            hidden = self.norm(x)
            both = self.whole(x) + self.also(x) + self.whole(hidden)
            part = self.kept(x)[:, :2]
            return both + self.left(part) + self.right(part)

    x = torch.ones(5, 2)
    tensors, wide = recorded(tmp_path, Model(), x)
    copies = {name for name in tensors if "/to" in name}
    assert copies == {"whole/to.act", "left/to.act"}
    assert torch.equal(tensors["whole/to.act"], torch.cat([x, 1e6 * x], -1))
    assert tensors["left/to.act"].shape == (5, 2)
    assert "kept.act" in wide and not wide & {*copies, "norm.act"}


def test_a_conversion_to_the_type_of_a_stream_rounds(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x):
            x = self.fc(x)
            return x * (x.float().exp().to(x.dtype) + 1)

    tensors, wide = recorded(tmp_path, Model(), torch.ones(2, 3))
    assert "(root)/exp.act" in tensors and "(root)/exp.act" not in wide


@pytest.mark.skipif(
    not hasattr(getattr(torch, "compiler", None), "set_stance"), reason="needs PyTorch 2.6 or later"
)
def test_a_compiled_model_shows_its_operations(tmp_path: Path) -> None:
    model = torch.compile(Attention(), backend="eager")
    tensors, _ = recorded(tmp_path, model, torch.randn(2, 4, 8))
    assert {"(root)/matmul", "(root)/softmax"} <= names(tensors, ".act")


@pytest.mark.parametrize(
    ("convert", "narrow"),
    [
        (lambda ids, x: ids.to(x.dtype), True),
        (lambda ids, x: ids.type_as(x), True),
        (lambda ids, x: ids.to(torch.float32), False),
    ],
)
def test_integers_are_recorded_where_they_would_have_16_bits(tmp_path, convert, narrow) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            x = self.fc(x)
            return x + torch.sin(convert(torch.arange(70000, 70004), x))

    tensors, wide = recorded(tmp_path, Model(), torch.ones(3, 4))
    assert ("(root)/to.act" in tensors) == narrow and ("(root)/sin.act" in wide) != narrow
    verdict = dlsim.replay(tmp_path, quiet=True).verdict["fp16"].verdict
    assert (verdict == "fails in forward") == narrow


@pytest.mark.parametrize("constant", [-1e9, -1e4, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("how", ["add", "where", "float", "wide", "partly"])
def test_rows_of_masked_scores_fail_where_they_become_nan(tmp_path, how, constant) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.out = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            scores = self.query(x) @ x.transpose(1, 2)
            mask = torch.zeros(3, 3, dtype=torch.bool)
            mask[2, 1 if how == "partly" else 0 :] = True
            if how == "where":
                scores = torch.where(mask, torch.tensor(constant), scores)
            else:
                scores = scores.float() if how == "wide" else scores
                scores = scores + mask.to(scores.dtype) * constant
            scores = scores.float() if how == "float" else scores
            return self.out(scores.softmax(-1) @ x)

    tensors, _ = recorded(tmp_path, Model(), torch.ones(2, 3, 4))
    nan = constant == -1e9 and how in ("add", "where", "float")
    if nan:
        assert tensors["(root)/masked_rows.act"].shape == (2, 3)
    fails = dlsim.replay(tmp_path, quiet=True).verdict["fp16"].verdict == "fails in forward"
    assert fails == nan


_MASK = torch.ones(3, 3, dtype=torch.bool).triu(1)


def _in_place(change):
    def changed(scores):
        scores = scores.clone()
        change(scores)
        return scores

    return changed


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(
    ("mask", "refused"),
    [
        (lambda s: s.masked_fill(_MASK, -1e9), "masked_fill"),
        (lambda s: s.masked_fill(_MASK, torch.tensor(-1e9)), "masked_fill"),
        (_in_place(lambda s: s.masked_fill_(_MASK, -1e9)), "masked_fill"),
        pytest.param(
            _in_place(lambda s: s.__setitem__((slice(None), _MASK), -1e9)),
            "masked_fill",
            marks=pytest.mark.skipif(
                not hasattr(torch.amp, "GradScaler"), reason="an older PyTorch puts by index"
            ),
        ),
        (_in_place(lambda s: s[..., 0].fill_(-1e9)), "fill"),
        (_in_place(lambda s: s.index_fill_(-1, torch.tensor([2]), -65536)), "index_fill"),
        (lambda s: torch.where(_MASK, torch.full_like(s, -1e9), s), "full_like"),
        (lambda s: torch.where(_MASK, s.new_full((3, 3), -1e9), s), "new_full"),
        (lambda s: torch.where(_MASK, torch.full((3, 3), -1e9, dtype=s.dtype), s), "full"),
        (lambda s: functional.pad(s, (0, 1), value=-1e9), "pad"),
        (lambda s: s.scatter(-1, torch.zeros(2, 3, 1, dtype=torch.long), -1e9), "scatter"),
        (lambda s: s.masked_fill(_MASK, -6e4), None),
        (lambda s: s.masked_fill(_MASK, -torch.inf), None),
        (lambda s: s.masked_fill(_MASK, torch.finfo(s.dtype).min), None),
        (lambda s: s.masked_fill(_MASK, torch.finfo(s.dtype).min / 2), None),
        (lambda s: s.masked_fill(_MASK, torch.tensor(-1e9, dtype=s.dtype)).softmax(-1), None),
        (lambda s: s.float().masked_fill(_MASK, -1e9), None),
        (lambda s: s + torch.zeros(3, 3).masked_fill(_MASK, -1e9), None),
        (lambda s: s + _MASK.to(s.dtype) * -1e9, None),
        (lambda s: torch.where(_MASK, -1e9, s), None),
        (lambda s: torch.where(_MASK, torch.full_like(s, -1e9, dtype=torch.float32), s), None),
        (lambda s: s.clamp(min=-1e9), None),  # in float32 on a GPU
    ],
)
def test_constants_that_pytorch_refuses_fail(tmp_path, mask, refused, normalized) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.out = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            scores = mask(self.query(x) @ x.transpose(1, 2))
            return self.out(scores[..., :3].softmax(-1) @ x) if normalized else scores

    tensors, _ = recorded(tmp_path, Model(), torch.ones(2, 3, 4))
    assert "(root)/abs.act" not in tensors  # of the recorder itself
    verdict = dlsim.replay(tmp_path, quiet=True).verdict
    fails = verdict["fp16"].verdict == "fails in forward"
    assert (f"{refused} in (root) gets -" in str(verdict)) == fails
    assert fails == (refused is not None)


@pytest.mark.parametrize(
    ("shares", "zero"),
    [
        (lambda x: x / (x.amax(-1, keepdim=True) + 1e-8), ["autocast", "half"]),
        (lambda x: x / x.amax(-1, keepdim=True).clamp(min=1e-8), ["autocast", "half"]),
        (lambda x: x / (x.amax(-1, keepdim=True) + 1e-8).sqrt(), ["autocast", "half"]),
        (lambda x: (x * 2).div_(x.amax(-1, keepdim=True) + 1e-8).tanh(), ["autocast", "half"]),
        (lambda x: torch.log(x + 1e-8).tanh(), ["autocast", "half"]),
        (lambda x: x / (x.sum(-1, keepdim=True) + 1e-8), ["half"]),
        (lambda x: (x * x + 1e-8).sqrt(), ["autocast", "half"]),  # derivative 1 / (2 sqrt(0))
        (lambda x: (x * x).clamp(min=1e-8).sqrt(), []),
        (lambda x: (x + 1e-8).sqrt(), []),  # relu cuts its gradient
        (lambda x: x / (x.amax(-1, keepdim=True) + 1e-6), []),
        (lambda x: x / 1e-3, []),
    ],
)
def test_divisors_that_become_zero_fail(tmp_path, shares, zero) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.out(shares(functional.relu(self.fc(x))))

    x = torch.stack([torch.ones(4), torch.zeros(4)])
    model = Model()
    nn.init.zeros_(model.fc.bias)
    tensors, _ = recorded(tmp_path, model, x)
    assert not zero or "(root)/divisor.act" in tensors
    for recipe in ("autocast", "half"):
        fp16 = dlsim.replay(tmp_path, recipe=recipe, quiet=True).verdict["fp16"]
        assert (fp16.verdict == "fails in forward") == (recipe in zero)


@pytest.mark.parametrize(
    ("shift", "fails"), [(0, []), (1, []), (10, ["bf16"]), (100, ["fp16", "bf16"])]
)
def test_variances_that_are_rounding_errors_fail(tmp_path, shift, fails) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.out = nn.Linear(4, 32), nn.Linear(32, 4)

        def forward(self, x):
            x = self.fc(x) + shift
            mean = x.mean(-1, keepdim=True)
            variance = (x * x).mean(-1, keepdim=True) - mean * mean
            return self.out((x - mean) * torch.rsqrt(variance.clamp_min_(0) + 1e-5))

    torch.manual_seed(0)
    tensors, _ = recorded(tmp_path, Model(), torch.randn(8, 4))
    assert tensors["(root)/difference.act"].shape == (8, 1)
    verdict = dlsim.replay(tmp_path, quiet=True).verdict
    assert [one for one in ("fp16", "bf16") if verdict[one].verdict.startswith("fails")] == fails


def _rms(x):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize(
    ("compute", "fails"),
    [
        (lambda x: torch.sigmoid(x * 1e5), False),
        (lambda x: torch.relu_(x * 1e5).clamp(max=1), False),
        (lambda x: functional.leaky_relu(x * 1e5).atan(), False),
        (lambda x: 1 / (1 + (x * 300) * (x * 300)), False),
        (lambda x: x + _rms(x * 30) / 100, False),  # of zeros where one sample is large
        (lambda x: _rms(x * 3000), True),  # of zeros
        (lambda x: (x * 1e5) * 1e-5, True),
        (lambda x: (x * 1e5).tanh() * (x * 1e5), True),
        (lambda x: torch.sigmoid(x * 1e5) + 0 * (x * 1e5), True),
        (lambda x: torch.softmax(x * 1e5, -1), True),  # infinite less infinite
        (lambda x: ((x * 1e5) * nn.Parameter(torch.ones(8))).sigmoid(), True),  # its gradient
    ],
)
def test_overflows_whose_infinity_nothing_sees_change_nothing(tmp_path, compute, fails) -> None:
    class Model(nn.Linear):
        def forward(self, x):
            return compute(super().forward(x)).mean(0, keepdim=True)

    torch.manual_seed(0)
    x = torch.randn(200, 8).sign() + 1.5
    x[0] *= 100
    recorded(tmp_path, Model(8, 8), x)
    verdict = dlsim.replay(tmp_path, quiet=True).verdict
    assert (verdict["fp16"].verdict == "fails in forward") == fails, verdict
    assert fails or "whose overflow changes nothing" in str(verdict)
    half = dlsim.replay(tmp_path, recipe="half", quiet=True).verdict["fp16"]
    assert half.verdict == "fails in forward"


@pytest.mark.skipif(
    not hasattr(torch._C, "_current_graph_task_id"), reason="needs PyTorch 2 or later"
)
def test_derivatives_of_float32_inputs_are_float32(tmp_path) -> None:
    class Model(nn.Sequential):
        def forward(self, x):
            x = x.requires_grad_()
            y = super().forward(x / 1e-3)
            return torch.autograd.grad(y.sum(), x, create_graph=True)[0] * 1e-3

    model = Model(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    tensors, wide = recorded(tmp_path, model, torch.randn(8, 2) * 1e-3)
    of_derivatives = {name for name in tensors if name.startswith("(root)/div.call")}
    assert of_derivatives and of_derivatives <= wide
    products = [name for name in tensors if name.startswith("(root)/matmul")]
    assert products and not wide.intersection(products)


@pytest.mark.parametrize("kept", [False, True])
def test_an_overflow_may_end_in_the_loss_but_not_in_an_output(tmp_path, kept) -> None:
    class Model(nn.Linear):
        def forward(self, x):
            x = super().forward(x) * 1e3
            return x * x, x * 1e3 if kept else None

    torch.manual_seed(0)
    model = Model(4, 4)
    with dlsim.Recorder(model, tmp_path, forward_every=1, on_error="raise") as rec:
        squares, _ = model(torch.randn(8, 4))
        squares.mean().backward()
        rec.step(scale=1.0)
    verdict = dlsim.replay(tmp_path, quiet=True).verdict["fp16"].verdict
    assert (verdict == "fails in forward") == kept


@pytest.mark.parametrize(
    ("largest", "how", "fails"),
    [
        (300, "product", ["bf16"]),
        (1500, "product", ["bf16"]),
        (3000, "product", ["fp16", "bf16"]),
        (3000, "multiples", []),  # in float32
        (3000, "feature", []),
    ],
)
def test_rotary_embeddings_by_angles_that_become_others_fail(tmp_path, largest, how, fails) -> None:
    class Model(nn.Linear):
        def forward(self, x):
            places, rates = (
                torch.arange(largest, largest + 16.0)[:, None],
                1e4 ** -torch.arange(0, 1, 1 / 8)[None],
            )
            angles = places * rates if how == "multiples" else (rates.T @ places.T).T
            cos, sin = angles.cos() * 1.0, torch.cat([angles, angles], -1)[:, :8].sin()
            if how == "feature":
                return super().forward(cos + sin + x)
            x = super().forward(x)
            return x * cos + x.roll(4, -1) * sin

    tensors, _ = recorded(tmp_path, Model(8, 8), torch.randn(2, 16, 8))
    assert ("(root)/angle.act" in tensors) == (how == "product")
    verdict = dlsim.replay(tmp_path, quiet=True).verdict
    assert [one for one in ("fp16", "bf16") if verdict[one].verdict.startswith("fails")] == fails


@pytest.mark.parametrize(
    ("offset", "bits", "fails"),
    [(0, set(), []), (500, {8, 10}, ["bf16"]), (-500, set(), [])],
)
def test_a_loss_that_rounding_doubles_fails(tmp_path, offset, bits, fails) -> None:
    class Model(nn.Linear):
        def forward(self, x):
            x = super().forward(x).relu_() + abs(offset)
            return x if offset > 0 else x.float() - abs(offset)  # may be learned

    torch.manual_seed(0)
    model, x = Model(8, 8), torch.rand(32, 8)
    targets = model(x).detach() + 0.2
    with dlsim.Recorder(model, tmp_path, forward_every=1, on_error="raise") as rec:
        for _ in range(3):
            model.zero_grad()
            functional.mse_loss(model(x), targets).backward()
            rec.step(scale=1.0)
    tensors, _ = load(tmp_path, 2)
    assert {name for name in tensors if "rounded" in name} == {
        f"(root)/rounded_loss{one}.act" for one in bits
    }
    verdict = dlsim.replay(tmp_path, quiet=True).verdict
    assert [one for one in ("fp16", "bf16") if verdict[one].verdict.startswith("fails")] == fails
    assert (verdict["bf16"].forward.loss_growth is not None) == bool(bits)


@pytest.mark.parametrize(("bias", "fails"), [(0, []), (501, ["bf16"])])
def test_a_loss_that_the_model_returns_is_rounded_as_well(tmp_path, bias, fails) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 1)
            nn.init.constant_(self.head.bias, bias)

        def forward(self, x, labels):
            found = self.head(self.body(x).relu()).squeeze(-1)
            return {"loss": functional.mse_loss(found, labels), "found": found}

    torch.manual_seed(0)
    model, x = Model(), torch.rand(32, 8)
    labels = bias + 0.2 * torch.randn(32)
    with dlsim.Recorder(model, tmp_path, forward_every=1, on_error="raise") as rec:
        for _ in range(4):
            model.zero_grad()
            (model(x, labels)["loss"] / 2).backward()
            rec.step(scale=1.0)
    grown = [any("rounded" in name for name in load(tmp_path, step)[0]) for step in range(4)]
    assert grown == ([False, False, True, True] if bias else [False] * 4)
    verdict = dlsim.replay(tmp_path, quiet=True).verdict
    assert [one for one in ("fp16", "bf16") if verdict[one].verdict.startswith("fails")] == fails


@pytest.mark.parametrize(
    ("make", "narrow"),
    [
        (torch.zeros_like, True),
        (lambda h: torch.zeros_like(h, dtype=h.dtype), True),
        (lambda h: h.new_zeros(h.shape, dtype=h.dtype), True),
        (lambda h: torch.zeros(h.shape, dtype=h.dtype), True),
        (lambda h: torch.zeros_like(h, dtype=torch.float32), False),
        (lambda h: torch.empty_like(h, dtype=torch.float32).zero_(), False),
        (lambda h: torch.full_like(h, 0, dtype=torch.float32), False),
        (lambda h: h.new_zeros(h.shape, dtype=torch.float32), False),
        (lambda h: h.mean(0, keepdim=True, dtype=torch.float32) * 0, False),
    ],
)
def test_tensors_have_the_type_that_is_asked_for(tmp_path, make, narrow) -> None:
    class Model(nn.Linear):
        def forward(self, x):
            h = super().forward(x)
            total = make(h)
            for _ in range(2):
                total = total + h
            return total

    model = Model(4, 4)
    nn.init.constant_(model.bias, 4e4)
    _, wide = recorded(tmp_path, model, torch.ones(2, 4))
    assert ("(root)/add.act" in wide) != narrow
    verdict = dlsim.replay(tmp_path, quiet=True).verdict["fp16"].verdict
    assert (verdict == "fails in forward") == narrow


class _Decoder(nn.Module):
    """Attention of queries that may be zeros, or with one key, as transformers have in places."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.place, self.how = nn.Embedding(6, 16), how

    def forward(self, x):
        x = {"zeros": torch.zeros_like(x), "single": x[:, :1]}.get(self.how, x)
        if self.how == "shared":
            x = x * 0
        at = x + self.place.weight[: x.shape[1]]
        scores = self.q(at) @ self.k(at).transpose(1, 2) / 4
        mixed = scores.softmax(-1) @ self.v(x)
        return self.out(mixed) + (self.q(at) if self.how == "shared" else x)


@pytest.mark.parametrize("how", ["zeros", "single", "shared", "usual"])
def test_gradients_of_scores_that_cancel_are_noise(tmp_path, how) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(_Decoder(how), nn.Linear(16, 3))
    recorded(tmp_path, model, torch.randn(4, 6, 16))
    noise = set(load(tmp_path, 0)[1].get("noise", "").split("\n"))
    of_keys = {"0.k.weight.grad", "0.k.bias.grad", "0.k.act_grad", "0/matmul.act_grad"}
    of_queries = {"0.q.weight.grad", "0.q.act_grad", "0.place.weight.grad"}
    assert (of_keys <= noise) == (how != "usual")
    assert (of_queries <= noise) == (how in ("zeros", "single"))
    assert not {"0.v.weight.grad", "0.v.act_grad", "0.out.weight.grad", "0.act_grad"} & noise
    tensors = dlsim.replay(tmp_path, quiet=True).data["verdict"]["formats"][0]["noise_tensors"]
    assert how != "zeros" or of_keys | of_queries <= set(tensors)


@pytest.mark.parametrize("size", [1, 1e6])  # which overflows
def test_operators_of_others_are_called_once(tmp_path, size) -> None:
    calls = []

    def count(x):
        calls.append(x)
        return x + 1

    own = library.Library(f"dlsim_test_{size:.0f}", "DEF")
    own.define("count(Tensor x) -> Tensor")
    own.impl("count", count, "CPU")

    class Model(nn.Linear):
        def forward(self, x):
            x = super().forward(x) * size
            return x + getattr(torch.ops, f"dlsim_test_{size:.0f}").count(x.detach())

    recorded(tmp_path, Model(8, 8), torch.randn(4, 8))
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("offset", "features", "fails"),
    [(0, 8, []), (150, 8, []), (300, 8, ["bf16"]), (1000, 8, ["bf16"]), (1000, 1, ["bf16"]),
     (4000, 8, ["fp16", "bf16"])],
)  # fmt: skip
def test_samples_that_16_bits_make_one_fail(tmp_path, offset, features, fails) -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 8)
    x[:, :features] += offset
    recorded(tmp_path, nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), x)
    verdict = dlsim.replay(tmp_path, quiet=True).verdict
    assert [one for one in ("fp16", "bf16") if verdict[one].verdict.startswith("fails")] == fails
