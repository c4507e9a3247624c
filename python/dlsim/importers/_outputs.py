# SPDX-License-Identifier: Apache-2.0
"""Where imported gradients go: a trace directory or a profile, complete or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from .. import _core
from .._errors import InputError
from .._files import replacing, replacing_directory
from ..traces._writer import TraceWriter
from ._gradients import Gradients
from ._numbering import PathText

PROFILE_SUFFIX = ".dlprof"
_TRACE_FILE = re.compile(r"step-.*\.safetensors|trace\.json|.*\.tmp")


class Output(Protocol):
    """Takes gradients in ascending order of their steps."""

    def write(self, gradients: Gradients) -> None:
        """Adds a step, or a micro-step or rank of it."""


@contextmanager
def open_output(
    output: PathText, description: Mapping[str, str], *, force: bool = False
) -> Iterator[Output]:
    """Gives an Output that appears as `output` if the block ends without error.

    A name that ends in .dlprof is a profile, any other the directory of a trace. What exists is an
    InputError, unless `force` allows to replace a file, or a directory that holds only a trace.
    """
    path = Path(output)
    if is_profile(path):
        check_file(path, force=force)
        with _profile(path, description) as writer:
            yield writer
    else:
        _check_directory(path, force=force)
        with _trace(path, description) as trace:
            yield trace


def is_profile(path: PathText) -> bool:
    """Whether an output of this name is a profile."""
    return Path(path).suffix == PROFILE_SUFFIX


def check_file(path: Path, *, force: bool) -> None:
    """Raises InputError if the file exists and may not be replaced."""
    if path.is_dir():
        raise InputError(f"{path}: is a directory, expected the name of a file")
    if os.path.lexists(path) and not force:
        raise InputError(f"{path}: exists already, expected a new name or --force")


def _check_directory(path: Path, *, force: bool) -> None:
    if not os.path.lexists(path):
        return
    if not force:
        raise InputError(f"{path}: exists already, expected a new name or --force")
    if path.is_symlink() or not path.is_dir():
        raise InputError(f"{path}: is not a directory, so it is not replaced by a trace")
    others = [p.name for p in path.iterdir() if p.is_dir() or not _TRACE_FILE.fullmatch(p.name)]
    if others:
        raise InputError(f"{path}: holds more than a trace ({others[0]}), so it is not replaced")


class _TraceOutput:
    def __init__(self, directory: Path, description: Mapping[str, str]) -> None:
        self._directory = directory
        self._roles: dict[str, str] = {}
        self._writer = TraceWriter(directory, dict(description), exist_ok=True)

    def write(self, gradients: Gradients) -> None:
        position = gradients.position
        for name, role in gradients.roles.items():
            if role != _core.role_of(name):
                self._roles[name] = role
        self._writer.write(
            position.step,
            dict(sorted(gradients.tensors.items())),  # the order of computing is not known
            gradients.metadata,
            micro=position.micro,
            rank=position.rank,
        )

    def close(self) -> None:
        self._writer.close()
        if not self._roles:
            return
        path = self._directory / "trace.json"
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        data["roles"] = self._roles
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


@contextmanager
def _trace(path: Path, description: Mapping[str, str]) -> Iterator[Output]:
    with replacing_directory(path) as temporary:
        trace = _TraceOutput(temporary, description)
        yield trace
        trace.close()


class _ProfileOutput:
    def __init__(self, writer: _core.ProfileWriter) -> None:
        self._writer = writer
        self._step: int | None = None
        self._parts: list[Any] = []

    def write(self, gradients: Gradients) -> None:
        position = gradients.position
        if position.rank is not None:
            raise InputError(
                f"{position}: a profile takes the gradients of one rank; import the ranks into a "
                "trace, then run dlsim profile, which reduces them"
            )
        if position.step != self._step:
            self._flush()
        self._step = position.step
        scale = float(gradients.metadata.get("grad_scale", "1"))
        tensors = [
            (name, gradients.roles.get(name) or _core.role_of(name), values)
            for name, values in gradients.tensors.items()
        ]
        micro = -1 if position.micro is None else position.micro
        self._parts.append((micro, scale, gradients.metadata, tensors))

    def close(self) -> None:
        self._flush()
        self._writer.commit()

    def _flush(self) -> None:
        if self._step is not None:
            self._writer.append(self._step, self._parts)
        self._parts = []


@contextmanager
def open_profile(path: Path, description: Mapping[str, str]) -> Iterator[_core.ProfileWriter]:
    """Gives a writer of a profile, which the block commits; else nothing of it is left."""
    with replacing(path) as temporary:
        partial = temporary.with_name(temporary.name + ".partial")
        try:
            yield _core.ProfileWriter(os.fspath(temporary), dict(description))
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def _profile(path: Path, description: Mapping[str, str]) -> Iterator[Output]:
    with open_profile(path, description) as writer:
        profile = _ProfileOutput(writer)
        yield profile
        profile.close()
