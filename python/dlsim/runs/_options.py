# SPDX-License-Identifier: Apache-2.0
"""How values of keywords become options of the command.

The module _command_options has the keywords; it is made from the command when the package is
built. Numbers may be texts that the command understands, such as "2^15". None is as if not given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from inspect import signature

from .._errors import UsageError
from .._values import text_of


def _items(place: str, value: object) -> list[object]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        return [value]
    return list(value)


def _pair(place: str, value: object) -> str:
    parts = [text_of(place, part) for part in _items(place, value)]
    if len(parts) not in (1, 2):
        raise UsageError(f"{place}: expected two, got {len(parts)}")
    return ":".join(parts)


def _joined(place: str, value: object) -> str:
    return ",".join(text_of(place, item) for item in _items(place, value))


def _one(place: str, flag: str, value: object) -> list[str]:
    return [f"{flag}={text_of(place, value)}"]


def _each(place: str, flag: str, value: object) -> list[str]:
    return [f"{flag}={text_of(place, item)}" for item in _items(place, value)]


def _list(place: str, flag: str, value: object) -> list[str]:
    text = _joined(place, value)
    return [f"{flag}={text}"] if text else []


def _pairs(place: str, flag: str, value: object) -> list[str]:
    """Several A:B, each a text or a pair of texts; a tuple of two texts is one."""
    one = isinstance(value, tuple) and len(value) == 2 and ":" not in "".join(map(str, value))
    items = [value] if one else _items(place, value)
    return [f"{flag}={_pair(place, item)}" for item in items]


def _pair_list(place: str, flag: str, value: object) -> list[str]:
    text = ",".join(_pair(place, item) for item in _items(place, value))
    return [f"{flag}={text}"] if text else []


def _shard(place: str, flag: str, value: object) -> list[str]:
    return [f"{flag}={_pair(place, value).replace(':', '/')}"]


def _mapping(place: str, flag: str, value: object) -> list[str]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{place}: expected a mapping, got {type(value).__name__}")
    return [f"{flag}={key}={_joined(f'{place}[{key!r}]', item)}" for key, item in value.items()]


def _truth(place: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{place}: expected True or False, got {type(value).__name__}")
    return value


def _if_true(place: str, flag: str, value: object) -> list[str]:
    return [flag] if _truth(place, value) else []


def _true_or_one(place: str, flag: str, value: object) -> list[str]:
    return _if_true(place, flag, value) if isinstance(value, bool) else _one(place, flag, value)


# How the kinds of options in KEYWORDS are written.
_WRITERS: dict[str, Callable[[str, str, object], list[str]]] = {
    "one": _one,
    "each": _each,
    "list": _list,
    "pairs": _pairs,
    "pair_list": _pair_list,
    "part_of": _shard,
    "mapping": _mapping,
    "if_true": _if_true,
    "true_or_one": _true_or_one,
}


def arguments_of(function: str, options: Mapping[str, object]) -> list[str]:
    """Returns the command's options for keywords of a function; TypeError for a wrong type."""
    from ._command_options import KEYWORDS  # which imports this module

    arguments: list[str] = []
    for name, value in options.items():
        if value is not None:
            keyword = KEYWORDS[function][name]
            arguments += _WRITERS[keyword.kind](f"{function}: {name}", keyword.flag, value)
    return arguments


def check_keywords(function: Callable[..., object], given: Iterable[str]) -> None:
    """Raises TypeError for a keyword that a function does not have; it names the likely one."""
    parameters = signature(function).parameters
    known = [name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY]
    for name in given:
        if name not in parameters:
            close = _named(function.__name__, name) or get_close_matches(name, known, 1)
            hint = f", did you mean {close[0]!r}?" if close else f", expected {', '.join(known)}"
            raise TypeError(
                f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}"
            )


def _named(function: str, option: str) -> list[str]:
    """Returns the keyword that stands for an option of the command, such as settings for set."""
    from ._command_options import KEYWORDS

    flag = f"--{option.replace('_', '-')}"
    return [name for name, keyword in KEYWORDS[function].items() if keyword.flag == flag]
