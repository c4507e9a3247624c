# SPDX-License-Identifier: Apache-2.0
"""Steps of a training on their way from the files of a dump into a trace or profile.

Which files are given, which step, rank and micro-step each holds, which tensors are taken, and the
output, which appears complete or not at all.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .. import _core
from .._errors import InputError, UsageError
from .._files import replacing, replacing_directory
from .._text import counted
from ..runs import profile
from ..traces._writer import TraceWriter, checked_grad_scale

PathText = str | os.PathLike[str]

NUMBERS = ("loss", "lr", "grad_scale")  # that dlsim knows as metadata
PROFILE_SUFFIX = ".dlprof"
_TRACE_FILE = re.compile(r"step-.*\.safetensors|trace\.json|.*\.tmp")
_MOST_DIGITS = 18  # step numbers are 64-bit
MSPROBE_FOLDER = "dump_tensor_data"  # files in it hold a tensor each

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


@dataclass(frozen=True)
class Position:
    """Step, micro-step and rank; None where there is none."""

    step: int
    micro: int | None = None
    rank: int | None = None

    def sort_key(self) -> tuple[int, int, int]:
        """Orders positions as a trace does."""
        micro = -1 if self.micro is None else self.micro
        return self.step, micro, -1 if self.rank is None else self.rank

    def __str__(self) -> str:
        text = f"step {self.step}"
        text += "" if self.micro is None else f", micro-step {self.micro}"
        return text + ("" if self.rank is None else f", rank {self.rank}")


@dataclass
class Gradients:
    """What a file of a trace holds: the tensors of a step, or of one micro-step or rank of it.

    Tensors are contiguous arrays of float16, float32, float64 or bfloat16. `roles` are those that
    do not follow from their names.
    """

    position: Position
    tensors: Mapping[str, Any]
    roles: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Selection:
    """Which tensors are imported, and which of them are activation gradients: globs of names."""

    tensors: Sequence[str]
    act_grad: Sequence[str]

    def takes(self, name: str) -> bool:
        """Whether the tensor is imported."""
        return any(fnmatchcase(name, pattern) for pattern in self.tensors)

    def role(self, name: str) -> str:
        """The role of the tensor."""
        chosen = any(fnmatchcase(name, pattern) for pattern in self.act_grad)
        return "act_grad" if chosen else _core.role_of(name)


def selection(tensors: str | Iterable[str], act_grad: str | Iterable[str] = ()) -> Selection:
    """Returns a Selection of one glob or several each."""
    return Selection(
        (tensors,) if isinstance(tensors, str) else tuple(tensors),
        (act_grad,) if isinstance(act_grad, str) else tuple(act_grad),
    )


class Notes:
    """Remarks for the user, each once, with how often it was made."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, remark: str) -> None:
        """Makes a remark."""
        self._counts[remark] += 1

    def lines(self) -> tuple[str, ...]:
        """Returns all remarks in the order of their first appearance."""
        return tuple(
            text if count == 1 else f"{text} ({count} times)"
            for text, count in self._counts.items()
        )


def one_line(reason: object) -> str:
    """Returns a foreign message as one printable line."""
    lines = str(reason).strip().splitlines() or [type(reason).__name__]
    return "".join(c if c.isprintable() else "?" for c in lines[0][:200])


def scale_metadata(grad_scale: float | None) -> dict[str, str]:
    """Returns the metadata of gradients that still carry a loss scale. Raises UsageError."""
    return {} if grad_scale is None else {"grad_scale": checked_grad_scale(grad_scale)}


def scalars(place: object, items: Mapping[str, Any]) -> dict[str, str]:
    """Returns the NUMBERS among `items`, as text."""
    found = {}
    for key in NUMBERS:
        value = items.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[key] = repr(float(value))
    try:
        return found | scale_metadata(float(found["grad_scale"]) if "grad_scale" in found else None)
    except UsageError as error:
        raise InputError(f"{place}: {error}") from error


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
        files += sorted(found, key=_natural_key)
    if not files:
        raise UsageError("input: expected files, got none")
    return files


def _natural_key(path: Path) -> list[tuple[int, str]]:
    """Sorts names by the numbers in them: 9 before 10."""
    parts = re.split(r"(\d+)", os.fspath(path))
    return [(int(part), part) if part.isdigit() else (-1, part) for part in parts]


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


@dataclass(frozen=True)
class NumberedName:
    """A file's or group's name: the position that it gives, and the name without these numbers.

    `counts` says what the number of the step is: "step" after such a word, "folder" if that is in
    the name of a folder, "tensor" after a word for layers, as in conv1, else "record".
    """

    position: Position
    counts: str
    rest: str


def numbered_name(path: Path, pattern: re.Pattern[str] | None = None) -> NumberedName | None:
    """Returns what a name says of its step, or None if there is no number of one in it.

    Without `pattern` the step is the number after "step" or "iter", or else the last number that
    belongs to no "rank" or "micro", or else that of a folder such as step_7; the rank may also be
    the name of a folder. A pattern has a group `step`, and may have `rank` and `micro`.
    """
    stem = path.name.split(".")[0] if path.name.count(".") == 1 else path.stem
    folders = list(reversed(path.parts[:-1]))
    if pattern is not None:
        return NumberedName(_position_by(path, pattern), "step", stem)
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
        None if micro is None else _number(path, micro[1]),
        None if rank is None else _number(path, rank[1]),
    )
    return NumberedName(position, counts, rest)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return max(pattern.finditer(text), key=lambda found: found.start(), default=None)


def _first(pattern: re.Pattern[str], names: Iterable[str]) -> re.Match[str] | None:
    return next((found for name in names if (found := pattern.fullmatch(name))), None)


def position_of(path: Path, pattern: re.Pattern[str] | None = None) -> Position:
    """Returns the position that a name gives. Raises InputError without one."""
    found = numbered_name(path, pattern)
    if found is None:
        raise InputError(
            f"{path}: no step number in the name, expected one, or --step or --step-pattern"
        )
    return found.position


def _position_by(path: Path, pattern: re.Pattern[str]) -> Position:
    found = pattern.search(path.as_posix())
    if found is None:
        raise InputError(f"{path}: the step pattern does not match this path")
    numbers = {
        key: None if text is None else _number(path, text)
        for key, text in found.groupdict().items()
        if key in ("step", "micro", "rank")
    }
    if numbers["step"] is None:
        raise InputError(f"{path}: the step pattern finds no step")
    return Position(numbers["step"], numbers.get("micro"), numbers.get("rank"))


def _number(path: Path, digits: str) -> int:
    if not digits.isascii() or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise InputError(f"{path}: not a step, rank or micro-step: {digits[:40]!r}")
    return int(digits)


def by_position(files: Iterable[tuple[Position, Path]]) -> list[tuple[Position, Path]]:
    """Returns files in the order of their positions; two at one position are an InputError."""
    ordered = sorted(files, key=lambda item: item[0].sort_key())
    for (before, other), (position, path) in pairwise(ordered):
        if before == position:
            raise InputError(f"{path}: is {position}, as is {other}, expected one file of each")
    return ordered


class Layout:
    """How the files of a trace belong together: which ranks and micro-steps each step has.

    A single rank is imported as if there were no ranks. Raises InputError if ranks or micro-steps
    are missing somewhere.
    """

    def __init__(self, place: object, positions: Iterable[Position]) -> None:
        positions = list(positions)
        ranks = {position.rank for position in positions}
        if None in ranks and len(ranks) > 1:
            raise InputError(f"{place}: files with and without ranks, expected one kind")
        self._ranks = len(ranks)
        self._micro_steps: Counter[int] = Counter()
        for step, micro in {(position.step, position.micro) for position in positions}:
            self._micro_steps[step] += micro is not None
        of_part = Counter((position.step, position.micro) for position in positions)
        for (step, micro), count in of_part.items():
            if count != self._ranks:
                part = Position(step, micro)
                raise InputError(f"{place}: {part} has {count} ranks, others have {self._ranks}")
            if micro is None and self._micro_steps[step]:
                raise InputError(f"{place}: step {step} has files with and without micro-steps")

    def placed(self, gradients: Gradients) -> Gradients:
        """Returns gradients with the metadata that say how many ranks and micro-steps there are."""
        position = gradients.position
        metadata = dict(gradients.metadata)
        if self._ranks == 1:
            position = replace(position, rank=None)
        else:
            metadata["ranks"] = str(self._ranks)
        if position.micro is not None:
            metadata["micro_steps"] = str(self._micro_steps[position.step])
        return replace(gradients, position=position, metadata=metadata)


@dataclass(frozen=True)
class Imported:
    """What an import has written: `steps` from `first_step` to `last_step` of `tensors` tensors.

    `tensors` counts different names; `notes` are remarks, one line each.
    """

    path: Path
    steps: int
    first_step: int
    last_step: int
    tensors: int
    notes: tuple[str, ...]

    def __str__(self) -> str:
        steps, tensors = counted(self.steps, "steps"), counted(self.tensors, "tensors")
        return f"{self.path}: {steps} ({self.first_step} to {self.last_step}), {tensors}"


def write_all(
    kind: str, output: PathText, items: Iterable[Gradients], notes: Notes, *, force: bool
) -> Imported:
    """Writes gradients, which come in ascending order, as `output`.

    A name that ends in .dlprof is a profile, any other the directory of a trace; a profile is made
    of a trace that is next to it meanwhile. Raises InputError if there are no gradients, and for
    an output that exists, unless `force` allows to replace a file, or a directory that holds only
    a trace.
    """
    path = Path(output)
    is_profile = path.suffix == PROFILE_SUFFIX
    _check_free(path, is_profile=is_profile, force=force)
    if not is_profile:
        with replacing_directory(path) as trace:
            written = _write_trace(kind, trace, items)
    else:
        with (
            replacing(path) as temporary,
            TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder,
        ):
            written = _write_trace(kind, Path(folder), items)
            profile(folder, Path(folder) / path.name, quiet=True)
            os.replace(Path(folder) / path.name, temporary)
    steps, names = written
    return Imported(path, len(steps), steps[0], steps[-1], len(names), notes.lines())


def _check_free(path: Path, *, is_profile: bool, force: bool) -> None:
    if is_profile and path.is_dir():
        raise InputError(f"{path}: is a directory, expected the name of a file")
    if not os.path.lexists(path):
        return
    if not force:
        raise InputError(f"{path}: exists already, expected a new name or --force")
    if is_profile:
        return
    if path.is_symlink() or not path.is_dir():
        raise InputError(f"{path}: is not a directory, so it is not replaced by a trace")
    others = [p.name for p in path.iterdir() if p.is_dir() or not _TRACE_FILE.fullmatch(p.name)]
    if others:
        raise InputError(f"{path}: holds more than a trace ({others[0]}), so it is not replaced")


def _write_trace(
    kind: str, directory: Path, items: Iterable[Gradients]
) -> tuple[list[int], set[str]]:
    """Returns the numbers of the steps, and the names of the tensors."""
    steps: dict[int, None] = {}
    names: set[str] = set()
    roles: dict[str, str] = {}
    writer = TraceWriter(directory, {"imported_from": kind}, exist_ok=True)
    for gradients in items:
        position = gradients.position
        if not gradients.tensors:
            raise InputError(
                f"{position}: no tensor is left, expected gradients; choose others "
                "with --tensors or --key"
            )
        try:
            writer.write(
                position.step,
                dict(sorted(gradients.tensors.items())),  # the order of computing is not known
                gradients.metadata,
                micro=position.micro,
                rank=position.rank,
            )
        except UsageError as error:  # a name that no trace can hold
            raise InputError(f"{position}: {error}") from error
        steps[position.step] = None
        names |= gradients.tensors.keys()
        roles |= {n: role for n, role in gradients.roles.items() if role != _core.role_of(n)}
    if not steps:
        raise InputError("input: nothing to import, expected at least one step")
    writer.close()
    if roles:
        path = directory / "trace.json"
        data = json.loads(path.read_text(encoding="utf-8")) | {"roles": roles}
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return list(steps), names
