# SPDX-License-Identifier: Apache-2.0
"""MixedPrecision follows the rules of the Model Zoo's precision callback."""

import warnings

import pytest
import torch

import dlsim
from dlsim import amp

_INF = float("inf")


@pytest.fixture(autouse=True)
def float16():
    """Each test starts and ends with float16."""
    amp.set_half_dtype("float16")
    yield
    amp.set_half_dtype("float16")


class _Trainer:
    def __init__(self):
        self.metrics = []

    def log_metrics(self, **metrics):
        self.metrics.append({name: float(value) for name, value in metrics.items()})


def _run(precision, factors, lr=1.0):
    """Trains one weight in the order of the Model Zoo's loop; returns it and the trainer."""
    weight = torch.nn.Parameter(torch.tensor(1.0))
    optimizer = torch.optim.SGD([weight], lr=lr)
    trainer = _Trainer()
    for index, factor in enumerate(factors):
        with precision.autocast_context_manager():
            loss = weight * factor
        optimizer.zero_grad()
        precision.backward(loss)
        precision.on_before_optimizer_step(trainer, None, optimizer)
        precision.clip_gradients(optimizer)
        precision.optimizer_step(optimizer)
        precision.on_train_batch_end(trainer, None, {"loss": loss}, None, index)
    return weight, trainer


def test_default_is_bfloat16_without_scaler():
    precision = amp.MixedPrecision()
    assert precision.scaler is None and amp.get_half_dtype_str() == "bfloat16"
    weight, trainer = _run(precision, [1 + 2.0**-9])
    assert weight.item() == 0.0  # the gradient has the 7 bits of bfloat16
    assert trainer.metrics == []
    weight, _ = _run(precision, [_INF])
    assert weight.item() == -_INF  # nothing is skipped


def test_bfloat16_ignores_the_loss_scaling_factor(caplog):
    caplog.set_level("INFO")
    assert amp.MixedPrecision(loss_scaling_factor="dynamic").scaler is None
    assert "No need to use loss scaling when half dtype is bfloat16" in caplog.text


def test_parameters_reach_the_scaler():
    precision = amp.MixedPrecision(
        fp16_type="float16",
        loss_scaling_factor="dynamic",
        initial_loss_scale=64.0,
        steps_per_increase=1,
        min_loss_scale=2.0,
        max_loss_scale=128.0,
    )
    weight, trainer = _run(precision, [0.0, 0.0, 0.0, 0.0, 0.25])
    assert [metric["loss_scale"] for metric in trainer.metrics] == [
        64.0,
        128.0,
        128.0,
        128.0,
        128.0,
    ]
    assert weight.item() == 0.75
    _, trainer = _run(precision, [_INF])
    assert trainer.metrics == [{"loss_scale": 64.0}]
    assert float(precision.scaler.get_non_clamped_scale()) == 64.0


def test_static_scale_is_not_logged_unless_asked():
    precision = amp.MixedPrecision(fp16_type="float16", loss_scaling_factor=4.0)
    assert _run(precision, [1.0])[1].metrics == []
    precision = amp.MixedPrecision(
        fp16_type="float16", loss_scaling_factor=None, log_loss_scale=True
    )
    assert _run(precision, [1.0])[1].metrics == [{"loss_scale": 1.0}]


def test_floor_raises_after_the_batch():
    precision = amp.MixedPrecision(
        fp16_type="cbfloat16", loss_scaling_factor="dynamic", initial_loss_scale=2.0**-13
    )
    _run(precision, [_INF])
    assert float(precision.scaler.get_scale()) == 2.0**-14
    with pytest.raises(amp.ApplianceNanError, match="Minimum loss scale threshold was reached"):
        _run(precision, [_INF])
    assert float(precision.scaler.get_scale()) == 2.0**-14
    assert float(precision.scaler.get_non_clamped_scale()) == 2.0**-15


@pytest.mark.parametrize(
    ("limits", "weight"), [({"max_gradient_norm": 0.5}, 0.5), ({"max_gradient_value": 0.25}, 0.75)]
)
@pytest.mark.parametrize("fp16_type", ["float16", "bfloat16"])
def test_gradients_are_clipped(limits, weight, fp16_type):
    precision = amp.MixedPrecision(fp16_type=fp16_type, **limits)
    assert _run(precision, [4.0])[0].item() == pytest.approx(weight, rel=1e-6)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"fp16_type": "cbfloat16"}, "In order to use cbfloat16, dynamic loss scaling must be"),
        ({"fp16_type": "fp16"}, 'Invalid value for "fp16_type". Expected one of'),
        ({"loss_scaling_factor": "auto"}, "must be a float, None, or 'dynamic'.Got auto instead"),
        ({"max_gradient_norm": 0.0}, "max_gradient_norm has to be a positive float. Got 0.0"),
        ({"max_gradient_value": -1.0}, "max_gradient_value has to be a positive float. Got -1.0"),
        (
            {"max_gradient_norm": 1.0, "max_gradient_value": 2.0},
            r"clipped by norm\(=1.0\) or by value\(=2.0\), but not both",
        ),
        (
            {"fp16_type": "float16", "loss_scaling_factor": "dynamic", "min_loss_scale": 2e-14},
            "min_loss_scale too small",
        ),
        ({"backend": "TPU"}, "backend: unknown text, expected CSX, GPU or CPU, got 'TPU'"),
    ],
)
def test_parameters_are_refused_as_in_the_model_zoo(parameters, message):
    with pytest.raises(ValueError, match=message):
        amp.MixedPrecision(**parameters)


def test_mixed_precision_cannot_be_off_on_csx():
    with pytest.warns(UserWarning, match="Mixed precision must be enabled for CSX"):
        assert amp.MixedPrecision(False).enabled
    assert amp.mixed_precision()


def test_cpu_and_gpu_have_torch_scalers():
    with pytest.warns(UserWarning, match="cbfloat16 is only supported on CSX"):
        precision = amp.MixedPrecision(fp16_type="cbfloat16", backend="GPU")
    assert amp.get_half_dtype() == torch.bfloat16
    assert not isinstance(precision.scaler, amp.GradScaler)
    with pytest.warns(UserWarning, match="Mixed precision on CPU is only supported with bfloat16"):
        precision = amp.MixedPrecision(
            fp16_type="float16", backend="CPU", loss_scaling_factor="dynamic"
        )
    # A scaler although the arithmetic is bfloat16's: the Model Zoo compares an object with a text.
    assert precision.scaler is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert amp.MixedPrecision(backend="CPU").scaler is None
        off = amp.MixedPrecision(False, backend="CPU")
    assert not amp.mixed_precision()
    assert _run(off, [1 + 2.0**-20])[0].item() == -(2.0**-20)


@pytest.mark.parametrize(
    ("fp16_type", "format"), [("float16", "fp16"), ("bfloat16", "bf16"), ("cbfloat16", "cb16")]
)
def test_autocast_rounds_to_the_scalers_type_on_csx(fp16_type, format):
    precision = amp.MixedPrecision(fp16_type=fp16_type, loss_scaling_factor="dynamic")
    amp.set_half_dtype("float16")
    x = torch.tensor([1 + 2.0**-9, 70000.0, 2.0**-28])
    module = torch.nn.PReLU(init=1.0)
    with precision.autocast_context_manager():
        assert torch.equal(module(x), dlsim.quantize(x, format))
    assert torch.equal(module(x), x)


def test_autocast_is_nothing_when_switched_off():
    precision = amp.MixedPrecision(False, backend="CPU")
    with precision.autocast_context_manager():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32


def test_autocast_is_that_of_torch_on_a_cpu():
    precision = amp.MixedPrecision(backend="CPU")
    with precision.autocast_context_manager():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.bfloat16


def test_scaler_is_in_the_checkpoint():
    def make():
        return amp.MixedPrecision(fp16_type="float16", loss_scaling_factor="dynamic")

    precision, state = make(), {}
    _run(precision, [_INF, 1e-3])
    precision.on_save_checkpoint(None, state)
    resumed = make()
    resumed.on_load_checkpoint(None, {"model": {}})
    assert float(resumed.scaler.get_scale()) == 2.0**15
    resumed.on_load_checkpoint(None, state)
    assert resumed.scaler.state_dict() == precision.scaler.state_dict()
    assert int(resumed.scaler.state_dict()["num_skipped_steps"]) == 1
