# SPDX-License-Identifier: Apache-2.0
"""What encoding means, in Python's integers alone: a second writing of docs/numerics.md."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache

import numpy as np

import dlsim

# Everything is in units of 2^-160, of which all finite values are multiples.
UNIT = 160


@lru_cache
def magnitudes(format: dlsim.Format) -> list[int]:
    """The values of the finite codes without sign, by code, and the next one if there were one."""
    values = []
    for code in range(format.max_code + 2):
        exponent, mantissa = code >> format.mantissa_bits, code & ((1 << format.mantissa_bits) - 1)
        significand = (1 << format.mantissa_bits) + mantissa
        if exponent == 0 and format.has_subnormals:
            exponent, significand = 1, mantissa
        if code == 0:
            significand = 0
        values.append(significand << (UNIT + exponent - format.bias - format.mantissa_bits))
    return values


def rounds_up(rounding: str, negative: bool, ladder: list[int], code: int, value: int) -> bool:
    """Whether a magnitude at or above that of a code becomes the next one."""
    lower, upper = ladder[code], ladder[code + 1]
    if value == lower or rounding == "rtz":
        return False
    if rounding in ("ru", "rd"):
        return negative == (rounding == "rd")
    twice, sum_of_both = 2 * value, lower + upper
    if twice != sum_of_both:
        return twice > sum_of_both
    return rounding == "rna" or code % 2 == 1


def encode(
    bits: int, format: dlsim.Format, rounding: str = "rne", overflow: str = "inf", keep: bool = True
) -> int:
    """The code of a float32, both as integers."""
    sign = (bits >> 31) << (format.bits - 1)
    exponent, mantissa = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    if exponent == 0xFF and mantissa:
        return sign | format.nan_code | (mantissa >> (23 - format.mantissa_bits))
    too_large = format.max_code if overflow == "saturate" else format.overflow_code
    if exponent == 0xFF:
        return sign | too_large
    significand = mantissa + (0x800000 if exponent else 0)
    value = significand << (UNIT - 149 + max(exponent, 1) - 1)
    ladder = magnitudes(format)
    if value >= ladder[-1]:
        stops = rounding in ("rtz", "rd" if sign == 0 else "ru")
        return sign | (format.max_code if stops else too_large)
    code = bisect_right(ladder, value) - 1
    code += rounds_up(rounding, bool(sign), ladder, code, value)
    if code > format.max_code:
        return sign | too_large
    if not keep and format.has_subnormals and code < 1 << format.mantissa_bits:
        code = 0
    return sign | code


def boundary_inputs(format: dlsim.Format, step: int = 1) -> np.ndarray:
    """Float32 values around every `step`-th code, the midpoint above it, and the special ones."""
    ladder = magnitudes(format)
    last = format.max_code
    ends = {code for code in range(last + 1) if min(code, last - code) < 9}
    codes = sorted(ends | set(range(0, last + 1, step)))
    exact = [ladder[code] for code in codes]
    exact += [(ladder[code] + ladder[code + 1]) // 2 for code in codes]
    with np.errstate(over="ignore"):
        values = np.array([value / 2**UNIT for value in exact]).astype(np.float32)
    bits = values.view(np.uint32)
    near = np.concatenate([bits, bits + np.uint32(1), bits - np.uint32(1)])
    special = [0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF]
    both = np.concatenate([near & np.uint32(0x7FFFFFFF), np.array(special, np.uint32)])
    return np.concatenate([both, both | np.uint32(0x80000000)]).view(np.float32)


def random_inputs(count: int) -> np.ndarray:
    """Float32 values with random bits."""
    return np.random.default_rng(7).integers(0, 2**32, count, np.uint32).view(np.float32)
