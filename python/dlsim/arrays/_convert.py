# SPDX-License-Identifier: Apache-2.0
"""Arrays to the codes of a format and back: encode, decode, quantize, measure, tabulate."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypedDict, overload

from .. import _core
from .._core import Conversion, Format, TensorTable, parse_number
from .._errors import UsageError
from ._dtypes import (
    CODES,
    VALUES,
    check_overlap,
    code_elements,
    element_of_format,
    format_of,
    format_of_codes,
    is_cuda,
    source_of,
    target_bits,
)

# -- What a conversion does to an array: the counters of docs/numerics.md, section 4


@dataclass(frozen=True, slots=True)
class TensorStats:
    """Counters and sums of one array for one format and scale; sums are float64 in a fixed order.

    The input is the float32 value before scaling; the output is scaled and encoded.
    """

    format: Format
    scale: float
    elements: int
    zeros: int  # input is +0 or -0
    nan: int  # input
    inf: int  # input
    underflow: int  # finite nonzero input, output +-0
    subnormal: int  # finite nonzero input, output a nonzero subnormal
    overflow: int  # finite input, output infinite (or clamped when saturating)
    nonfinite_outputs: int  # output is infinity or NaN
    absmax: float  # largest magnitude of the finite inputs
    sum_of_squares: float  # of the finite inputs
    error_sum_of_squares: float  # of output / scale - input, where both are finite
    underflow_sum_of_squares: float  # of the inputs that underflow
    quantized_sum_of_squares: float  # of the outputs after unscaling; may be inf or nan

    @property
    def nonfinite(self) -> int:
        """Inputs that are infinite or NaN."""
        return self.nan + self.inf

    @property
    def nonzero_finite(self) -> int:
        """Inputs that are finite and not zero."""
        return self.elements - self.zeros - self.nonfinite

    @property
    def underflow_fraction(self) -> float:
        """Share of the nonzero finite inputs that became zero; 0 without any."""
        return self.underflow / self.nonzero_finite if self.nonzero_finite else 0.0

    @property
    def energy_lost(self) -> float:
        """Share of the inputs' sum of squares that became zero; 0 if it is 0."""
        return self.underflow_sum_of_squares / self.sum_of_squares if self.sum_of_squares else 0.0

    @property
    def harm(self) -> float:
        """Relative squared error: 0 if nothing changed, 1 if all became zero; 0 if all is zero."""
        return self.error_sum_of_squares / self.sum_of_squares if self.sum_of_squares else 0.0

    def as_dict(self) -> dict[str, str | int | float]:
        """Returns all of it by name, the format as its name: a row of a table."""
        row: dict[str, str | int | float] = asdict(self) | {"format": self.format.name}
        for name in ("nonfinite", "nonzero_finite", "underflow_fraction", "energy_lost", "harm"):
            row[name] = getattr(self, name)
        return row


# -- Arguments of encode and its kin, checked


@lru_cache(maxsize=256)
def _known_conversion(
    format: Any, rounding: str, overflow: str, subnormals: str
) -> tuple[Format, Conversion]:
    for name, value in (("rounding", rounding), ("overflow", overflow), ("subnormals", subnormals)):
        if not isinstance(value, str):
            raise TypeError(f"{name}: expected a string, got {value!r}")
    chosen = format_of(format)
    return chosen, Conversion(chosen, rounding, overflow, subnormals)


def conversion_of(
    format: Any, rounding: str, overflow: str, subnormals: str
) -> tuple[Format, Conversion]:
    """Returns a format and the conversion to it; raises TypeError and UsageError."""
    try:
        return _known_conversion(format, rounding, overflow, subnormals)
    except TypeError:  # an argument that has no hash, which is a wrong one
        return _known_conversion.__wrapped__(format, rounding, overflow, subnormals)


def scale_of(scale: Any) -> float:
    """Returns a scale, which may be a text as "2^15", as a number; raises TypeError."""
    if type(scale) is float:
        return scale
    if isinstance(scale, str):
        return parse_number(scale, "scale")
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


def draws_of(scale: Any, seed: Any, stream: Any) -> tuple[float, int, int]:
    """Returns what random bits are drawn with, checked; raises TypeError and UsageError."""
    if type(scale) is float and type(seed) is type(stream) is int:
        if 0 <= seed < 1 << 64 and 0 <= stream < 1 << 32:
            return scale, seed, stream
    return scale_of(scale), _unsigned("seed", seed, 64), _unsigned("stream", stream, 32)


def is_list(argument: Any) -> bool:
    """Whether an argument holds several values; an array without dimensions is one number."""
    return (
        isinstance(argument, Iterable)
        and not isinstance(argument, str | type)
        and getattr(argument, "ndim", 1) > 0
    )


def listed(argument: Any) -> list[Any]:
    return list(argument) if is_list(argument) else [argument]


# -- Arrays to the codes of a format and back: encode, decode, quantize, measure, tabulate


if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    class _Rules(TypedDict, total=False):
        """The keywords that encode, quantize and measure share."""

        rounding: str
        overflow: str
        subnormals: str
        seed: int
        stream: int

    class _Encoding(_Rules, total=False):
        as_dtype: bool
        out: Any

    class _Quantizing(_Rules, total=False):
        unscale: bool
        out: Any

    _Scale = float | str


# typing keeps a registry of overloads, and with it this module, beyond the end of Python: what
# the module holds would be reported as leaked.
if TYPE_CHECKING:

    @overload
    def encode(
        values: NDArray[Any], format: Any, scale: _Scale = ..., **how: Unpack[_Encoding]
    ) -> NDArray[Any]: ...

    @overload
    def encode(
        values: torch.Tensor, format: Any, scale: _Scale = ..., **how: Unpack[_Encoding]
    ) -> torch.Tensor: ...

    @overload
    def encode(values: Any, format: Any, scale: _Scale = ..., **how: Unpack[_Encoding]) -> Any: ...


def encode(
    values: Any,
    format: Any,
    scale: float | str = 1.0,
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
    chosen, conversion = conversion_of(format, rounding, overflow, subnormals)
    draws = draws_of(scale, seed, stream)
    if as_dtype and out is not None:
        raise UsageError("as_dtype: not with out, whose own dtype decides")
    element = element_of_format(chosen) if as_dtype else "uint16" if chosen.bits <= 16 else "uint32"
    if is_cuda(values):
        from . import _torch_arrays

        return _torch_arrays.encode(values, chosen, conversion, draws, element=element, out=out)
    source = source_of(values, "values", VALUES)
    if out is None:
        codes = source.empty(element)
    else:
        codes, _ = target_bits(out, "out", source.bits.shape, code_elements(chosen))
        check_overlap("out", source.bits, codes, same_allowed=False)
    _core.encode_into(source.bits, source.element, conversion, draws, codes)
    return source.wrap(codes, element) if out is None else out


if TYPE_CHECKING:

    @overload
    def decode(
        codes: NDArray[Any], format: Any = ..., *, out: NDArray[np.float32] | None = ...
    ) -> NDArray[np.float32]: ...
    @overload
    def decode(
        codes: torch.Tensor, format: Any = ..., *, out: torch.Tensor | None = ...
    ) -> torch.Tensor: ...
    @overload
    def decode(codes: Any, format: Any = ..., *, out: Any = ...) -> Any: ...


def decode(codes: Any, format: Any = None, *, out: Any = None) -> Any:
    """Returns the float32 values of codes, exactly; signaling NaN becomes quiet.

    `codes` are integers of 8, 16 or 32 bits, signed or not, whose low bits are a code, or an array
    whose dtype is a format (float16, bfloat16, float8_...), which needs no `format`. `out` is a
    float32 array that is written to and returned instead.
    """
    chosen = None if format is None else format_of(format)
    if is_cuda(codes):
        from . import _torch_arrays

        return _torch_arrays.decode(codes, chosen, out)
    source = source_of(codes, "codes", CODES)
    chosen = format_of_codes(source.element, chosen)
    if out is None:
        values = source.empty("float32")
    else:
        values, _ = target_bits(out, "out", source.bits.shape, ("float32",))
        check_overlap("out", source.bits, values, same_allowed=False)
    _core.decode_into(source.bits, chosen, values)
    return source.wrap(values, "float32") if out is None else out


if TYPE_CHECKING:

    @overload
    def quantize(
        values: NDArray[Any], format: Any, scale: _Scale = ..., **how: Unpack[_Quantizing]
    ) -> NDArray[np.float32]: ...

    @overload
    def quantize(
        values: torch.Tensor, format: Any, scale: _Scale = ..., **how: Unpack[_Quantizing]
    ) -> torch.Tensor: ...

    @overload
    def quantize(
        values: Any, format: Any, scale: _Scale = ..., **how: Unpack[_Quantizing]
    ) -> Any: ...


def quantize(
    values: Any,
    format: Any,
    scale: float | str = 1.0,
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
    and may be `values` itself. A gradient is not passed on; dlsim.autocast_emulation does that.
    """
    chosen, conversion = conversion_of(format, rounding, overflow, subnormals)
    draws = draws_of(scale, seed, stream)
    if is_cuda(values):
        from . import _torch_arrays

        return _torch_arrays.quantize(values, chosen, conversion, draws, unscale=unscale, out=out)
    source = source_of(values, "values", VALUES)
    if out is None:
        results = source.empty("float32")
    else:
        results, _ = target_bits(out, "out", source.bits.shape, ("float32",))
        check_overlap("out", source.bits, results, same_allowed=source.element == "float32")
    _core.quantize_into(source.bits, source.element, conversion, draws, bool(unscale), results)
    return source.wrap(results, "float32") if out is None else out


if TYPE_CHECKING:

    @overload
    def measure(
        values: Any, format: str | Format, scale: float | str = ..., **rules: Unpack[_Rules]
    ) -> TensorStats: ...
    @overload
    def measure(
        values: Any, format: Sequence[str | Format], scale: Any = ..., **rules: Unpack[_Rules]
    ) -> list[TensorStats]: ...
    @overload
    def measure(
        values: Any, format: Any, scale: Sequence[float | str], **rules: Unpack[_Rules]
    ) -> list[TensorStats]: ...
    @overload
    def measure(values: Any, format: Any, scale: Any = ..., **rules: Unpack[_Rules]) -> Any: ...


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
    asked = [conversion_of(one, rounding, overflow, subnormals) for one in listed(format)]
    scales = [scale_of(one) for one in listed(scale)]
    pairs = [(chosen, by) for chosen, _ in asked for by in scales]
    questions = [(conversion, by) for _, conversion in asked for by in scales]
    _, seed, stream = draws_of(1.0, seed, stream)
    if is_cuda(values):
        values = values.detach().cpu()
    source = source_of(values, "values", VALUES)
    counted = _core.measure_array(source.bits, source.element, questions, seed, stream)
    stats = [TensorStats(*pair, **row) for pair, row in zip(pairs, counted, strict=True)]
    return stats if is_list(format) or is_list(scale) else stats[0]


def tabulate(values: Any, *, grad_scale: float | str = 1.0) -> TensorTable:
    """Returns the table of an array of float32, float64, float16 or bfloat16.

    `grad_scale` is the loss scale that the values carry: each is multiplied by its float32
    reciprocal first. Tensors of PyTorch on a GPU are tabulated there.
    """
    scale = _core.checked_grad_scale(scale_of(grad_scale))
    if is_cuda(values):
        from . import _torch_arrays

        return _torch_arrays.tabulate_on_device([values.detach()], scale)[0]
    source = source_of(values, "values", VALUES)
    return _core.tabulate_array(source.bits, source.element, scale)
