# SPDX-License-Identifier: Apache-2.0
"""How far an import is, on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

Item = TypeVar("Item")

_SECONDS_BETWEEN = 0.2


def shown(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yields `items`; writes how many are done to standard error if that is a terminal."""
    terminal = _is_terminal()
    last = time.monotonic()
    drawn = False
    try:
        for done, item in enumerate(items):
            now = time.monotonic()
            if terminal and now - last >= _SECONDS_BETWEEN:
                last, drawn = now, True
                sys.stderr.write(f"\r\x1b[K{done} of {len(items)} {what}")
                sys.stderr.flush()
            yield item
    finally:
        if drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _is_terminal() -> bool:
    with suppress(AttributeError, ValueError):
        return sys.stderr.isatty()
    return False
