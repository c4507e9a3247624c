# SPDX-License-Identifier: Apache-2.0
"""Names what the processes of a training record, and the command that replays it."""

from __future__ import annotations

import shlex
from pathlib import Path

from ._ranks import Ranks


def shard_path(path: Path, rank: int, ranks: int) -> Path:
    """Returns where a process of sharded training records: inside `path`."""
    return path / f"shard-{rank:05d}-of-{ranks:05d}"


def next_command(given: Path, written: Path, ranks: Ranks, *, profile: bool) -> str | None:
    """Returns the command for what recorders of this path leave, "" if there is no one command.

    `written` is what this process writes. None where it does not speak for the others.
    """
    if not ranks.records or ranks.rank > 0:
        return None
    if ranks.is_shard:
        return f"dlsim replay {shlex.quote(str(given))}"
    if ranks.kind == "separate" and profile:
        return ""
    return f"dlsim replay {shlex.quote(str(written))}"
