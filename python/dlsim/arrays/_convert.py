# SPDX-License-Identifier: Apache-2.0
"""Arrays to the codes of a format and back: encode, decode, quantize, measure, tabulate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, overload

from .. import _core
from .._core import Format, TensorTable
from .._errors import UsageError
from ._arguments import conversion_of, draws_of, is_list, listed, scale_of
from ._dtypes import (
    CODES,
    VALUES,
    code_elements,
    element_of_format,
    format_of,
    format_of_codes,
)
from ._frameworks import check_overlap, is_cuda, source_of, target_bits
from ._tensor_stats import TensorStats

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


# typing keeps a registry of overloads, and with it this module, beyond the end of Python: what
# the module holds would be reported as leaked.
if TYPE_CHECKING:

    @overload
    def encode(
        values: NDArray[Any],
        format: Any,
        scale: float | str = ...,
        *,
        as_dtype: bool = ...,
        out: NDArray[Any] | None = ...,
        **rules: Unpack[_Rules],
    ) -> NDArray[Any]: ...
    @overload
    def encode(
        values: torch.Tensor,
        format: Any,
        scale: float | str = ...,
        *,
        as_dtype: bool = ...,
        out: torch.Tensor | None = ...,
        **rules: Unpack[_Rules],
    ) -> torch.Tensor: ...
    @overload
    def encode(
        values: Any,
        format: Any,
        scale: float | str = ...,
        *,
        as_dtype: bool = ...,
        out: Any = ...,
        **rules: Unpack[_Rules],
    ) -> Any: ...


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


if TYPE_CHECKING:

    @overload
    def quantize(
        values: NDArray[Any],
        format: Any,
        scale: float | str = ...,
        *,
        unscale: bool = ...,
        out: NDArray[np.float32] | None = ...,
        **rules: Unpack[_Rules],
    ) -> NDArray[np.float32]: ...
    @overload
    def quantize(
        values: torch.Tensor,
        format: Any,
        scale: float | str = ...,
        *,
        unscale: bool = ...,
        out: torch.Tensor | None = ...,
        **rules: Unpack[_Rules],
    ) -> torch.Tensor: ...
    @overload
    def quantize(
        values: Any,
        format: Any,
        scale: float | str = ...,
        *,
        unscale: bool = ...,
        out: Any = ...,
        **rules: Unpack[_Rules],
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
        from . import _torch_tables

        return _torch_tables.tabulate_on_device([values.detach()], scale)[0]
    source = source_of(values, "values", VALUES)
    return _core.tabulate_array(source.bits, source.element, scale)
