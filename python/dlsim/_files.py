# SPDX-License-Identifier: Apache-2.0
"""Files that appear complete or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ._errors import InputError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a temporary name beside `path`; it becomes `path` if the block ends without error."""
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, final)
    except OSError as error:
        raise InputError(f"{final}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
