# SPDX-License-Identifier: Apache-2.0
"""Tensors of CUDA devices, in Python: what is launched on which memory.

No device is needed: tensors of the CPU are taken for a device's, and the launches, which a build
without CUDA refuses, are done at once on their addresses by the CPU's kernels.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

import dlsim
from dlsim import _core
from dlsim.arrays import _convert, _torch_arrays

BASE = torch.tensor(
    np.random.default_rng(5).standard_normal((60, 60), dtype=np.float32) * np.float32(1e-3)
)
SR = {"rounding": "sr", "seed": 11, "stream": 3}
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
BYTES = {"float64": 8, "float32": 4}


def memory(address: int, count: int, size: int) -> np.ndarray:
    if count == 0:
        return np.empty(0, f"u{size}")
    array = np.ctypeslib.as_array((ctypes.c_uint8 * (count * size)).from_address(address))
    return array.view(f"u{size}")


def encode_at_once(
    queue: object, values: tuple[int, int, str], conversion: Any, draws: Any, codes: int
) -> None:
    address, count, element = values
    source = memory(address, count, BYTES.get(element, 2))
    _core.encode_into(source, element, conversion, draws, memory(codes, count, encode_at_once.size))


def decode_at_once(
    queue: object, codes: int, format: dlsim.Format, values: int, count: int
) -> None:
    size = 2 if format.bits <= 16 else 4
    target = memory(values, count, 4).view(np.float32)
    _core.decode_into(memory(codes, count, size), format, target)


@pytest.fixture(params=["cb16", "tf32"])
def format(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A format; from here on, tensors are on a device."""
    encode_at_once.size = 2 if dlsim.Format(request.param).bits <= 16 else 4
    monkeypatch.setattr(_torch_arrays, "_queue", lambda tensor: (0, 0))
    monkeypatch.setattr(_core, "require_cuda", lambda place, device: None)
    monkeypatch.setattr(_core, "encode_on_device", encode_at_once)
    monkeypatch.setattr(_core, "decode_on_device", decode_at_once)
    monkeypatch.setattr(_convert, "is_cuda", lambda array: isinstance(array, torch.Tensor))
    return str(request.param)


def on_cpu(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().float().numpy()


@pytest.mark.parametrize("dtype", FLOATS)
def test_results_are_those_of_the_cpu(format: str, dtype: torch.dtype) -> None:
    for tensor in (BASE.to(dtype), BASE.to(dtype).T, BASE.to(dtype)[:0], BASE.to(dtype)[3:, 1]):
        array = on_cpu(tensor)
        codes = dlsim.encode(tensor, format, 16, **SR)
        assert codes.shape == tensor.shape
        assert codes.dtype == (torch.int16 if encode_at_once.size == 2 else torch.int32)
        expected = dlsim.encode(array, format, 16, **SR)
        np.testing.assert_array_equal(codes.numpy().view(expected.dtype), expected)
        np.testing.assert_array_equal(dlsim.decode(codes, format), dlsim.decode(expected, format))
        for unscale in (True, False):
            quantized = dlsim.quantize(tensor, format, 1000, unscale=unscale, **SR)
            np.testing.assert_array_equal(
                quantized, dlsim.quantize(array, format, 1000, unscale=unscale, **SR)
            )
        assert dlsim.measure(tensor, [format], [1, 4], **SR) == dlsim.measure(
            array, [format], [1, 4], **SR
        )


def test_results_are_written_to_out(format: str) -> None:
    expected = dlsim.encode(BASE.numpy(), format)
    codes = torch.empty(BASE.shape, dtype=torch.int32)
    version = codes._version
    assert dlsim.encode(BASE, format, out=codes) is codes
    assert codes._version > version
    mask = (1 << dlsim.Format(format).bits) - 1
    np.testing.assert_array_equal(codes.numpy() & mask, expected)
    values = torch.empty_like(BASE)
    assert dlsim.decode(codes, format, out=values) is values
    np.testing.assert_array_equal(values, dlsim.decode(expected, format))
    assert dlsim.quantize(values, format, 3, out=values) is values
    np.testing.assert_array_equal(values, dlsim.quantize(dlsim.decode(expected, format), format, 3))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("format", ["fp8-e4m3"], indirect=True)
def test_codes_of_one_byte_are_narrowed(format: str, dtype: torch.dtype) -> None:
    codes = torch.empty(BASE.shape, dtype=dtype)
    dlsim.encode(BASE, format, 4096, out=codes)
    expected = dlsim.encode(BASE.numpy(), format, 4096)
    np.testing.assert_array_equal(codes.numpy().view(np.uint8), expected)
    np.testing.assert_array_equal(dlsim.decode(codes, format), dlsim.decode(expected, format))


@pytest.mark.parametrize("format", ["fp16", "bf16"], indirect=True)
def test_as_dtype_gives_the_formats_own_dtype(format: str) -> None:
    values = dlsim.encode(BASE, format, as_dtype=True)
    assert torch.equal(values, BASE.to(torch.float16 if format == "fp16" else torch.bfloat16))
    assert torch.equal(dlsim.decode(values), values.float())


def test_bad_targets_are_refused(format: str) -> None:
    bad: list[tuple[type[Exception], str, Any]] = [
        (TypeError, "^out: expected a tensor on cpu, got ndarray$", BASE.numpy()),
        (TypeError, "^out: bad element type", torch.empty(BASE.shape, dtype=torch.float64)),
        (dlsim.UsageError, "^out: wrong shape", torch.empty(3)),
        (dlsim.UsageError, "^out: wrong device, expected cpu", torch.empty(3, device="meta")),
        (dlsim.UsageError, "^out: bad layout", torch.empty_like(BASE).T),
        (dlsim.UsageError, "^out: requires a gradient", torch.empty_like(BASE).requires_grad_()),
    ]
    for error, message, out in bad:
        with pytest.raises(error, match=message):
            dlsim.quantize(BASE, format, out=out)
    wide = torch.zeros(61, 60)
    with pytest.raises(dlsim.UsageError, match=r"^out: overlaps the input"):
        dlsim.quantize(wide[1:], format, out=wide[:-1])


def test_other_types_are_refused(format: str) -> None:
    with pytest.raises(TypeError, match=r"^values: bad element type, .*, got torch\.int64$"):
        dlsim.encode(torch.arange(3), format)
    with pytest.raises(TypeError, match=r"^codes: bad element type, .*, got torch\.float32$"):
        dlsim.decode(BASE, format)
    with pytest.raises(dlsim.UsageError, match=r"^scale: out of range"):
        dlsim.quantize(BASE, format, float("nan"))
