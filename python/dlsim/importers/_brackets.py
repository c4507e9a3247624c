# SPDX-License-Identifier: Apache-2.0
"""What a TensorBoard histogram says of its values: between which limits how many lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._errors import InputError

Doubles = NDArray[np.float64]
Singles = NDArray[np.float32]

_SMALLEST = np.float32(2.0**-149)
# A profile counts up to this many elements of a tensor.
_MOST = 1 << 40
# Cerebras' trainer logs log2(|x| + 2^-50) in float32, whose error is a few units of 2^-18.
_LOG2_OFFSET = 2.0**-50
_LOG2_ERROR = 2.0**-16
# The writers of evenly spaced buckets compute a value's bucket in float64.
_EVEN_ERROR = 2.0**-50
_DT_DOUBLE = 2
_ROW = 3


@dataclass(frozen=True)
class Brackets:
    """`counts[i]` values are between `lows[i]` and `highs[i]`, both included; signed float32.

    `nan` and `inf` values are not finite. The smallest and the largest value have entries of their
    own if they are known. Where signs are unknown, limits are of magnitudes.
    """

    lows: Singles
    highs: Singles
    counts: NDArray[np.uint64]
    nan: int
    inf: int

    @property
    def touches_zero(self) -> NDArray[np.bool_]:
        """The entries whose values may be zero."""
        return np.asarray((self.lows <= 0) & (self.highs >= 0))

    def smallest(self) -> Singles:
        """Each entry's smallest magnitude that is not zero, with its sign; 0 if all are zero."""
        nearest = np.where(np.abs(self.lows) < np.abs(self.highs), self.lows, self.highs)
        tiny = np.where(self.highs > 0, _SMALLEST, np.where(self.lows < 0, -_SMALLEST, 0))
        return np.asarray(np.where(self.touches_zero, tiny, nearest), np.float32)

    def largest(self) -> Singles:
        """Each entry's largest magnitude, with its sign."""
        positive = np.abs(self.highs) >= np.abs(self.lows)
        return np.asarray(np.where(positive, self.highs, self.lows), np.float32)


def brackets_of(place: str, value: Any, *, is_log2: bool, scale: float) -> Brackets:
    """Reads the Summary.Value of a histogram, old form or tensor of the plugin.

    With `is_log2`, its values are log2(|x| + 2^-50) of the x that are asked for. The values carry
    the loss scale `scale`, which is divided out as dlsim does it. Raises InputError.
    """
    buckets = _of_proto(place, value.histo) if value.HasField("histo") else _of_tensor(place, value)
    if is_log2:
        buckets = _exponentiated(buckets)
    buckets = _pinned(buckets)
    inverse = np.float32(1) / np.float32(scale)
    with np.errstate(over="ignore", under="ignore"):
        lows, highs = (_singles(limits) * inverse for limits in (buckets.lows, buckets.highs))
    kept = buckets.counts > 0
    return Brackets(lows[kept], highs[kept], buckets.counts[kept], buckets.nan, buckets.inf)


def _singles(limits: Doubles) -> Singles:
    """Rounds limits of finite values to nearest, as the values between them were."""
    most = float(np.finfo(np.float32).max)
    return np.clip(limits, -most, most).astype(np.float32)


@dataclass(frozen=True)
class _Buckets:
    """As Brackets, in float64 and as they were logged; `ends` are the extreme values if known."""

    lows: Doubles
    highs: Doubles
    counts: NDArray[np.uint64]
    nan: int = 0
    inf: int = 0
    ends: tuple[float, float] | None = None


def _of_proto(place: str, histogram: Any) -> _Buckets:
    """Bucket i of the old form holds the values from limit i - 1 up to limit i.

    Empty buckets may be left out, which widens none of the others. The first one's lower limit is
    known only from `min`.
    """
    limits = np.asarray(histogram.bucket_limit, np.float64)
    counts = _whole(place, histogram.bucket)
    total = _whole(place, [histogram.num]).sum() if histogram.num else counts.sum()
    if len(limits) != len(counts) or np.isnan(limits).any() or (np.diff(limits) <= 0).any():
        raise InputError(f"{place}: bad limits of buckets, expected ascending ones")
    if total < counts.sum():
        raise InputError(f"{place}: more values in its buckets than in all")
    outside = int(total - counts.sum())
    least, most = float(histogram.min), float(histogram.max)
    lows = np.concatenate([[-np.inf], limits[:-1]])[: len(limits)]
    # Two zeros are values that are all zero, or fields that were left out.
    may_be_zero = ((lows <= 0) & (limits >= 0))[counts > 0].all()
    stated = (least, most) != (0, 0) or bool(may_be_zero and histogram.num)
    nan = inf = 0
    if outside and not (np.isfinite(least) and np.isfinite(most)):
        nan, inf = (outside, 0) if np.isnan(least) or np.isnan(most) else (0, outside)
        outside = 0
    if outside:
        lows, limits, counts = _with_outside(lows, limits, counts, (least, most), outside)
    if not stated or not np.isfinite([least, most]).all():
        return _Buckets(lows, limits, counts, nan, inf)
    return _clipped(place, _Buckets(lows, limits, counts, nan, inf, (least, most)))


def _with_outside(
    lows: Doubles,
    highs: Doubles,
    counts: NDArray[np.uint64],
    ends: tuple[float, float],
    outside: int,
) -> tuple[Doubles, Doubles, NDArray[np.uint64]]:
    """Adds the values that are in no bucket: beyond the last limit or below the first."""
    low, high = ends
    above = len(highs) > 0 and high > highs[-1]
    below = len(highs) > 0 and low < highs[0]
    if above and not below:
        low = float(highs[-1])
    elif below and not above:
        high = float(highs[0])
    return np.append(lows, low), np.append(highs, high), np.append(counts, np.uint64(outside))


def _of_tensor(place: str, value: Any) -> _Buckets:
    """The tensor of the plugin has a row (left, right, count) per bucket."""
    tensor = value.tensor
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    content = tensor.tensor_content or np.asarray(tensor.double_val, "<f8").tobytes()
    fits = len(shape) == 2 and shape[1] == _ROW and len(content) == 8 * _ROW * shape[0]
    if tensor.dtype != _DT_DOUBLE or not fits:
        raise InputError(f"{place}: expected a float64 histogram of shape [buckets, 3]")
    rows = np.frombuffer(content, "<f8").reshape(-1, _ROW)
    if (rows[:, 0] > rows[:, 1]).any() or not np.isfinite(rows).all():
        raise InputError(f"{place}: bad buckets, expected finite limits in order")
    slack = _EVEN_ERROR * float(np.abs(rows[:, :2]).max(initial=0))
    counts = _whole(place, rows[:, 2])
    proper = len(rows) > 1 and bool((rows[:, 0] < rows[:, 1]).all())
    ends = (float(rows[0, 0]), float(rows[-1, 1])) if proper else None
    lows, highs = rows[:, 0] - slack, rows[:, 1] + slack
    if not proper:
        return _Buckets(rows[:, 0], rows[:, 1], counts)
    return _clipped(place, _Buckets(lows, highs, counts, ends=ends))


def _whole(place: str, numbers: Any) -> NDArray[np.uint64]:
    counts = np.asarray(numbers, np.float64)
    if not (np.isfinite(counts).all() and (counts >= 0).all() and (counts % 1 == 0).all()):
        raise InputError(f"{place}: bad counts, expected whole numbers")
    if counts.sum() > _MOST:
        raise InputError(f"{place}: too many values, expected at most 2^40")
    return counts.astype(np.uint64)


def _clipped(place: str, buckets: _Buckets) -> _Buckets:
    """Narrows the buckets to the extreme values."""
    assert buckets.ends is not None
    lows = np.maximum(buckets.lows, buckets.ends[0])
    highs = np.minimum(buckets.highs, buckets.ends[1])
    if (lows > highs)[buckets.counts > 0].any():
        raise InputError(f"{place}: its buckets contradict its smallest and largest value")
    return _Buckets(lows, highs, buckets.counts, buckets.nan, buckets.inf, buckets.ends)


def _exponentiated(buckets: _Buckets) -> _Buckets:
    """Turns limits of log2(|x| + 2^-50) into limits of |x|; signs are lost."""
    with np.errstate(over="ignore"):
        lows = np.exp2(buckets.lows - _LOG2_ERROR) - _LOG2_OFFSET
        highs = np.exp2(buckets.highs + _LOG2_ERROR) - _LOG2_OFFSET
    lows, highs = np.maximum(lows, 0), np.maximum(highs, 0)
    return _Buckets(lows, highs, buckets.counts, buckets.nan, buckets.inf)


def _pinned(buckets: _Buckets) -> _Buckets:
    """Gives the smallest and the largest value, which occur, entries of their own."""
    filled = np.flatnonzero(buckets.counts)
    if buckets.ends is None or not len(filled):
        return buckets
    counts = buckets.counts.copy()
    ends: list[float] = []
    for i, end in ((filled[0], buckets.ends[0]), (filled[-1], buckets.ends[1])):
        if counts[i] and buckets.lows[i] <= end <= buckets.highs[i]:
            counts[i] -= np.uint64(1)
            ends.append(end)
    return _Buckets(
        np.append(buckets.lows, ends),
        np.append(buckets.highs, ends),
        np.append(counts, np.ones(len(ends), np.uint64)),
        buckets.nan,
        buckets.inf,
    )
