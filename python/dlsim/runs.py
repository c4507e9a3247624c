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
from inspect import cleandoc
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import indent
from typing import TYPE_CHECKING

from . import _bridge, _command_options
from ._command_options import PathText
from ._core import Format
from ._errors import UsageError
from ._options import arguments_of, help_of, text_of
from ._scalar_logs import is_event_log, write_scales
from .results import Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

Paths = PathText | Sequence[PathText]


def replay(traces: Paths, **options: Unpack[_command_options.ReplayOptions]) -> Result:
    """Replays recorded gradients through formats and policies; dlsim.replay/1."""
    return _run("replay", options, traces)


def sweep(traces: Paths, **options: Unpack[_command_options.SweepOptions]) -> Result:
    """Tries very many formats, policies and parameters in one pass; dlsim.sweep/1."""
    return _run("sweep", options, traces)


def tune(traces: Paths, **options: Unpack[_command_options.TuneOptions]) -> Result:
    """Recommends loss-scale parameters; dlsim.tune/1.

    With `emit`, the report is the configuration to paste.
    """
    return _run("tune", options, traces)


def diff(a: PathText, b: PathText, **options: Unpack[_command_options.DiffOptions]) -> Result:
    """Compares two traces or profiles of one model, tensor by tensor; dlsim.diff/1."""
    return _run("diff", options, (a, b))


def explain(
    logs: Paths,
    *,
    tag: str | None = None,
    **options: Unpack[_command_options.ExplainOptions],
) -> Result:
    """Tells what a training log says of its loss scale, without a trace; dlsim.explain/1.

    Beside the files of the command, `logs` may be TensorBoard's: an event file, or the directory of
    one run, where `tag` is that of the scale (default: the one that is named so).
    """
    with TemporaryDirectory(prefix="dlsim-") as folder:
        paths = [
            _readable(path, Path(folder) / f"{i}.csv", tag)
            for i, path in enumerate(_paths("explain", logs))
        ]
        return _run("explain", options, paths)


def profile(
    traces: Paths, output: PathText, **options: Unpack[_command_options.ProfileOptions]
) -> Result:
    """Writes the profile `output` of a trace; the result says what it holds."""
    return _run("profile", {**options, "output": output}, traces)


def merge(profiles: Paths, output: PathText, *, partial: bool = False) -> Result:
    """Merges profiles of parts of a trace into `output`; the result is its dlsim.info/1.

    With `partial`, profiles may hold the same steps.
    """
    path = text_of("merge: output", output)
    options = ["--partial"] if partial else []
    arguments = ["merge", f"--output={path}", *options, "--", *_paths("merge", profiles)]
    merged = _bridge.run(arguments, writes_json=False)
    merged.check()
    facts = info(path)
    return Result(merged.command, facts.data, (*merged.notes, *facts.notes), merged.report)


def info(traces: Paths, **options: Unpack[_command_options.InfoOptions]) -> Result:
    """Lists what a trace or profile holds, from its headers; dlsim.info/1."""
    return _run_printed(["info", *arguments_of("info", options)], _paths("info", traces))


def formats(*names: str | Format) -> Result:
    """Describes number formats, all with a name if none is given; dlsim.formats/1."""
    return _run_printed(["formats"], [text_of("formats", name) for name in names])


def scaler(
    policy: str | None = None,
    steps: int | None = None,
    **options: Unpack[_command_options.ScalerOptions],
) -> Result:
    """Runs one policy on a list of overflow steps; dlsim.scaler/1."""
    return _run("scaler", {**options, "policy": policy, "steps": steps}, ())


def summaries(traces: Paths, **options: Unpack[_command_options.SummariesOptions]) -> Result:
    """Measures sparsity, denormals, norm and histogram per tensor; dlsim.summaries/1."""
    return _run("summaries", options, traces)


def accumulate(traces: Paths, **options: Unpack[_command_options.AccumulateOptions]) -> Result:
    """Runs the sums of a trace with narrow accumulators; dlsim.accumulate/1."""
    return _run("accumulate", options, traces)


def _readable(path: str, scales: Path, tag: str | None) -> str:
    """Returns a log that the command reads: of an event log, its scales as CSV."""
    if not is_event_log(path):
        if tag is not None:
            raise UsageError(f"tag: expected an event log of TensorBoard, got {path!r}")
        return path
    write_scales(path, scales, tag)
    return str(scales)


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


def _run(name: str, options: Mapping[str, object], traces: Paths) -> Result:
    """Runs a command that writes its result to a file."""
    return _bridge.run([name, *arguments_of(name, options)], _paths(name, traces)).result()


def _run_printed(arguments: Sequence[str], positional: Sequence[str]) -> Result:
    """Runs a command that prints its result."""
    found = _bridge.run([*arguments, "--json", "--", *positional], writes_json=False)
    found.check()
    return Result(found.command, json.loads(found.report), found.notes)


# help() shows `**options` only.
for _name in _command_options.KEYWORDS:
    _function = globals()[_name]
    _help = indent(help_of(_name), "  ")
    _function.__doc__ = f"{cleandoc(_function.__doc__ or '')}\n\nKeywords:\n{_help}\n"
