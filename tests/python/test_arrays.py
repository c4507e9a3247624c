# SPDX-License-Identifier: Apache-2.0
"""The codes, values and counters of arrays, bit for bit. Runs with NumPy and ml_dtypes alone."""

from __future__ import annotations

import csv
import math
import subprocess
from pathlib import Path

import format_oracle
import ml_dtypes
import numpy as np
import pytest
from format_oracle import boundary_inputs, random_inputs
from running import DLSIM

import dlsim

FORMATS = ["fp16", "bf16", "cb16", "fp8-e4m3", "fp8-e5m2", "dlfloat16", "e4m3", "e3m4", "e2m1"]
ROUNDINGS = ["rne", "rtz", "rna", "ru", "rd"]
# Formats that NumPy and ml_dtypes have, too.
DTYPES = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp8-e4m3": ml_dtypes.float8_e4m3fn,
    "fp8-e5m2": ml_dtypes.float8_e5m2,
    "e4m3": ml_dtypes.float8_e4m3,
    "e3m4": ml_dtypes.float8_e3m4,
}
LENGTHS = [0, 1, 7, 4096, 4097, 65536 + 8, 3 * 65536 + 4099]


def all_codes(format: str) -> np.ndarray:
    return np.arange(1 << dlsim.Format(format).bits, dtype=np.uint16)


def gradients(count: int) -> np.ndarray:
    random = np.random.default_rng(1)
    values = random.standard_normal(count, dtype=np.float32)
    values = np.ldexp(values, random.integers(-36, 4, count).astype(np.int32))
    values[::97] = 0
    return values


def dlsim_command(*arguments: object) -> None:
    subprocess.run([*DLSIM, *map(str, arguments)], check=True, capture_output=True)


@pytest.mark.parametrize("format", FORMATS)
def test_every_code_survives_decode_and_encode(format: str) -> None:
    f = dlsim.Format(format)
    codes = all_codes(format)
    values = dlsim.decode(codes, format)
    quiet = np.uint16(1 << (f.mantissa_bits - 1)) if f.has_infinity else np.uint16(0)
    expected = np.where(np.isnan(values), codes | quiet, codes)
    np.testing.assert_array_equal(dlsim.encode(values, format), expected)


@pytest.mark.parametrize("format", DTYPES)
def test_decode_equals_the_dtype_for_every_code(format: str) -> None:
    codes = all_codes(format)
    sized = codes.astype(np.uint8) if dlsim.Format(format).bits == 8 else codes
    expected = sized.view(DTYPES[format]).astype(np.float32)
    values = dlsim.decode(codes, format)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(np.signbit(values), np.signbit(expected))


@pytest.mark.parametrize("format", DTYPES)
def test_encode_equals_the_dtype_at_every_boundary(format: str) -> None:
    values = np.concatenate([boundary_inputs(dlsim.Format(format)), random_inputs(100_003)])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(DTYPES[format])
    codes = dlsim.encode(values, format)
    number = ~np.isnan(values)  # others choose other NaNs
    bits = expected.view(np.uint8 if expected.itemsize == 1 else np.uint16)
    np.testing.assert_array_equal(codes[number], bits[number])
    assert np.isnan(dlsim.decode(codes, format)[~number]).all()


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("format", FORMATS)
def test_encode_equals_an_oracle_in_integers(format: str, rounding: str) -> None:
    f = dlsim.Format(format)
    values = np.concatenate([boundary_inputs(f, step=61), random_inputs(500)])
    for overflow, subnormals in (("inf", "keep"), ("saturate", "flush")):
        codes = dlsim.encode(values, f, rounding=rounding, overflow=overflow, subnormals=subnormals)
        expected = [
            format_oracle.encode(int(bits), f, rounding, overflow, subnormals == "keep")
            for bits in values.view(np.uint32)
        ]
        np.testing.assert_array_equal(codes, np.array(expected, np.uint16))


def test_cb16_equals_the_oracle_at_every_boundary() -> None:
    values = boundary_inputs(dlsim.CB16)
    expected = [format_oracle.encode(int(bits), dlsim.CB16) for bits in values.view(np.uint32)]
    np.testing.assert_array_equal(dlsim.encode(values, dlsim.CB16), np.array(expected, np.uint16))


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
@pytest.mark.parametrize("format", ["cb16", "fp8-e4m3", "tf32"])
def test_stochastic_rounding_is_that_of_the_command(
    tmp_path: Path, format: str, dtype: str
) -> None:
    values = gradients(70_001).astype(dtype).reshape(70_001, 1)
    np.save(tmp_path / "values.npy", values)
    options = ["--to", format, "--rounding", "sr", "--seed", 2**63 + 5, "--scale", 1000]
    dlsim_command("convert", *options, tmp_path / "values.npy", tmp_path / "codes.npy")
    expected = np.load(tmp_path / "codes.npy")
    codes = dlsim.encode(values, format, 1000, rounding="sr", seed=2**63 + 5)
    assert codes.dtype == expected.dtype
    np.testing.assert_array_equal(codes, expected)


@pytest.mark.parametrize("scale", [1.0, 3.0, 2.0**15])
def test_quantize_is_convert_there_and_back(tmp_path: Path, scale: float) -> None:
    values = gradients(70_001)
    np.save(tmp_path / "values.npy", values)
    dlsim_command(
        "convert", "--to", "cb16", "--scale", scale, tmp_path / "values.npy", tmp_path / "c.npy"
    )
    dlsim_command(
        "convert", "--from", "cb16", "--scale", scale, tmp_path / "c.npy", tmp_path / "back.npy"
    )
    np.testing.assert_array_equal(
        dlsim.quantize(values, "cb16", scale).view(np.uint32),
        np.load(tmp_path / "back.npy").view(np.uint32),
    )


def test_quantize_leaves_the_scale_if_asked_to() -> None:
    values = gradients(5000)
    scaled = dlsim.quantize(values, "fp16", 1024, unscale=False)
    np.testing.assert_array_equal(scaled, dlsim.decode(dlsim.encode(values, "fp16", 1024), "fp16"))
    np.testing.assert_array_equal(dlsim.quantize(values, "fp16", 1024), scaled / np.float32(1024))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_types_are_rounded_to_float32_first(dtype: type, length: int) -> None:
    # Between float32 values, beyond them, and subnormals of float32.
    values = (gradients(length).astype(np.float64) * (1 + 2.0**-26)).astype(dtype)
    if dtype is np.float64 and length > 4:
        values[:4] = [1e300, (2 - 2.0**-24) * 2.0**127, 2.0**-150, 3 * 2.0**-150]
    with np.errstate(over="ignore"):
        floats = values.astype(np.float32)
    for format in ("cb16", "e5m17", "fp8-e5m2"):
        how = {"rounding": "sr", "seed": 3, "stream": 9}
        np.testing.assert_array_equal(
            dlsim.encode(values, format, 16, **how), dlsim.encode(floats, format, 16, **how)
        )
        np.testing.assert_array_equal(
            dlsim.quantize(values, format, 16, **how), dlsim.quantize(floats, format, 16, **how)
        )
        assert dlsim.measure(values, format, 16, **how) == dlsim.measure(floats, format, 16, **how)


@pytest.mark.parametrize("length", LENGTHS)
def test_measure_counts_what_encode_does(length: int) -> None:
    values = gradients(length)
    values[1::501] = np.inf
    values[2::502] = np.nan
    values[3::503] = 3e38
    for format, scale in (("fp16", 1.0), ("fp16", 2.0**15), ("cb16", 1.0), ("bf16", 0.5)):
        stats = dlsim.measure(values, format, scale)
        f = dlsim.Format(format)
        outputs = dlsim.decode(dlsim.encode(values, format, scale), format)
        finite = np.isfinite(values)
        inputs = np.where(finite, values, 0)
        gone = (inputs != 0) & (outputs == 0)
        small = (inputs != 0) & (outputs != 0) & (np.abs(outputs) < f.min_normal)
        assert (stats.format, stats.scale, stats.elements) == (f, scale, length)
        assert stats.zeros == (values == 0).sum()
        assert (stats.nan, stats.inf) == (np.isnan(values).sum(), np.isinf(values).sum())
        assert stats.nonfinite == (~finite).sum()
        assert (stats.underflow, stats.subnormal) == (gone.sum(), small.sum())
        assert stats.overflow == (finite & np.isinf(outputs)).sum()
        assert stats.nonfinite_outputs == (~np.isfinite(outputs)).sum()
        assert stats.absmax == np.abs(inputs).max(initial=0)
        squares = inputs.astype(np.float64) ** 2
        assert stats.sum_of_squares == pytest.approx(math.fsum(squares), rel=1e-13)
        assert stats.underflow_sum_of_squares == pytest.approx(math.fsum(squares[gone]), rel=1e-13)
        nonzero = int((inputs != 0).sum())
        assert stats.underflow_fraction == (int(gone.sum()) / nonzero if nonzero else 0)
        assert stats.energy_lost == (
            stats.underflow_sum_of_squares / stats.sum_of_squares if stats.sum_of_squares else 0
        )


def test_measure_answers_many_questions_as_one() -> None:
    values = gradients(70_001)
    formats, scales = ["fp16", dlsim.CB16, np.float16, ml_dtypes.bfloat16], [1, 2.0**10]
    together = dlsim.measure(values, formats, scales)
    assert together == [dlsim.measure(values, f, s) for f in formats for s in scales]
    assert dlsim.measure(values, ["fp16"]) == [dlsim.measure(values, "fp16")]
    assert dlsim.measure(values, "fp16", np.array([4.0])) == [dlsim.measure(values, "fp16", 4)]
    assert dlsim.measure(values, "fp16", np.float32(4)) == dlsim.measure(values, "fp16", 4)
    assert dlsim.measure(values, []) == []


def test_measure_has_the_digits_of_a_replay(tmp_path: Path) -> None:
    values = {f"layer{i}.weight.grad": gradients(9000 + i).reshape(2, -1) for i in (0, 2)}
    np.savez(tmp_path / "step.npz", **values)
    options = [
        "--policy",
        "static",
        "--set",
        "loss_scale=2^12",
        "--format",
        "fp16",
        "--format",
        "cb16",
    ]
    dlsim_command(
        "replay", tmp_path / "step.npz", *options, "--csv", tmp_path / "result.csv", "--quiet"
    )
    rows = list(csv.DictReader((tmp_path / "result.csv").open()))
    assert len(rows) == 2 * len(values)
    for row in rows:
        stats = dlsim.measure(values[row["tensor"]], row["format"], 2**12)
        for name in ("elements", "zeros", "nan", "inf", "underflow", "subnormal", "overflow"):
            assert int(row[name]) == getattr(stats, name), name
        assert np.float32(row["absmax"]) == np.float32(stats.absmax)
        assert float(row["sumsq"]) == stats.sum_of_squares


def test_stats_become_a_row_by_name() -> None:
    row = dlsim.measure(np.array([1.0, 1e-9, 0.0]), "fp16", 2).as_dict()
    assert row["format"] == "fp16"
    assert (row["scale"], row["elements"], row["zeros"], row["nonfinite"]) == (2, 3, 1, 0)
    assert (row["underflow"], row["underflow_fraction"]) == (1, 0.5)
    assert 0 < row["energy_lost"] < 1e-17
    with pytest.raises(AttributeError):
        dlsim.measure(np.zeros(1), "fp16").zeros = 2
