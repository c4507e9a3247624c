# SPDX-License-Identifier: Apache-2.0
"""Steps of a recorded training are run again in formats, and tell which of these fail, and why."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recording import load, small_model, train
from torch import nn
from torch.nn import functional

import dlsim
from dlsim.emulation import _cuda_autocast
from dlsim.recorder._again import Again, Unfollowed

pytestmark = pytest.mark.skipif(
    not _cuda_autocast._can_autocast(torch.float16), reason="this PyTorch autocasts to bf16 only"
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def target_of(x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Returns what can be learned of `x`: on which side of the mean it is; else ones."""
    if x.shape[:-1] != output.shape[:-1]:
        return torch.ones_like(output)
    return (x[..., :1] - x[..., :1].mean()).sign().expand_as(output)


def recorded(path: Path, model: nn.Module, x: Any, steps: int = 1) -> Any:
    """Records steps of a training, with `x` or what it returns; returns the verdict."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with dlsim.Recorder(model, path, on_error="raise") as rec:
        for _ in range(steps):
            optimizer.zero_grad()
            given = x() if callable(x) else x
            output = model(given)
            loss = functional.mse_loss(output, target_of(given, output))
            loss.backward()
            rec.step(loss=loss, scale=1.0)
            optimizer.step()
    return dlsim.replay(path, quiet=True).verdict


def failing(verdict: Any) -> list[str]:
    return [one for one in ("fp16", "bf16") if not verdict[one].serves]


@pytest.mark.parametrize(
    ("convert", "narrow"),
    [
        (lambda x, like: x.to(like.dtype), True),
        (lambda x, like: x.float(), False),
        (lambda x, like: x.type_as(like), True),
        (lambda x, like: x.to(torch.float32), False),
    ],
)
def test_integers_overflow_where_they_would_have_16_bits(tmp_path, convert, narrow) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            x = self.fc(x)
            return x + torch.sin(convert(torch.arange(70000, 70004), x))

    assert ("fp16" in failing(recorded(tmp_path, Model(), torch.ones(3, 4)))) == narrow


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

    nan = constant < -65504 and how in ("add", "where", "float")
    assert ("fp16" in failing(recorded(tmp_path, Model(), torch.ones(2, 3, 4)))) == nan


_MASK = torch.ones(3, 3, dtype=torch.bool).triu(1)


def _in_place(change):
    def changed(scores):
        scores = scores.clone()
        change(scores)
        return scores

    return changed


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(
    ("mask", "refused", "how"),
    [
        (lambda s: s.masked_fill(_MASK, -1e9), "masked_fill", ""),
        (lambda s: s.masked_fill(_MASK, torch.tensor(-1e9)), "masked_fill", ""),
        (_in_place(lambda s: s.masked_fill_(_MASK, -1e9)), "masked_fill", ""),
        pytest.param(
            _in_place(lambda s: s.__setitem__((slice(None), _MASK), -1e9)),
            "masked_fill",
            "",
            marks=pytest.mark.skipif(
                not hasattr(torch.amp, "GradScaler"), reason="an older PyTorch puts by index"
            ),
        ),
        (_in_place(lambda s: s[..., 0].fill_(-1e9)), "fill", ""),
        (_in_place(lambda s: s.index_fill_(-1, torch.tensor([2]), -65536)), "index_fill", ""),
        (lambda s: torch.where(_MASK, torch.full_like(s, -1e9), s), "full_like", ""),
        (lambda s: torch.where(_MASK, s.new_full((3, 3), -1e9), s), "new_full", ""),
        (lambda s: torch.where(_MASK, torch.full((3, 3), -1e9, dtype=s.dtype), s), "full", ""),
        (lambda s: functional.pad(s, (0, 1), value=-1e9), "pad", ""),
        (lambda s: s.scatter(-1, torch.zeros(2, 3, 1, dtype=torch.long), -1e9), "scatter", ""),
        (lambda s: s.masked_fill(_MASK, -6e4), None, ""),
        (lambda s: s.masked_fill(_MASK, -torch.inf), None, ""),
        (lambda s: s.masked_fill(_MASK, torch.finfo(s.dtype).min), None, ""),
        (lambda s: s.masked_fill(_MASK, torch.finfo(s.dtype).min / 2), None, ""),
        (lambda s: s.masked_fill(_MASK, torch.tensor(-1e9, dtype=s.dtype)).softmax(-1), None, ""),
        (lambda s: s.float().masked_fill(_MASK, -1e9), None, ""),
        (lambda s: s + torch.zeros(3, 3).masked_fill(_MASK, -1e9), None, ""),
        (lambda s: s + _MASK.to(s.dtype) * -1e9, None, "infinite"),
        (lambda s: torch.where(_MASK, -1e9, s), None, "infinite"),
        (lambda s: torch.where(_MASK, torch.full_like(s, -1e9, dtype=torch.float32), s), None, ""),
        (lambda s: s.clamp(min=-1e9), None, ""),  # in float32 on a GPU
    ],
)
def test_constants_that_pytorch_refuses_fail(tmp_path, mask, refused, how, normalized) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.out = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            scores = mask(self.query(x) @ x.transpose(1, 2))
            return self.out(scores[..., :3].softmax(-1) @ x) if normalized else scores

    fp16 = recorded(tmp_path, Model(), torch.ones(2, 3, 4))["fp16"]
    infinite = not normalized and how == "infinite"
    assert (fp16.verdict == "fails in forward") == (refused is not None or infinite)
    if refused is not None:
        assert "without overflow" in fp16.shadow.error
        assert fp16.shadow.culprits[-1].operation.removesuffix("_") in (refused, "setitem")


@pytest.mark.parametrize(
    ("shares", "zero"),
    [
        (lambda x: x / (x.amax(-1, keepdim=True) + 1e-8), True),
        (lambda x: x / x.amax(-1, keepdim=True).clamp(min=1e-8), True),
        (lambda x: x / (x.amax(-1, keepdim=True) + 1e-8).sqrt(), True),
        (lambda x: (x * 2).div_(x.amax(-1, keepdim=True) + 1e-8).tanh(), True),
        (lambda x: torch.log(x + 1e-8).tanh(), False),  # relu cuts its gradient
        (lambda x: x / (x.sum(-1, keepdim=True) + 1e-8), False),
        (lambda x: (x * x + 1e-8).sqrt(), False),  # as well, 0 / (2 sqrt(0))
        (lambda x: (x * x).clamp(min=1e-8).sqrt(), False),
        (lambda x: (x + 1e-8).sqrt(), False),
        (lambda x: x / (x.amax(-1, keepdim=True) + 1e-6), False),
        (lambda x: x / 1e-3, False),
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
    nn.init.uniform_(model.fc.weight)
    assert ("fp16" in failing(recorded(tmp_path, model, x))) == zero


@pytest.mark.parametrize(
    ("shift", "fails"), [(0, []), (1, []), (10, ["fp16", "bf16"]), (100, ["fp16", "bf16"])]
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

    assert failing(recorded(tmp_path, Model(), lambda: torch.randn(8, 4), 6)) == fails


def _rms(x):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize(
    ("compute", "fails"),
    [
        (lambda x: torch.sigmoid(x * 1e5) + x, False),
        (lambda x: torch.relu_(x * 1e5).clamp(max=1), False),
        (lambda x: functional.leaky_relu(x * 1e5).atan(), False),
        (lambda x: 1 / (1 + (x * 300) * (x * 300)), False),
        (lambda x: x + _rms(x * 30) / 100, False),  # of zeros where one sample is large
        (lambda x: _rms(x * 3000), True),  # of zeros
        (lambda x: (x * 1e5) * 1e-5, True),
        (lambda x: (x * 1e5).tanh() * (x * 1e5), True),
        (lambda x: torch.sigmoid(x * 1e5) + 0 * (x * 1e5), True),
        (lambda x: torch.softmax(x * 1e5, -1), True),  # infinite less infinite
    ],
)
def test_overflows_whose_infinity_nothing_sees_change_nothing(tmp_path, compute, fails) -> None:
    class Model(nn.Linear):
        def forward(self, x):
            return compute(super().forward(x)).mean(0, keepdim=True)

    def batch() -> torch.Tensor:
        x = torch.randn(200, 8).sign() + 1.5
        x[0] *= 100
        return x

    fp16 = recorded(tmp_path, Model(8, 8), batch, 3)["fp16"]
    assert fp16.verdict.startswith("fails") == fails, fp16


@pytest.mark.parametrize("kept", [False, True])
def test_an_overflow_may_end_in_the_loss_but_not_in_an_output(tmp_path, kept) -> None:
    class Model(nn.Linear):
        def forward(self, x):
            x = super().forward(x) * 1e3
            return x * x, x * 1e3 if kept else None

    model = Model(4, 4)
    with dlsim.Recorder(model, tmp_path, on_error="raise") as rec:
        squares, _ = model(torch.randn(8, 4))
        squares.mean().backward()
        rec.step(scale=1.0)
    assert "fp16" in failing(dlsim.replay(tmp_path, quiet=True).verdict)


@pytest.mark.parametrize(
    ("largest", "how", "fails"),
    [
        (300, "product", []),
        (1500, "product", ["bf16"]),
        (3000, "product", ["fp16", "bf16"]),
        (3000, "multiples", []),  # in float32
        (3000, "feature", ["bf16"]),
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

    assert failing(recorded(tmp_path, Model(8, 8), lambda: torch.randn(2, 16, 8), 8)) == fails


@pytest.mark.parametrize(("offset", "fails"), [(0, []), (100, ["bf16"]), (-500, ["fp16", "bf16"])])
def test_a_loss_that_rounding_changes_fails(tmp_path, offset, fails) -> None:
    class Model(nn.Linear):
        def forward(self, x):
            x = super().forward(x).relu_() + abs(offset)
            return x if offset > 0 else x.float() - abs(offset)

    model, x = Model(8, 8), torch.rand(32, 8)
    targets = model(x).detach() + 0.2
    with dlsim.Recorder(model, tmp_path, on_error="raise") as rec:
        for _ in range(3):
            model.zero_grad()
            functional.mse_loss(model(x), targets).backward()
            rec.step(scale=1.0)
    assert failing(dlsim.replay(tmp_path, quiet=True).verdict) == fails


@pytest.mark.parametrize(("bias", "fails"), [(0, []), (101, ["bf16"])])
def test_a_loss_that_the_model_returns_is_rounded_as_well(tmp_path, bias, fails) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 1)
            nn.init.constant_(self.head.bias, bias)

        def forward(self, x, labels):
            found = self.head(self.body(x).relu()).squeeze(-1)
            return {"loss": functional.mse_loss(found, labels), "found": found}

    model, x = Model(), torch.rand(32, 8)
    labels = bias + 0.2 * torch.randn(32)
    with dlsim.Recorder(model, tmp_path, forward_every=1, on_error="raise") as rec:
        for _ in range(3):
            model.zero_grad()
            (model(x, labels)["loss"] / 2).backward()
            rec.step(scale=1.0)
    assert failing(dlsim.replay(tmp_path, quiet=True).verdict) == fails


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
    model = nn.Sequential(_Decoder(how), nn.Linear(16, 3))
    with dlsim.Recorder(model, tmp_path, forward_every=1) as rec:
        output = model(torch.randn(4, 6, 16))
        functional.mse_loss(output, torch.ones_like(output)).backward()
        rec.step(scale=1.0)
    noise = set(load(tmp_path, 0)[1].get("noise", "").split("\n"))
    of_keys = {"0.k.weight.grad", "0.k.bias.grad", "0.k.act_grad"}
    of_queries = {"0.q.weight.grad", "0.q.act_grad", "0.place.weight.grad"}
    assert (of_keys <= noise) == (how != "usual")
    assert (of_queries <= noise) == (how in ("zeros", "single"))
    assert not {"0.v.weight.grad", "0.v.act_grad", "0.out.weight.grad", "0.act_grad"} & noise
    tensors = dlsim.replay(tmp_path, quiet=True)["verdict"]["formats"][0]["noise_tensors"]
    assert how != "zeros" or of_keys | of_queries <= set(tensors)


@pytest.mark.parametrize(
    ("offset", "features", "fails"),
    [(0, 8, []), (30, 8, []), (300, 8, ["bf16"]), (300, 1, ["bf16"]), (4000, 8, ["fp16", "bf16"])],
)  # fmt: skip
def test_samples_that_16_bits_make_one_fail(tmp_path, offset, features, fails) -> None:
    def batch() -> torch.Tensor:
        x = torch.randn(32, 8)
        x[:, :features] += offset
        return x

    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    assert failing(recorded(tmp_path, model, batch, 8)) == fails


# -- how a step is run again ---------------------------------------------------------------------


def shadows_of(path: Path, step: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(load(path, step)[1]["shadow"])
    return found


def ratio_loss(output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Overflows in fp16, outside of the model."""
    scaled = output * 1e4
    return (scaled @ scaled.T).mean() / 1e8


@pytest.mark.parametrize(
    "backward",
    [
        lambda loss, _: loss.backward(),
        lambda loss, _: (loss * 8).backward(),
        lambda loss, _: loss.backward(gradient=torch.tensor(8.0)),
        lambda loss, scaler: scaler.scale(loss).backward(),
        lambda loss, _: torch.autograd.backward([loss]),
    ],
)
def test_a_loss_outside_of_the_model_is_followed(tmp_path: Path, backward) -> None:
    model = small_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with dlsim.Recorder(model, tmp_path, on_error="raise") as rec:
        x = torch.randn(4, 6)
        loss = ratio_loss(model(x), x)
        backward(loss, scaler)
        scale = float(model[0].bias.grad.norm())
        torch.autograd.grad(ratio_loss(model(x), x), model[0].bias)
        expected = torch.autograd.grad(ratio_loss(model(x), x), model[0].bias)[0].norm()
        rec.step(loss=loss, scale=round(scale / float(expected)))
    fp16 = shadows_of(tmp_path, 0)["fp16"]
    assert fp16["fails"] == "not finite" and fp16["culprits"][0]["module"] == "(loss)"
    assert fp16["culprits"][0]["operation"] == "matmul"
    assert fp16["plan"]["keep_float32"] == ["2"] or fp16["plan"]["loss_in_float32"]


def test_the_loss_is_that_of_the_training(tmp_path: Path) -> None:
    """Of a whole step, with views, changes in place, random numbers and containers."""
    model = small_model()

    def loss_of(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        outputs = {"logits": model(x), "extra": [model(x + 1)]}
        logits = outputs["logits"][:, :2]
        logits = logits + 0.1 * torch.randn_like(logits)
        picked = torch.stack([logits, outputs["extra"][0]]).mean(0)
        picked[0] = 0
        with torch.autocast("cpu", enabled=False):
            wide = picked.float()
        return functional.cross_entropy(functional.dropout(wide, 0.2), labels) / 2

    again, before = Again(), torch.get_rng_state()
    hooks = [
        model.register_forward_pre_hook(
            lambda _, args, kwargs: again.enter(args, kwargs), with_kwargs=True
        ),
        model.register_forward_hook(lambda module, _, output: again.leave(module, output)),
    ]
    again.begin()
    loss = loss_of(torch.randn(4, 6), torch.tensor([0, 1, 1, 0]))
    loss.backward()
    step = again.step(None, 1.0)
    for hook in hooks:
        hook.remove()
    expected = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    torch.set_rng_state(before)
    torch.randn(4, 6)
    found = step.loss()
    found.backward()
    assert step.whole and torch.equal(found, loss)
    assert all(map(torch.equal, expected, (one.grad for one in model.parameters())))


@pytest.mark.parametrize("how", ["numpy", "other graph", "mode"])
def test_without_the_loss_the_gradients_of_outputs_do(tmp_path: Path, how) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, on_error="raise") as rec:
        for _ in range(2):
            model.zero_grad()
            other = torch.randn(4, 2, requires_grad=True) * 2
            with torch.device("cpu") if how == "mode" else nullcontext():  # somebody's mode
                output = model(torch.randn(4, 6))
                if how == "numpy":  # which is no gradient
                    loss = (output * torch.from_numpy(output.detach().numpy() * 2)).sum()
                else:
                    loss = (output * other).sum()
            loss.backward()
            rec.step(loss=loss, scale=1.0)
    fp16 = shadows_of(tmp_path, 1)["fp16"]
    assert fp16["fails"] == "" and fp16["steps"] == 2
    assert (fp16["loss"] is None) == (how != "numpy")
    text = str(dlsim.replay(tmp_path, quiet=True).verdict)
    assert ("without the loss, which could not be followed" in text) == (how != "numpy")


def test_a_closure_says_how(tmp_path: Path) -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return (x * 1e5) / 1e5

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    model = small_model()
    x = torch.randn(4, 6)

    def loss_of() -> torch.Tensor:
        return Own.apply(model(x)).square().mean()

    with dlsim.Recorder(model, tmp_path, on_error="raise") as rec:
        loss = loss_of()
        loss.backward()
        rec.step(loss=loss, scale=1.0, again=loss_of)
    assert shadows_of(tmp_path, 0)["fp16"]["fails"] == "not finite"


def test_what_cannot_be_run_again_is_said(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, on_error="raise") as rec:
        x = torch.randn(4, 6)
        model(x).mean().backward()
        x.zero_()
        rec.step(scale=1.0)
    why = "what the step was given was changed in place"
    assert shadows_of(tmp_path, 0) == {"why": why}
    text = str(dlsim.replay(tmp_path, quiet=True).verdict)
    assert f"No step could be run in the formats: {why}." in text


def test_a_training_does_not_notice(tmp_path: Path) -> None:
    """Random numbers, buffers, attributes, hooks, gradients; also where something fails."""
    calls: list[int] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm, self.out = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
            self.count, self.past = 0, []

        def forward(self, x):
            self.count += 1
            self.past.append(float(x.sum()))
            self.last = functional.dropout(self.norm(self.fc(x)), 0.5)
            return self.out(self.last * 1e5) / 1e5

    def trained(**options: Any) -> list[Any]:
        torch.manual_seed(0)
        calls.clear()
        model = Model()
        model.fc.weight.register_hook(lambda gradient: calls.append(1))
        optimizer = torch.optim.Adam(model.parameters())
        rec = dlsim.Recorder(model, tmp_path / "run", existing="replace", **options)
        losses = []
        with rec:
            for _ in range(5):
                optimizer.zero_grad()
                loss = model(torch.randn(4, 6)).square().mean()
                loss.backward()
                rec.step(loss=loss, scale=1.0)
                optimizer.step()
                losses.append(float(loss))
        assert rec.errors == 0
        state = [one.clone() for one in model.state_dict().values()]
        return [losses, model.count, model.past, model.last.tolist(), len(calls), *state]

    expected, found = trained(shadow=None), trained()
    assert shadows_of(tmp_path / "run", 3)["fp16"]["fails"] == "not finite"
    assert found[:5] == expected[:5]
    assert all(map(torch.equal, found[5:], expected[5:]))


def test_which_steps_are_run(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, on_error="raise", every=2) as rec:
        train(model, rec, 40)
    found = [step for step in range(0, 40, 2) if "shadow" in load(tmp_path, step)[1]]
    assert found == [0, 2, 4, 6, 10, 16, 24, 36]
    counts = [shadows_of(tmp_path, step)["fp16"]["steps"] for step in found]
    assert counts == [1, 2, 3, 4, 5, 6, 7, 8]


def test_formats_are_chosen(tmp_path: Path) -> None:
    model = small_model()
    for formats, names in (("bf16", ["bf16"]), (["fp16", "fp8-e5m2"], ["fp16", "fp8-e5m2"])):
        path = tmp_path / "-".join(names)
        with dlsim.Recorder(model, path, shadow=formats, on_error="raise") as rec:
            train(model, rec, 1)
        assert [*shadows_of(path, 0)] == names
    with dlsim.Recorder(model, tmp_path / "none", shadow=None) as rec:
        train(model, rec, 1)
    assert "shadow" not in load(tmp_path / "none", 0)[1]
    with pytest.raises(dlsim.UsageError, match="fp15"):
        dlsim.Recorder(model, tmp_path / "bad", shadow="fp15")


def test_an_error_leaves_the_step_recorded(tmp_path: Path, monkeypatch) -> None:
    from dlsim.emulation import _shadow

    def broken(*_: Any) -> Any:
        raise ValueError("broken")

    monkeypatch.setattr(_shadow, "in_float32", broken)
    model = small_model()
    with dlsim.Recorder(model, tmp_path) as rec:
        train(model, rec, 2)
    assert rec.errors == 1 and rec.report().steps == 2
    assert "cannot be run in a format: ValueError: broken" in rec.report().messages[0]
    assert shadows_of(tmp_path, 0)["why"] == "ValueError: broken"


def test_several_models_in_turns(tmp_path: Path) -> None:
    generator, critic = nn.Linear(3, 4), nn.Linear(4, 1)
    with dlsim.Recorder({"g": generator, "d": critic}, tmp_path, on_error="raise") as rec:
        for _ in range(4):
            fake = generator(torch.randn(8, 3))
            critic(fake).mean().neg().backward()
            rec.step(scale=1.0)
            generator.zero_grad()
            critic.zero_grad()
            loss = critic(torch.randn(8, 4)).relu().mean() + critic(fake.detach()).mean()
            loss.backward()
            rec.step(loss=loss, scale=1.0)
    fp16 = shadows_of(tmp_path, 5)["fp16"]
    assert fp16["fails"] == "" and fp16["loss"] is not None
    with pytest.raises(Unfollowed):
        Again().step(None, 1.0)


def test_gradients_of_other_models_stay(tmp_path: Path) -> None:
    model, other, weight = small_model(), nn.Linear(2, 1), nn.Parameter(torch.ones(()))
    with dlsim.Recorder(model, tmp_path, on_error="raise") as rec:
        loss = (other(model(torch.randn(4, 6))) * weight).square().mean()
        loss.backward()
        before = [one.grad.clone() for one in (weight, *other.parameters())]
        rec.step(loss=loss, scale=1.0)
    assert shadows_of(tmp_path, 0)["fp16"]["loss"] is not None
    assert all(map(torch.equal, before, (one.grad for one in (weight, *other.parameters()))))


def by_hand(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    gradients = torch.autograd.grad(loss, [*model.parameters()])
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    return loss


def with_penalty(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    output = model(x)
    (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    loss = output.square().mean() + slope.square().sum()
    loss.backward()
    return loss


def after_other_work(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = model(x * torch.ones(6, requires_grad=True).exp()).square().mean()
    loss.backward()
    return loss


def in_parts(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    hidden = model[1](model[0](x)) * 2
    loss = model[2](hidden).square().mean()
    loss.backward()
    return loss


@pytest.mark.parametrize("train_step", [by_hand, with_penalty, after_other_work, in_parts])
def test_loops_of_all_kinds_are_followed(tmp_path: Path, train_step) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, on_error="raise") as rec:
        for _ in range(3):
            model.zero_grad()
            rec.step(loss=train_step(model, torch.randn(4, 6)), scale=1.0)
    found = shadows_of(tmp_path, 2)
    assert [*found] == ["fp16", "bf16", "cb16"]
    assert all(one["fails"] == "" and one["loss"] is not None for one in found.values())
    assert 0 < found["bf16"]["gradients"] < 0.1


def test_outputs_in_objects_are_not_seen(tmp_path: Path) -> None:
    class Output:
        def __init__(self, values: torch.Tensor) -> None:
            self.values = values

    class Model(nn.Linear):
        def forward(self, x):
            return Output(super().forward(x))

    model = Model(6, 2)
    with dlsim.Recorder(model, tmp_path, on_error="raise") as rec:
        model(torch.randn(4, 6)).values.square().mean().backward()
        rec.step(scale=1.0)
    assert shadows_of(tmp_path, 0) == {"why": "no output of the model has a gradient"}


# -- what a training could notice ----------------------------------------------------------------


def retained(tmp_path: Path, options: dict[str, Any]) -> list[Any]:
    """Backward again, after a step, through what batch norm has kept."""
    model = nn.BatchNorm1d(3)
    with dlsim.Recorder(model, tmp_path, on_error="raise", **options) as rec:
        loss = model(torch.randn(8, 3)).square().mean()
        loss.backward(retain_graph=True)
        rec.step(loss=loss, scale=1.0)
        loss.backward()
    return [model.running_mean, model.weight.grad]


def in_backward(tmp_path: Path, options: dict[str, Any]) -> list[Any]:
    """An optimizer that steps in backward, and has a state."""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    with dlsim.Recorder(model, tmp_path, on_error="raise", **options) as rec:
        model(torch.randn(8, 6)).square().mean().backward()
        rec.step(scale=1.0)
    return [optimizer.state[model.weight]["step"]]


def with_generators(tmp_path: Path, options: dict[str, Any]) -> list[Any]:
    """Random numbers of generators of the loop's and of a module's own."""

    class Noisy(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.own, self.numbers = torch.Generator().manual_seed(1), np.random.default_rng(2)

        def forward(self, x):
            noise = torch.rand(3, generator=self.own) + float(self.numbers.random())
            return super().forward(x) + noise

    model, generator = Noisy(), torch.Generator().manual_seed(0)
    with dlsim.Recorder(model, tmp_path, on_error="raise", **options) as rec:
        output = model(torch.ones(8, 6)) + torch.randn(8, 3, generator=generator)
        output.square().mean().backward()
        rec.step(scale=1.0)
    drawn = [torch.rand((), generator=one) for one in (generator, model.own)]
    return [*drawn, torch.tensor(model.numbers.random())]


class Frozen(dict):
    """Settings that refuse changes, as those of diffusers do."""

    def update(self, *_: Any, **__: Any) -> None:
        raise TypeError("frozen")


def with_averages(tmp_path: Path, options: dict[str, Any]) -> list[Any]:
    """Averages that change by .data, in the loop and in a module."""

    class Averaging(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.past = {"mean": [torch.zeros(3)], "count": 0}
            self.settings = Frozen(size=3)
            self.teacher = [nn.BatchNorm1d(3)]

        def forward(self, x):
            x = self.teacher[0](super().forward(x))
            self.past["mean"][0].data.mul_(0.9).add_(x.data.mean(0))
            self.past["count"] += 1
            return x

    model, mean = Averaging(), torch.zeros(3)
    with dlsim.Recorder(model, tmp_path, on_error="raise", **options) as rec:
        output = model(torch.randn(8, 6))
        mean.data.mul_(0.9).add_(output.data.mean(0))
        functional.mse_loss(output, torch.randn(8, 3)).backward()
        rec.step(scale=1.0)
    count = torch.tensor(model.past["count"])
    assert model.settings == {"size": 3}
    return [mean, model.past["mean"][0], count, model.teacher[0].running_mean]


@pytest.mark.parametrize("loop", [retained, in_backward, with_generators, with_averages])
def test_what_loops_keep_is_as_without_a_recorder(tmp_path: Path, loop) -> None:
    ends = []
    for name, options in (("none", {"shadow": None}), ("again", {})):
        torch.manual_seed(0)
        ends.append(loop(tmp_path / name, options))
    assert '"fails": ""' in load(tmp_path / "again", 0)[1]["shadow"]
    assert all(map(torch.equal, *ends))


def test_gradients_may_be_cleared_before_backward(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dlsim.Recorder(model, tmp_path, on_error="raise") as rec:
        for to_none in (True, False, True, False):
            loss = model(torch.randn(4, 6)).square().mean()
            optimizer.zero_grad(set_to_none=to_none)
            loss.backward()
            rec.step(loss=loss, scale=1.0)
            optimizer.step()
    fp16 = shadows_of(tmp_path, 3)["fp16"]
    assert fp16["steps"] == 4 and fp16["loss"] is not None


class Auxiliary(nn.Module):
    """Leaves a part of the loss in an attribute, and overflows there."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x):
        hidden = self.a(x)
        large = hidden * 1e3
        self.auxiliary = 1e-8 * (large * large).mean()
        return self.b(hidden.relu())


def test_losses_in_attributes_are_run(tmp_path: Path) -> None:
    model = Auxiliary()
    with dlsim.Recorder(model, tmp_path, on_error="raise") as rec:
        for _ in range(2):
            loss = model(torch.randn(8, 6)).square().mean() + model.auxiliary
            model.zero_grad()
            loss.backward()
            rec.step(loss=loss, scale=1.0)
    assert shadows_of(tmp_path, 1)["fp16"]["fails"] == "not finite"


def test_of_several_backward_passes_one_is_the_whole_loss_of_nothing(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, on_error="raise") as rec:
        output = model(torch.randn(4, 6))
        first, second = output.square().mean(), output.abs().mean()
        first.backward(retain_graph=True)
        second.backward()
        rec.step(loss=first + second, scale=1.0)
    assert shadows_of(tmp_path, 0)["fp16"]["loss"] is None


def test_a_loss_of_next_to_nothing_does_not_decide(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))
    with dlsim.Recorder(model, tmp_path, on_error="raise") as rec:
        for _ in range(6):
            x, weights = torch.randn(64, 6), torch.randn(64)
            weights = (weights - weights.mean()) / weights.std()
            with torch.no_grad():
                before = model(x).log_softmax(-1)[:, 0]
            ratio = (model(x).log_softmax(-1)[:, 0] - before).exp()
            loss = -(ratio * weights).mean()
            model.zero_grad()
            loss.backward()
            rec.step(loss=loss, scale=1.0)
    assert all(one["fails"] == "" for one in shadows_of(tmp_path, 5).values())


def test_autocast_in_parts_and_names_with_dots(tmp_path: Path) -> None:
    first, second = nn.Linear(6, 16), nn.Linear(16, 3)
    models = {"a.items": first, "keys": second}
    with dlsim.Recorder(models, tmp_path, on_error="raise") as rec:
        hidden = first(torch.randn(8, 6))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = second(hidden)
        output.float().square().mean().backward()
        rec.step(scale=1.0)
    assert all(one["fails"] == "" for one in shadows_of(tmp_path, 0).values())


class Divides(nn.Module):
    """Within it are gradients 10^4 times as large as those of its output and its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = x * 1e-4
        return small / torch.sqrt(small.pow(2).sum(-1, keepdim=True) + 1e-8)


def test_safe_scales_leave_room_for_gradients_within_modules(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 16), Divides(), nn.Linear(16, 3))
    torch.manual_seed(0)
    verdict = recorded(tmp_path, model, lambda: torch.randn(32, 6), steps=6)
    (ceiling, *_) = shadows_of(tmp_path, 5)["fp16"]["ceilings"]
    assert ceiling["module"] == "0"
    low, high = verdict["fp16"].window
    assert low < high <= ceiling["scale"]
    assert verdict["fp16"].scale <= high / 4
    assert "gradients within 0 overflow above" in str(verdict)

    def run(scale: float) -> bool:
        found = dlsim.check_plan(
            model,
            lambda model, x: functional.mse_loss(model(x), torch.ones(32, 3)),
            [torch.randn(32, 6)],
            format="fp16",
            scale=scale,
        )
        return not found.bad_steps

    assert run(high) and not run(64 * ceiling["scale"])
