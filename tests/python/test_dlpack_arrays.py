# SPDX-License-Identifier: Apache-2.0
"""Arrays of libraries that dlsim does not know, through DLPack."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import dlsim
from dlsim.arrays._dtypes import VALUES, source_of

BASE = torch.tensor(np.random.default_rng(5).standard_normal((60, 60), dtype=np.float32))


class Foreign:
    """An array of another library, over the memory of a tensor; it can do nothing but DLPack."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self) -> Any:
        return torch.utils.dlpack.to_dlpack(self.tensor)


class Standard(Foreign):
    """One that follows the Python array API standard."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __array_namespace__(self) -> SimpleNamespace:
        return SimpleNamespace(from_dlpack=lambda array: Standard(torch.from_dlpack(array)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_any_exporter_gives_the_codes_of_its_values(dtype: torch.dtype) -> None:
    for tensor in (BASE.to(dtype), BASE.to(dtype).T, BASE.to(dtype)[::2, 5:], BASE.to(dtype)[:0]):
        expected = dlsim.encode(tensor, "cb16", rounding="sr").numpy().view(np.uint16)
        codes = dlsim.encode(Foreign(tensor), "cb16", rounding="sr")
        assert type(codes) is np.ndarray
        np.testing.assert_array_equal(codes, expected)
        assert dlsim.measure(Foreign(tensor), "cb16") == dlsim.measure(tensor, "cb16")


def test_contiguous_memory_is_not_copied_and_stays_alive() -> None:
    tensor = BASE.clone()
    source = source_of(Foreign(tensor), "values", VALUES)
    assert source.bits.ctypes.data == tensor.data_ptr()
    assert not source.bits.flags.writeable
    expected = tensor.clone()
    del tensor
    other = [torch.zeros(60, 60) for _ in range(50)]  # would take the memory if it were free
    np.testing.assert_array_equal(source.bits.view(np.float32), expected)
    assert len(other) == 50


def test_results_are_made_by_the_library_of_the_array() -> None:
    values = dlsim.quantize(Standard(BASE), "cb16")
    assert isinstance(values, Standard)
    assert torch.equal(values.tensor, dlsim.quantize(BASE, "cb16"))
    with pytest.raises(
        dlsim.UsageError, match=r"^as_dtype: float16 is not supported for .*Standard$"
    ):
        dlsim.encode(Standard(BASE), "fp16", as_dtype=True)


@pytest.mark.parametrize(
    ("dtype", "got"),
    [
        (torch.int64, "DLPack type 0 of 64 bits and 1 lanes"),
        (torch.complex64, "DLPack type 5 of 64 bits and 1 lanes"),
        (torch.int32, "int32"),
    ],
)
def test_other_types_are_refused_before_they_are_read(dtype: torch.dtype, got: str) -> None:
    with pytest.raises(TypeError, match=f"^values: bad element type, expected .*, got {got}$"):
        dlsim.encode(Foreign(torch.ones(3, dtype=dtype)), "fp16")


def test_codes_come_through_dlpack_too() -> None:
    codes = dlsim.encode(BASE, "fp16")
    np.testing.assert_array_equal(dlsim.decode(Foreign(codes), "fp16"), dlsim.decode(codes, "fp16"))
    half = dlsim.decode(Foreign(BASE.half()))
    np.testing.assert_array_equal(half, BASE.half().float())
