# SPDX-License-Identifier: Apache-2.0
"""JSON lines on the disk, one for each training or its figures, so that a study can go on later."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from grid import Setting

Line = dict[str, Any]
Key = tuple[str, int, str, str]  # model, seed, format, under; no format is float32


def key_of(line: Line) -> Key:
    """Returns what a line is about."""
    return line["model"], line["seed"], line["format"], line["under"]


def head(name: str, seed: int, setting: Setting) -> Line:
    """Returns the beginning of a line."""
    return {"model": name, "seed": seed, "format": setting.format, "under": setting.under}


def read(path: Path) -> list[Line]:
    """Returns the lines of a file; none if there is no file, without one that was cut off."""
    found = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return found


def append(
    path: Path,
    names: Iterable[str],
    seeds: Iterable[int],
    chosen: list[Setting],
    make: Callable[[str, int, list[Setting]], Iterable[Line]],
) -> None:
    """Appends what `make(model, seed, settings)` yields for the settings that are missing."""
    done = {key_of(line) for line in read(path)}
    names = list(names)
    with path.open("a") as file:
        for seed in seeds:
            for name in names:
                missing = [s for s in chosen if (name, seed, s.format, s.under) not in done]
                if not missing:
                    continue
                begin = time.monotonic()
                for line in make(name, seed, missing):
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                seconds = time.monotonic() - begin
                print(f"{path.stem}: {name}, seed {seed}: {seconds:.0f} s", file=sys.stderr)
