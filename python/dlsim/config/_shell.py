# SPDX-License-Identifier: Apache-2.0
"""Reads the commands of a shell script without running it: words and plain variables.

What only running the script would tell is unknown. The arms of a branch must agree in what decides
a simulation; shlex, which knows neither variables nor commands inside of words, would not do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from .._errors import UsageError
from ._reading import (
    MAX_DEPTH,
    MAX_VALUES,
    Node,
    Number,
    Source,
    Table,
    Unknown,
    _parse_json,
    input_name,
    printable,
    quoted,
    refuse,
)

UNKNOWN = "\x01"  # stands in a text for what only running the script would tell
_MORE = "\x02"  # for "$@": more arguments, of which the script knows nothing
_CHOICE = re.compile("\x03([^\x03]*)\x03")  # a variable that the arms of a branch set differently
_MAX_TEXT = 1 << 17  # of a script, and of what variables made of variables expand to

_NAME = re.compile(r"[A-Za-z_]\w*")
_BLANKS, _ENDS = " \t\r", ";&|\n()<>"

# Options on which a simulation depends; where the arms of a branch differ in one, it is a choice.
_DECISIVE = re.compile(
    r"fp16|bf16|fp8|fp4|loss[-_]scal|scale[-_](?:window|tolerance)|hysteresis|clip|max[-_]grad"
    r"|accumulat|update[-_]freq|deepspeed|mixed[-_]precision|dtype|config[-_]file|half_precision"
    r"|(?:^|_)amp(?:$|_)|strategy|engine"
)

# Options without a value, after which a file may follow.
_SWITCHES = {
    "fp16", "bf16", "amp", "deepspeed", "memory_efficient_fp16", "memory_efficient_bf16",
    "pure_bf16", "use_deepspeed", "multi_gpu",
}  # fmt: skip
# Commands whose options are not those of a training.
_NO_PROGRAMS = {"", "[", "[[", "test", "echo", "printf", "cat", "export", "source", ".", ":"}
_TRUTHS = {"true": True, "false": False}
_SWITCH_WORDS = {
    **dict.fromkeys(("yes", "y", "t", "1", "on"), True),
    **dict.fromkeys(("no", "n", "f", "0", "off"), False),
}
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_FUNCTION = re.compile(r"(?m)^[ \t]*(?:function[ \t]+)?([\w.-]+)[ \t]*\([ \t]*\)")
_OVERRIDE = re.compile(r"[+~]*([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.DOTALL)

# Choices of a whole table of verl's files, and the key of the table that tells the choice.
_CHOSEN_TABLES = {"engine": "engine.strategy", "model_engine": "model_engine"}

_Values = list[str]


@dataclass
class _Word:
    text: str
    line: int


@dataclass
class _Statement:
    line: int = 1
    assignments: list[tuple[str, _Values, int]] = field(default_factory=list)
    words: list[_Word] = field(default_factory=list)
    output: str = ""  # the file that it writes: > NAME, or tee NAME
    here_document: str | None = None
    is_conditional: bool = False  # follows && or ||
    end: str = ""


@dataclass
class _Command:
    options: dict[str, Node]
    overrides: dict[str, tuple[str, int]]
    words: list[str]
    launcher: dict[str, Node]
    line: int
    complete: bool
    is_bare: bool  # begins with an option
    spelled: set[str] = field(default_factory=set)  # the names of the options

    def decisive(self) -> list[tuple[str, str]]:
        """What of it decides: options and overrides, each with its value."""
        named = [(name, _shown(node)) for name, node in self.options.items()]
        named += [(name, _shown(node)) for name, node in self.launcher.items()]
        named += [(path, value) for path, (value, _) in self.overrides.items()]
        return sorted(pair for pair in named if _DECISIVE.search(pair[0]))


def _shown(node: Node) -> str:
    return repr(node.value) if isinstance(node.value, (dict, Unknown)) else node.text


@dataclass
class _Branch:
    kind: str  # if, case
    line: int
    before: dict[str, _Values]
    arms: list[tuple[dict[str, _Values], list[_Command]]] = field(default_factory=list)
    commands: list[_Command] = field(default_factory=list)
    has_else: bool = False
    in_pattern: bool = False


class _Script:
    """The statements of a script, one after the other, with the variables that they set."""

    def __init__(self, file: str, text: str, outer: _Script | None = None) -> None:
        self.file, self.text, self.at = file, text, 0
        self.line: int = outer.line if outer else 1
        self.depth: int = outer.depth + 1 if outer else 0
        self.variables: dict[str, _Values] = outer.variables if outer else {}
        self.spent: list[int] = outer.spent if outer else [0]  # characters of expansions, so far
        self.functions = set(_FUNCTION.findall(text))
        self.written: dict[str, str] = {}  # here-documents by the file that they go to
        self.branches: list[_Branch] = []
        self.commands: list[_Command] = []
        self.after_condition = False
        self.pending: list[tuple[str, bool]] = []  # ends of here-documents; whether they expand
        self.values = 0

    # ------------------------------------------------------------------ characters and words

    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.text[at] if at < len(self.text) else ""

    def take(self) -> str:
        c = self.peek()
        self.at += len(c)
        self.line += c == "\n"
        return c

    def skip_blanks(self) -> None:
        """Blanks, line ends after a backslash, and comments."""
        while c := self.peek():
            if c in _BLANKS:
                self.take()
            elif self.at_continuation():
                while self.take() != "\n":
                    pass
            elif c == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def at_continuation(self) -> bool:
        return self.text.startswith(("\\\n", "\\\r\n"), self.at)

    def word(self, split: bool) -> list[str]:
        """Reads a word; a variable in it may make several words of it if they are split."""
        words = [""]
        while (c := self.peek()) and c not in _BLANKS and c not in _ENDS:
            if self.at_continuation():
                break
            if c == "\\":
                self.take()
                words[-1] += self.take()
            elif c == "'":
                self.take()
                while (c := self.take()) and c != "'":
                    words[-1] += c
            elif c == '"':
                self.quoted(words)
            elif c in "$`":
                self.expansion(words, split)
            else:
                words[-1] += self.take()
        return words

    def quoted(self, words: list[str]) -> None:
        self.take()
        while (c := self.peek()) and c != '"':
            if c == "\\":
                self.take()
                escaped = self.take()
                words[-1] += "" if escaped == "\n" else escaped
            elif c in "$`":
                self.expansion(words, split=False)
            else:
                words[-1] += self.take()
        self.take()

    def skip_nested(self, opening: str, closing: str) -> str:
        """Skips what is in brackets, with quotes and brackets of its own; returns it."""
        begin, depth = self.at, 0
        while c := self.take():
            if c == "\\":
                self.take()
            elif c in "'\"" and depth:
                while (d := self.take()) and d != c:
                    if d == "\\" and c == '"':
                        self.take()
            depth += (c == opening) - (c == closing)
            if depth == 0:
                break
        return self.text[begin + 1 : self.at - 1]

    def expansion(self, words: list[str], split: bool) -> None:
        value: _Values = [UNKNOWN]
        if self.take() == "`":
            while (c := self.take()) and c != "`":
                pass
        elif self.peek() == "{":
            value = self.braces(self.skip_nested("{", "}"))
        elif self.peek() == "(":
            self.skip_nested("(", ")")
        elif name := _NAME.match(self.text, self.at):
            self.at = name.end()
            value = self.variables.get(name[0], [UNKNOWN])
        elif self.take() in "@*":
            value = [_MORE]
        if split:
            value = [piece for element in value for piece in element.split()]
        self.spent[0] += sum(map(len, value))
        if self.spent[0] > 8 * _MAX_TEXT:
            refuse(f"{printable(self.file)}:{self.line}", "too much text in variables")
        for i, piece in enumerate(value):
            if i == 0:
                words[-1] += "" if piece == UNKNOWN and words[-1].endswith(UNKNOWN) else piece
            else:
                words.append(piece)

    def braces(self, inner: str) -> _Values:
        """${NAME}, ${NAME[@]} and ${NAME:-default}; other forms are unknown."""
        if inner[:1] in ("@", "*"):
            return [_MORE]
        name = _NAME.match(inner)
        rest = inner[name.end() :] if name else inner
        value = self.variables.get(name[0], [UNKNOWN]) if name else [UNKNOWN]
        if rest in ("", "[@]", "[*]"):
            return value
        if not name or not rest.startswith((":-", ":=")):
            return [UNKNOWN]
        if name[0] in self.variables and value and value[0]:
            return value
        text = rest[2:]
        if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
            text = text[1:-1]
        return [self.expanded(text)]

    def expanded(self, text: str) -> str:
        """A here-document or a default, in which only variables and commands mean anything."""
        if self.depth >= 4 or len(text) > _MAX_TEXT:
            return UNKNOWN
        inner = _Script(self.file, text, self)
        words = [""]
        while c := inner.peek():
            if c in "$`":
                inner.expansion(words, split=False)
            elif c == "\\" and inner.peek(1) in ("$", "`", "\\"):
                inner.take()
                words[-1] += inner.take()
            else:
                words[-1] += inner.take()
        return "".join(words)

    # ------------------------------------------------------------------ statements

    def statement(self) -> _Statement | None:
        """Reads the next statement; None at the end."""
        made = _Statement(line=self.line, is_conditional=self.after_condition)
        self.after_condition = False
        while True:
            self.skip_blanks()
            if not (c := self.peek()):
                break
            if not made.words and not made.assignments:
                made.line = self.line
            if c in _ENDS:
                if self.separator(made):
                    break
            elif not self.assignment(made):
                line = self.line
                made.words += [_Word(text, line) for text in self.word(split=True) if text]
        texts = [word.text for word in made.words]
        if texts[:1] == ["tee"] and len(texts) > 1 and not made.output:
            made.output = texts[2 if texts[1] == "-a" and len(texts) > 2 else 1]
        if not self.peek() and not (texts or made.assignments or made.end):
            return None
        return made

    def separator(self, made: _Statement) -> bool:
        """Takes what ends a statement; False where it goes on, after a redirection."""
        c = self.take()
        if c == "<":
            if self.peek() == "<" and self.peek(1) != "<":
                self.take()
                if self.peek() == "-":
                    self.take()
                self.skip_blanks()
                expands = self.peek() not in ("'", '"', "\\")
                self.pending.append(("".join(self.word(split=False)), expands))
            return False
        if c == ">":
            if self.peek() in (">", "|"):
                self.take()
            self.skip_blanks()
            if self.peek() != "&":
                made.output = "".join(self.word(split=False))
            else:
                self.take()
            return False
        if c == "&" and self.peek() == ">":
            return False
        made.end = c
        if c in "&|;" and self.peek() == c:
            self.take()
            made.end += c
        self.after_condition = made.end in ("&&", "||")
        if c == "\n":
            for end, expands in self.pending:
                made.here_document = self.here_document(end, expands)
            self.pending.clear()
        return True

    def here_document(self, end: str, expands: bool) -> str:
        lines = []
        while self.at < len(self.text):
            stop = self.text.find("\n", self.at)
            stop = len(self.text) if stop < 0 else stop
            line = self.text[self.at : stop]
            self.at = min(stop + 1, len(self.text))
            self.line += 1
            if line.lstrip("\t").rstrip("\r") == end:
                break
            lines.append(line)
        body = "\n".join(lines)
        return self.expanded(body) if expands else body

    def assignment(self, made: _Statement) -> bool:
        """Takes NAME=value, NAME+=value and NAME=(...) before a command, also after export."""
        before = {
            "export", "local", "readonly", "declare", "-a", "-r", "-x", "then", "else", "do", "{",
            "typeset",
        }  # fmt: skip
        if any(word.text not in before for word in made.words):
            return False
        found = re.compile(r"([A-Za-z_]\w*)(\+?)=").match(self.text, self.at)
        if not found:
            return False
        line, self.at = self.line, found.end()
        is_array = self.peek() == "("
        values = self.array() if is_array else ["".join(self.word(split=False))]
        if found[2]:
            old = list(self.variables.get(found[1], []))
            if is_array or not old:
                values = old + values
            else:
                values = [*old[:-1], old[-1] + values[0]]
        made.assignments.append((found[1], values, line))
        return True

    def array(self) -> _Values:
        self.take()
        values: _Values = []
        while True:
            self.skip_blanks()
            c = self.peek()
            if not c or c == ")":
                self.take()
                return values
            if c in _ENDS:
                self.take()
            else:
                values += [word for word in self.word(split=True) if word]

    # ------------------------------------------------------------------ what the statements do

    def run(self) -> None:
        """Reads all statements; fills `commands`."""
        while (made := self.statement()) is not None:
            self.values += 1 + len(made.words) + len(made.assignments)
            if self.values > MAX_VALUES:
                place = f"{printable(self.file)}:{made.line}"
                refuse(place, "too many words", f"at most {MAX_VALUES} in a script")
            self.follow(made)
        while self.branches:  # a script that is cut
            self.close()

    def follow(self, made: _Statement) -> None:
        first = made.words[0].text if made.words else ""
        branch = self.branches[-1] if self.branches else None
        if branch and branch.in_pattern and first not in ("in", "esac"):
            if made.end == ")":
                branch.has_else |= [word.text for word in made.words] == ["*"]
                branch.in_pattern = False
            return
        if first in ("if", "case"):
            if len(self.branches) >= MAX_DEPTH:
                refuse(f"{printable(self.file)}:{made.line}", "nested too deeply")
            new = _Branch(first, made.line, dict(self.variables))
            new.in_pattern = first == "case" and made.end != ")"
            self.branches.append(new)
            return
        if branch and first in ("elif", "else") and branch.kind == "if":
            self.end_arm(branch)
            branch.has_else = first == "else"
            if first == "elif":
                return
            made.words.pop(0)
        if branch and first in ("fi", "esac"):
            self.close()
            return
        if first in ("for", "select") and len(made.words) > 1:
            self.variables[made.words[1].text] = [UNKNOWN]
            return
        if first in ("while", "until"):
            return
        self.assign(made)
        if made.output and made.here_document is not None:
            self.written[made.output] = made.here_document
        self.read_command(made)
        if branch and branch.kind == "case" and made.end == ";;":
            self.end_arm(branch)
            branch.in_pattern = True

    def assign(self, made: _Statement) -> None:
        """Takes the assignments; those of a condition may not happen."""
        for name, values, line in made.assignments:
            taken = values if sum(map(len, values)) <= _MAX_TEXT else [UNKNOWN]
            if made.is_conditional and not made.words:
                taken = self.merged(name, [self.variables.get(name, []), taken], line)
            self.variables[name] = taken

    def end_arm(self, branch: _Branch) -> None:
        branch.arms.append((self.variables, branch.commands))
        self.variables, branch.commands = dict(branch.before), []

    def close(self) -> None:
        """Ends a branch: its arms must agree in what decides."""
        branch = self.branches.pop()
        if not branch.in_pattern:
            self.end_arm(branch)
        arms = branch.arms if branch.has_else else [*branch.arms, (branch.before, [])]
        names = dict.fromkeys(name for variables, _ in arms for name in variables)
        after = {}
        for name in names:
            after[name] = self.merged(name, [arm.get(name, []) for arm, _ in arms], branch.line)
        self.variables = after
        deciding = [[c for c in commands if c.decisive()] for _, commands in arms]
        alike = [[c.decisive() for c in commands] for commands in deciding]
        if any(other != alike[0] for other in alike):
            longest = max(deciding, key=len)
            name, _ = longest[0].decisive()[0]
            self.refuse_choice(name, longest[0].line)
        kept = deciding[0]
        for others in deciding[1:]:
            for one, other in zip(kept, others, strict=True):
                _forget_differences(one, other)
        (self.branches[-1].commands if self.branches else self.commands).extend(kept)

    def merged(self, name: str, alternatives: list[_Values], line: int) -> _Values:
        """What a variable holds after a branch: what decides must be the same in all arms."""
        first = alternatives[0]
        if all(other == first for other in alternatives):
            return first
        deciding = [_decisive_words(values) for values in alternatives]
        if any(other != deciding[0] for other in deciding):
            return [f"\x03{line}:{name}\x03"]
        has_options = any(word.startswith("--") for values in alternatives for word in values)
        words = [*deciding[0], _MORE if has_options else UNKNOWN]
        is_array = any(len(values) > 1 for values in alternatives)
        return words if is_array else [" ".join(words)]

    def refuse_choice(self, name: str, line: int) -> NoReturn:
        refuse(
            f"{printable(self.file)}:{line}",
            f"{quoted(name)} depends on how the script is run",
            "a script without that choice, or the command line itself",
        )

    def read_command(self, made: _Statement) -> None:
        keywords = {"then", "else", "do", "{", "}", "!", "time", "exec", "nohup", "eval", "done"}
        words = made.words
        while words and words[0].text in keywords:
            words = words[1:]
        first, *others = [word.text for word in words] or [""]
        if first in ("source", ".") and not any(name.endswith("activate") for name in others):
            self.forget(self.variables)  # another file may set them
        if first in ("read", "unset", "getopts"):
            self.forget(others)
        if not words or first in _NO_PROGRAMS:
            return
        is_bare = words[0].text.startswith("--")
        command = _Command({}, {}, [], {}, words[0].line, True, is_bare)
        self.take_words(self.flattened(words), command)
        decides = command.decisive() if first in self.functions else []
        if decides:
            self.refuse_choice(decides[0][0], command.line)
        if command.options or command.overrides:
            place = self.branches[-1].commands if self.branches else self.commands
            place.append(command)

    def forget(self, names: Iterable[str]) -> None:
        self.variables.update({name: [UNKNOWN] for name in names})

    def flattened(self, words: list[_Word]) -> list[_Word]:
        """A word with blanks and options is a command for eval or bash -c."""
        flat: list[_Word] = []
        for word in words:
            text = word.text
            if not (" " in text and (text.startswith("--") or " --" in text)):
                flat.append(word)
            elif self.depth < 4:
                inner = _Script(self.file, text, self)
                while (made := inner.statement()) is not None:
                    flat += [_Word(one.text, word.line) for one in made.words]
        return flat

    def take_words(self, words: list[_Word], command: _Command) -> None:
        """Reads options, overrides and other words of a command."""
        launched = False  # after the script that `accelerate launch` starts
        launches = any(w.text.endswith("accelerate") for w in words[:-1]) and any(
            w.text == "launch" for w in words
        )
        i = 0
        while i < len(words):
            text, line = words[i].text, words[i].line
            i += 1
            if choice := _CHOICE.search(text):
                at, _, name = choice[1].partition(":")
                self.refuse_choice(name, int(at))
            if not text.startswith("--") or len(text) == 2:
                launched |= text.endswith(".py") or text in ("-m", "--module")
                override = _OVERRIDE.fullmatch(text)
                if override:
                    path = _CHOSEN_TABLES.get(override[1], override[1])
                    command.overrides[path] = (override[2].strip("\"'"), line)
                else:
                    command.words.append(text)
                    command.complete &= not (_MORE in text or text == UNKNOWN)
                continue
            spelled, equals, value = text.partition("=")
            name = spelled[2:].replace("-", "_")
            command.complete &= UNKNOWN not in name
            if UNKNOWN in name and _DECISIVE.search(name):
                self.refuse_choice(name.replace(UNKNOWN, "..."), line)
            following = words[i].text if i < len(words) else "--"
            may_follow = not following.startswith("--") and _MORE not in following
            if not equals and may_follow and _takes_value(name, following):
                value, i, equals = following, i + 1, "="
            options = command.launcher if launches and not launched else command.options
            command.spelled.add(spelled)
            node = Node(self.value_of(name, value if equals else None), line)
            self.add_option(options, name, node)

    @staticmethod
    def add_option(options: dict[str, Node], name: str, node: Node) -> None:
        if name in options and options[name].value != node.value:
            node = Node(Unknown(f"duplicate key {quoted(name)}", "one value"), node.line)
        options[name] = node

    def value_of(self, name: str, value: str | None) -> Any:
        if value is None:
            return True
        if UNKNOWN in value and not (name.startswith("deepspeed") and value in self.written):
            return Unknown("depends on how the script is run", "the command line itself")
        if name.startswith("deepspeed") and value in self.written:
            try:  # a file of DeepSpeed that the script itself writes
                return _parse_json(self.file, self.written[value]).value
            except UsageError:
                return value
        return _value_of(value, name in _SWITCHES or name.endswith("16_full_eval"))


def _takes_value(name: str, following: str) -> bool:
    if following.lower() in _TRUTHS or following in _SWITCH_WORDS:
        return True
    if name == "deepspeed":
        return not following.endswith(".py")
    # A switch of a program with values of its own may be given a variable.
    return name not in _SWITCHES or following == UNKNOWN


def _value_of(text: str, is_switch: bool = False) -> Any:
    if text.lower() in _TRUTHS and text in (text.lower(), text.title(), text.upper()):
        return _TRUTHS[text.lower()]
    if is_switch and text in _SWITCH_WORDS:
        return _SWITCH_WORDS[text]
    return Number(text) if _NUMBER.fullmatch(text) else text


def _decisive_words(values: _Values) -> list[str]:
    """The options of a variable's value that decide, each with what follows it."""
    found: list[str] = []
    follows = False
    for word in (word for value in values for word in value.split()):
        decides = word.startswith("--") or "=" in word
        decides = decides and _DECISIVE.search(word.partition("=")[0]) is not None
        decides = decides or "\x03" in word
        if decides or (follows and not word.startswith("--")):
            found.append(word)
        follows = decides and "=" not in word
    return found


def _forget_differences(one: _Command, other: _Command) -> None:
    """Makes unknown what two commands that decide the same do not share."""
    for name in one.options.keys() | other.options.keys():
        mine, theirs = one.options.get(name), other.options.get(name)
        if mine is None or theirs is None or mine.value != theirs.value:
            one.options[name] = Node(Unknown("depends on how the script is run"), one.line)
    one.complete &= other.complete


def commands_of(path: str, text: str) -> list[Source]:
    """Returns the commands of a script that have options; raises UsageError for a choice."""
    script = _Script(input_name(path), text)
    if len(text) > _MAX_TEXT:
        refuse(printable(script.file), "too large for a script", f"at most {_MAX_TEXT} bytes")
    script.run()
    sources = []
    commands = script.commands
    bare = [command for command in commands if command.is_bare]
    if bare and len(bare) == len(commands):  # a file of options, one or several a line
        for command in bare[1:]:
            for name, node in command.options.items():
                script.add_option(bare[0].options, name, node)
            bare[0].complete &= command.complete
            bare[0].spelled |= command.spelled
        commands = bare[:1]
    elif bare:
        place = f"{printable(script.file)}:{bare[0].line}"
        refuse(place, "a command that begins with an option", "a backslash at the line end before")
    for command in commands:
        entries = {**command.launcher, **command.options}
        entries |= _tables_of(command.overrides, entries)
        table = Table(script.file, entries, "", command.line)
        sources.append(
            Source(
                table,
                is_command=True,
                options=frozenset(command.spelled),
                words=tuple(command.words),
                complete=command.complete,
                line=command.line,
            )
        )
    if not sources:
        refuse(printable(script.file), "no options of a training program", "--NAME VALUE ...")
    return sources


def _tables_of(overrides: dict[str, tuple[str, int]], entries: dict[str, Node]) -> dict[str, Node]:
    """Hydra's overrides, as the tables that they stand for."""
    root: dict[str, Any] = {}
    for path, (value, line) in overrides.items():
        if path.count(".") > MAX_DEPTH:
            continue
        table = root
        *tables, key = path.split(".")
        for name in tables:
            inner = table.get(name)
            if inner is None or not isinstance(inner.value, dict):
                inner = table[name] = Node({}, line)
            table = inner.value
        unknown = Unknown("depends on how the script is run", "the command line itself")
        table[key] = Node(unknown if UNKNOWN in value else _value_of(value), line)
    return {name: node for name, node in root.items() if name not in entries}
