# SPDX-License-Identifier: Apache-2.0
"""Makes runs/_command_options.py from the options of the command: generate_options.py COMMAND OUT

COMMAND is the folder of the module _core, which has the command, or the program dlsim. OUT has a
function for each command, with a keyword for each option: the option's name with `_`, in the plural
if it may be given several times. Its type follows from what stands for its value in `dlsim COMMAND
--help`, or is the names that the command takes; its help is the command's, in words of Python. The
tables below have the exceptions; an option that is in none of them needs nothing here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from textwrap import fill, indent
from typing import Any, NamedTuple


class _Function(NamedTuple):
    """A function of dlsim.runs: its parameters, what it returns and calls, its help."""

    parameters: str
    result: str
    call: str
    summary: str


_TRACES = "traces: Paths"
_FUNCTIONS = {
    "replay": _Function(
        *(_TRACES, "JudgedResult", 'judge("replay", traces, options)'),
        "Replays recorded gradients through formats and policies; dlsim.replay/1.",
    ),
    "sweep": _Function(
        *(_TRACES, "Result", 'run("sweep", traces, options)'),
        "Tries very many formats, policies and parameters in one pass; dlsim.sweep/1.",
    ),
    "tune": _Function(
        *(_TRACES, "JudgedResult", 'judge("tune", traces, options)'),
        "Recommends loss-scale parameters; dlsim.tune/1.\n\n"
        "With `emit`, the report is the configuration to paste.",
    ),
    "diff": _Function(
        *("a: PathText, b: PathText", "Result", 'run("diff", (a, b), options)'),
        "Compares two traces or profiles of one model, tensor by tensor; dlsim.diff/1.",
    ),
    "profile": _Function(
        *(f"{_TRACES}, output: PathText", "Result", 'run("profile", traces, options)'),
        "Writes the profile `output` of a trace; the result says what it holds.",
    ),
    "info": _Function(
        *(_TRACES, "Result", "_info(traces, options)"),
        "Lists what a trace or profile holds, from its headers; dlsim.info/1.",
    ),
    "scaler": _Function(
        *("policy: str | None = None, steps: int | None = None", "Result"),
        'run("scaler", (), options)',
        "Runs one policy on a list of overflow steps; dlsim.scaler/1.",
    ),
}
# Options that functions give by themselves, and parameters with a place of their own.
_ABSENT = {"json", "list", "configured", "gridded"}
_PLACED = {"profile": {"output"}, "scaler": {"policy", "steps"}}
# Names that do not follow the rule.
_PLURALS = {"set": "settings", "policy": "policies"}
_NO_PLURAL = {"config", "expect", "float32", "state", "vary"}
# Lists whose values are pairs such as BIN:COUNT.
_PAIR_LISTS = {"histogram"}

# Types by what stands for a value in the help, else those by the way in which it is written.
_ONE = {
    "FILE": "PathText | None",
    "N": "int | None",
    "S": "Number | None",
    "STEP": "int | None",
    "X": "Number | None",
    "F": "FormatName | None",
}
_EACH = {
    "FILE": "PathText | Sequence[PathText] | None",
    "N": "int | Sequence[int] | None",
    "F": "FormatNames | None",
}
_MAPPINGS = {"KEY=VALUE": "Settings | None", "NAME=GLOB": "Mapping[str, str] | None"}
_KINDS = {
    "one": "str | None",
    "each": "Names | None",
    "list": "Number | Sequence[Number] | None",
    "pairs": "str | tuple[str, str] | Sequence[str | tuple[str, str]] | None",
    "pair_list": "str | Sequence[str | tuple[int, int]] | None",
    "part_of": "str | tuple[int, int] | None",
    "mapping": "Mapping[str, Number | Sequence[Number]] | None",
    "if_true": "bool",
    "true_or_one": "bool | int",
}

# Placeholders of names: where there are few, they are the type.
_NAMED = {"BY", "KIND", "MODE", "NAME", "RULE", "STACK", "bf16"}
_MOST_NAMES = 16

# What the command says of options, in words of Python; the first that matches is replaced.
_WORDS = (
    (r"; '?-'? (?:is|for) standard (?:input|output)", ""),
    (r"[,;] (?:separated by commas or blanks; )?@FILE reads a file", ""),
    (r"; --heat-map=BINS for another number", "; or the number of bins"),
    (r" --format, --policy and --set override it", " formats, policies and settings override it"),
    (r"[,;] repeatable", ", one or several"),
    (r"; if it is not so, exit with code 1 and a line on standard error", ""),
    (r"see dlsim formats", "see dlsim.format_names()"),
    (r"see (?:dlsim scaler )?--list", "see dlsim.policy_names()"),
    (r"; required without --list", ""),
    (r"POLICY\.KEY=VALUE sets it for one", "'POLICY.KEY' sets it for one"),
    (r"\bdlsim (merge|replay|sweep|tune|profile)\b", r"dlsim.\1"),
    (r"Print JSON; with --json FILE.json, write it to that file", "Print JSON"),
)

_HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
"""`dlsim.replay` and the others, made from the options of the command by generate_options.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from .._values import (
    FormatName,
    FormatNames,
    Keyword,
    Names,
    Number,
    Paths,
    PathText,
    Settings,
)
from ..results import JudgedResult, Result
from ._calls import command, judge, run
from ._calls import info as _info
'''


class _Option(NamedTuple):
    keyword: str
    flag: str
    kind: str
    type: str
    help: str


def _kind(option: Mapping[str, Any]) -> str:
    name, value = option["name"], option["value"]
    if value is None:
        return "if_true"
    if option["optional_value"]:
        return "true_or_one"
    if option["repeatable"]:
        return "mapping" if "=" in value else "pairs" if ":" in value else "each"
    if value == "LIST":
        return "pair_list" if name in _PAIR_LISTS else "list"
    return "part_of" if value == "I/N" else "one"


def _keyword(option: Mapping[str, Any]) -> str:
    name = str(option["name"])
    if option["repeatable"] and name not in _NO_PLURAL:
        name = _PLURALS.get(name, name + "s")
    return name.replace("-", "_")


def _type(option: Mapping[str, Any]) -> str:
    kind, value, names = _kind(option), option["value"], option["values"]
    if kind == "one" and value in _NAMED and 0 < len(names) <= _MOST_NAMES:
        return f"Literal[{', '.join(json.dumps(name) for name in names)}] | None"
    types = {"one": _ONE, "each": _EACH, "mapping": _MAPPINGS}
    return types.get(kind, {}).get(value, _KINDS[kind])


def _help(text: str, keywords: Mapping[str, str]) -> str:
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    # An option that a text names is the keyword, its value an argument.
    named = re.compile(r"--([a-z]+(?:-[a-z]+)*)")
    return named.sub(lambda found: keywords.get(found[1], found[1].replace("-", "_")), text)


def _options(options: Iterable[Mapping[str, Any]]) -> list[_Option]:
    kept = [option for option in options if option["name"] not in _ABSENT]
    keywords = {option["name"]: _keyword(option) for option in kept}
    return [
        _Option(
            _keyword(option),
            f"--{option['name']}",
            _kind(option),
            _type(option),
            _help(option["help"], keywords),
        )
        for option in kept
    ]


def _table(options: Mapping[str, Iterable[_Option]]) -> str:
    lines = ["\n\nKEYWORDS: dict[str, dict[str, Keyword]] = {\n"]
    for function, of_function in options.items():
        lines.append(f"    {function!r}: {{\n")
        for o in of_function:
            lines.append(f"        {o.keyword!r}: Keyword({o.flag!r}, {o.kind!r}, {o.help!r}),\n")
        lines.append("    },\n")
    return "".join([*lines, "}\n"])


def _parameter(option: _Option) -> str:
    defaults = {"if_true": "False", "true_or_one": "False"}
    return f"    {option.keyword}: {option.type} = {defaults.get(option.kind, 'None')},\n"


def _definition(name: str, options: Iterable[_Option]) -> str:
    """Returns the text of a function, whose docstring lists the keywords."""
    options = list(options)
    function = _FUNCTIONS[name]
    placed = _PLACED.get(name, set())
    free = [option for option in options if option.keyword not in placed]
    star = "" if "*" in function.parameters else "    *,\n"
    parameters = "".join(f"    {text},\n" for text in function.parameters.split(", "))
    keywords = "\n".join(
        fill(f"{o.keyword}: {o.help}", 90, subsequent_indent="    ") for o in options
    )
    document = f"{function.summary}\n\nKeywords:\n{indent(keywords, '  ')}\n".replace("\\", "\\\\")
    given = ", ".join(
        [*(f'"{o}": {o}' for o in sorted(placed)), *(f'"{o.keyword}": {o.keyword}' for o in free)]
    )
    return (
        f"\n\n@command\ndef {name}(\n{parameters}{star}{''.join(map(_parameter, free))}"
        f") -> {function.result}:\n"
        + indent(f'"""{document}"""\n', "    ")
        + f"    options: dict[str, object] = {{{given}}}\n"
        + f"    return {function.call}\n"
    )


def _dump(command: str) -> Any:
    if not Path(command).is_dir():
        return subprocess.run(
            [command, "--dump-options"], stdout=subprocess.PIPE, check=True
        ).stdout
    sys.path.insert(0, command)
    _, text, _, _ = import_module("_core").run_command([b"--dump-options"])
    return text


def main(command: str, output: str) -> None:
    """Writes the module `output`."""
    model = json.loads(_dump(command))
    options = {name: _options(model["commands"][name]["options"]) for name in _FUNCTIONS}
    functions = [_definition(name, of_function) for name, of_function in options.items()]
    Path(output).write_text("".join([_HEAD, _table(options), *functions]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
