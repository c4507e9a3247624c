# SPDX-License-Identifier: Apache-2.0
"""Arrays to the codes of a format and back: encode, decode, quantize, measure.

Arrays are those of NumPy, PyTorch, JAX and whatever has __dlpack__; results are of the same kind
and shape, on the same device. docs/python-arrays.md has the rules for layouts, types and errors.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from . import _core
from ._core import Conversion, Format
from ._dtypes import CODES, FORMAT_OF_ELEMENT, SIZES, VALUES, element_of_format, format_of
from ._errors import UsageError
from ._frameworks import check_overlap, is_cuda, source_of, target_bits
from ._tensor_stats import TensorStats


def encode(
    values: Any,
    format: Any,
    scale: float = 1.0,
    *,
    rounding: str = "rne",
    overflow: str = "inf",
    subnormals: str = "keep",
    seed: int = 0,
    stream: int = 0,
    as_dtype: bool = False,
    out: Any = None,
) -> Any:
    """Returns the codes of `values` in a format: fl32(value * scale), rounded, as `dlsim convert`.

    `values` are float32, float16, bfloat16 or float64 (which is rounded to float32 first). `format`
    is a Format, its name or a dtype. `rounding` is rne, rtz, rna, ru, rd or sr (stochastic: the
    bits depend on `seed`, `stream` and the element's C-order index alone); `overflow` inf or
    saturate; `subnormals` keep or flush. Codes are uint16, or uint32 for formats of more than 16
    bits; PyTorch gets int16 and int32 with the same bits. `as_dtype=True` gives an array of the
    format's own dtype (fp16, bf16, fp8). `out` is written to and returned instead.
    """
    chosen, conversion = _conversion(format, rounding, overflow, subnormals)
    draws = _draws(scale, seed, stream)
    if as_dtype and out is not None:
        raise UsageError("as_dtype: not with out, whose own dtype decides")
    element = element_of_format(chosen) if as_dtype else "uint16" if chosen.bits <= 16 else "uint32"
    if is_cuda(values):
        from . import _cuda_arrays

        return _cuda_arrays.encode(values, chosen, conversion, draws, element=element, out=out)
    source = source_of(values, "values", VALUES)
    if out is None:
        codes = source.empty(element)
    else:
        codes, _ = target_bits(out, "out", source.bits.shape, code_elements(chosen))
        check_overlap("out", source.bits, codes, same_allowed=False)
    _core.encode_into(source.bits, source.element, conversion, draws, codes)
    return source.wrap(codes, element) if out is None else out


def decode(codes: Any, format: Any = None, *, out: Any = None) -> Any:
    """Returns the float32 values of codes, exactly; signalling NaN becomes quiet.

    `codes` are integers of 8, 16 or 32 bits, signed or not, whose low bits are a code, or an array
    whose dtype is a format (float16, bfloat16, float8_...), which needs no `format`. `out` is a
    float32 array that is written to and returned instead.
    """
    chosen = None if format is None else format_of(format)
    if is_cuda(codes):
        from . import _cuda_arrays

        return _cuda_arrays.decode(codes, chosen, out)
    source = source_of(codes, "codes", CODES)
    chosen = format_of_codes(source.element, chosen)
    if out is None:
        values = source.empty("float32")
    else:
        values, _ = target_bits(out, "out", source.bits.shape, ("float32",))
        check_overlap("out", source.bits, values, same_allowed=False)
    _core.decode_into(source.bits, chosen, values)
    return source.wrap(values, "float32") if out is None else out


def quantize(
    values: Any,
    format: Any,
    scale: float = 1.0,
    *,
    rounding: str = "rne",
    overflow: str = "inf",
    subnormals: str = "keep",
    seed: int = 0,
    stream: int = 0,
    unscale: bool = True,
    out: Any = None,
) -> Any:
    """Returns `values` rounded through a format, as float32: encode, decode, times fl32(1 / scale).

    `unscale=False` leaves the scale on the results. Arguments are those of encode; `out` is float32
    and may be `values` itself. A gradient is not passed on: see dlsim.emulation for that.
    """
    chosen, conversion = _conversion(format, rounding, overflow, subnormals)
    draws = _draws(scale, seed, stream)
    if is_cuda(values):
        from . import _cuda_arrays

        return _cuda_arrays.quantize(values, chosen, conversion, draws, unscale=unscale, out=out)
    source = source_of(values, "values", VALUES)
    if out is None:
        results = source.empty("float32")
    else:
        results, _ = target_bits(out, "out", source.bits.shape, ("float32",))
        check_overlap("out", source.bits, results, same_allowed=source.element == "float32")
    _core.quantize_into(source.bits, source.element, conversion, draws, bool(unscale), results)
    return source.wrap(results, "float32") if out is None else out


def measure(
    values: Any,
    format: Any,
    scale: Any = 1.0,
    *,
    rounding: str = "rne",
    overflow: str = "inf",
    subnormals: str = "keep",
    seed: int = 0,
    stream: int = 0,
) -> Any:
    """Returns the TensorStats of what encode would do to `values`, without storing codes.

    With a list of formats, of scales or of both: a list of TensorStats, one for each pair, formats
    outside and scales inside, from one pass over the values. Other arguments are those of encode.
    """
    asked = [_conversion(one, rounding, overflow, subnormals) for one in _listed(format)]
    scales = [_scale(one) for one in _listed(scale)]
    pairs = [(chosen, by) for chosen, _ in asked for by in scales]
    questions = [(conversion, by) for _, conversion in asked for by in scales]
    _, seed, stream = _draws(1.0, seed, stream)
    if is_cuda(values):
        from . import _cuda_arrays

        counted = _cuda_arrays.measure(values, questions, seed, stream)
    else:
        source = source_of(values, "values", VALUES)
        counted = _core.measure_array(source.bits, source.element, questions, seed, stream)
    stats = [TensorStats(*pair, *row) for pair, row in zip(pairs, counted, strict=True)]
    return stats if _is_list(format) or _is_list(scale) else stats[0]


@lru_cache(maxsize=64)
def code_elements(format: Format) -> tuple[str, ...]:
    """Returns the element types that can hold codes of the format."""
    return tuple(
        name
        for name in CODES
        if FORMAT_OF_ELEMENT.get(name, format.name) == format.name
        and 8 * SIZES[name] >= format.bits
    )


def format_of_codes(element: str, format: Format | None) -> Format:
    """Returns the format of codes of an element type; `format` is what the caller said.

    Raises UsageError if that is not enough or wrong.
    """
    if element in FORMAT_OF_ELEMENT:
        own = format_of(FORMAT_OF_ELEMENT[element])
        if format is not None and format != own:
            raise UsageError(f"codes: are {element}, expected codes of {format.name}")
        return own
    if format is None:
        raise UsageError(f"format: missing, expected the format of the {element} codes")
    if 8 * SIZES[element] < format.bits:
        raise TypeError(
            f"codes: bad element type, expected {format.bits} bits or more, got {element}"
        )
    return format


@lru_cache(maxsize=256)
def _known_conversion(
    format: Any, rounding: str, overflow: str, subnormals: str
) -> tuple[Format, Conversion]:
    for name, value in (("rounding", rounding), ("overflow", overflow), ("subnormals", subnormals)):
        if not isinstance(value, str):
            raise TypeError(f"{name}: expected a string, got {value!r}")
    chosen = format_of(format)
    return chosen, Conversion(chosen, rounding, overflow, subnormals)


def _conversion(
    format: Any, rounding: str, overflow: str, subnormals: str
) -> tuple[Format, Conversion]:
    try:
        return _known_conversion(format, rounding, overflow, subnormals)
    except TypeError:  # an argument that has no hash, which is a wrong one
        return _known_conversion.__wrapped__(format, rounding, overflow, subnormals)


def _scale(scale: Any) -> float:
    if type(scale) is float:
        return scale
    if getattr(scale, "ndim", 0) > 0:
        raise TypeError(f"scale: expected a number, got an array of shape {tuple(scale.shape)}")
    if not hasattr(scale, "__float__") and not hasattr(scale, "__index__"):
        raise TypeError(f"scale: expected a number, got {scale!r}")
    try:
        return float(scale)
    except OverflowError:  # an integer beyond float64
        return math.inf


def _unsigned(name: str, value: Any, bits: int) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name}: expected an integer, got {value!r}") from error
    if not 0 <= number < 1 << bits:
        raise UsageError(f"{name}: out of range, expected 0 to 2^{bits} - 1, got {number}")
    return number


def _draws(scale: Any, seed: Any, stream: Any) -> tuple[float, int, int]:
    if type(scale) is float and type(seed) is type(stream) is int:
        if 0 <= seed < 1 << 64 and 0 <= stream < 1 << 32:
            return scale, seed, stream
    return _scale(scale), _unsigned("seed", seed, 64), _unsigned("stream", stream, 32)


def _is_list(argument: Any) -> bool:
    """Whether an argument stands for several; an array without dimensions is a number."""
    return (
        isinstance(argument, Iterable)
        and not isinstance(argument, str | type)
        and getattr(argument, "ndim", 1) > 0
    )


def _listed(argument: Any) -> list[Any]:
    return list(argument) if _is_list(argument) else [argument]
