# SPDX-License-Identifier: Apache-2.0
"""dlsim's own files: options under their own names (--config), and the grid of a sweep (--grid)."""

from __future__ import annotations

from typing import Any

from ._meaning import Config, Options, Policy
from ._reading import (
    Node,
    Number,
    Source,
    Table,
    described,
    one_of,
    parse,
    printable,
    read_text,
)

KEYS = (
    "format", "policy", "parameters", "max-gradient-norm", "max-gradient-value",
    "grad-accum-steps", "finite-test",
)  # fmt: skip
_GRID_KEYS = ("format", "policy", "set", "vary", "random", "seed", "limit")


def _texts(table: Table, key: str) -> list[str]:
    node = table.node(key)
    nodes = [] if node is None else node.value if isinstance(node.value, list) else [node]
    if not all(isinstance(one.value, str) for one in nodes):
        table.refuse(key, "wrong type", "a name or a list of names")
    return [one.value for one in nodes]


def _scalar(table: Table, key: str, node: Node) -> str:
    if not isinstance(node.value, (bool, Number, str)):
        expected = "a number, a text, true or false, or a list of these"
        table.refuse(key, "wrong type", expected, described(node))
    return node.text


def _settings(table: Table) -> list[str]:
    scalars = [(k, node) for k, node in table.entries.items() if not isinstance(node.value, dict)]
    return [f"{key}={_scalar(table, key, node)}" for key, node in scalars]


def read_dlsim(source: Source, options: Options) -> Config:
    """Reads options under their own names, and [parameters] for --set."""
    config, table = Config("dlsim"), source.table
    table.require_known(KEYS)
    config.formats = _texts(table, "format")
    config.policies = [Policy(name) for name in _texts(table, "policy")]
    parameters = table.table_or_empty("parameters")
    if parameters.entries and not config.policies:
        table.refuse("parameters", "without a policy", "policy = NAME")
    config.general = _settings(parameters)
    for key, node in parameters.entries.items():
        if isinstance(node.value, dict):
            own = [policy for policy in config.policies if policy.name == key]
            if not own:
                names = one_of(policy.name for policy in config.policies)
                parameters.refuse(key, "no policy of this file", names)
            own[0].settings = _settings(parameters.inner(key, node))
    config.clip(table, "max-gradient-norm", "max-gradient-value")
    config.accumulate_steps = table.integer("grad-accum-steps", 1)
    config.finite_test = table.choice("finite-test", ("elementwise", "global-norm"))
    return config


def meant_by_grid(path: str) -> dict[str, Any]:
    """Returns what the engine takes of a grid: ParseGrid of sim/sweep/grid.h."""
    table = parse(path, read_text(path))
    table.require_known(_GRID_KEYS)
    found: dict[str, Any] = {k: _values(table, k) for k in ("format", "policy") if table.has(k)}
    for key in ("set", "vary"):
        found[key] = _axes(table.table_or_empty(key), "")
    for key, least in (("random", 1), ("seed", 0), ("limit", 1)):
        number = table.integer(key, least)
        if number is not None:
            found[key] = number
    return found


def _values(table: Table, key: str) -> str:
    """A scalar, or the items of a list, separated by commas."""
    node = table.node(key) or Node(None)
    items = node.value if isinstance(node.value, list) else [node]
    return ",".join(_scalar(table, key, item) for item in items)


def _axes(table: Table, prefix: str) -> list[tuple[str, str]]:
    """The keys of [set] or [vary]; a table inside is for the policy of its name."""
    found: list[tuple[str, str]] = []
    for key, node in table.entries.items():
        if isinstance(node.value, dict) and not prefix:
            found += _axes(table.inner(key, node), f"{key}.")
        else:
            line = f":{node.line}" if node.line else ""
            found.append((printable(table.file) + line, f"{prefix}{key}={_values(table, key)}"))
    return found
