# SPDX-License-Identifier: Apache-2.0
"""Names what the processes of sharded training record, and makes one trace or profile of it."""

from __future__ import annotations

import os
from pathlib import Path

from .. import _core


def shard_path(path: Path, rank: int, ranks: int, *, profile: bool) -> Path:
    """Returns where a process of sharded training records: inside `path`, or next to a profile."""
    part = f"shard-{rank:05d}-of-{ranks:05d}"
    return path.with_name(f"{path.stem}.{part}.dlprof") if profile else path / part


def join_shards(path: str | os.PathLike[str], output: str | os.PathLike[str]) -> Path:
    """Writes one trace, or profile, of the shards recorded under `path`; as `dlsim join-shards`.

    `path` is what the recorders were given: a directory, or the name of a .dlprof file. The pieces
    of a tensor become one. Returns `output`. Raises InputError if a shard or a piece is missing, if
    shards hold different steps, or a piece twice; UsageError if `output` holds a trace already.
    """
    _core.join_shards(os.fspath(path), os.fspath(output))
    return Path(output)
