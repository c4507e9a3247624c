# SPDX-License-Identifier: Apache-2.0
"""Makes one trace or profile of what the processes of sharded training recorded."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from .._core import join_profiles
from .._errors import InputError
from .._trace_writer import TraceWriter

_SHARD = re.compile(r"(?P<stem>.*)\.?shard-(?P<rank>[0-9]{5})-of-(?P<ranks>[0-9]{5})(?:\.dlprof)?")


def shard_path(path: Path, rank: int, ranks: int, *, profile: bool) -> Path:
    """Returns where a process of sharded training records: inside `path`, or beside a profile."""
    part = f"shard-{rank:05d}-of-{ranks:05d}"
    return path.with_name(f"{path.stem}.{part}.dlprof") if profile else path / part


def join_shards(path: str | os.PathLike[str], output: str | os.PathLike[str]) -> Path:
    """Writes one trace, or profile, of the shards recorded under `path`, with all their tensors.

    `path` is what the recorders were given: a directory, or the name of a .dlprof file. Returns
    `output`. Raises InputError if a shard is missing, if they hold different steps, or a tensor
    twice.
    """
    given, result = Path(path), Path(output)
    profile = given.suffix == ".dlprof"
    shards = _shards(given.parent if profile else given, given.stem if profile else "")
    if profile:
        join_profiles([str(shard) for shard in shards], str(result))
    else:
        _join_traces(shards, result)
    return result


def _shards(folder: Path, stem: str) -> list[Path]:
    found: dict[int, Path] = {}
    ranks = 0
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _SHARD.fullmatch(path.name)
        if match and match["stem"].rstrip(".") == stem:
            found[int(match["rank"])] = path
            ranks = max(ranks, int(match["ranks"]))
    for rank in range(max(ranks, 1)):
        if rank not in found:
            raise InputError(
                f"{folder}: missing shard, expected {max(ranks, 1)} shards from 0 on, but "
                f"{rank} is not there"
            )
    return [found[rank] for rank in range(ranks)]


def _join_traces(shards: list[Path], output: Path) -> None:
    files = [sorted(path.name for path in shard.glob("step-*.safetensors")) for shard in shards]
    for shard, names in zip(shards, files, strict=True):
        if names != files[0]:
            raise InputError(f"{shard}: other steps than in the first shard, expected the same")
    description = json.loads((shards[0] / "trace.json").read_text(encoding="utf-8"))
    for key in ("trace_format", "files", "steps"):
        description.pop(key, None)
    with TraceWriter(output, description) as writer:
        for name in files[0]:
            tensors, metadata = _joined_step([shard / name for shard in shards])
            micro = metadata.get("micro_step")
            writer.write(
                int(metadata["step"]),
                tensors,
                metadata,
                micro=None if micro is None else int(micro),
            )


def _joined_step(files: list[Path]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the tensors of all files, and the metadata of the first."""
    from safetensors import safe_open

    tensors: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    for path in files:
        with safe_open(path, framework="pt") as file:
            metadata = metadata or file.metadata()
            for key in file.keys():
                if key in tensors:
                    raise InputError(f"{path}: tensor {key!a} is in a shard before, expected once")
                tensors[key] = file.get_tensor(key)
    return tensors, metadata
