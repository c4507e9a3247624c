# SPDX-License-Identifier: Apache-2.0
"""Which step, rank and micro-step a file holds, told by its name, and which files are given."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .._errors import InputError, UsageError

PathText = str | os.PathLike[str]

_RANK = re.compile(r"(?<![a-z])rank[-_.=]?(\d+)", re.IGNORECASE)
_MICRO = re.compile(r"(?<![a-z])micro(?:[-_]?(?:step|batch))?[-_.=]?(\d+)", re.IGNORECASE)
_STEP = re.compile(r"(?<![a-z])(?:global[-_]?)?(?:step|iter(?:ation)?)[-_.=]?(\d+)", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")
# Step numbers are 64-bit.
_MOST_DIGITS = 18


@dataclass(frozen=True, order=True)
class Position:
    """Step, micro-step and rank; None where there is none."""

    step: int
    micro: int | None = None
    rank: int | None = None

    def sort_key(self) -> tuple[int, int, int]:
        """Orders positions as a trace does."""
        return (
            self.step,
            -1 if self.micro is None else self.micro,
            -1 if self.rank is None else self.rank,
        )

    def __str__(self) -> str:
        text = f"step {self.step}"
        text += "" if self.micro is None else f", micro-step {self.micro}"
        return text + ("" if self.rank is None else f", rank {self.rank}")


def files_of(inputs: PathText | Iterable[PathText], suffixes: Sequence[str]) -> list[Path]:
    """Returns the files that `inputs` name: files, directories with all below, or globs.

    Of a directory only files with one of `suffixes` are taken; in natural order of their paths.
    """
    given = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
    files: list[Path] = []
    for item in given:
        path = Path(item)
        if path.is_dir():
            found = [p for s in suffixes for p in path.rglob(f"*{s}") if p.is_file()]
            if not found:
                raise InputError(f"{path}: no files {', '.join(f'*{s}' for s in suffixes)} in it")
        elif path.exists():
            found = [path]
        else:
            found = [Path(p) for p in glob.glob(os.fspath(item), recursive=True)]
            if not found:
                raise InputError(f"{path}: no such file or directory")
        for each in found:
            if each.exists() and not each.is_file():  # a pipe would wait for its writer
                raise InputError(f"{each}: not a regular file, expected one")
        files += sorted(found, key=natural_key)
    if not files:
        raise UsageError("input: expected files, got none")
    return files


def natural_key(path: Path) -> list[tuple[int, str]]:
    """Sorts names by the numbers in them: 9 before 10."""
    parts = re.split(r"(\d+)", os.fspath(path))
    return [(int(part), part) if part.isdigit() else (-1, part) for part in parts]


def position_of(path: Path, pattern: re.Pattern[str] | None = None) -> Position:
    """Returns the position that a file's name gives.

    Without `pattern` the step is the number after "step" or "iter", or else the last number that
    belongs to no "rank" or "micro"; the rank may also be the name of the file's directory. A
    pattern has a group `step`, and may have `rank` and `micro`.
    """
    if pattern is not None:
        return _position_by(path, pattern)
    stem = path.name.split(".")[0] if path.name.count(".") == 1 else path.stem
    rank = _RANK.search(stem) or _RANK.fullmatch(path.parent.name)
    micro = _MICRO.search(stem)
    rest = _MICRO.sub("~", _RANK.sub("~", stem))
    steps = _STEP.findall(rest) or _DIGITS.findall(rest)
    if not steps:
        raise InputError(
            f"{path}: no step number in the name, expected one, or --step or --step-pattern"
        )
    return Position(
        _number(path, steps[-1]),
        None if micro is None else _number(path, micro[1]),
        None if rank is None else _number(path, rank[1]),
    )


def step_pattern(text: str | None) -> re.Pattern[str] | None:
    """Compiles the regular expression of --step-pattern. Raises UsageError."""
    if text is None:
        return None
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UsageError(f"step pattern: {error}, expected a regular expression") from error
    if "step" not in pattern.groupindex:
        raise UsageError("step pattern: expected a group (?P<step>...), got none of that name")
    return pattern


def _position_by(path: Path, pattern: re.Pattern[str]) -> Position:
    found = pattern.search(path.as_posix())
    if found is None:
        raise InputError(f"{path}: the step pattern does not match this path")
    groups = found.groupdict()
    numbers = {
        key: None if groups.get(key) is None else _number(path, groups[key])
        for key in ("step", "micro", "rank")
    }
    if numbers["step"] is None:
        raise InputError(f"{path}: the step pattern finds no step")
    return Position(numbers["step"], numbers["micro"], numbers["rank"])


def _number(path: Path, digits: str) -> int:
    if not digits.isascii() or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise InputError(f"{path}: not a step, rank or micro-step: {digits[:40]!r}")
    return int(digits)


def without_repeats(files: Iterable[tuple[Position, Path]]) -> Iterator[tuple[Position, Path]]:
    """Yields files in the order of their positions; two at one position are an InputError."""
    ordered = sorted(files, key=lambda item: item[0].sort_key())
    for i, (position, path) in enumerate(ordered):
        if i and ordered[i - 1][0] == position:
            raise InputError(f"{path}: is {position}, as is {ordered[i - 1][1]}")
        yield position, path
