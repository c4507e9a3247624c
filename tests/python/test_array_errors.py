# SPDX-License-Identifier: Apache-2.0
"""Bad arguments of encode, decode, quantize, measure: the right exception, in one clear line."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import dlsim

VALUES = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
CODES = np.arange(12, dtype=np.uint16).reshape(3, 4)


def read_only(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    array = np.zeros(shape, dtype)
    array.flags.writeable = False
    return array


def misaligned() -> np.ndarray:
    return np.zeros(VALUES.size * 2 + 1, np.uint8)[1:].view(np.uint16).reshape(VALUES.shape)


class OnDevice:
    """A stand-in for an array of another library, on some device of DLPack."""

    def __init__(self, device: int) -> None:
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **_: object) -> object:
        raise BufferError("must not be read")


NOT_FLOATS = {
    "integers": (np.arange(3), "int64"),
    "a list of integers that float64 does not hold": ([2**53 + 1], "int64"),
    "booleans": (np.ones(3, bool), "bool"),
    "complex numbers": (np.ones(3, np.complex64), "complex64"),
    "long doubles": (np.ones(3, np.longdouble), "longdouble|float128"),
    "objects": (np.array([1.0, None]), "object"),
    "nothing": (None, "object"),
    "text": ("1.0", "<U3"),
    "bytes": (b"\0\0", "|S2"),
    "records": (np.zeros(3, [("a", "f4")]), "a"),
    "dates": (np.array([datetime.date(2020, 1, 1)], "M8[D]"), "datetime64"),
    "fp8 values": (np.zeros(3, ml_dtypes.float8_e4m3fn), "float8_e4m3fn"),
    "4-bit integers": (np.zeros(3, ml_dtypes.int4), "int4"),
    "lists of different lengths": ([[1.0], [1.0, 2.0]], "inhomogeneous"),
    "a dictionary": ({"a": 1.0}, "object"),
}


@pytest.mark.parametrize("name", NOT_FLOATS)
@pytest.mark.parametrize("function", [dlsim.encode, dlsim.quantize, dlsim.measure])
def test_what_is_no_array_of_floats_is_a_type_error(function: Any, name: str) -> None:
    values, got = NOT_FLOATS[name]
    with pytest.raises(TypeError, match=f"^values: .*({got}).*$"):
        function(values, "fp16")


BAD_CALLS: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
    "masked values": (
        TypeError,
        "^values: masked array",
        lambda: dlsim.encode(np.ma.masked_array([1.0], [True]), "fp16"),
    ),
    "a device": (
        dlsim.UsageError,
        "^values: wrong device, expected the CPU, got DLPack device 2$",
        lambda: dlsim.encode(OnDevice(2), "fp16"),
    ),
    "a broken exporter": (
        TypeError,
        "^values: cannot be read by DLPack",
        lambda: dlsim.encode(OnDevice(1), "fp16"),
    ),
    "an unknown format": (
        dlsim.UsageError,
        "^format: unknown name \\(did you mean 'fp16'\\?\\), expected .*, got 'fp17'$",
        lambda: dlsim.encode(VALUES, "fp17"),
    ),
    "an empty name": (dlsim.UsageError, "^format: ", lambda: dlsim.encode(VALUES, "")),
    "a dtype that is no format": (
        TypeError,
        "^format: no format, expected .*float32",
        lambda: dlsim.encode(VALUES, np.float32),
    ),
    "a number for a format": (TypeError, "^format: no format", lambda: dlsim.encode(VALUES, 16)),
    "no format": (TypeError, "^format: no format", lambda: dlsim.encode(VALUES, None)),
    "an unknown rounding": (
        dlsim.UsageError,
        r"^rounding: unknown name \(did you mean 'ru'\?\), expected one of .*, sr, got 'up'$",
        lambda: dlsim.encode(VALUES, "fp16", rounding="up"),
    ),
    "no rounding": (
        TypeError,
        "^rounding: expected a string, got None$",
        lambda: dlsim.encode(VALUES, "fp16", rounding=None),
    ),
    "an unknown overflow": (
        dlsim.UsageError,
        "^overflow: unknown name, expected one of inf, saturate, got 'clip'$",
        lambda: dlsim.quantize(VALUES, "fp16", overflow="clip"),
    ),
    "unknown subnormals": (
        dlsim.UsageError,
        "^subnormals: unknown name, expected one of keep, flush, got 'ftz'$",
        lambda: dlsim.measure(VALUES, "fp16", subnormals="ftz"),
    ),
    "a scale that is text": (
        dlsim.UsageError,
        "^scale: not a number, expected .*, got 'two'$",
        lambda: dlsim.encode(VALUES, "fp16", "two"),
    ),
    "no scale": (TypeError, "^scale: ", lambda: dlsim.encode(VALUES, "fp16", None)),
    "a scale that is complex": (TypeError, "^scale: ", lambda: dlsim.encode(VALUES, "fp16", 1j)),
    "a scale per row": (
        TypeError,
        "^scale: expected a number",
        lambda: dlsim.encode(VALUES, "fp16", VALUES),
    ),
    "scales in scales": (
        TypeError,
        "^scale: expected a number",
        lambda: dlsim.measure(VALUES, "fp16", [[1.0, 2.0]]),
    ),
    "a negative seed": (
        dlsim.UsageError,
        r"^seed: out of range, expected 0 to 2\^64 - 1, got -1$",
        lambda: dlsim.encode(VALUES, "fp16", seed=-1),
    ),
    "a large stream": (
        dlsim.UsageError,
        r"^stream: out of range, expected 0 to 2\^32 - 1, got 4294967296$",
        lambda: dlsim.measure(VALUES, "fp16", stream=2**32),
    ),
    "a seed that is no integer": (
        TypeError,
        "^seed: expected an integer, got 1.5$",
        lambda: dlsim.encode(VALUES, "fp16", seed=1.5),
    ),
    "out of another shape": (
        dlsim.UsageError,
        r"^out: wrong shape, expected \(3, 4\), got \(12,\)$",
        lambda: dlsim.encode(VALUES, "fp16", out=np.empty(12, np.uint16)),
    ),
    "out of another type": (
        TypeError,
        "^out: bad element type, expected .*uint16.*, got float32$",
        lambda: dlsim.encode(VALUES, "fp16", out=np.empty((3, 4), np.float32)),
    ),
    "out of another format": (
        TypeError,
        "^out: bad element type, .*got bfloat16$",
        lambda: dlsim.encode(VALUES, "fp16", out=np.empty((3, 4), ml_dtypes.bfloat16)),
    ),
    "out that is too narrow": (
        TypeError,
        "^out: bad element type, .*got uint8$",
        lambda: dlsim.encode(VALUES, "fp16", out=np.empty((3, 4), np.uint8)),
    ),
    "out of the other byte order": (
        TypeError,
        "^out: bad element type, .*got >u2$",
        lambda: dlsim.encode(VALUES, "fp16", out=np.empty((3, 4), ">u2")),
    ),
    "float64 for quantized values": (
        TypeError,
        "^out: bad element type, expected float32, got float64$",
        lambda: dlsim.quantize(VALUES, "fp16", out=np.empty((3, 4))),
    ),
    "out that is read-only": (
        dlsim.UsageError,
        "^out: read-only",
        lambda: dlsim.encode(VALUES, "fp16", out=read_only((3, 4), np.uint16)),
    ),
    "out in Fortran order": (
        dlsim.UsageError,
        "^out: bad layout, expected a C-contiguous",
        lambda: dlsim.encode(VALUES, "fp16", out=np.empty((4, 3), np.uint16).T),
    ),
    "out that is misaligned": (
        dlsim.UsageError,
        "^out: bad layout",
        lambda: dlsim.encode(VALUES, "fp16", out=misaligned()),
    ),
    "out that is a list": (
        TypeError,
        "^out: expected a NumPy array or a PyTorch tensor, got builtins.list$",
        lambda: dlsim.encode([1.0], "fp16", out=[0]),
    ),
    "out that overlaps": (
        dlsim.UsageError,
        "^out: overlaps the input",
        lambda: dlsim.quantize(VALUES.reshape(-1)[:6], "fp16", out=VALUES.reshape(-1)[1:7]),
    ),
    "codes over their values": (
        dlsim.UsageError,
        "^out: overlaps the input",
        lambda: dlsim.encode(VALUES, "tf32", out=VALUES.view(np.uint32)),
    ),
    "out and as_dtype": (
        dlsim.UsageError,
        "^as_dtype: ",
        lambda: dlsim.encode(VALUES, "fp16", as_dtype=True, out=np.empty((3, 4), np.float16)),
    ),
    "a dtype for cb16": (
        dlsim.UsageError,
        "^as_dtype: no dtype holds cb16, expected one of fp16, bf16, fp8-e4m3",
        lambda: dlsim.encode(VALUES, "cb16", as_dtype=True),
    ),
    "codes without a format": (
        dlsim.UsageError,
        "^format: missing, expected the format of the uint16 codes$",
        lambda: dlsim.decode(CODES),
    ),
    "codes of another format": (
        dlsim.UsageError,
        "^codes: are float16, expected codes of cb16$",
        lambda: dlsim.decode(CODES.view(np.float16), "cb16"),
    ),
    "codes that are too narrow": (
        TypeError,
        "^codes: bad element type, expected 16 bits or more, got uint8$",
        lambda: dlsim.decode(CODES.astype(np.uint8), "fp16"),
    ),
    "codes of 64 bits": (
        TypeError,
        "^codes: bad element type, expected uint8, .*, got int64$",
        lambda: dlsim.decode(CODES.astype(np.int64), "fp16"),
    ),
    "codes that are float32": (
        TypeError,
        "^codes: bad element type, .*, got float32$",
        lambda: dlsim.decode(VALUES, "fp16"),
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_arguments_are_refused_in_one_line(name: str) -> None:
    error, message, call = BAD_CALLS[name]
    values, codes = VALUES.copy(), CODES.copy()
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(VALUES, values)
    np.testing.assert_array_equal(CODES, codes)


@pytest.mark.parametrize("scale", [0, -1.0, np.nan, np.inf, -np.inf, 1e39, 1e-46, 3.5e38, 10**400])
@pytest.mark.parametrize("function", [dlsim.encode, dlsim.quantize, dlsim.measure])
def test_a_scale_that_float32_cannot_be_is_a_usage_error(function: Any, scale: float) -> None:
    with pytest.raises(
        dlsim.UsageError, match=r"^scale: .*expected a positive float32 number, got "
    ):
        function(VALUES, "fp16", scale)


def test_the_smallest_and_the_largest_scale_are_fine() -> None:
    assert dlsim.encode([2.0**126], "fp16", 2.0**-126)[0] == dlsim.encode([1.0], "fp16")[0]
    assert dlsim.encode([2.0**-127], "fp16", 2.0**127)[0] == dlsim.encode([1.0], "fp16")[0]
    assert dlsim.measure([1.0], "bf16", np.finfo(np.float32).max).overflow == 1


def test_errors_of_values_are_value_errors() -> None:
    assert issubclass(dlsim.UsageError, ValueError)
    assert issubclass(dlsim.UsageError, dlsim.Error)
