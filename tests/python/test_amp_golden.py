# SPDX-License-Identifier: Apache-2.0
"""The recorded runs of Cerebras' GradScaler, driven through the Python class with tensors."""

import json
from pathlib import Path

import pytest
import torch

from dlsim import amp

_SCALERS = Path(__file__).parent.parent / "data" / "scalers"


def _cases(name):
    with open(_SCALERS / name) as file:
        cases = [json.loads(line) for line in file]
    return [case for case in cases if case["scaler"] == "cerebras_pytorch"]


def _overflows(case):
    flags = []
    for index, count in enumerate(case["overflow_rle"]):
        flags += [bool(index % 2)] * count
    return flags


def _scaler(case, half_dtype):
    arguments = dict(case["params"])
    half_dtype = arguments.pop("fp16_type", half_dtype)
    return amp.GradScaler("dynamic", half_dtype=half_dtype, **arguments)


class _OneParameter:
    """A model whose gradient is the factor of the step."""

    def __init__(self):
        self.weight = torch.nn.Parameter(torch.tensor(1.0))
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0, momentum=0.5)

    def step(self, scaler, factor):
        self.weight.grad = None
        scaler.scale(self.weight * factor).backward()
        scaler.unscale_(self.optimizer)
        scaler.step(self.optimizer)
        scaler.update()

    def step_without_autograd(self, scaler, factor):
        """The same for a factor of 0 or infinity."""
        self.weight.grad = factor.clone()
        scaler.step(self.optimizer)
        scaler.update()


def _run(scaler, factors):
    """Returns the scale after each step, which steps were skipped, and the floor's errors."""
    model = _OneParameter()
    take_step = model.step if len(factors) < 8000 else model.step_without_autograd
    scales, skipped, events = [], [], []
    for step, factor in enumerate(factors):
        take_step(scaler, factor)
        scale, raw = scaler.get_scale().item(), scaler.get_non_clamped_scale().item()
        scales.append(scale.hex())
        skipped.append(not amp.isfinite(model.optimizer))
        if raw < scale:
            events.append({"step": step, "type": "ApplianceNanError", "non_clamped": raw.hex()})
    return scales, skipped, events


def _expect_same(case, scaler, scales, skipped, events):
    expected = [scale for scale, count in case["scale_rle"] for _ in range(count)]
    assert scales == expected
    assert skipped == _overflows(case)
    total, kept = len(case["events"]), len(case["events"])
    if total and "truncated_total" in case["events"][-1]:
        total, kept = case["events"][-1]["truncated_total"], total - 1
    assert len(events) == total
    for event, golden in zip(events, case["events"][:kept], strict=False):
        assert event == {key: golden[key] for key in event}
    state = scaler.state_dict()
    assert {key: int(state[key]) for key in case["state"]} == case["state"]
    assert float(state["loss_scale"]).hex() == scales[-1]


_GOLDEN = _cases("cerebras_pytorch.jsonl")


def test_all_recorded_runs_are_there():
    assert len(_GOLDEN) == 123


@pytest.mark.parametrize("case", _GOLDEN, ids=lambda case: case["case"])
def test_class_repeats_a_recorded_run(case):
    if case["scale_init"] is None:
        with pytest.raises(ValueError) as refusal:
            _scaler(case, "float16")
        assert str(refusal.value) == case["events"][0]["message"]
        return
    scaler = _scaler(case, "float16")
    assert float(scaler.get_scale()) == float.fromhex(case["scale_init"])
    factors = [torch.tensor(torch.inf if bad else 0.0) for bad in _overflows(case)]
    _expect_same(case, scaler, *_run(scaler, factors))


@pytest.mark.parametrize("case", _cases("closed_loop.jsonl"), ids=lambda case: case["case"])
def test_gradients_overflow_in_float16_as_recorded(case):
    # Here nothing says which steps overflow: the gradient, rounded at the current scale, decides.
    with open(_SCALERS / "closed_loop_traces.json") as file:
        trace = json.load(file)[case["trace"]]
    case["params"].pop("fp16_type", None)  # its rule is that of float16: see the data's README
    scaler = _scaler(case, "float16")
    factors = [torch.tensor(float.fromhex(g) if isinstance(g, str) else g) for g in trace]
    _expect_same(case, scaler, *_run(scaler, factors[: case["steps"]]))


def _finite_tests():
    with open(_SCALERS / "finite_tests.jsonl") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("case", _finite_tests(), ids=lambda case: case["test"])
def test_norm_decides_as_recorded(case):
    grads = [[float.fromhex(value) for value in tensor] for tensor in case["grads"]]
    weights = [torch.nn.Parameter(torch.zeros(len(tensor))) for tensor in grads]
    optimizer = torch.optim.SGD(weights, lr=1.0)
    scale = float.fromhex(case["scale"])
    # float32: the data holds no rounding to 16 bits.
    scaler = amp.GradScaler("dynamic", init_scale=scale, max_loss_scale=scale, half_dtype="float32")
    for weight, tensor in zip(weights, grads, strict=True):
        weight.grad = torch.tensor(tensor)
    scaler.unscale_(optimizer)
    for weight, golden in zip(weights, case["cerebras"]["unscaled"], strict=True):
        expected = torch.tensor([float.fromhex(value) for value in golden])
        assert torch.equal(weight.grad.isnan(), expected.isnan())
        assert torch.equal(weight.grad.nan_to_num(0), expected.nan_to_num(0))
    scaler.step(optimizer)
    overflow = case["overflow"]["cerebras_pytorch_norm_after_unscale (real code)"]
    assert bool(amp.isfinite(optimizer)) is not overflow
    for weight in weights:
        taken = torch.zeros_like(weight) if overflow else -weight.grad
        assert torch.equal(weight.detach(), taken)
