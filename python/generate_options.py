# SPDX-License-Identifier: Apache-2.0
"""Makes dlsim/_command_options.py from the options of the command: generate_options.py DLSIM OUT

A keyword is the option's name with `_`, in the plural if it may be given several times; what is
said of its type is what stands for its value in `dlsim COMMAND --help`. The tables below have the
exceptions; an option that is in none of them needs nothing here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

# The functions of dlsim.runs that take keywords.
_FUNCTIONS = (
    *(
        "replay",
        "sweep",
        "tune",
        "diff",
        "explain",
        "profile",
        "info",
        "scaler",
        "summaries",
        "accumulate",
    ),
)
# Options that functions give by themselves, and parameters with a place of their own.
_ABSENT = {"json", "list"}
_PLACED = {"profile": {"output"}, "scaler": {"policy", "steps"}}
# Names that do not follow the rule.
_PLURALS = {"set": "settings", "policy": "policies"}
_NO_PLURAL = {"config", "dot", "expect", "matmul", "reduce", "state", "vary"}
# Lists whose values are pairs such as BIN:COUNT.
_PAIR_LISTS = {"histogram"}

# Types by what stands for a value in the help, else those by the way in which it is written.
_ONE = {
    "FILE": "PathText | None",
    "N": "int | None",
    "S": "Number | None",
    "STEP": "int | None",
    "X": "Number | None",
}
_EACH = {"FILE": "PathText | Sequence[PathText]", "N": "int | Sequence[int]"}
_MAPPINGS = {"KEY=VALUE": "Settings", "NAME=GLOB": "Mapping[str, str]"}
_KINDS = {
    "one": "str | None",
    "each": "Names",
    "list": "Number | Sequence[Number]",
    "pairs": "str | tuple[str, str] | Sequence[str | tuple[str, str]]",
    "pair_list": "str | Sequence[str | tuple[int, int]]",
    "part_of": "str | tuple[int, int] | None",
    "mapping": "Mapping[str, Number | Sequence[Number]]",
    "if_true": "bool",
    "if_false": "bool",
    "true_or_one": "bool | int",
}

_HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
"""The keywords of `dlsim.replay` and the others, made from the options of the command."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict

from ._core import Format

PathText = str | os.PathLike[str]
Number = float | str
Names = str | Format | Sequence[str | Format]
Settings = Mapping[str, bool | float | str]


class Keyword(NamedTuple):
    """An option of the command, how its value is written, and its help."""

    flag: str
    kind: str
    help: str
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
        return "if_false" if name.startswith("no-") else "if_true"
    if option["optional_value"]:
        return "true_or_one"
    if option["repeatable"]:
        return "mapping" if "=" in value else "pairs" if ":" in value else "each"
    if value == "LIST":
        return "pair_list" if name in _PAIR_LISTS else "list"
    return "part_of" if value == "I/N" else "one"


def _option(option: Mapping[str, Any]) -> _Option:
    name, kind, value = option["name"], _kind(option), option["value"]
    types = {"one": _ONE, "each": _EACH, "mapping": _MAPPINGS}
    keyword = name.removeprefix("no-") if kind == "if_false" else name
    if option["repeatable"] and name not in _NO_PLURAL:
        keyword = _PLURALS.get(name, name + "s")
    typed = types.get(kind, {}).get(value, _KINDS[kind])
    return _Option(keyword.replace("-", "_"), "--" + name, kind, typed, option["help"])


def _typed_dict(function: str, options: Iterable[_Option]) -> str:
    absent = _PLACED.get(function, set())
    lines = [f"    {o.keyword}: {o.type}\n" for o in options if o.keyword not in absent]
    return (
        f"\n\nclass {function.capitalize()}Options(TypedDict, total=False):\n"
        f'    """Keywords of `dlsim.{function}`."""\n\n{"".join(lines)}'
    )


def _table(options: Mapping[str, Iterable[_Option]]) -> str:
    lines = ["\n\nKEYWORDS: dict[str, dict[str, Keyword]] = {\n"]
    for function, of_function in options.items():
        lines.append(f"    {function!r}: {{\n")
        for o in of_function:
            lines.append(f"        {o.keyword!r}: Keyword({o.flag!r}, {o.kind!r}, {o.help!r}),\n")
        lines.append("    },\n")
    return "".join([*lines, "}\n"])


def main(command: str, output: str) -> None:
    """Writes the module `output`."""
    model = json.loads(subprocess.check_output([command, "--dump-options"]))
    options = {
        function: [
            _option(option)
            for option in model["commands"][function]["options"]
            if option["name"] not in _ABSENT
        ]
        for function in _FUNCTIONS
    }
    classes = [_typed_dict(function, of_function) for function, of_function in options.items()]
    Path(output).write_text("".join([_HEAD, *classes, _table(options)]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
