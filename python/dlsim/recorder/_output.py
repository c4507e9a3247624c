# SPDX-License-Identifier: Apache-2.0
"""Where a recorder writes, in which form, and what it says there about itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from .._core import __version__
from .._errors import UsageError
from ._names import class_of
from ._ranks import Ranks, process_group, shard_path
from ._sinks import DrySink, Existing, ProfileSink, Sink, TraceSink, refuse_profile, refuse_trace


def one_of(argument: str, value: object, known: tuple[str | None, ...]) -> None:
    """Raises UsageError unless `value` is one of those that are known."""
    if value not in known:
        names = ", ".join(repr(name) for name in known)
        raise UsageError(f"{argument}: unknown, expected one of {names}, got {value!r}")


@dataclass(frozen=True)
class Output:
    """A trace or profile to be opened, again and again until that succeeds."""

    path: Path
    profile: bool
    ranks: Ranks
    existing: Existing
    description: Mapping[str, Any]
    extras: Mapping[str, list[str]]  # of a profile: the keywords of ProfileWriter
    dry_run: bool

    @property
    def spill(self) -> Path | None:
        """The directory for what a step has to put aside; None for a temporary one."""
        if self.dry_run:
            return None
        if self.profile:
            return Path(f"{self.path}.spill")
        return self.path / f".spill-{self.ranks.rank if self.ranks.kind == 'separate' else 0}"

    def open(self) -> Sink:
        """Opens it. Raises UsageError if something is there already, InputError if it fails."""
        if self.dry_run:
            return DrySink(self.profile, self.extras)
        if self.profile:
            return ProfileSink(self.path, self.description, self.extras, self.existing)
        return TraceSink(self.path, self.description, self.ranks, self.existing)


def output_of(
    path: str | os.PathLike[str],
    format: str | None,
    ranks: Ranks,
    *,
    existing: Existing,
    description: Mapping[str, Any],
    extras: Mapping[str, list[str]],
    dry_run: bool,
) -> Output:
    """Returns the output of this process; raises UsageError or TypeError for bad arguments."""
    one_of("format", format, (None, "safetensors", "profile"))
    one_of("existing", existing, get_args(Existing))
    given, profile = _named(path, format)
    for argument, value in extras.items():
        if value and not profile:
            raise UsageError(f"{argument}: only a profile has them, expected format='profile'")
    for key, value in description.items():
        if not isinstance(key, str) or not (isinstance(value, str) or not profile):
            raise TypeError(f"description {key!a}: expected text, got {type(value).__name__}")
    return Output(
        path=_path_of(given, ranks, profile=profile),
        profile=profile,
        ranks=ranks,
        existing=existing,
        description=description,
        extras=extras,
        dry_run=dry_run,
    )


def _named(path: str | os.PathLike[str], format: str | None) -> tuple[Path, bool]:
    """Returns the path of a trace or profile in one process, and whether it is a profile."""
    given = Path(path)
    named = given.suffix == ".profile"
    if named and format == "safetensors":
        raise UsageError(f"{given}: is the name of a profile, expected that of a trace")
    return given, named or format == "profile"


def is_profile(path: str | os.PathLike[str], format: str | None) -> bool:
    """Returns whether a recorder with these arguments writes a profile."""
    return _named(path, format)[1]


def check_free(path: str | os.PathLike[str], options: Mapping[str, Any]) -> None:
    """Raises UsageError if a recorder with these arguments would be refused for what is there.

    For those that open it later. Only rank 0 looks, and for what it alone would write.
    """
    refuses = options.get("existing", "refuse") == "refuse" and not options.get("dry_run")
    if refuses and process_group()[0] == 0:
        place, profile = _named(path, options.get("format"))
        (refuse_profile if profile else refuse_trace)(place)


def _path_of(path: Path, ranks: Ranks, *, profile: bool) -> Path:
    if ranks.is_shard:
        return shard_path(path, ranks.rank, ranks.ranks)
    if ranks.kind == "separate" and profile:
        return path.with_name(f"{path.stem}.rank-{ranks.rank:05d}{path.suffix}")
    return path


def description_of(models: Mapping[str, Any], settings: Mapping[str, object]) -> dict[str, str]:
    """Returns what a trace says of itself; the same in every run with the same arguments."""
    return {
        "model": ", ".join(class_of(model) for model in models.values()),
        "gradients": "as they were when step() was called, still carrying grad_scale",
        "recorder": f"dlsim {__version__}",
        **{key: str(value) for key, value in settings.items() if value is not None},
    }
