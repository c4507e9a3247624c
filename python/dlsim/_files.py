# SPDX-License-Identifier: Apache-2.0
"""Files and directories that appear complete or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ._errors import InputError, UsageError


def _beside(final: Path, suffix: str) -> Path:
    """Returns a hidden name in the same directory that nobody else has."""
    if not final.name:  # "", "." and "/"
        raise InputError(f"{final}: cannot be written: is a directory, expected a name in one")
    return final.with_name(f".{final.name}.{os.getpid()}-{secrets.token_hex(4)}.{suffix}")


def require_no_input(output: str | os.PathLike[str], inputs: Iterable[object]) -> None:
    """Raises UsageError if `output` is one of the files read, by whatever name."""
    for item in inputs:
        if not isinstance(item, str | os.PathLike):
            continue
        with suppress(OSError):
            if os.path.samefile(output, item):
                raise UsageError(
                    "output: would replace what is read, expected another file, "
                    f"got {output!s:.256}"
                )


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a temporary name next to `path`; it becomes `path` if the block ends without error.

    A link stays one, and a file keeps its mode. What is no regular file, such as a FIFO or a
    device, is not replaced but written to.
    """
    final = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
    special = final.exists() and not final.is_file() and not final.is_dir()
    temporary = final if special else _beside(final, "tmp")
    try:
        yield temporary
        if not special:
            if final.exists():
                shutil.copymode(final, temporary)
            os.replace(temporary, final)
    except OSError as error:
        raise InputError(f"{final}: cannot be written: {error.strerror or error}") from error
    finally:
        if not special:
            temporary.unlink(missing_ok=True)


@contextmanager
def replacing_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a new directory next to `path`; it replaces `path` if the block ends without error."""
    final = Path(path)
    temporary, replaced = _beside(final, "tmp"), _beside(final, "old.tmp")
    try:
        temporary.mkdir()
        yield temporary
        if final.exists():
            final.rename(replaced)
        temporary.rename(final)
    except OSError as error:
        with suppress(OSError):
            replaced.rename(final)
        raise InputError(f"{final}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)
