# SPDX-License-Identifier: Apache-2.0
"""The commands of `dlsim` as functions: each runs the C++ command and returns its result.

Keywords are the options of `dlsim COMMAND --help`; `help` of a function lists them. Traces and
profiles are paths, one or several. Errors are UsageError (wrong use), PolicyRefusal (a policy
refused its parameters; the result is in its `result`), InputError (a file) and TypeError.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import TYPE_CHECKING, Any

from . import _options
from ._binary import command_path
from ._child import Outcome, run_command
from ._core import Format
from ._errors import Error, InputError, PolicyRefusal, UsageError
from .results import Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

Paths = _options.PathText | Sequence[_options.PathText]

# Longer arguments go through a file: Linux limits one to 128 KiB.
_LONG_ARGUMENT = 100_000

# Exit codes of the command.
_USAGE, _INPUT = 2, 3


def replay(traces: Paths, **options: Unpack[_options.ReplayOptions]) -> Result:
    """Replays recorded gradients through formats and policies; dlsim.replay/1."""
    return _run("replay", options, _options.ReplayOptions, traces)


def sweep(traces: Paths, **options: Unpack[_options.SweepOptions]) -> Result:
    """Tries very many formats, policies and parameters in one pass; dlsim.sweep/1."""
    return _run("sweep", options, _options.SweepOptions, traces)


def tune(traces: Paths, **options: Unpack[_options.TuneOptions]) -> Result:
    """Recommends loss-scale parameters; dlsim.tune/1.

    With `emit`, the report is the configuration to paste.
    """
    return _run("tune", options, _options.TuneOptions, traces)


def profile(
    traces: Paths, output: _options.PathText, **options: Unpack[_options.ProfileOptions]
) -> Result:
    """Writes the profile `output` of a trace; the result says what it holds."""
    written = [f"--output={_options.text_of('profile: output', output)}"]
    return _run("profile", options, _options.ProfileOptions, traces, written)


def merge(profiles: Paths, output: _options.PathText) -> Result:
    """Merges profiles of parts of a trace into `output`; the result is its dlsim.info/1."""
    path = _options.text_of("merge: output", output)
    arguments = ["merge", f"--output={path}", "--", *_paths("merge", profiles)]
    with TemporaryDirectory(prefix="dlsim-") as folder:
        outcome = run_command([str(command_path()), *arguments], Path(folder) / "report")
    _raise_for(outcome, "merge", None)
    facts = info(path)
    command = ("dlsim", *arguments)
    return Result(command, facts.data, (*outcome.notes, *facts.notes), outcome.report)


def info(traces: Paths, **options: Unpack[_options.InfoOptions]) -> Result:
    """Lists what a trace or profile holds, from its headers; dlsim.info/1."""
    return _run_printed("info", options, _options.InfoOptions, _paths("info", traces))


def formats(*names: str | Format) -> Result:
    """Describes number formats, all with a name if none is given; dlsim.formats/1."""
    return _run_printed("formats", {}, (), [_options.text_of("formats", name) for name in names])


def scaler(
    policy: str | None = None,
    steps: int | None = None,
    **options: Unpack[_options.ScalerOptions],
) -> Result:
    """Runs one policy on a list of overflow steps; dlsim.scaler/1."""
    named = _options.arguments_of("scaler", ("policy", "steps"), {"policy": policy, "steps": steps})
    return _run("scaler", options, _options.ScalerOptions, (), named)


def summaries(traces: Paths, **options: Unpack[_options.SummariesOptions]) -> Result:
    """Measures sparsity, denormals, norm and histogram per tensor; dlsim.summaries/1."""
    return _run("summaries", options, _options.SummariesOptions, traces)


def accumulate(traces: Paths, **options: Unpack[_options.AccumulateOptions]) -> Result:
    """Runs the sums of a trace with narrow accumulators; dlsim.accumulate/1."""
    return _run("accumulate", options, _options.AccumulateOptions, traces)


def _paths(name: str, paths: object) -> list[str]:
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    if not isinstance(paths, Iterable):
        raise TypeError(f"{name}: expected a path or several, got {type(paths).__name__}")
    texts = []
    for path in paths:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"{name}: expected a path, got {type(path).__name__}")
        texts.append(os.fsdecode(path))
    return texts


def _run(
    name: str,
    options: Mapping[str, object],
    known: type[object],
    traces: Paths,
    more: Sequence[str] = (),
) -> Result:
    """Runs a command that writes its result to a file."""
    arguments = [
        name,
        *_options.arguments_of(name, _keywords(known), options),
        *more,
    ]
    paths = _paths(name, traces)
    with TemporaryDirectory(prefix="dlsim-") as folder:
        written = Path(folder) / "result.json"
        given = [_shortened(argument, Path(folder)) for argument in arguments]
        call = [
            str(command_path()),
            *given,
            f"--json={written}",
            *(["--", *paths] if paths else []),
        ]
        outcome = run_command(call, Path(folder) / "report")
        data = _read_json(written) if written.exists() else None
    command = ("dlsim", *arguments, *paths)
    result = None if data is None else Result(command, data, outcome.notes, outcome.report)
    _raise_for(outcome, name, result)
    if result is None:
        raise Error(f"{name}: the command wrote no result")
    return result


def _run_printed(
    name: str, options: Mapping[str, object], known: object, positional: Sequence[str]
) -> Result:
    """Runs a command that prints its result."""
    given = _options.arguments_of(name, _keywords(known), options)
    arguments = [name, *given, "--json", "--", *positional]
    with TemporaryDirectory(prefix="dlsim-") as folder:
        outcome = run_command([str(command_path()), *arguments], Path(folder) / "report")
    _raise_for(outcome, name, None)
    return Result(("dlsim", *arguments), json.loads(outcome.report), outcome.notes, "")


def _keywords(known: object) -> tuple[str, ...]:
    return tuple(getattr(known, "__annotations__", ()))


def _shortened(argument: str, folder: Path) -> str:
    """Moves a long list of steps to a file; other long arguments stay and are refused by Linux."""
    flag, _, text = argument.partition("=")
    signals = ("--overflow-at", "--absmax", "--histogram")
    if len(argument) < _LONG_ARGUMENT or flag not in signals:
        return argument
    path = folder / flag.lstrip("-")
    path.write_text(text, encoding="ascii")
    return f"{flag}=@{path}"


def _read_json(path: Path) -> Any:
    with path.open(encoding="utf-8") as file:
        return json.load(file)


def _refusal(result: Result) -> PolicyRefusal | None:
    runs = result.data.get("runs", [result.data])
    for run in runs:
        for event in run.get("events", ()):
            if event.get("step") == -1:
                refusal = PolicyRefusal(event["type"], event["message"])
                refusal.result = result
                return refusal
    return None


def _raise_for(outcome: Outcome, name: str, result: Result | None) -> None:
    """Raises the exception of an exit code that is not 0; the message is the command's."""
    if outcome.code == 0:
        return
    if outcome.code == _USAGE:
        refusal = _refusal(result) if result is not None else None
        raise refusal or UsageError(outcome.message)
    if outcome.code == _INPUT:
        raise InputError(outcome.message)
    if outcome.code < 0:
        raise Error(f"{name}: the command was ended by signal {-outcome.code}")
    raise Error(outcome.message)


# help() shows `**options` only.
for _function, _known in (
    (replay, _options.ReplayOptions),
    (sweep, _options.SweepOptions),
    (tune, _options.TuneOptions),
    (profile, _options.ProfileOptions),
    (info, _options.InfoOptions),
    (scaler, _options.ScalerOptions),
    (summaries, _options.SummariesOptions),
    (accumulate, _options.AccumulateOptions),
):
    _list = fill(f"Keywords: {', '.join(_keywords(_known))}.", 96, subsequent_indent="    ")
    _function.__doc__ = f"{_function.__doc__}\n\n    {_list}\n    "
