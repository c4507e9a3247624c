# SPDX-License-Identifier: Apache-2.0
"""Tables of arrays: what they hold, what they answer, and that PyTorch counts the same bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import dlsim
from dlsim import _core
from dlsim.arrays import _torch_arrays

RANDOM = np.random.default_rng(5)


def all_binades() -> np.ndarray:
    """Values of all exponents, both signs, among them subnormal ones, zeros, NaN and infinities."""
    bits = RANDOM.integers(0, 1 << 32, 50_000, np.uint32)
    bits[:2000] &= 0x807FFFFF
    bits[2000:2500] |= 0x7F800000
    bits[2500:2600] = 0x7F800000
    bits[2600:2700] = 0x80000000
    return bits.view(np.float32)


ARRAYS = {
    "normal": RANDOM.standard_normal((300, 70)).astype(np.float32),
    "lognormal": np.exp(RANDOM.normal(-12, 9, 20_000)).astype(np.float32),
    "all binades": all_binades(),
    "subnormal": RANDOM.integers(0, 1 << 23, 5000, np.uint32).view(np.float32),
    "powers": np.ldexp(np.float32(1), RANDOM.integers(-149, 128, 4000)).astype(np.float32),
    "rounding up": np.nextafter(np.float32(2), np.float32(0)) * np.ones(3000, np.float32),
    "few": RANDOM.standard_normal(512).astype(np.float32),
    "one more": RANDOM.standard_normal(513).astype(np.float32),
    "zeros": np.zeros(1000, np.float32),
    "nothing finite": np.full(700, np.nan, np.float32),
    "sparse": np.where(np.arange(70_000) < 69_900, 0, 1.5).astype(np.float32),
    "empty": np.zeros(0, np.float32),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("grad_scale", [1.0, 3.0, 2.0**20])
def test_torch_counts_the_same_bits(monkeypatch, name, dtype, grad_scale) -> None:
    tensor = torch.from_numpy(ARRAYS[name]).to(dtype)
    expected = dlsim.tabulate(tensor, grad_scale=grad_scale)
    table = _torch_arrays.tabulate_torch(tensor, grad_scale)
    assert table == expected
    monkeypatch.setattr(_torch_arrays, "_CHUNK", 4000)
    assert _torch_arrays.tabulate_torch(tensor, grad_scale) == expected


def test_a_table_differs_if_a_value_does() -> None:
    values = ARRAYS["normal"].copy()
    before = dlsim.tabulate(values)
    values[7, 3] = np.nextafter(values[7, 3], np.float32(9))
    assert dlsim.tabulate(values) != before


def test_a_table_holds_what_numpy_counts() -> None:
    values = ARRAYS["all binades"]
    finite = values[np.isfinite(values)].astype(np.float64)
    exponents, counts = np.unique(np.frexp(np.abs(finite[finite != 0]))[1] - 1, return_counts=True)
    table = dlsim.tabulate(values)
    assert (table.elements, table.zeros) == (values.size, (values == 0).sum())
    assert (table.nan, table.inf) == (np.isnan(values).sum(), np.isinf(values).sum())
    assert table.absmax == np.abs(finite).max()
    assert table.largest == finite.max() > 0
    assert dlsim.tabulate(-np.abs(values)).largest == 0
    assert (table.exponents == exponents).all() and (table.counts == counts).all()
    assert table.sum_of_squares == math.fsum(finite**2)
    assert table.channels == []


@pytest.mark.parametrize("name", ["normal", "lognormal", "few", "all binades"])
@pytest.mark.parametrize("format", ["fp16", "bf16", "cb16", "fp8-e4m3"])
def test_it_answers_as_the_array_does(name: str, format: str) -> None:
    table = dlsim.tabulate(ARRAYS[name])
    for scale in (2.0**-8, 1.0, 2.0**15):
        try:
            asked = table.ask(format, scale)
        except dlsim.UsageError:
            assert name == "all binades" or format == "fp8-e4m3"  # values at the ends
            continue
        measured = dlsim.measure(ARRAYS[name], format, scale)
        for key, value in measured.as_dict().items():
            if key not in ("format", "quantized_sum_of_squares"):  # sums of tables are exact
                assert asked.as_dict()[key] == pytest.approx(value, rel=1e-12, nan_ok=True), key


def test_what_it_does_not_tell_is_refused() -> None:
    table = dlsim.tabulate(ARRAYS["normal"])
    with pytest.raises(dlsim.UsageError, match=r"table: does not tell this: .*scale"):
        table.ask("fp16", 3)
    with pytest.raises(dlsim.UsageError, match=r"table: does not tell this: .*bits"):
        table.ask("e8m12")


def test_sums_must_have_all_columns() -> None:
    with pytest.raises(dlsim.UsageError, match="sums: bad shape, expected 277 rows of 47"):
        _core.table_from_sums(0, 0, 0, 0, 0, np.zeros((277, 46), np.int64))


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 4), (3, 6, 5, 4), (7,), (), (0, 3)])
def test_channels_are_those_of_a_profile(tmp_path, shape: tuple[int, ...]) -> None:
    values = RANDOM.standard_normal(shape).astype(np.float32)
    if values.size > 5:
        values.reshape(-1)[:6] = [np.nan, np.inf, 0, -0.0, 1e-40, 3]
    writer = _core.ProfileWriter(str(tmp_path / "a.profile"))
    tensors = [("w.grad", "grad", values), ("h.act_grad", "act_grad", values)]
    writer.add(0, (-1, 1.0, {}, tensors))
    writer.finish()
    (step,) = dlsim.open_profile(tmp_path / "a.profile")
    last = 1 if len(shape) >= 4 else len(shape) - 1
    for name, axis in (("w.grad", 0), ("h.act_grad", last)):
        table = _core.tabulate_array(values, "float32")
        table.set_channels(_torch_arrays.channels_of(torch.from_numpy(values), axis))
        assert table == step.table(name)
