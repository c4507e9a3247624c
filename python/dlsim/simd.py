# SPDX-License-Identifier: Apache-2.0
"""Which SIMD instruction set the kernels use; all give the same bits, at different speeds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from . import _core


def targets() -> list[str]:
    """Returns the names of the targets that this machine can run, best first ("AVX3", ...)."""
    return _core.simd_targets()


def current() -> str:
    """Returns the target that the kernels use now; the best one unless told otherwise."""
    return _core.simd_target()


@contextmanager
def using(target: str) -> Iterator[None]:
    """Makes all kernels use a target within a block, for all threads; to measure and to test.

    Not to be entered or left while another thread runs a kernel. UsageError if this machine cannot
    run the target.
    """
    before = current()
    _core.use_simd_target(target)
    try:
        yield
    finally:
        _core.use_simd_target(before)
