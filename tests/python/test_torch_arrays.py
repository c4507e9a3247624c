# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch: the same bits as NumPy arrays, without copies, gradients or surprises."""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from format_oracle import boundary_inputs, random_inputs
from torch._subclasses import FakeTensor, FakeTensorMode

import dlsim
from dlsim.arrays._dtypes import VALUES, source_of

BASE = torch.tensor(
    np.random.default_rng(5).standard_normal((6, 20, 30), dtype=np.float32) * np.float32(1e-4)
)
SR = {"rounding": "sr", "seed": 11}
# Old versions have no uint16 and uint32.
INTEGERS = [
    getattr(torch, name)
    for name in ("uint8", "int8", "int16", "int32", "uint16", "uint32")
    if hasattr(torch, name)
]
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda base: base,
    "strided": lambda base: base[::2, 1::3, 4:],
    "transposed": lambda base: base.permute(2, 0, 1),
    "channels last": lambda base: base[None].to(memory_format=torch.channels_last),
    "expanded": lambda base: base[0, 0].expand(5, 30),
    "offset": lambda base: base[3:],
    "0-d": lambda base: base[0, 0, 0],
    "empty": lambda base: base[:, :0],
    "requires a gradient": lambda base: base.clone().requires_grad_(),
    "result of an operation": lambda base: base.clone().requires_grad_() * 2,
    "parameter": lambda base: torch.nn.Parameter(base.clone()),
}


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().resolve_neg().to(torch.float32).numpy()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_give_the_codes_of_arrays(layout: str, dtype: torch.dtype) -> None:
    tensor = LAYOUTS[layout](BASE.to(dtype))
    array = as_numpy(tensor)
    codes = dlsim.encode(tensor, "cb16", 2.0**20, **SR)
    assert type(codes) is torch.Tensor
    assert (codes.dtype, codes.shape) == (torch.int16, tensor.shape)
    assert codes.is_contiguous()
    assert not codes.requires_grad
    expected = dlsim.encode(array, "cb16", 2.0**20, **SR)
    np.testing.assert_array_equal(codes.numpy().view(np.uint16), expected)
    values = dlsim.decode(codes, "cb16")
    assert (values.dtype, values.shape) == (torch.float32, tensor.shape)
    np.testing.assert_array_equal(values.numpy(), dlsim.decode(expected, "cb16"))
    quantized = dlsim.quantize(tensor, "cb16", 2.0**20, **SR)
    np.testing.assert_array_equal(quantized.numpy(), dlsim.quantize(array, "cb16", 2.0**20, **SR))
    assert dlsim.measure(tensor, "cb16", **SR) == dlsim.measure(array, "cb16", **SR)


@pytest.mark.parametrize("dtype", FLOATS)
def test_contiguous_tensors_are_not_copied(dtype: torch.dtype) -> None:
    tensor = BASE.to(dtype)
    for view in (tensor, tensor[2:], tensor.view(-1)):
        assert source_of(view, "values", VALUES).bits.ctypes.data == view.data_ptr()


def test_a_negated_view_keeps_its_sign() -> None:
    negated = torch.view_as_complex(BASE.view(-1, 2)).conj().imag
    assert negated.is_neg()
    np.testing.assert_array_equal(
        dlsim.quantize(negated, "bf16").numpy(), dlsim.quantize(as_numpy(negated), "bf16")
    )


@pytest.mark.parametrize(("format", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_encode_equals_torch_at_every_boundary(format: str, dtype: torch.dtype) -> None:
    values = np.concatenate([boundary_inputs(dlsim.Format(format)), random_inputs(100_003)])
    tensor = torch.tensor(values)
    mine = dlsim.encode(tensor, dtype, as_dtype=True)
    assert mine.dtype == dtype
    number = ~torch.isnan(tensor)
    theirs = tensor.to(dtype)
    assert torch.equal(mine.view(torch.int16)[number], theirs.view(torch.int16)[number])
    assert torch.isnan(mine[~number]).all()
    assert torch.equal(dlsim.decode(theirs)[number], theirs.float()[number])


def test_wide_formats_have_wide_codes() -> None:
    codes = dlsim.encode(BASE, "tf32")
    assert codes.dtype == torch.int32
    np.testing.assert_array_equal(codes.numpy().view(np.uint32), dlsim.encode(BASE.numpy(), "tf32"))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_codes_of_any_integer_type_are_decoded_and_written(dtype: torch.dtype) -> None:
    codes = torch.zeros(BASE.shape, dtype=dtype)
    assert dlsim.encode(BASE, "fp8-e4m3", 4096, out=codes) is codes
    assert torch.equal(
        dlsim.decode(codes, "fp8-e4m3"), dlsim.quantize(BASE, "fp8-e4m3", 4096, unscale=False)
    )


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_is_a_dtype_where_torch_has_it(name: str) -> None:
    dtype = getattr(torch, name, None)
    if dtype is None:
        with pytest.raises(dlsim.UsageError, match=f"^as_dtype: torch .* has no {name}$"):
            dlsim.encode(BASE, f"fp8-{name[7:11]}", as_dtype=True)
        return
    mine = dlsim.encode(BASE, dtype, 4096, as_dtype=True)
    theirs = (BASE * 4096).to(dtype)
    assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
    assert torch.equal(dlsim.decode(mine), theirs.float())


def test_results_are_written_to_out_and_autograd_knows() -> None:
    codes = torch.empty(BASE.shape, dtype=torch.int16)
    version = codes._version
    assert dlsim.encode(BASE, "cb16", out=codes) is codes
    assert codes._version > version
    assert torch.equal(codes, dlsim.encode(BASE, "cb16"))
    values = BASE.clone()
    assert dlsim.quantize(values, "cb16", 64, out=values) is values
    assert torch.equal(values, dlsim.quantize(BASE, "cb16", 64))
    weight = torch.ones(30, requires_grad=True)
    factor = torch.ones(30)
    product = (weight * factor).sum()
    dlsim.quantize(torch.zeros(30), "fp16", out=factor)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_numpy_and_torch_may_be_mixed() -> None:
    array = np.empty(BASE.shape, np.uint16)
    assert dlsim.encode(BASE, "cb16", out=array) is array
    tensor = torch.empty(BASE.shape, dtype=torch.int16)
    assert dlsim.encode(BASE.numpy(), "cb16", out=tensor) is tensor
    np.testing.assert_array_equal(tensor.numpy().view(np.uint16), array)


def test_results_may_be_changed_and_outlive_their_inputs() -> None:
    values = dlsim.quantize(torch.full((1 << 20,), 0.1), "fp16")
    values += 1
    assert torch.all(values == values[0])


def fake(device: str) -> torch.Tensor:
    return FakeTensor(FakeTensorMode(), torch.empty(2, device="meta"), torch.device(device))


BAD_CALLS: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
    "integers": (
        TypeError,
        "^values: bad element type, expected float32, .*, got torch.int64$",
        lambda: dlsim.encode(torch.arange(3), "fp16"),
    ),
    "complex": (
        TypeError,
        "^values: .*torch.complex64$",
        lambda: dlsim.quantize(torch.ones(3, dtype=torch.complex64), "fp16"),
    ),
    "sparse": (
        TypeError,
        "^values: bad layout, expected a dense tensor, got torch.sparse_coo$",
        lambda: dlsim.measure(torch.eye(3).to_sparse(), "fp16"),
    ),
    "quantized": (
        TypeError,
        "^values: bad element type, .*quint8$",
        lambda: dlsim.encode(torch.quantize_per_tensor(torch.ones(2), 1, 0, torch.quint8), "fp16"),
    ),
    "without memory": (
        dlsim.UsageError,
        "^values: wrong device, expected the CPU, got meta$",
        lambda: dlsim.encode(torch.empty(3, device="meta"), "fp16"),
    ),
    "codes without memory": (
        dlsim.UsageError,
        "^codes: wrong device, expected the CPU, got meta$",
        lambda: dlsim.decode(torch.empty(3, device="meta", dtype=torch.int16), "fp16"),
    ),
    "out without memory": (
        dlsim.UsageError,
        "^out: wrong device, expected the CPU, got meta$",
        lambda: dlsim.encode(BASE, "fp16", out=torch.empty_like(BASE, device="meta")),
    ),
    "out of another type": (
        TypeError,
        "^out: bad element type, .*got torch.int64$",
        lambda: dlsim.encode(BASE, "fp16", out=torch.empty(BASE.shape, dtype=torch.int64)),
    ),
    "out of another shape": (
        dlsim.UsageError,
        r"^out: wrong shape, expected \(6, 20, 30\), got \(3,\)$",
        lambda: dlsim.quantize(BASE, "fp16", out=torch.empty(3)),
    ),
    "out that is not contiguous": (
        dlsim.UsageError,
        "^out: bad layout, expected a contiguous tensor$",
        lambda: dlsim.quantize(BASE[0].T, "fp16", out=torch.empty(20, 30).T),
    ),
    "out that requires a gradient": (
        dlsim.UsageError,
        "^out: requires a gradient",
        lambda: dlsim.quantize(BASE, "fp16", out=torch.empty(BASE.shape, requires_grad=True)),
    ),
    "out that overlaps": (
        dlsim.UsageError,
        "^out: overlaps the input",
        lambda: dlsim.quantize(BASE.view(-1)[:8], "fp16", out=BASE.view(-1)[1:9]),
    ),
    "a dtype that is no format": (
        TypeError,
        "^format: no format, expected .*, got torch.float32$",
        lambda: dlsim.encode(BASE, torch.float32),
    ),
    "values of many elements as scale": (
        TypeError,
        "^scale: expected a number",
        lambda: dlsim.encode(BASE, "fp16", BASE),
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_arguments_are_refused_in_one_line(name: str) -> None:
    error, message, call = BAD_CALLS[name]
    before = BASE.clone()
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert torch.equal(BASE, before)


@pytest.mark.parametrize("function", [dlsim.encode, dlsim.quantize, dlsim.decode])
def test_without_cuda_a_cuda_tensor_is_refused_by_name(function: Any) -> None:
    place = "codes" if function is dlsim.decode else "values"
    expected = (
        f"^{place}: this dlsim was built without CUDA, expected a tensor on the CPU, "
        "or a build with -DDLSIM_ENABLE_CUDA=ON, got one on cuda:0$"
    )
    with pytest.raises(dlsim.UsageError, match=expected):
        function(fake("cuda:0"), "fp16")


def test_the_scale_may_be_a_tensor() -> None:
    assert torch.equal(dlsim.encode(BASE, "fp16", torch.tensor(4.0)), dlsim.encode(BASE, "fp16", 4))


def test_the_documentation_is_true() -> None:
    page = Path(__file__).parents[2] / "docs" / "python-arrays.md"
    failed, run = doctest.testfile(str(page), module_relative=False)
    assert run > 10
    assert failed == 0


def test_arrays_alone_do_not_import_torch() -> None:
    code = (
        "import dlsim, sys, numpy; dlsim.encode(numpy.ones(2), 'fp16'); "
        "print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
