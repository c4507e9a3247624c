# SPDX-License-Identifier: Apache-2.0
"""Steps of a training on their way from the files of a dump into a trace or profile."""

from __future__ import annotations

import glob
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from .. import _core
from .._errors import InputError, UsageError
from .._files import replacing_directory
from .._text import counted
from .._values import Paths, PathText
from ..runs import profile
from ..traces._writer import TraceWriter, checked_grad_scale

DEEPEST = 32  # levels of nested dicts or groups
MSPROBE_FOLDER = "dump_tensor_data"  # files in it hold a tensor each
_NUMBERS = ("loss", "lr", "grad_scale")  # that dlsim knows as metadata
_TRACE_FILE = re.compile(r"step-.*\.safetensors|trace\.json|.*\.tmp")
_PROFILE_FILE = re.compile(r"step-\d+\.npz|profile\.json|.*\.tmp")
_MOST_DIGITS = 18  # step numbers are 64-bit

_RANK = re.compile(r"(?<![a-z])rank[-_.=]?(\d+)", re.IGNORECASE)
_MICRO = re.compile(r"(?<![a-z])micro(?:[-_]?(?:step|batch))?[-_.=]?(\d+)", re.IGNORECASE)
_STEP = re.compile(r"(?<![a-z])(?:global[-_]?)?(?:step|iter(?:ation)?)[-_.=]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
# A number after such a word, as in conv1, counts tensors of one step (docs/traces.md).
_LAYER = re.compile(
    r"(?:(?<![a-z])(?:fc|lin|bn|ln|mlp|h|w|b)|(?:layer|block|conv|dense|linear|norm|head|expert|"
    r"stage|attn|attention|proj|embed|embedding|encoder|decoder|weight|bias|kernel|param|parameter|"
    r"tensor|module|var|variable)s?)[-_. ]?$",
    re.IGNORECASE,
)
_Place = TypeVar("_Place")


@dataclass(frozen=True, order=True)
class Position:
    """Step, micro-step and rank (-1: not recorded), ordered as in a trace."""

    step: int
    micro: int = -1
    rank: int = -1

    def __post_init__(self) -> None:
        if self.step < 0:
            raise UsageError(f"step: expected a number from 0 on, got {self.step}")

    def __str__(self) -> str:
        text = f"step {self.step}"
        text += f", micro-step {self.micro}" if self.micro >= 0 else ""
        return text + (f", rank {self.rank}" if self.rank >= 0 else "")


def one_line(reason: object) -> str:
    """Returns a foreign message as one printable line."""
    lines = str(reason).strip().splitlines() or [type(reason).__name__]
    return "".join(c if c.isprintable() else "?" for c in lines[0][:200])


def scalars(place: object, items: Mapping[str, Any]) -> dict[str, str]:
    """Returns what dlsim knows as metadata among `items`, as text."""
    found = {}
    for key in _NUMBERS:
        value = items.get(key)
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                known = float(value)
                found[key] = checked_grad_scale(known) if key == "grad_scale" else repr(known)
            except (UsageError, OverflowError) as error:
                raise InputError(f"{place}: {error}") from error
    return found


def files_of(inputs: Paths, suffixes: Sequence[str]) -> list[Path]:
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
        files += sorted(found, key=_natural_key)
    if not files:
        raise UsageError("input: expected files, got none")
    return files


def _natural_key(path: Path) -> list[tuple[int, str]]:
    """Sorts names by the numbers in them: 9 before 10."""
    parts = re.split(r"(\d+)", os.fspath(path))
    return [(int(part), part) if part.isdigit() else (-1, part) for part in parts]


@dataclass(frozen=True)
class NumberedName:
    """A file's or group's name: the position that it gives, and the name without these numbers.

    `counts` says what the number of the step is: "step" after such a word, "folder" if that is in
    the name of a folder, "tensor" after a word for layers, as in conv1, else "record".
    """

    position: Position
    counts: str
    rest: str


def numbered_name(path: Path) -> NumberedName | None:
    """Returns what a name says of its step, or None if there is no number of one in it.

    The step is the number after "step" or "iter", or else the last number that belongs to no "rank"
    or "micro", or else that of a folder such as step_7; the rank may also be the name of a folder.
    """
    stem = path.name.split(".")[0] if path.name.count(".") == 1 else path.stem
    folders = list(reversed(path.parts[:-1]))
    rank = _RANK.search(stem) or _first(_RANK, folders[:1])
    micro = _MICRO.search(stem)
    rest = _MICRO.sub("~", _RANK.sub("~", stem))
    step = None
    if folders[:1] != [MSPROBE_FOLDER]:
        step, counts = _last(_STEP, rest), "step"
        if step is None and (step := _last(_NUMBER, rest)) is not None:
            counts = "tensor" if _LAYER.search(rest[: step.start()]) else "record"
    if step is not None:
        rest = rest[: step.start()] + "~" + rest[step.end() :]
    elif (step := _first(_STEP, folders[:3])) is not None:
        rank, counts = rank or _first(_RANK, folders[:3]), "folder"
    else:
        return None
    position = Position(
        _number(path, step[step.lastindex or 0]),
        -1 if micro is None else _number(path, micro[1]),
        -1 if rank is None else _number(path, rank[1]),
    )
    return NumberedName(position, counts, rest)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return max(pattern.finditer(text), key=lambda found: found.start(), default=None)


def _first(pattern: re.Pattern[str], names: Iterable[str]) -> re.Match[str] | None:
    return next((found for name in names if (found := pattern.fullmatch(name))), None)


def position_of(path: Path) -> Position:
    """Returns the position that a name gives. Raises InputError without one."""
    found = numbered_name(path)
    if found is None:
        raise InputError(f"{path}: no step number in the name, expected one, or --step")
    return found.position


def _number(path: Path, digits: str) -> int:
    if not digits.isascii() or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise InputError(f"{path}: not a step, rank or micro-step: {digits[:40]!r}")
    return int(digits)


def in_order(places: Iterable[tuple[Position, _Place]]) -> list[tuple[Position, _Place]]:
    """Returns places in the order of their positions; two at one position are an InputError."""
    ordered = sorted(places, key=lambda item: item[0])
    for (before, other), (position, place) in pairwise(ordered):
        if before == position:
            raise InputError(f"{place}: is {position}, as is {other}, expected one of each")
    return ordered


def _ranks_and_micro_steps(
    place: object, positions: Sequence[Position]
) -> tuple[int, Counter[int]]:
    """Returns the number of ranks, and of micro-steps by step; InputError if some are missing."""
    ranks = {position.rank for position in positions}
    if -1 in ranks and len(ranks) > 1:
        raise InputError(f"{place}: files with and without ranks, expected one kind")
    of_part = Counter(Position(position.step, position.micro) for position in positions)
    micro_steps = Counter(part.step for part in of_part if part.micro >= 0)
    for part, count in of_part.items():
        if count != len(ranks):
            raise InputError(f"{place}: {part} has {count} ranks, others have {len(ranks)}")
        if part.micro < 0 and micro_steps[part.step]:
            raise InputError(f"{place}: step {part.step} has files with and without micro-steps")
    return len(ranks), micro_steps


@dataclass(frozen=True)
class Imported:
    """What an import has written: numbers of steps and of names of tensors, and remarks."""

    path: Path
    steps: int
    first_step: int
    last_step: int
    tensors: int
    notes: tuple[str, ...]

    def __str__(self) -> str:
        steps, tensors = counted(self.steps, "steps"), counted(self.tensors, "tensors")
        return f"{self.path}: {steps} ({self.first_step} to {self.last_step}), {tensors}"


# A file of a trace: where it belongs, its contiguous tensors, and its metadata.
Part = tuple[Position, Mapping[str, Any], Mapping[str, str]]


class Import:
    """An import on its way: which tensors are taken, and the remarks and the output to come.

    `act_grad` are names of activation gradients; both it and `tensors` are one glob or several.
    """

    def __init__(
        self,
        output: PathText,
        tensors: str | Iterable[str],
        act_grad: str | Iterable[str] = (),
        *,
        grad_scale: float | None,
        force: bool,
    ) -> None:
        self._output = Path(output)
        self._tensors = (tensors,) if isinstance(tensors, str) else tuple(tensors)
        self._act_grad = (act_grad,) if isinstance(act_grad, str) else tuple(act_grad)
        scale = {} if grad_scale is None else {"grad_scale": checked_grad_scale(grad_scale)}
        self._metadata: dict[str, str] = scale
        self._force = force
        self._notes: dict[str, None] = {}
        self.roles: dict[str, str] = {}  # that a dump tells

    def note(self, remark: str) -> None:
        """Makes a remark for the user, which is shown once."""
        self._notes[remark] = None

    def takes(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._tensors)

    def role(self, name: str) -> str:
        if any(fnmatchcase(name, pattern) for pattern in self._act_grad):
            return "act_grad"
        return self.roles.get(name) or _core.role_of(name)

    def write(
        self, kind: str, place: object, positions: Iterable[Position], parts: Iterable[Part]
    ) -> Imported:
        """Writes the parts, which come in the ascending order of their positions, as the output.

        A name that ends in .profile is a profile, any other the directory of a trace; a profile is
        made of a trace that is next to it meanwhile. Raises InputError.
        """
        path = self._output
        is_profile = path.suffix == ".profile"
        extent = _ranks_and_micro_steps(place, list(positions))
        self._check_free(is_profile=is_profile)
        if not is_profile:
            with replacing_directory(path) as trace:
                steps, names = self._write_trace(trace, kind, extent, parts)
        else:
            with (
                replacing_directory(path) as made,
                TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder,
            ):
                steps, names = self._write_trace(Path(folder), kind, extent, parts)
                profile(folder, made, quiet=True)
        return Imported(path, len(steps), steps[0], steps[-1], len(names), tuple(self._notes))

    def _check_free(self, *, is_profile: bool) -> None:
        path = self._output
        if not os.path.lexists(path):
            return
        if not self._force:
            raise InputError(f"{path}: exists already, expected a new name or --force")
        held = _PROFILE_FILE if is_profile else _TRACE_FILE
        kind = "profile" if is_profile else "trace"
        if path.is_symlink() or not (
            path.is_dir() and all(held.fullmatch(p.name) and p.is_file() for p in path.iterdir())
        ):
            raise InputError(f"{path}: is no {kind} or holds more than a {kind}, so it stays")

    def _write_trace(
        self, folder: Path, kind: str, extent: tuple[int, Counter[int]], parts: Iterable[Part]
    ) -> tuple[list[int], set[str]]:
        """Returns the numbers of the steps, and the names of the tensors."""
        ranks, micro_steps = extent
        steps: dict[int, None] = {}
        names: set[str] = set()
        writer = TraceWriter(folder, {"imported_from": kind}, exist_ok=True)
        for position, tensors, metadata in parts:
            if not tensors:
                raise InputError(
                    f"{position}: no tensor to import, expected floating-point tensors"
                )
            texts = {**metadata, **self._metadata}
            if ranks > 1:  # a single rank is imported as if there were no ranks
                texts["ranks"] = str(ranks)
            if position.micro >= 0:
                texts["micro_steps"] = str(micro_steps[position.step])
            try:
                writer.write(
                    position.step,
                    dict(sorted(tensors.items())),  # the order of computing is not known
                    texts,
                    micro=position.micro if position.micro >= 0 else None,
                    rank=position.rank if ranks > 1 else None,
                )
            except UsageError as error:  # a name that no trace can hold
                raise InputError(f"{position}: {error}") from error
            steps[position.step] = None
            names |= tensors.keys()
        writer.close()
        roles = {name: self.role(name) for name in sorted(names)}
        if roles := {name: role for name, role in roles.items() if role != _core.role_of(name)}:
            path = folder / "trace.json"
            data = json.loads(path.read_text(encoding="utf-8")) | {"roles": roles}
            path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        return list(steps), names
