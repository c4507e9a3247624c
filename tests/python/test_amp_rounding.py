# SPDX-License-Identifier: Apache-2.0
"""Gradients are rounded as the dlsim command rounds, at the current scale, once or per backward."""

import subprocess
import warnings

import numpy as np
import pytest
import torch
from running import DLSIM

from dlsim import _rounding, amp
from dlsim._rounding import rounded_by_torch, rounded_in_place

_FORMATS = {"float16": "fp16", "bfloat16": "bf16", "cbfloat16": "cb16"}


def _command(values, half_dtype, folder):
    """Returns `values` encoded and decoded by the C++ command."""
    np.save(folder / "values.npy", values)
    for step in (
        ["--to", _FORMATS[half_dtype], folder / "values.npy", folder / "codes.npy"],
        ["--from", _FORMATS[half_dtype], folder / "codes.npy", folder / "back.npy"],
    ):
        subprocess.run([*DLSIM, "convert", *step], check=True)
    return np.load(folder / "back.npy")


def _hard_values(half_dtype, folder):
    """Returns all values of the type, the ties between neighbors, and floats on both sides."""
    codes = np.arange(2**16, dtype=np.uint16)
    np.save(folder / "codes.npy", codes)
    command = [*DLSIM, "convert", "--from", _FORMATS[half_dtype]]
    subprocess.run([*command, folder / "codes.npy", folder / "all.npy"], check=True)
    values = np.load(folder / "all.npy")
    finite = np.sort(values[np.isfinite(values)])
    ties = ((finite[:-1].astype(np.float64) + finite[1:]) / 2).astype(np.float32)
    limits = np.float32([finite[-1] * (1 + 2.0**-12), 3.4e38, -3.4e38])
    near = np.concatenate([values, ties, limits])
    bits = np.random.default_rng(1).integers(0, 2**32, 2**18, dtype=np.uint32)
    with np.errstate(all="ignore"):
        return np.concatenate(
            [near, np.nextafter(near, np.inf), np.nextafter(near, -np.inf), bits.view(np.float32)]
        ).astype(np.float32)


def _by_codec(values, half_dtype):
    values = values.clone()
    rounded_in_place(values, _FORMATS[half_dtype])
    return values


def _by_torch(values, half_dtype):
    return rounded_by_torch(values, _FORMATS[half_dtype])


@pytest.mark.parametrize("rounding", [_by_codec, _by_torch])
@pytest.mark.parametrize("half_dtype", _FORMATS)
def test_rounding_equals_the_command(half_dtype, rounding, tmp_path):
    values = _hard_values(half_dtype, tmp_path)
    expected = _command(values, half_dtype, tmp_path)
    actual = rounding(torch.from_numpy(values), half_dtype).numpy()
    is_nan = np.isnan(expected)
    assert np.array_equal(np.isnan(actual), is_nan)
    assert np.array_equal(actual.view(np.uint32)[~is_nan], expected.view(np.uint32)[~is_nan])


def test_rounding_takes_any_shape_and_type():
    values = torch.linspace(-3, 3, 24).reshape(2, 3, 4).transpose(0, 2)
    for format in _FORMATS.values():
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            result = values.to(dtype)
            rounded_in_place(result, format)
            expected = rounded_by_torch(values.to(dtype).float().contiguous(), format)
            assert torch.equal(result, expected.to(dtype))
    one = torch.tensor(1 + 2.0**-10)
    rounded_in_place(one, "cb16")
    assert one.item() == 1.0
    rounded_in_place(torch.empty(0), "cb16")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_devices_without_kernels_get_the_same_bits(dtype, monkeypatch):
    values = torch.linspace(-3, 3, 24).exp2().to(dtype).reshape(4, 6).T
    expected = [_rounding.Rounding(format)(values) for format in _FORMATS.values()]
    monkeypatch.setattr(_rounding, "has_kernels", lambda device: False)
    for counts in (False, True):
        found = [_rounding.Rounding(one, count=counts)(values) for one in _FORMATS.values()]
        assert all(map(torch.equal, found, expected))
        assert all(one.dtype == dtype for one in found)


def _gradient(half_dtype, value, loss_scale=1.0, **arguments):
    """Returns the gradient that the optimizer gets for a gradient of `value`."""
    weight = torch.nn.Parameter(torch.tensor(1.0))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = amp.GradScaler(loss_scale, half_dtype=half_dtype, **arguments)
    scaler.scale(weight * value).backward()
    scaler.unscale_(optimizer)
    return weight.grad.item()


@pytest.mark.parametrize(
    ("value", "float16", "cbfloat16", "bfloat16"),
    [
        (1 + 2.0**-10, 1 + 2.0**-10, 1.0, 1.0),  # precision: 10, 9 and 7 bits
        (1 + 2.0**-9, 1 + 2.0**-9, 1 + 2.0**-9, 1.0),
        (2.0**-25, 0.0, 2.0**-25, 2.0**-25),  # half of float16's smallest value
        (2.0**-40, 0.0, 0.0, 2.0**-40),
        (65520.0, float("inf"), 65536.0, 65536.0),
        (2.0**32, float("inf"), float("inf"), 2.0**32),
    ],
)
def test_types_differ_in_range_and_precision(value, float16, cbfloat16, bfloat16):
    assert _gradient("float16", value) == float16
    assert _gradient("cbfloat16", value) == cbfloat16
    assert _gradient("bfloat16", value) == bfloat16
    assert _gradient("float32", value) == value


def test_scale_decides_what_underflows():
    tiny = 2.0**-26
    assert _gradient("float16", tiny, 1.0) == 0.0
    assert _gradient("float16", tiny, 4.0) == tiny
    assert _gradient("float16", tiny, "dynamic", init_scale=4.0) == tiny
    assert _gradient("float16", 16.0, "dynamic") == float("inf")
    assert _gradient("cbfloat16", 1.0, "dynamic") == 1.0


def test_half_dtype_is_that_of_the_module_when_made():
    try:
        amp.set_half_dtype("cbfloat16")
        scaler = amp.GradScaler("dynamic")
        amp.set_half_dtype("float16")
        assert scaler.half_dtype == "cbfloat16"
        assert amp.GradScaler().half_dtype == "float16"
        amp.enable_mixed_precision(False)
        assert amp.GradScaler().half_dtype == "float32"
    finally:
        amp.set_half_dtype("float16")


def _accumulated(parts, *, quantize_first):
    weight = torch.nn.Parameter(torch.tensor(1.0))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = amp.GradScaler(1.0, half_dtype="float16")
    if quantize_first:
        scaler.quantize_first(optimizer)
        scaler.quantize_first(optimizer)  # once is enough
    for part in parts:
        scaler.scale(weight * part).backward()
    scaler.unscale_(optimizer)
    return weight.grad.item()


def test_accumulated_gradients_are_rounded_once_or_each():
    third = 2.0**-25 * 0.75
    assert _accumulated([third] * 4, quantize_first=False) == 2.0**-24 * 2  # 1.5 is a tie
    assert _accumulated([third] * 4, quantize_first=True) == 0.0
    # The sum of rounded parts is not rounded again.
    assert _accumulated([1.0, 2.0**-24], quantize_first=False) == 1.0
    assert _accumulated([1.0, 2.0**-24], quantize_first=True) == 1.0  # in float32
    assert _accumulated([1.0, 2.0**-23], quantize_first=True) == 1.0 + 2.0**-23
    assert _accumulated([60000.0, 60000.0], quantize_first=False) == float("inf")
    assert _accumulated([60000.0, 60000.0], quantize_first=True) == 120000.0


def test_rounding_each_backward_stops_with_update():
    weight = torch.nn.Parameter(torch.tensor(1.0))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = amp.GradScaler(1.0, half_dtype="float16")
    scaler.quantize_first(optimizer)
    scaler.scale(weight * 2.0**-26).backward()
    assert weight.grad.item() == 0.0
    scaler.step(optimizer)
    scaler.update()
    weight.grad = None
    (weight * 2.0**-26).backward()  # a loss that was not scaled
    assert weight.grad.item() == 2.0**-26
    scaler.unscale_(optimizer)  # what no hook has rounded is rounded here
    assert weight.grad.item() == 0.0


def test_rounding_each_backward_keeps_the_graph_of_a_penalty():
    weight = torch.nn.Parameter(torch.tensor(3.0))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = amp.GradScaler(1.0, half_dtype="float16")
    scaler.quantize_first(optimizer)
    (grad,) = torch.autograd.grad(scaler.scale(weight**2), weight, create_graph=True)
    scaler.scale(grad**2).backward()  # d(4 w^2)/dw
    scaler.unscale_(optimizer)
    assert weight.grad.item() == 24.0
    scaler.update()
    weight.grad = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch on the memory of such a graph
        scaler.scale(weight**2).backward(create_graph=True)
    (second,) = torch.autograd.grad(weight.grad**2, weight)
    assert second.item() == 24.0


def _embedding_gradient(sparse, values):
    embedding = torch.nn.Embedding(4, 2, sparse=sparse)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=1.0)
    scaler = amp.GradScaler(8.0, half_dtype="float16")
    rows = torch.tensor([1, 3, 1, 1])
    scaler.scale((embedding(rows) * values[:, None]).sum()).backward()
    scaler.step(optimizer)
    return embedding.weight.grad


def test_sparse_gradients_are_rounded_like_dense_ones():
    values = torch.tensor([1.0, 3.0, 2.0**-11, 2.0**-12])
    sparse = _embedding_gradient(True, values)
    assert sparse.is_sparse
    assert torch.equal(sparse.to_dense(), _embedding_gradient(False, values))
    assert sparse.to_dense()[1, 0].item() == 1.0 + 2.0**-10  # summed first: 1.75 steps


def test_complex_gradients_are_rounded_by_parts():
    weight = torch.nn.Parameter(torch.tensor([1 + 1j]))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = amp.GradScaler("dynamic", init_scale=1.0, half_dtype="float16")
    weight.grad = torch.tensor([complex(2.0**-26, 1.0)])
    scaler.unscale_(optimizer)
    assert weight.grad.item() == 1j
    scaler.clip_gradients_and_return_isfinite([])
    assert scaler.global_norm.item() == 1.0
    scaler.update()
    weight.grad = torch.tensor([complex(2.0**-26, 1.0)]).conj()  # in memory it is not conjugated
    scaler.unscale_(optimizer)
    assert weight.grad.item() == -1j
