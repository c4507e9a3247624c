# SPDX-License-Identifier: Apache-2.0
"""Training with GradScaler equals the same steps computed again in NumPy and float64."""

import math

import numpy as np
import pytest
import torch

from dlsim import amp


def _quantized(values, mantissa_bits, min_exponent, limit):
    """Rounds float64 values to nearest even at the spacing of their binade."""
    exponent = np.maximum(np.frexp(values)[1] - 1, min_exponent).astype(float)
    spacing = 2.0 ** (exponent - mantissa_bits)
    result = np.round(values / spacing) * spacing
    return np.where(np.abs(result) >= limit, np.copysign(np.inf, values), result)


_TYPES = {
    "float16": (10, -14, 2.0**16),
    "bfloat16": (7, -126, 2.0**128),
    "cbfloat16": (9, -30, 2.0**32),
}


class _NumpyAdam:
    def __init__(self, weights, lr):
        self.weights, self.lr = [w.astype(np.float64) for w in weights], lr
        self.m = [np.zeros_like(w) for w in self.weights]
        self.v = [np.zeros_like(w) for w in self.weights]
        self.steps = 0

    def step(self, grads):
        self.steps += 1
        for w, m, v, g in zip(self.weights, self.m, self.v, grads, strict=True):
            m[...] = 0.9 * m + 0.1 * g
            v[...] = 0.999 * v + 0.001 * g * g
            m_hat, v_hat = m / (1 - 0.9**self.steps), v / (1 - 0.999**self.steps)
            w[...] -= self.lr * m_hat / (np.sqrt(v_hat) + 1e-8)


@pytest.mark.parametrize("half_dtype", _TYPES)
def test_training_equals_a_recomputation(half_dtype):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    largest = 2.0**31 if half_dtype == "cbfloat16" else 2.0**15
    scaler = amp.GradScaler("dynamic", half_dtype=half_dtype, steps_per_increase=3)
    oracle = _NumpyAdam([p.detach().numpy() for p in model.parameters()], lr=0.01)
    scale, clean = largest, 0
    for step in range(12):
        inputs = torch.randn(6, 5) * (1e9 if step == 7 else 1)  # a gradient spike
        optimizer.zero_grad()
        scaler.scale(model(inputs).square().mean()).backward()
        scaled = [p.grad.double().numpy().copy() for p in model.parameters()]
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()

        grads = [_quantized(g, *_TYPES[half_dtype]) / scale for g in scaled]
        norm = math.sqrt(sum(np.sum(g * g) for g in grads))
        if norm < 1.8446743e19:
            oracle.step([g * min(1.0, 0.5 / (norm + 1e-6)) for g in grads])
            clean += 1
            if clean == 4:
                scale, clean = min(2 * scale, largest), 0
        else:
            scale, clean = scale / 2, 0
        assert float(scaler.get_scale()) == scale
        for p, expected in zip(model.parameters(), oracle.weights, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), expected, rtol=2e-4, atol=2e-6)
    # The first scales are too large for float16, and the spike for all but bfloat16.
    assert (12 - oracle.steps == 0) is (half_dtype == "bfloat16")
