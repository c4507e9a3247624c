# SPDX-License-Identifier: Apache-2.0
"""The commands of `dlsim` as functions: each runs in this process and returns its result.

Keywords are the options of `dlsim COMMAND --help`; `help` of a function lists them. Traces and
profiles are paths, one or several. Errors are UsageError (wrong use), PolicyRefusal (a policy
refused its parameters; the result is in its `result`), InputError (a file) and TypeError.
"""

# The functions are made of the engine's options when they are first asked for. A keyword is the
# option's name with `_`, in the plural if it may be given several times. Its type follows from what
# stands for its value in the help, or is the names that the engine takes; its help is the option's,
# in words of Python. The tables have the exceptions.

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, NamedTuple

from ._errors import Error, InputError, PolicyRefusal, UsageError
from ._values import text_of

if TYPE_CHECKING:
    from ._core import HeldStep
    from ._functions import diff, formats, info, profile, replay, scaler, sweep, tune
    from .results import Result

__all__ = [
    "diff",
    "formats",
    "info",
    "profile",
    "progress_to",
    "replay",
    "scaler",
    "sweep",
    "tune",
]

# Exit codes of the engine.
_CHECK_FAILED, _USAGE, _INPUT = 1, 2, 3
_LONGEST_PATH = 4096  # bytes; Linux takes no longer one

Progress = Callable[[int, int, str], object]
_on_progress: ContextVar[Progress | None] = ContextVar("on_progress", default=None)

Model = Mapping[str, Any]  # the JSON of `dlsim --dump-options`


class _Function(NamedTuple):
    """A function: its parameters but for keywords, and its help."""

    parameters: dict[str, str]
    summary: str


_TRACES = {"traces": "Paths"}
_FUNCTIONS = {
    "replay": _Function(
        _TRACES,
        "Replays recorded gradients through formats and policies; dlsim.replay/1.",
    ),
    "sweep": _Function(
        _TRACES,
        "Tries very many formats, policies and parameters in one pass; dlsim.sweep/1.",
    ),
    "tune": _Function(
        _TRACES,
        "Recommends loss-scale parameters; dlsim.tune/1.\n\n"
        "With `emit`, the report is the configuration to paste.",
    ),
    "diff": _Function(
        {"a": "PathText", "b": "PathText"},
        "Compares two traces or profiles of one model, tensor by tensor; dlsim.diff/1.",
    ),
    "profile": _Function(
        {**_TRACES, "output": "PathText"},
        "Writes the profile `output` of a trace; the result says what it holds.",
    ),
    "info": _Function(
        _TRACES,
        "Lists what a trace or profile holds, from its headers; dlsim.info/1.",
    ),
    "scaler": _Function(
        {"policy": "str | None", "steps": "int | None"},
        "Runs one policy on a list of overflow steps; dlsim.scaler/1.",
    ),
    "formats": _Function(
        {"*names": "FormatName"},
        "Describes number formats, all with a name if none is given; dlsim.formats/1.",
    ),
}
# Options that functions give by themselves, and names that do not follow the rule.
_ABSENT = {"json", "list"}
_PLURALS = {"set": "settings", "policy": "policies"}
_NO_PLURAL = {"config", "expect", "float32", "state", "vary"}

# Types by what stands for a value in the help; all but those of flags may be None.
_PATHS = "PathText | Sequence[PathText]"
_ONE = {"FILE": "PathText", "N": "int", "S": "Number", "STEP": "int", "X": "Number"}
_ONE |= {"F": "FormatName", "MIB": "int", "LIST": "Number | Sequence[Number]"}
_EACH = {"FILE": _PATHS, "N": "int | Sequence[int]", "F": "FormatNames"}
_MAPPINGS = {"KEY=VALUE": "Settings", "NAME=GLOB": "Mapping[str, str]"}
_PAIRS = {"histogram": "str | Sequence[str | tuple[int, int]]"}
_VALUES = "Mapping[str, Number | Sequence[Number]]"
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
    (r"numbers from A to B, both", "numbers from A to B, as 'A:B', both"),
    (r"POLICY\.KEY=VALUE sets it for one", "'POLICY.KEY' sets it for one"),
    (r"\bdlsim (merge|replay|sweep|tune|profile)\b", r"dlsim.\1"),
    (r"Print JSON; with --json FILE.json, write it to that file", "Print JSON"),
)

_STUB = '''\
# SPDX-License-Identifier: Apache-2.0
"""The functions of dlsim.runs, whose keywords are the engine's options; printed by the build."""

from collections.abc import Mapping, Sequence
from typing import Literal

from ._values import FormatName, FormatNames, Names, Number, Paths, PathText, Settings
from .results import Result
'''


class _Keyword(NamedTuple):
    """A keyword: the option that it is, what the option takes, its type and its help."""

    option: str
    takes: str  # "flag", "maybe" a value, "one", a "list", "each" of several, or a "mapping"
    type: str
    help: str


def _takes(row: Mapping[str, Any]) -> str:
    if row["value"] is None:
        return "flag"
    if row["optional_value"]:
        return "maybe"
    if not row["repeatable"]:
        return "list" if row["value"] == "LIST" else "one"
    return "mapping" if "=" in row["value"] else "each"


def _type(row: Mapping[str, Any]) -> str:
    takes, value, names = _takes(row), row["value"], row["values"]
    if takes == "flag":
        return "bool"
    if takes == "maybe":
        return "bool | int"
    if takes == "mapping":
        named = _MAPPINGS.get(value, _VALUES)
    elif takes == "each":
        named = _EACH.get(value, "Names")
    elif value in _NAMED and 0 < len(names) <= _MOST_NAMES:
        named = f"Literal[{', '.join(json.dumps(name) for name in names)}]"
    else:
        named = _PAIRS.get(row["name"]) or _ONE.get(value, "str")
    return f"{named} | None"


def _keyword(row: Mapping[str, Any]) -> str:
    name = str(row["name"])
    if row["repeatable"] and name not in _NO_PLURAL:
        name = _PLURALS.get(name, name + "s")
    return name.replace("-", "_")


@cache
def keywords(name: str) -> dict[str, _Keyword]:
    """Returns the keywords of a function, in the order of the help."""
    from . import _core

    return _keywords(name, json.loads(_core.options()))


def _keywords(name: str, model: Model) -> dict[str, _Keyword]:
    rows = model["commands"][name]["options"]
    rows = [row for row in rows if row["name"] not in _ABSENT and not row["hidden"]]
    named = {row["name"]: _keyword(row) for row in rows}
    found = {}
    for row in rows:
        text = row["help"]
        for pattern, words in _WORDS:
            text = re.sub(pattern, words, text)
        # An option that a text names is the keyword, its value an argument.
        text = re.sub(
            r"--([a-z]+(?:-[a-z]+)*)",
            lambda one: named.get(one[1], one[1].replace("-", "_")),
            text,
        )
        found[named[row["name"]]] = _Keyword(row["name"], _takes(row), _type(row), text)
    return found


def _signature(function: _Function, known: Mapping[str, _Keyword]) -> Signature:
    parameters = []
    for name, type_ in function.parameters.items():
        kind = Parameter.VAR_POSITIONAL if name[0] == "*" else Parameter.POSITIONAL_OR_KEYWORD
        default: object = None if type_.endswith("None") else Parameter.empty
        one = Parameter(name.lstrip("*"), kind, default=default, annotation=type_)
        parameters.append(one)
    for name, keyword in known.items():
        if name not in function.parameters:
            default = False if keyword.takes in ("flag", "maybe") else None
            one = Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=keyword.type)
            parameters.append(one)
    return Signature(parameters, return_annotation="Result")


def _document(function: _Function, known: Mapping[str, _Keyword]) -> str:
    from textwrap import fill

    if not known:
        return function.summary
    lines = [
        fill(f"{name}: {one.help}", 92, initial_indent="  ", subsequent_indent=" " * 6)
        for name, one in known.items()
    ]
    return "\n".join([function.summary, "", "Keywords:", *lines, ""])


def stub(model: Model) -> str:
    """Returns the functions for type checkers and editors: the text of _functions.pyi."""
    from textwrap import indent

    text = _STUB
    for name, function in _FUNCTIONS.items():
        known = _keywords(name, model)
        document = indent(_document(function, known), "    ").strip().replace("\\", "\\\\")
        text += f'\n\ndef {name}{_signature(function, known)}:\n    """{document}"""\n'
    return text


def __getattr__(name: str) -> Callable[..., Result]:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = globals()[name] = _function(name)
    return function


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _function(name: str) -> Callable[..., Result]:
    """Returns the function of a command."""
    from .results import Result

    known = keywords(name)
    signature = _signature(_FUNCTIONS[name], known)

    def function(*arguments: Any, **options: Any) -> Result:
        _check_keywords(name, options)
        try:
            given = signature.bind(*arguments, **options).arguments
        except TypeError as error:
            raise TypeError(f"{name}() {error}") from None
        named = [
            given.pop(one) for one in signature.parameters if one in given and one not in known
        ]
        if name == "formats":
            return call(name, [text_of(name, one) for one in named[0]] if named else [], {})
        return call(name, paths_of(name, named[0] if len(named) == 1 else named), given)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = _document(_FUNCTIONS[name], known)
    function.__signature__ = signature  # type: ignore[attr-defined]
    # Editors complete attributes of what it returns.
    function.__annotations__ = {"return": Result}
    return function


def _check_keywords(name: str, given: Iterable[str]) -> None:
    """Raises TypeError for a keyword that a function does not have; it names the likely one."""
    known = keywords(name)
    for one in given:
        if one not in known and one not in _FUNCTIONS[name].parameters:
            from difflib import get_close_matches

            options = {keyword.option.replace("-", "_"): key for key, keyword in known.items()}
            close = [options[one]] if one in options else get_close_matches(one, known, 1)
            hint = f", did you mean {close[0]!r}?" if close else f", expected {', '.join(known)}"
            raise TypeError(f"{name}() got an unexpected keyword argument {one!r}{hint}")


def call(
    name: str,
    arguments: Sequence[str],
    given: Mapping[str, object],
    step: HeldStep | None = None,
) -> Result:
    """Runs a command and returns its result; None is as if a keyword were not given.

    An expectation that does not hold is a finding in the result, not an error. `step` is what
    STEP_PATH names.
    """
    from . import _core
    from .results import Result

    options, words = [], []
    for keyword, value in given.items():
        option = keywords(name)[keyword]
        for text in () if value is None else _texts(f"{name}: {keyword}", option, value):
            options.append((option.option, text))
            alone = not text and option.takes in ("flag", "maybe")
            words.append(f"--{option.option}" + ("" if alone else f"={text}"))
    if "config" in given or "grid" in given:
        from .config import meant

        options += meant(options)
    prints = name in ("info", "formats")
    options.append(("json", "" if prints else "<result>"))
    with _progress_of_call() as on_progress:
        code, report, said, data = _core.call(
            name,
            [os.fsencode(one) for one in arguments],
            [(one, os.fsencode(text)) for one, text in options],
            "-" if prints else "<result>",
            on_progress,
            step,
        )
    lines = [line.removeprefix("note: ") for one in said for line in one.splitlines() if line]
    error = ""
    if code not in (0, _CHECK_FAILED):
        error = lines.pop() if lines else f"exit code {code}"
    found = None
    if data is not None:
        found = Result(data, ("dlsim", name, *words, *arguments), lines, report)
    if code == _USAGE:
        _raise_refusal(found)
        raise UsageError(error)
    if code == _INPUT:
        raise InputError(error)
    if error or found is None:
        raise Error(error or f"{name}: the command wrote no result")
    return found


def _raise_refusal(found: Result | None) -> None:
    """Raises PolicyRefusal if a policy refused its parameters."""
    data = {} if found is None else found
    for run in data.get("runs", [data]):
        for event in run.get("events", ()):
            if event.get("step") == -1:
                refusal = PolicyRefusal(event["type"], event["message"])
                refusal.result = found
                raise refusal


def _texts(place: str, option: _Keyword, value: object) -> list[str]:
    """Returns what the engine reads of a value, "" of what is given without one."""
    if option.takes in ("flag", "maybe") and getattr(value, "ndim", 1) == 0:
        value = value.item()  # type: ignore[attr-defined]  # a truth value of NumPy
    if option.takes == "mapping":
        if not isinstance(value, Mapping):
            raise TypeError(f"{place}: expected a mapping, got {type(value).__name__}")
        return [f"{key}={_list(f'{place}[{key!r}]', one)}" for key, one in value.items()]
    if option.takes == "each":
        return [_text(place, option, one) for one in _items(value)]
    if option.takes == "flag" and not isinstance(value, bool):
        raise TypeError(f"{place}: expected True or False, got {type(value).__name__}")
    if option.takes in ("flag", "maybe") and isinstance(value, bool):
        return [""] if value else []
    if option.takes == "list":
        return [text] if (text := _list(place, value)) else []
    return [_text(place, option, value)]


def _text(place: str, option: _Keyword, value: object) -> str:
    if not option.type.startswith("PathText"):
        return text_of(place, value)
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise TypeError(f"{place}: expected a path, got {type(value).__name__}")
    return text_of(place, os.fsdecode(value))


def _items(value: object) -> list[object]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        return [value]
    return list(value)


def _list(place: str, value: object) -> str:
    """Returns a list with commas between; a pair has a colon."""
    return ",".join(
        ":".join(text_of(place, part) for part in (one if isinstance(one, tuple) else [one]))
        for one in _items(value)
    )


def paths_of(name: str, paths: object) -> list[str]:
    """Returns one path or several as texts; raises TypeError, UsageError and InputError."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        paths = [paths]
    _refuse_arrays(name, paths)
    if not isinstance(paths, Iterable):
        raise TypeError(f"{name}: expected a path or several, got {type(paths).__name__}")
    return [_path(name, path) for path in paths]


def _path(name: str, path: object) -> str:
    _refuse_arrays(name, path)
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"{name}: expected a path, got {type(path).__name__}")
    text = text_of(name, os.fsdecode(path))
    if len(os.fsencode(text)) >= _LONGEST_PATH:
        raise InputError(
            f"{text[:40]}...: cannot be opened: File name too long, expected less than "
            f"{_LONGEST_PATH} bytes, got {len(os.fsencode(text))}"
        )
    return text


def _refuse_arrays(name: str, given: object) -> None:
    """Raises TypeError where arrays are given instead of paths."""
    if isinstance(given, str):  # of NumPy, too, which is like an array
        return
    if isinstance(given, Mapping):
        kind = "a mapping"
    elif hasattr(given, "__array__") or hasattr(given, "__dlpack__"):
        kind = "an array"
    else:
        return
    raise TypeError(
        f"{name}: expected the path of a trace or profile, got {kind}; "
        "dlsim.check({name: array}) judges gradients at hand, dlsim.Recorder records a trace"
    )


@contextmanager
def progress_to(callback: Progress) -> Iterator[None]:
    """Context in which commands report their progress to `callback`, not on the terminal.

    A few times a second the callback gets the steps done, all steps, and a line of text. Each pass
    over the steps begins at the first. An exception that it raises ends the command.
    """
    before = _on_progress.set(callback)
    try:
        yield
    finally:
        _on_progress.reset(before)


@contextmanager
def _progress_of_call() -> Iterator[Progress | None]:
    """Yields what gets the progress of a call: a callback, else a line of the terminal, if any."""
    callback, terminal = _on_progress.get(), _terminal()
    if callback is not None or terminal is None:
        yield callback
        return
    drawn = False

    def draw(done: int, total: int, text: str) -> None:
        nonlocal drawn
        drawn = True
        os.write(terminal, b"\r\x1b[K" + text.encode())

    try:
        yield draw
    finally:
        if drawn:
            os.write(terminal, b"\r\x1b[K")


def _terminal() -> int | None:
    """Returns the descriptor of standard error if that is a terminal which redraws lines."""
    try:
        drawable = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        return sys.stderr.fileno() if drawable else None
    except (AttributeError, OSError, ValueError):
        return None


if __name__ == "__main__":  # the build, where the engine is next to the package
    from importlib import import_module

    sys.stdout.write(stub(json.loads(import_module("_core").options())))
