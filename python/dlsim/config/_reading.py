# SPDX-License-Identifier: Apache-2.0
"""Reads YAML, JSON, TOML and scripts into tables that know their lines, with limits for bad files.

A value that the file leaves open, such as a key that is given twice or a variable that only running
a script would set, becomes Unknown: whoever needs it refuses it, and nobody else has to care.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, NoReturn

from .._errors import InputError, UsageError

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_VALUES = 20_000  # a hundred times what training files hold

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
_ENDINGS = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml", ".py": "python"}

_DECIMAL = r"(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?"
_NUMBER = re.compile(rf"[-+]?(?:{_DECIMAL}|0x[0-9a-fA-F_]+|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))")
_OCTAL = re.compile(r"[-+]?0[\d_]+")
_QUOTED_NUMBER = re.compile(rf"[-+]?{_DECIMAL}")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # of JSON's escapes, which no file can hold
_TRUE = {word for name in ("true", "yes", "on") for word in (name, name.title(), name.upper())}
_FALSE = {word for name in ("false", "no", "off") for word in (name, name.title(), name.upper())}


class Number(float):
    """A number as the file has it: `text` is what a message or a setting repeats."""

    text: str

    def __new__(cls, text: str) -> Number:
        """Takes a decimal, hexadecimal or special number."""
        plain = text.replace("_", "")
        try:
            value = float(int(plain, 16)) if "0x" in plain else float(plain.replace(".i", "i"))
        except OverflowError:
            value = float("inf")
        except ValueError:
            value = float("nan")  # .nan
        number = super().__new__(cls, value)
        number.text = plain
        return number


@dataclass(frozen=True)
class Unknown:
    """A value that the file leaves open, with what messages say of it."""

    problem: str
    expected: str = ""


@dataclass(frozen=True)
class Node:
    """A value with its line (0: unknown), and how many values and levels it has."""

    value: Any  # None, bool, Number, str, Unknown, list[Node], dict[str, Node]
    line: int = 0
    size: int = 1
    depth: int = 0

    @property
    def text(self) -> str:
        """A scalar as a text; empty for others."""
        if isinstance(self.value, bool):
            return "true" if self.value else "false"
        if isinstance(self.value, Number):
            return self.value.text
        return self.value if isinstance(self.value, str) else ""


def printable(text: str, most: int = 200) -> str:
    """Returns a text of a stranger for a message: on one line, not too long."""
    shown = text if len(text) <= most else text[:most] + "..."
    shown = re.sub("[\x01-\x03]+", "...", shown)  # what only running a script would tell
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown)


def quoted(text: str) -> str:
    return f"'{printable(text)}'"


def one_of(names: Iterable[str]) -> str:
    """Returns "one of a, b"."""
    return "one of " + ", ".join(names)


def described(node: Node) -> str:
    """Returns a value as messages show it: 1.5, 'text', a list."""
    if isinstance(node.value, str):
        return quoted(node.value)
    kinds = {list: "a list", dict: "keys with values", type(None): "null", Unknown: "unknown"}
    return kinds.get(type(node.value)) or printable(node.text)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns the name that is likely meant; empty where none is near, or it is that name."""
    names = {one.lower(): one for one in known}
    close = get_close_matches(name.lower(), names, 1, cutoff=0.8)
    return names[close[0]] if close and names[close[0]] != name else ""


def message(place: str, problem: str, expected: str = "", got: str = "") -> str:
    parts = [problem, f"expected {expected}" if expected else "", f"got {got}" if got else ""]
    return f"{place}: " * bool(place) + ", ".join(filter(None, parts))


def refuse(place: str, problem: str, expected: str = "", got: str = "") -> NoReturn:
    raise UsageError(message(place, problem, expected, got))


@dataclass(frozen=True)
class Table:
    """A table of a file, read with types; errors name the file, the line and the path of keys."""

    file: str
    entries: Mapping[str, Node]
    path: str = ""
    line: int = 0

    def path_of(self, key: str) -> str:
        """Returns the path of a key from the top of the file."""
        return ".".join(filter(None, [self.path, printable(key)]))

    def refuse(self, key: str, problem: str, expected: str = "", got: str = "") -> NoReturn:
        """Raises UsageError about a key, or about the table itself if the key is empty."""
        node = self.entries.get(key) if key else None
        line = node.line if node else self.line
        place = printable(self.file) + (f":{line}" if line else "")
        refuse(": ".join(filter(None, [place, self.path_of(key)])), problem, expected, got)

    def node(self, key: str) -> Node | None:
        """Returns the value; None where it is absent or null; refuses an unknown one."""
        node = self.entries.get(key)
        if node is None or node.value is None:
            return None
        if isinstance(node.value, Unknown):
            self.refuse(key, node.value.problem, node.value.expected)
        return node

    def has(self, key: str) -> bool:
        """Whether the key is there and not null; its value may be unknown."""
        node = self.entries.get(key)
        return node is not None and node.value is not None

    def find(self, path: str) -> Node | None:
        """Returns the value at keys that dots join, without complaint; None where there is none."""
        entries: Any = self.entries
        node = None
        for key in path.split("."):
            node = entries.get(key) if isinstance(entries, Mapping) else None
            if node is None:
                return None
            entries = node.value
        return node

    def is_text(self, key: str, text: str) -> bool:
        node = self.entries.get(key)
        return node is not None and node.value == text

    def inner(self, key: str, node: Node) -> Table:
        return Table(self.file, node.value, self.path_of(key), node.line)

    def table(self, key: str) -> Table | None:
        node = self.node(key)
        if node is not None and not isinstance(node.value, dict):
            self.refuse(key, "wrong type", "keys with values", described(node))
        return None if node is None else self.inner(key, node)

    def required(self, key: str) -> Table:
        found = self.table(key)
        if found is None:
            self.refuse(key, "missing", "keys with values")
        return found

    def table_or_empty(self, key: str) -> Table:
        return self.table(key) or Table(self.file, {}, self.path_of(key), self.line)

    def number(
        self, key: str, least: float | None = None, above: float | None = None
    ) -> Number | None:
        """Returns a finite number, also one in quotes, which the original software converts."""
        node = self.node(key)
        if node is None:
            return None
        value = node.value
        if isinstance(value, str) and _QUOTED_NUMBER.fullmatch(value):
            value = Number(value)
        if not isinstance(value, Number):
            self.refuse(key, "wrong type", "a number", described(node))
        if not math.isfinite(value):
            self.refuse(key, "not a finite number", "a number", printable(value.text))
        if above is not None and not value > above:
            self.refuse(key, "out of range", f"a number above {above:g}", value.text)
        if least is not None and not value >= least:
            self.refuse(key, "negative number", f"{least:g} or more", value.text)
        return value

    def integer(self, key: str, least: int | None = None, most: int = 2**63 - 1) -> int | None:
        """Returns an integer, also one that is written as 16.0 or in quotes."""
        number = self.number(key)
        if number is None:
            return None
        if abs(number) > 2**63 or number % 1 != 0:
            self.refuse(key, "wrong type", "an integer", printable(number.text))
        value = int(number.text) if re.fullmatch(r"[-+]?\d{1,19}", number.text) else int(number)
        if least is not None and value < least:
            self.refuse(key, "too small", f"an integer of {least} or more", number.text)
        if value > most:
            self.refuse(key, "too large", f"an integer of at most {most}", number.text)
        return value

    def boolean(self, key: str) -> bool | None:
        node = self.node(key)
        if node is not None and not isinstance(node.value, bool):
            self.refuse(key, "wrong type", "true or false", described(node))
        return None if node is None else node.value

    def string(self, key: str) -> str | None:
        node = self.node(key)
        if node is not None and not isinstance(node.value, str):
            self.refuse(key, "wrong type", "text", described(node))
        return None if node is None else node.value

    def choice(self, key: str, names: Sequence[str], lower: bool = False) -> str | None:
        """Returns one of several names; `lower`: whatever its case."""
        text = self.string(key)
        if text is None or text in names:
            return text
        if lower and text.lower() in names:
            return text.lower()
        meant = suggestion(text, names)
        hint = f" (did you mean '{meant}'?)" if meant else ""
        self.refuse(key, "unknown name" + hint, one_of(names), quoted(text))

    def require_known(self, keys: Sequence[str]) -> None:
        for key in self.entries:
            if key not in keys:
                meant = suggestion(key, keys)
                hint = f" (did you mean '{meant}'?)" if meant else ""
                self.refuse(key, "unknown key" + hint, one_of(keys))

    def misspelt(self, keys: Sequence[str]) -> list[str]:
        """Returns a note for each key that looks like a slip for one of these."""
        notes = []
        for key in self.entries:
            meant = "" if key in keys else suggestion(key, keys)
            if meant:
                notes.append(f"{self.path_of(key)} is not read (did you mean '{meant}'?)")
        return notes


class Clear:
    """Reads keys on which nothing else depends: what is unclear is None, and never an error.

    `complete` is False for a command line with parts that only a run tells: what is absent from it
    may still be given.
    """

    def __init__(self, table: Table, complete: bool = True) -> None:
        self.table, self.complete = table, complete
        self.has = table.has

    def _read(self, read: Callable[[str], Any], key: str, default: Any) -> Any:
        """Returns what `read` does, `default` of a key that is known not to be given."""
        if self.complete and not self.has(key):
            return default
        try:
            return read(key)
        except UsageError:
            return None

    def text(self, key: str) -> str | None:
        found: str | None = self._read(self.table.string, key, None)
        return found

    def switch(self, key: str) -> bool | None:
        """Returns a switch: off where it is absent."""
        found: bool | None = self._read(self.table.boolean, key, False)
        return found

    def number(self, key: str, default: float | None = None) -> float | None:
        """Returns a number, `default` where it is absent."""
        found = self._read(self.table.number, key, default)
        return None if found is None else float(found)

    def item(self, key: str, index: int, default: float | None = None) -> float | None:
        """Returns a number of a list, or of a text such as "(0.9, 0.98)"."""

        def read(key: str) -> float | None:
            node = self.table.node(key) or Node(None)
            items = node.value if isinstance(node.value, list) else [node]
            if isinstance(node.value, str):
                items = [Node(item.strip()) for item in node.value.strip(" \t()[]").split(",")]
            return Table("", {key: items[index]}).number(key) if index < len(items) else None

        found = self._read(read, key, default)
        return None if found is None else float(found)

    def format(self, key: str, default: str | None = None) -> str | None:
        """Returns the format of a type's name, such as torch.bfloat16."""
        node = self._read(self.table.node, key, default)
        return format_of_type(node.text) if isinstance(node, Node) else node


def format_of_type(name: str) -> str | None:
    """Returns the format of a type's name: "bfloat16" is bf16, "float" fp32; None for others."""
    types = {"bf16": "bfloat16", "fp16": "float16 half", "fp32": "float32 float 32"}
    name = name.removeprefix("torch.")
    return next((f for f, names in types.items() if name in [f, *names.split()]), None)


# ------------------------------------------------------------------------------------ the text


def read_text(path: str) -> str:
    """Returns the text of a file or pipe, or of standard input for "-".

    Raises InputError where it cannot be read, UsageError where it is not text.
    """
    name = printable(input_name(path), 4096)
    if os.path.isdir(path):
        raise InputError(f"{name}: is a directory, expected a file")
    try:
        if path == "-":
            data = b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{name}: cannot be opened: {why}") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{name}: too large, expected at most {MAX_BYTES} bytes")
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        refuse(name, "not a text file", "UTF-8")
    if "\0" in text:
        refuse(name, "not a text file")
    return text


def input_name(path: str) -> str:
    """Returns how messages name an input."""
    return "standard input" if path == "-" else path


def language_of(path: str, text: str) -> str:
    """Returns yaml, json, toml, shell or python: by the ending, else by how the text looks."""
    ending = os.path.splitext(path)[1]
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    if ending in SCRIPTS or text.startswith("#!"):
        return "shell"
    if re.search(r"(?m)^(?:import|from|class|def) +\w|^\w+ *= *(?:dict|\w+\.\w+)\(", text):
        return "python"
    lines = (line.strip() for line in text.splitlines())
    return _language_of_line(next((line for line in lines if line and line[0] != "#"), ""))


def _language_of_line(line: str) -> str:
    starts = ("python ", "python3 ", "torchrun ", "accelerate ", "deepspeed ", "set -", "--")
    if line.startswith(starts) or (" --" in line and ": " not in line and line[0] != "{"):
        return "shell"
    if line.startswith(("{", "[")):
        return "json" if line[0] == "{" else "toml" if "]" in line else "yaml"
    before, equals, _ = line.partition("=")
    return "toml" if equals and not re.search(r"[:{\[]", before) else "yaml"


def parse(path: str, text: str) -> Table:
    """Returns the keys and values of a text that is no script; raises UsageError for a bad one."""
    file, language = input_name(path), language_of(path, text)
    if language == "python":
        refuse(
            printable(file),
            "a configuration in Python, which is not read, as it is code",
            "--policy NAME --format NAME --set KEY=VALUE",
        )
    root = {"yaml": _parse_yaml, "json": _parse_json, "toml": _parse_toml}[language](file, text)
    if not isinstance(root.value, dict):
        refuse(printable(file), "not a configuration", "keys with values")
    return Table(file, root.value, "", root.line)


class _Limits:
    """Counts the values of a file; aliases count each time."""

    def __init__(self, file: str) -> None:
        self.file, self.values = printable(file), 0

    def place(self, line: int) -> str:
        return self.file + (f":{line}" if line else "")

    def made(self, value: Any, line: int) -> Node:
        """Returns a value as a node, counted."""
        if isinstance(value, str) and _HALF_CHARACTER.search(value):
            value = Unknown("half of a character", "text")
        if isinstance(value, str) and "${" in value:
            value = Unknown(
                "depends on other keys, which Hydra puts in",
                "the config.yaml that it writes next to a run",
            )
        inner = value.values() if isinstance(value, dict) else value
        parts = list(inner) if isinstance(value, (dict, list)) else []
        node = Node(
            value,
            line,
            1 + sum(part.size for part in parts),
            max((part.depth for part in parts), default=0) + isinstance(value, (dict, list)),
        )
        if node.depth > MAX_DEPTH:
            refuse(self.place(line), "nested too deeply", f"at most {MAX_DEPTH} levels")
        return node

    def count(self, size: int, line: int) -> None:
        self.values += size
        if self.values > MAX_VALUES:
            refuse(
                self.place(line),
                "too many values (aliases count each time)",
                f"at most {MAX_VALUES} in a training configuration",
            )


def _repeated(key: str) -> Unknown:
    return Unknown(f"duplicate key {quoted(key)}", "one value")


def _parse_yaml(file: str, text: str) -> Node:
    import yaml

    limits = _Limits(file)
    try:
        builder = _YamlBuilder(limits)
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(event)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "bad text"
        refuse(limits.place(mark.line + 1 if mark else 0), f"bad YAML: {printable(problem)}")
    return builder.root


class _YamlBuilder:
    """Makes nodes of the events of one YAML document, as PyYAML resolves them.

    But 1e-3 without a point, which PyYAML takes for text and users mean as a number, is a number.
    """

    def __init__(self, limits: _Limits) -> None:
        self.limits, self.root = limits, Node(None)
        self.open: list[tuple[Any, list[Node], str | None]] = []  # event, values, anchor
        self.anchors: dict[str, Node | None] = {}
        self.documents = 0

    def take(self, event: Any) -> None:
        kind = type(event).__name__
        line = event.start_mark.line + 1 if event.start_mark else 0
        if kind == "DocumentStartEvent":
            self.documents += 1
            if self.documents > 1:
                refuse(self.limits.file, "more than one YAML document", "one")
        elif kind == "ScalarEvent":
            self.limits.count(1, line)
            self.add(self.limits.made(self.scalar(event), line), event.anchor)
        elif kind == "AliasEvent":
            node = self.anchors.get(event.anchor)
            if node is None:
                refuse(self.limits.place(line), "bad YAML: an alias of itself or of nothing")
            self.limits.count(node.size, line)
            self.add(node, None)
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            self.limits.count(1, line)
            if len(self.open) >= MAX_DEPTH:
                place = self.limits.place(line)
                refuse(place, "nested too deeply", f"at most {MAX_DEPTH} levels")
            self.open.append((event, [], event.anchor))
            if event.anchor:
                self.anchors[event.anchor] = None  # until it is complete
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            start, values, anchor = self.open.pop()
            line = start.start_mark.line + 1
            made = self.mapping(values, line) if kind == "MappingEndEvent" else values
            self.add(self.limits.made(made, line), anchor)

    def add(self, node: Node, anchor: str | None) -> None:
        if anchor:
            self.anchors[anchor] = node
        if self.open:
            self.open[-1][1].append(node)
        else:
            self.root = node

    def scalar(self, event: Any) -> Any:
        text: str = event.value
        tag = event.tag.removeprefix("tag:yaml.org,2002:") if event.tag else ""
        if tag not in ("", "!", "str", "int", "float", "bool", "null"):
            return Unknown(f"a value with the tag {quoted(event.tag)}, which is not read")
        if tag in ("!", "str") or (event.style and not tag):
            return text
        if text in ("", "~", "null", "Null", "NULL"):
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        return Number(text) if _NUMBER.fullmatch(text) and not _OCTAL.fullmatch(text) else text

    def mapping(self, values: list[Node], line: int) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        merged: list[Node] = []
        for key, value in zip(values[::2], values[1::2], strict=True):
            if isinstance(key.value, (dict, list, Unknown)):
                refuse(self.limits.place(key.line), "bad key", "text")
            name = key.text
            if name == "<<":
                merged += value.value if isinstance(value.value, list) else [value]
            elif name in entries:
                entries[name] = Node(_repeated(name), value.line)
            else:
                entries[name] = value
        for source in merged:
            if not isinstance(source.value, dict):
                refuse(self.limits.place(line), "bad merge key <<", "a table or a list of them")
            for name, value in source.value.items():
                entries.setdefault(name, value)
        return entries


class _PythonValues:
    """Makes nodes of the values that json and tomllib return, which have no lines.

    A key that occurs once in the text has its line from there.
    """

    def __init__(self, file: str, text: str, key: str) -> None:
        self.limits = _Limits(file)
        ends = [found.end() for found in re.finditer("\n", text)]
        self.lines: dict[str, int] = {}
        for found in re.finditer(key, text):
            name = next(filter(None, found.groups()), "")
            line = bisect_left(ends, found.start(found.lastindex or 0) + 1) + 1
            self.lines[name] = 0 if name in self.lines else line

    def node(self, value: Any, line: int = 0, depth: int = 0) -> Node:
        self.limits.count(1, line)
        if depth > MAX_DEPTH:
            refuse(self.limits.place(line), "nested too deeply", f"at most {MAX_DEPTH} levels")
        if isinstance(value, dict):
            pairs = ((k, self.node(v, self.lines.get(k, 0), depth + 1)) for k, v in value.items())
            return self.limits.made(dict(pairs), line)
        if isinstance(value, list):
            return self.limits.made([self.node(v, line, depth + 1) for v in value], line)
        if isinstance(value, int) and not isinstance(value, bool):
            value = Number(str(value))
        elif not isinstance(value, (str, bool, Number, Unknown, type(None))):
            value = Unknown("a date or a time", "a number or text")
        return self.limits.made(value, line)


# Strings, comments and commas; the strings are only skipped, also one that is not closed.
_JSON_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"?|(#|//)[^\n]*|(/\*).*?(?:\*/|\Z)', re.DOTALL)
_JSON_COMMA = re.compile(r'"(?:[^"\\\n]|\\.)*"?|(,)(?=\s*[}\]])', re.DOTALL)


def _blanked(found: re.Match[str]) -> str:
    return re.sub(r"\S", " ", found[0]) if found.lastindex else found[0]


def _parse_json(file: str, text: str) -> Node:
    """JSON with the comments and last commas of hjson, by which DeepSpeed reads its files."""
    plain = _JSON_COMMA.sub(_blanked, _JSON_COMMENT.sub(_blanked, text))

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in items:
            made[key] = _repeated(key) if key in made else value
        return made

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no number of JSON")

    try:
        value = json.loads(
            plain, object_pairs_hook=pairs, parse_float=Number, parse_int=Number,
            parse_constant=constant,
        )  # fmt: skip
    except RecursionError:
        refuse(printable(file), "nested too deeply", f"at most {MAX_DEPTH} levels")
    except ValueError as error:
        line = getattr(error, "lineno", 0)
        problem = getattr(error, "msg", str(error))
        refuse(printable(file) + (f":{line}" if line else ""), f"bad JSON: {printable(problem)}")
    return _PythonValues(file, text, r'"((?:[^"\\\n]|\\.)*)"\s*:').node(value)


def _parse_toml(file: str, text: str) -> Node:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    # A key of very many parts takes tomllib hours.
    for number, line in enumerate(text.split("\n"), start=1):
        unquoted = re.sub(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'', "", line)
        if any(part.count(".") > MAX_DEPTH for part in re.split(r"[=,{}\[\]]", unquoted)):
            place = f"{printable(file)}:{number}"
            refuse(place, "nested too deeply", f"at most {MAX_DEPTH} levels")
    try:
        value = tomllib.loads(text, parse_float=Number)
    except RecursionError:
        refuse(printable(file), "nested too deeply", f"at most {MAX_DEPTH} levels")
    except ValueError as error:
        found = re.fullmatch(r"(?s)(.*) \(at line (\d+), column \d+\)", str(error))
        problem, line = (found[1], ":" + found[2]) if found else (str(error), "")
        refuse(printable(file) + line, f"bad TOML: {printable(problem)}")
    key = r'(?m)^\s*(?:"([^"\n]*)"|([\w-]+))\s*=|^\s*\[+(?:[^\]\n]*\.)?\s*"?([\w-]+)"?\s*\]'
    return _PythonValues(file, text, key).node(value)


# ------------------------------------------------------------------------------------ the source


@dataclass(frozen=True)
class Source:
    """What is to be interpreted: a file, or one command of a script.

    `table` is the file; of a command its options by their names as Python has them ("--clip-grad"
    is clip_grad), and Hydra's overrides as tables.
    """

    table: Table
    is_command: bool = False
    options: frozenset[str] = frozenset()  # of a command, as it spells their names
    words: tuple[str, ...] = ()  # of a command: what is no option
    complete: bool = True  # False: a part that only a run tells may be options
    line: int = 0

    def marks(self, names: Iterable[str]) -> list[str]:
        """Returns those of the marks that are there.

        A mark is the path of a key; "--name" is an option of a command as it is spelled, "@text"
        is part of a word of one, "@=text" a word, and "key=text" a key with this value.
        """
        return [name for name in names if self._has(name)]

    def _has(self, mark: str) -> bool:
        if mark.startswith("@="):
            return mark[2:] in self.words
        if mark.startswith("@"):
            return any(mark[1:] in word for word in self.words)
        if mark.startswith("--"):
            return mark in self.options
        path, equals, text = mark.partition("=")
        node = self.table.find(path)
        return node is not None and (not equals or node.text == text)


def python_names(table: Table) -> Table:
    """Returns a table with its keys as Python names them: "--clip-grad" is clip_grad."""
    named = ((key.lstrip("-").replace("-", "_"), node) for key, node in table.entries.items())
    return replace(table, entries=dict(named))


def source_of(file: Table) -> Source:
    """Returns a file as a source; one whose keys are options stands for a command."""
    if file.entries and all(key.startswith("--") for key in file.entries):
        return Source(python_names(file), True, frozenset(file.entries))
    return Source(file)


def tables_in(table: Table) -> Iterator[Table]:
    for key, node in table.entries.items():
        if isinstance(node.value, dict):
            inner = table.inner(key, node)
            yield inner
            yield from tables_in(inner)


def find_file(owner: Table, named: str) -> str | None:
    """Returns a file that another names: next to it, or in the working directory."""
    for path in (os.path.join(os.path.dirname(owner.file), named), named):
        if os.path.exists(path):
            return path
    return None
