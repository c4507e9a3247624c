# SPDX-License-Identifier: Apache-2.0
import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
dlsim = pytest.importorskip("dlsim")

SIXTEEN = torch.bfloat16  # which PyTorch 1.13 has on the CPU


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        self.scores = self.q(x) @ self.k(x).transpose(-1, -2)
        return self.scores.float().softmax(-1) @ x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()
        self.out = nn.Linear(8, 4)

    def forward(self, x):
        self.between = self.attn(x)
        return self.out(self.between)


def run(model, x):
    with torch.autocast("cpu", dtype=SIXTEEN):
        return model(x)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def x():
    return torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))


def test_a_module_computes_in_float32_until_removed(model, x):
    plain = model(x)
    with dlsim.keep_float32(model, "out"):
        kept = run(model, x)
        inside = model.out(model.between.float())
    assert kept.dtype == torch.float32 and run(model, x).dtype == SIXTEEN
    assert torch.equal(kept, inside) and not torch.equal(kept, plain)
    assert "forward" not in vars(model.out)


def test_without_autocast_nothing_changes(model, x):
    plain = model(x)
    dlsim.keep_float32(model, ["attn/matmul", "out"])
    assert torch.equal(model(x), plain)


def test_operations_of_a_module_but_not_of_those_in_it(model, x):
    dlsim.keep_float32(model, "attn/matmul")
    run(model, x)
    assert model.attn.scores.dtype == torch.float32
    with torch.autocast("cpu", dtype=SIXTEEN):
        assert model.attn.q(x).dtype == SIXTEEN
        q, k = model.attn.q(x), model.attn.k(x)
    assert torch.equal(model.attn.scores, q.float() @ k.float().transpose(-1, -2))


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        ("bmm", lambda x: torch.bmm(x, x.transpose(1, 2))),
        ("__rsub__", lambda x: 1 - x),
        ("__rdiv__", lambda x: 1 / x),
        ("baddbmm", lambda x: torch.baddbmm(x[..., :5], x, x.transpose(1, 2))),
    ],
)
def test_functions_by_the_names_that_recordings_have(x, name, compute):
    class Model(nn.Module):
        def forward(self, x):
            return compute(x.to(SIXTEEN))

    model = Model()
    assert run(model, x).dtype == SIXTEEN
    with dlsim.keep_float32(model, f"(root)/{name}"):
        assert run(model, x).dtype == torch.float32


def test_names_of_further_calls_and_globs(model, x):
    with dlsim.keep_float32(model, ["attn.[qk].call1"]) as kept:
        run(model, x)
        assert kept.names == ("attn.[qk].call1",)
        with torch.autocast("cpu", dtype=SIXTEEN):
            assert model.attn.q(x).dtype == model.attn.k(x).dtype == torch.float32


def test_copies_and_pickles_have_their_own(model, x):
    dlsim.keep_float32(model, ["attn/matmul", "out"])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            other.out.weight.mul_(2)
            other.out.bias.mul_(2)
        assert torch.equal(run(other, x), 2 * run(model, x))
        assert run(other, x).dtype == other.attn.scores.dtype == torch.float32


def test_an_exception_leaves_autocast_as_it_was(model):
    dlsim.keep_float32(model, ["attn/matmul", "out"])
    with torch.autocast("cpu", dtype=SIXTEEN):
        with pytest.raises(RuntimeError):
            model(torch.zeros(2, 3))
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == SIXTEEN


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_computes_again_in_float32(model, x, reentrant):
    from torch.utils.checkpoint import checkpoint

    gradients = []
    dlsim.keep_float32(model, ["attn/matmul", "out"])
    for again in (False, True):
        model.zero_grad()
        inputs = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=SIXTEEN):
            result = checkpoint(model, inputs, use_reentrant=reentrant) if again else model(inputs)
        result.float().square().sum().backward()
        gradients.append([p.grad.clone() for p in (*model.parameters(), inputs)])
    assert all(map(torch.equal, *gradients))


def test_what_changes_in_place_keeps_its_type():
    class Sum(nn.Module):
        def forward(self, x):
            total = x.to(SIXTEEN)
            total.add_(total)
            return total, 1 - total

    model = Sum()
    dlsim.keep_float32(model, ["(root)/add", "(root)/sub"])
    total, rest = model(torch.ones(2))
    assert total.dtype == SIXTEEN and rest.dtype == torch.float32
    assert total.tolist() == [2, 2]


def test_an_operation_that_never_ran_is_named(model, x, caplog):
    with dlsim.keep_float32(model, ["attn/matmul", "attn/conv"]):
        run(model, x)
    assert [record.getMessage() for record in caplog.records] == ["attn itself has called no conv"]


def test_refuses_what_cannot_be_right(model):
    with pytest.raises(dlsim.UsageError, match=r"no module 'atn' \(did you mean 'attn'\?\)"):
        dlsim.keep_float32(model, "atn")
    with pytest.raises(TypeError, match=r"expected torch\.nn\.Module, got str"):
        dlsim.keep_float32("model", "attn")
    model.out.half()
    with pytest.raises(dlsim.UsageError, match=r"out\.weight: bad type, expected float32"):
        dlsim.keep_float32(model, "out")
    assert "forward" not in vars(model.out)


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="PyTorch 1.13")
def test_compiled_models_keep_it(model, x):
    dlsim.keep_float32(model, ["attn/matmul", "out"])
    eager = run(model, x)
    compiled = torch.compile(model, backend="eager")
    with torch.autocast("cpu", dtype=SIXTEEN):
        result = compiled(x)
    assert torch.equal(result, eager) and model.attn.scores.dtype == torch.float32
