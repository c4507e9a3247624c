# SPDX-License-Identifier: Apache-2.0
"""dlsim.amp refuses what cannot be right, with one line, and as the original does."""

import subprocess
import sys
import warnings

import pytest
import torch

from dlsim import PolicyRefusal, amp


def _optimizer():
    weight = torch.nn.Parameter(torch.tensor(1.0))
    weight.grad = torch.tensor(1.0)
    return torch.optim.SGD([weight], lr=1.0)


def _loss(optimizer):
    return optimizer.param_groups[0]["params"][0] * 1.0


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"min_loss_scale": 2e-14}, PolicyRefusal, "min_loss_scale too small"),
        (
            {"overflow_tolerance": -0.1},
            PolicyRefusal,
            "loss scaling counter threshold must be set >= 0",
        ),
        ({"init_scale": float("nan")}, ValueError, "init_scale: not a finite number, .* got nan"),
        ({"max_loss_scale": float("inf")}, ValueError, "max_loss_scale: not a finite number"),
        ({"loss_scale": float("nan")}, ValueError, "loss_scale: not a finite number"),
        ({"loss_scale": -2.0}, ValueError, "loss_scale: not a loss scale"),
        ({"loss_scale": "static"}, ValueError, "expected 'dynamic' or a number, got 'static'"),
        ({"loss_scale": [2.0]}, TypeError, "loss_scale: wrong type, expected a number, got list"),
        ({"init_scale": "2e15"}, TypeError, "init_scale: wrong type, expected a number, got str"),
        ({"init_scale": True}, TypeError, "init_scale: wrong type, expected a number, got bool"),
        ({"steps_per_increase": 2.5}, ValueError, "steps_per_increase: not a 64-bit integer"),
        ({"half_dtype": "float8"}, ValueError, "half_dtype: unknown type, .* got 'float8'"),
    ],
)
def test_constructor_refuses(arguments, kind, message):
    with pytest.raises(kind, match=message) as error:
        amp.GradScaler(**{"loss_scale": "dynamic", **arguments})
    assert "\n" not in str(error.value)


def test_static_scaler_does_not_look_at_the_limits():
    assert amp.GradScaler(2.0, min_loss_scale=2e-14).get_scale() == 2.0


def test_zero_and_none_mean_the_default():
    scaler = amp.GradScaler("dynamic", 0, 0, 0, 0, 0, 0, half_dtype="cbfloat16")
    assert float(scaler.get_scale()) == 2.0**31
    assert amp.GradScaler(0).get_scale() == amp.GradScaler(None).get_scale() == 1.0


def test_documented_misprint_is_named():
    with pytest.warns(UserWarning, match=r"look like misprints of 2\^15 and 2\^-14"):
        scaler = amp.GradScaler("dynamic", init_scale=2e15, max_loss_scale=2e15)
    assert float(scaler.get_scale()) == float.fromhex("0x1.c6bf52p+50")
    assert any("one more than steps_per_increase" in note for note in scaler.notes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        amp.GradScaler("dynamic")


def test_order_of_calls_is_checked_as_in_the_original():
    optimizer = _optimizer()
    scaler = amp.GradScaler("dynamic")
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="Optimizer parameter gradients already scaled"):
        scaler.scale(_loss(optimizer))
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) is being called after step\(\)."):
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called since the last"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="Optimizer parameter gradients already scaled"):
        scaler.scale(_loss(optimizer))
    scaler.update()
    scaler.scale(_loss(optimizer)).backward()


def test_update_refuses_a_scale_and_needs_gradients():
    scaler = amp.GradScaler("dynamic")
    with pytest.raises(ValueError, match="does not support providing a `new_scale`"):
        scaler.update(1024.0)
    with pytest.raises(RuntimeError, match="no gradients were tested since the last update"):
        scaler.update()
    with pytest.raises(RuntimeError, match="no gradients were tested since the last update"):
        scaler.step_if_finite(_optimizer())
    assert int(scaler.state_dict()["steps_since_rescale"]) == 0
    amp.GradScaler(2.0).update(0)


def test_strict_step_wants_unscaled_gradients():
    optimizer = _optimizer()
    scaler = amp.GradScaler("dynamic", strict=True)
    for _ in range(2):
        scaler.scale(_loss(optimizer)).backward()
        with pytest.raises(RuntimeError, match="stack expects a non-empty TensorList"):
            scaler.step(optimizer)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    scaler.step(optimizer)  # without scale() the original unscales too


@pytest.mark.parametrize("method", ["unscale_", "step", "quantize_first"])
def test_methods_want_an_optimizer(method):
    with pytest.raises(TypeError, match="wrong type, expected an optimizer, got Linear"):
        getattr(amp.GradScaler("dynamic"), method)(torch.nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("state", "kind", "message"),
    [
        ([1], TypeError, "load_state_dict: wrong type, expected a dict, got list"),
        ({"loss_scale": float("nan")}, ValueError, "state loss_scale: not a finite number"),
        ({"loss_scale": 0.0}, ValueError, "state loss_scale: not a loss scale"),
        ({"loss_scale": torch.ones(2)}, TypeError, "expected a number, got Tensor"),
        ({"steps_since_rescale": 1.5}, ValueError, "bad value of 'steps_since_rescale'"),
    ],
)
def test_bad_state_changes_nothing(state, kind, message):
    scaler = amp.GradScaler("dynamic")
    before = scaler.state_dict()
    with pytest.raises(kind, match=message):
        scaler.load_state_dict(
            {**state, "num_skipped_steps": 5} if isinstance(state, dict) else state
        )
    assert scaler.state_dict() == before


def test_optimizer_step_checks_before_it_starts():
    optimizer = _optimizer()
    scaler = amp.GradScaler("dynamic")
    bad = [
        ((1.0, optimizer, scaler), {}, ValueError, "to return a single loss tensor. Got: <class"),
        ((_loss(optimizer), [optimizer, 3], scaler), {}, TypeError, "Expected optimizer 1 to be"),
        ((_loss(optimizer), 3, scaler), {}, TypeError, "Expected optimizer 0 to be"),
        ((_loss(optimizer), optimizer, 3), {}, TypeError, "Expected grad_scaler to be"),
        (
            (_loss(optimizer), optimizer, scaler, -1.0),
            {},
            ValueError,
            "max_gradient_norm has to be a non-negative float. Got -1.0",
        ),
        (
            (_loss(optimizer), optimizer, scaler),
            {"max_gradient_value": float("nan")},
            ValueError,
            "max_gradient_value has to be a non-negative float. Got nan",
        ),
        (
            (_loss(optimizer), optimizer, scaler, 1.0, 2.0),
            {},
            ValueError,
            r"clipped by norm\(=1.0\) or by value\(=2.0\), but not both",
        ),
    ]
    for arguments, keywords, kind, message in bad:
        with pytest.raises(kind, match=message):
            amp.optimizer_step(*arguments, **keywords)
    assert _loss(optimizer).item() == 1.0
    assert optimizer.param_groups[0]["params"][0].grad.item() == 1.0


def test_optimizer_step_takes_several_optimizers():
    optimizers = [_optimizer(), _optimizer()]
    for optimizer in optimizers:
        optimizer.zero_grad()
    scaler = amp.GradScaler("dynamic", init_scale=1024.0)
    loss = 3 * _loss(optimizers[0]) + 4 * _loss(optimizers[1])
    amp.optimizer_step(loss, optimizers, scaler, max_gradient_norm=1.0)
    weights = [_loss(optimizer).item() for optimizer in optimizers]
    assert weights == pytest.approx([0.4, 0.2], rel=1e-6)


def test_half_dtype_setting():
    try:
        assert amp.set_half_dtype("cbfloat16") == amp.get_half_dtype() == torch.float16
        assert amp.get_half_dtype_str() == amp.get_floating_point_dtype_str() == "cbfloat16"
        assert amp.is_cbfloat16_tensor(torch.zeros(1, dtype=torch.float16))
        assert not amp.is_cbfloat16_tensor(torch.zeros(1))
        assert amp.set_half_dtype(torch.bfloat16) == amp.get_floating_point_dtype()
        assert amp.get_half_dtype_str() == "bfloat16"
        assert not amp.is_cbfloat16_tensor(torch.zeros(1, dtype=torch.bfloat16))
        assert amp.enable_mixed_precision(False) is amp.mixed_precision() is False
        assert amp.get_floating_point_dtype() == torch.float32
        assert amp.get_floating_point_dtype_str() == "float32"
        for bad in ("fp16", torch.float32, None, []):
            with pytest.raises(ValueError, match="Invalid half dtype: "):
                amp.set_half_dtype(bad)
        with pytest.raises(ValueError, match="Expected a boolean value, got: <class 'int'>"):
            amp.enable_mixed_precision(1)
        assert amp.get_half_dtype_str() == "bfloat16"
    finally:
        amp.set_half_dtype("float16")


def _python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_package_imports_without_torch():
    result = _python("import dlsim, sys; print('torch' in sys.modules, 'amp' in dir(dlsim))")
    assert result.stdout == "False True\n", result.stderr


@pytest.mark.parametrize(
    "statement", ["from dlsim import amp", "import dlsim.amp", "import dlsim; dlsim.amp"]
)
def test_missing_torch_is_named(statement):
    result = _python(f"import sys; sys.modules['torch'] = None; {statement}")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: dlsim.amp: PyTorch is missing, expected the package torch "
        "(pip install torch)"
    )
    assert result.stderr.count("Traceback") == 1


def test_a_scale_of_zero_skips_the_step_and_grows_to_the_minimum():
    # As 1 / 0 of tensors in the original: the gradients are then NaN.
    scaler = amp.GradScaler("dynamic", init_scale=1e-50)
    optimizer = _optimizer()
    scaler.scale(_loss(optimizer)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert int(scaler.get_num_skipped_steps()) == 1
    assert float(scaler.get_scale()) == 2.0**-14


@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["plus", "minus"])
def test_an_integer_beyond_float64_is_not_finite(value):
    with pytest.raises(ValueError, match=r"GradScaler.init_scale: not a finite number"):
        amp.GradScaler("dynamic", init_scale=value)


@pytest.mark.parametrize("scale", [1e39, 1e-50, 0.0, -4.0])
@pytest.mark.parametrize("kind", ["dynamic", 8.0])
def test_a_checkpoint_with_a_scale_beyond_float32_is_refused(kind, scale):
    scaler = amp.GradScaler(kind)
    before = float(scaler.get_scale())
    with pytest.raises(ValueError, match="GradScaler state loss_scale: not a loss scale"):
        scaler.load_state_dict({"loss_scale": scale})
    assert float(scaler.get_scale()) == before
