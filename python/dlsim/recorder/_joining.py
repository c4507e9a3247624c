# SPDX-License-Identifier: Apache-2.0
"""Names what the processes of sharded training record, and makes one trace or profile of it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from .. import _core
from ._ranks import Ranks


def shard_path(path: Path, rank: int, ranks: int, *, profile: bool) -> Path:
    """Returns where a process of sharded training records: inside `path`, or next to a profile."""
    part = f"shard-{rank:05d}-of-{ranks:05d}"
    return path.with_name(f"{path.stem}.{part}.dlprof") if profile else path / part


def next_command(given: Path, written: Path, ranks: Ranks, *, profile: bool) -> str | None:
    """Returns the command for what recorders of this path leave, "" if there is no one command.

    `written` is what this process writes. None where it does not speak for the others.
    """
    if not ranks.records or ranks.rank > 0:
        return None
    if ranks.is_shard:
        joined = given.with_name(f"joined{'.dlprof' if profile else ''}")
        return f"dlsim join-shards {shlex.quote(str(given))} -o {shlex.quote(str(joined))}"
    if ranks.kind == "separate" and profile:
        return ""
    return f"dlsim replay {shlex.quote(str(written))}"


def join_shards(path: str | os.PathLike[str], output: str | os.PathLike[str]) -> Path:
    """Writes one trace, or profile, of the shards recorded under `path`; as `dlsim join-shards`.

    `path` is what the recorders were given: a directory, or the name of a .dlprof file. The pieces
    of a tensor become one. Returns `output`. Raises InputError if a shard or a piece is missing, if
    shards hold different steps, or a piece twice; UsageError if `output` holds a trace already.
    """
    _core.join_shards(os.fspath(path), os.fspath(output))
    return Path(output)
