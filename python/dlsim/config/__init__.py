# SPDX-License-Identifier: Apache-2.0
"""Training configurations: reads the files of --config and --grid, for the engine and its callers.

Nothing here is imported before a command has one of these options.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ._dlsim import meant_by_grid
from ._meaning import Config, Options, parse_version
from ._notes import notes_on
from ._reading import (
    Source,
    input_name,
    language_of,
    one_of,
    parse,
    printable,
    quoted,
    read_text,
    refuse,
    source_of,
)
from ._stacks import dialect_of, is_known

_BACKENDS = ("csx", "gpu", "cpu")
_COMMANDS = {"replay", "sweep", "tune", "scaler"}
_OPTIONS = {"config", "config-kind", "config-version", "backend", "grid"}


def read_config(path: str, options: Options | None = None) -> Config:
    """Returns what a training configuration means; "-" is standard input.

    Raises InputError where it cannot be read, UsageError for what is wrong or not read in it.
    """
    options = options or Options()
    text = read_text(path)
    if language_of(path, text) != "shell":
        return _interpreted(source_of(parse(path, text)), options)
    from ._shell import commands_of

    return _of_commands(commands_of(path, text), options)


def _of_commands(sources: list[Source], options: Options) -> Config:
    """What the commands that train mean, which must be the same of all."""
    known = [source for source in sources if is_known(source, options)]
    if not known:
        return _interpreted(max(sources, key=lambda one: len(one.table.entries)), options)
    config = _interpreted(known[0], options)
    for source in known[1:]:
        if _interpreted(source, options) != config:
            refuse(
                f"{printable(source.table.file)}:{source.line}",
                f"another run than that of line {known[0].line}",
                "a script with one of them, or the command line itself",
            )
    return config


def _interpreted(source: Source, options: Options) -> Config:
    dialect = dialect_of(source, options)
    config = dialect.read(source, options)
    if options.backend and not dialect.has_backend:
        config.notes.append("--backend has no effect on this kind of file")
    if (config.micro_steps or 1) > 1:
        steps = config.micro_steps
        config.notes.append(
            f"training accumulates {steps} micro-steps: a trace recorded so has them; where each "
            f"recorded step is one, give --grad-accum-steps {steps}"
        )
    if not source.complete:
        config.notes.append("options in parts that only running the script would tell are not read")
    config.notes += notes_on(config, source.table)
    return config


def resolved(arguments: Sequence[str]) -> list[str]:
    """Returns a command's words with what its files mean, for the engine.

    Raises UsageError and InputError; wrong usage of options is left to the engine.
    """
    words, given = list(arguments), []
    if not words or words[0] not in _COMMANDS or {"--help", "-h"} & set(words):
        return words
    end = words.index("--") if "--" in words else len(words)
    i = 0
    while i < end:
        name, equals, value = words[i].partition("=")
        i += 1
        is_read = name.startswith("--") and name[2:] in _OPTIONS
        if not is_read or (not equals and i == end):
            continue
        if not equals:
            value, i = words[i], i + 1
        given.append((name[2:], value))
    added = [f"--{name}={text}" for name, text in meant(given)]
    return words[:end] + added + words[end:]


def meant(options: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns what the files of options mean, as further options for the engine."""
    given: dict[str, list[str]] = {name: [] for name in _OPTIONS}
    for name, text in options:
        if name in given:
            given[name].append(text)
    added = []
    paths = given["config"]
    if paths and len(set(paths)) == len(paths):
        how = _options_of(given)
        added.append(
            ("configured", json.dumps([read_config(one, how).meant(one) for one in paths]))
        )
    if given["grid"]:
        added.append(("gridded", json.dumps(meant_by_grid(given["grid"][-1]))))
    return added


def _options_of(given: dict[str, list[str]]) -> Options:
    kind, version, backend = (
        (given[name] or [""])[-1] for name in ("config-kind", "config-version", "backend")
    )
    if backend and backend not in _BACKENDS:
        refuse("--backend", "unknown name", one_of(_BACKENDS), quoted(backend))
    return Options(
        kind=kind,
        version=parse_version(version) if version else None,
        backend=backend,
    )


__all__ = ["Config", "Options", "input_name", "meant", "read_config", "resolved"]
