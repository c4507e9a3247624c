# SPDX-License-Identifier: Apache-2.0
"""Layouts, element types and memory of NumPy arrays. Runs with NumPy and ml_dtypes alone."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import dlsim
from dlsim.arrays._dtypes import VALUES, source_of

BASE = np.random.default_rng(5).standard_normal((6, 20, 30), dtype=np.float32) * np.float32(1e-4)
SR = {"rounding": "sr", "seed": 11}


def misaligned(values: np.ndarray) -> np.ndarray:
    memory = np.zeros(values.nbytes + 1, np.uint8)
    view = memory[1:].view(values.dtype).reshape(values.shape)
    view[...] = values
    return view


LAYOUTS: dict[str, Callable[[], np.ndarray]] = {
    "contiguous": lambda: BASE,
    "read-only": lambda: np.broadcast_to(BASE, BASE.shape),
    "strided": lambda: BASE[::2, 1::3, 4:],
    "transposed": lambda: BASE.T,
    "axes moved": lambda: np.moveaxis(BASE, 1, 0),
    "Fortran order": lambda: np.asfortranarray(BASE),
    "negative strides": lambda: BASE[::-1, :, ::-1],
    "broadcast": lambda: np.broadcast_to(BASE[0, 0], (5, 30)),
    "big-endian": lambda: BASE.astype(">f4"),
    "little-endian": lambda: BASE.astype("<f4"),
    "misaligned": lambda: misaligned(BASE),
    "field of records": lambda: BASE.reshape(-1).view([("a", "f4"), ("b", "f4")])["b"],
    "0-d": lambda: np.array(BASE[0, 0, 0]),
    "one element of many axes": lambda: BASE[:1, :1, :1],
    "empty": lambda: np.empty((0, 3), np.float32),
    "empty slice": lambda: BASE[:, :0],
    "subclass": lambda: BASE[0].view(np.recarray).view(type("Own", (np.ndarray,), {})),
    "scalar": lambda: BASE[0, 0, 0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_any_layout_is_its_elements_in_c_order(layout: str, dtype: type) -> None:
    values = LAYOUTS[layout]()
    if dtype is not np.float32:
        values = values.astype(dtype)  # keeps the order of the axes
    plain = np.array(values, order="C").astype(dtype)
    before = plain.tobytes()
    codes = dlsim.encode(values, "cb16", 2.0**20, **SR)
    assert type(codes) is np.ndarray
    assert (codes.shape, codes.dtype) == (plain.shape, np.uint16)
    assert codes.flags.c_contiguous
    flat = dlsim.encode(plain.reshape(-1), "cb16", 2.0**20, **SR)
    np.testing.assert_array_equal(codes.reshape(-1), flat)
    quantized = dlsim.quantize(values, "cb16", 2.0**20, **SR)
    np.testing.assert_array_equal(quantized, dlsim.quantize(plain, "cb16", 2.0**20, **SR))
    assert dlsim.measure(values, "cb16", **SR) == dlsim.measure(plain, "cb16", **SR)
    assert np.array(values, order="C").astype(dtype).tobytes() == before


@pytest.mark.parametrize("layout", LAYOUTS)
def test_decode_takes_codes_in_any_layout(layout: str) -> None:
    values = LAYOUTS[layout]()
    codes = (np.abs(values) * 1e7).astype(np.uint16 if values.dtype.isnative else ">u2")
    expected = dlsim.decode(np.array(codes, np.uint16, order="C"), "fp16")
    np.testing.assert_array_equal(dlsim.decode(codes, "fp16"), expected)
    assert dlsim.decode(codes, "fp16").shape == codes.shape


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_c_contiguous_arrays_are_not_copied(dtype: type) -> None:
    values = BASE.astype(dtype)
    assert np.shares_memory(source_of(values, "values", VALUES).bits, values)
    assert np.shares_memory(source_of(values[2:5], "values", VALUES).bits, values)


@pytest.mark.parametrize(
    "values", [[0.1, 70000.0], (0.1, 70000.0), [[0.5], [1.5]], 0.1, [np.float32(1)]]
)
def test_lists_and_numbers_become_arrays_first(values: object) -> None:
    array = np.asarray(values)
    np.testing.assert_array_equal(dlsim.encode(values, "fp16"), dlsim.encode(array, "fp16"))


def test_codes_are_as_wide_as_the_format_needs() -> None:
    for format in dlsim.format_names():
        codes = dlsim.encode(BASE, format)
        assert codes.dtype == (np.uint16 if dlsim.Format(format).bits <= 16 else np.uint32)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32])
def test_codes_of_any_integer_type_are_decoded_and_written(dtype: type) -> None:
    expected = dlsim.encode(BASE, "fp8-e4m3", 4096)
    codes = np.empty(BASE.shape, dtype)
    assert dlsim.encode(BASE, "fp8-e4m3", 4096, out=codes) is codes
    np.testing.assert_array_equal(codes.astype(np.uint8), expected.astype(np.uint8))
    np.testing.assert_array_equal(
        dlsim.decode(codes, "fp8-e4m3"), dlsim.decode(expected, "fp8-e4m3")
    )


@pytest.mark.parametrize(
    "dtype",
    [
        np.float16,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e4m3,
        ml_dtypes.float8_e3m4,
    ],
)
def test_formats_that_are_dtypes_can_be_given_and_had_as_such(dtype: type) -> None:
    values = dlsim.encode(BASE, dtype, 4096, as_dtype=True)
    assert (values.dtype, values.shape) == (np.dtype(dtype), BASE.shape)
    np.testing.assert_array_equal(values, (BASE * np.float32(4096)).astype(dtype))
    np.testing.assert_array_equal(dlsim.decode(values), values.astype(np.float32))
    np.testing.assert_array_equal(dlsim.decode(values, np.dtype(dtype)), dlsim.decode(values))
    out = np.empty(BASE.shape, dtype)
    dlsim.encode(BASE, dtype, 4096, out=out)
    np.testing.assert_array_equal(out, values)


def test_results_are_written_to_out() -> None:
    codes, values = np.empty(BASE.shape, np.uint16), np.empty(BASE.shape, np.float32)
    assert dlsim.encode(BASE, "cb16", out=codes) is codes
    np.testing.assert_array_equal(codes, dlsim.encode(BASE, "cb16"))
    assert dlsim.decode(codes, "cb16", out=values) is values
    np.testing.assert_array_equal(values, dlsim.decode(codes, "cb16"))
    assert dlsim.quantize(BASE, "cb16", 4, out=values) is values
    np.testing.assert_array_equal(values, dlsim.quantize(BASE, "cb16", 4))
    part = np.zeros((8, 30), np.float32)
    dlsim.quantize(BASE[0, :4], "cb16", out=part[2:6])
    np.testing.assert_array_equal(part[2:6], dlsim.quantize(BASE[0, :4], "cb16"))
    assert not part[:2].any()
    assert not part[6:].any()


@pytest.mark.parametrize("length", [3, 4097, 200_003])
def test_quantize_works_in_place(length: int) -> None:
    values = np.resize(BASE, length)
    expected = dlsim.quantize(values, "fp16", 1024, **SR)
    assert dlsim.quantize(values, "fp16", 1024, out=values, **SR) is values
    np.testing.assert_array_equal(values, expected)


def test_other_threads_run_during_a_call() -> None:
    values = np.ones(1 << 24, np.float32)
    codes = np.empty(values.shape, np.uint16)
    inside = threading.Event()

    def encode() -> None:
        for _ in range(3):
            inside.set()
            dlsim.encode(values, "cb16", rounding="sr", out=codes)
            inside.clear()

    worker = threading.Thread(target=encode)
    worker.start()
    progress = 0
    while worker.is_alive():
        progress += inside.is_set()
    worker.join()
    # With the GIL held, this thread would see `inside` a few times at most.
    assert progress > 500


def test_forked_processes_work() -> None:
    # GNU's OpenMP would wait for the parent's threads there.
    values = np.resize(BASE, 1 << 18)
    expected = dlsim.quantize(values, "cb16", 64, **SR)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.starmap_async(quantize_to_cb16, [(values,)] * 4).get(timeout=60)
    for result in results:
        np.testing.assert_array_equal(result, expected)


def quantize_to_cb16(values: np.ndarray) -> np.ndarray:
    return dlsim.quantize(values, "cb16", 64, **SR)


def test_threads_may_work_at_once() -> None:
    expected = dlsim.quantize(BASE, "cb16", 64, **SR)
    results: list[np.ndarray] = []

    def work() -> None:
        for _ in range(20):
            results.append(dlsim.quantize(BASE, "cb16", 64, **SR))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 80
    for result in results:
        np.testing.assert_array_equal(result, expected)
