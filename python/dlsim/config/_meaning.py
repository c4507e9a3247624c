# SPDX-License-Identifier: Apache-2.0
"""What a training configuration means for a simulation, and what most stacks have in common."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any

from ._reading import Clear, Number, Table, Unknown, described, refuse

Version = tuple[int, int, int]

_UPDATES = ("weights", "master", "first", "second", "gradients", "reduce")

FLOAT32_NOTE = "neither fp16 nor bf16 is enabled: this run computes in float32"


@dataclass(frozen=True)
class Options:
    """What the command line says of a file."""

    kind: str = ""  # the name of a dialect; empty: by the content
    version: Version | None = None  # of the stack; None: the newest that was compared
    backend: str = ""  # csx, gpu, cpu; empty: what the file says

    def before(self, *version: int) -> bool:
        return self.version is not None and self.version < version


@dataclass
class Policy:
    """A policy with settings KEY=VALUE."""

    name: str
    settings: list[str] = field(default_factory=list)

    def set(self, key: str, value: Number | int | str | None) -> None:
        """Adds a setting where there is a value, as the file has it."""
        if value is not None:
            self.settings.append(f"{key}={value.text if isinstance(value, Number) else value}")


def no_scaler() -> Policy:
    """Policy static at 1."""
    return Policy("static", ["loss_scale=1"])


@dataclass
class Adam:
    """The numbers of Adam and its kin; None: not known."""

    lr: float | None = None  # the largest of a schedule
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    decoupled: bool = False  # weights decay by lr * weight_decay, as AdamW's do


@dataclass
class Config:
    """What a file means; empty or None where it does not say."""

    kind: str
    formats: list[str] = field(default_factory=list)
    policies: list[Policy] = field(default_factory=list)
    general: list[str] = field(default_factory=list)  # settings of all policies that take them
    scaled: str = ""  # a format with scales of its own, of products in layers
    max_norm: float | None = None
    max_value: float | None = None
    clip_rule: str | None = None
    micro_steps: int | None = None  # of a step
    accumulate_steps: int | None = None  # recorded steps that dlsim is to sum
    finite_test: str | None = None
    # Formats of weights, master (their copy), first and second (moments), gradients (sums over
    # micro-steps), reduce (sums over ranks); absent: open.
    updates: dict[str, str] = field(default_factory=dict)
    adam: Adam = field(default_factory=Adam)
    notes: list[str] = field(default_factory=list)

    def precision(self, name: str, scaler: Policy) -> None:
        """Sets format and policy: `scaler` in fp16, none in bf16 and float32 (empty)."""
        self.formats = [name] if name else []
        self.policies = [scaler if name == "fp16" else no_scaler()]
        if name != "fp16":
            self.notes.append("bf16: no loss scaling" if name else FLOAT32_NOTE)

    def clip_norm(self, table: Table, key: str, default: float | None = None) -> None:
        """Reads the limit of clipping by norm; 0 and less, and null, is off."""
        limit = table.number(key)
        if key not in table.entries:
            self.max_norm = default
        elif limit is not None and limit > 0:
            self.max_norm = float(limit)

    def clip(self, table: Table, norm: str, value: str) -> None:
        limits = [table.number(key, above=0) for key in (norm, value)]
        if None not in limits:
            table.refuse(value, "clips a second time", f"{norm} or {value}")
        self.max_norm, self.max_value = (None if n is None else float(n) for n in limits)

    def meant(self, path: str) -> dict[str, Any]:
        """Returns what the engine takes: sim/app/training_config.cc."""
        updates = {name: self.updates[name] for name in _UPDATES if name in self.updates}
        name = os.fsencode(path).decode(errors="replace")  # JSON has no other bytes
        return asdict(self) | {"path": name, "updates": updates}


def switch(table: Table, key: str) -> bool:
    """Reads a switch: true, false, 1 or 0; off by default."""
    node = table.node(key)
    if node is not None and isinstance(node.value, str):
        problem = "text, which the original software always takes as true"
        table.refuse(key, problem, "true or false", described(node))
    if node is not None and isinstance(node.value, Number) and node.value in (0.0, 1.0):
        return node.value == 1.0
    return bool(table.boolean(key))


def require_unquoted(table: Table, *keys: str) -> None:
    """Refuses a number in quotes where the original software fails on it."""
    for key in keys:
        node = table.entries.get(key)
        if node is not None and isinstance(node.value, str):
            table.refuse(key, "text in quotes", "a number", described(node))


def switched(table: Table, fp16: str = "fp16", bf16: str = "bf16") -> str:
    """Returns fp16, bf16 or "" by two switches, off by default; refuses both at once."""
    is_fp16, is_bf16 = switch(table, fp16), switch(table, bf16)
    if is_fp16 and is_bf16:
        table.refuse(bf16, "both fp16 and bf16 are on", "at most one, as the original does")
    return "fp16" if is_fp16 else "bf16" if is_bf16 else ""


def pure_formats(kind: str, reduce: str) -> dict[str, str]:
    """Weights, states and gradients in one format, without a copy in float32."""
    formats = dict.fromkeys(("weights", "first", "second", "gradients"), kind)
    return formats | {"master": "none", "reduce": reduce}


def master_formats(kind: str) -> dict[str, str]:
    """Weights with a copy and states in float32; gradients and their sums like the weights."""
    formats = dict.fromkeys(("master", "first", "second"), "fp32")
    return formats | dict.fromkeys(("weights", "gradients", "reduce"), kind)


def autocast_formats(kind: str) -> dict[str, str]:
    """The same, but sums of gradients are open."""
    return {k: v for k, v in master_formats(kind).items() if k not in ("gradients", "reduce")}


def fsdp_formats(param: str | None, reduce: str | None, shards: str | None) -> dict[str, str]:
    """Fully sharded training: the optimizer updates shards."""
    found = {"weights": param, "reduce": reduce}
    if shards:
        found["master"] = "none" if shards == param else shards
    return known(found)


def known(formats: dict[str, str | None]) -> dict[str, str]:
    """Leaves out what is open."""
    return {name: value for name, value in formats.items() if value is not None}


def adam_of(
    keys: Clear, names: str, beta2: float = 0.999, decay: float = 0.0, lr: float | None = None
) -> Adam:
    """Reads decoupled Adam by the names of its beta1, beta2, eps and weight_decay."""
    beta1_key, beta2_key, eps_key, decay_key = names.split()
    return Adam(
        keys.number("lr", lr),
        keys.number(beta1_key, 0.9),
        keys.number(beta2_key, beta2),
        keys.number(eps_key, 1e-8),
        keys.number(decay_key, decay),
        decoupled=True,
    )


def named_format(table: Table, key: str) -> str | None:
    """Returns the format that a type names, such as torch.float16."""
    from ._reading import format_of_type

    node = table.node(key)
    found = None if node is None else format_of_type(node.text)
    if node is not None and found is None:
        expected = "a name such as float16 or bfloat16"
        table.refuse(key, "unknown format", expected, described(node))
    return found


def is_on(table: Table, key: str) -> bool:
    """Whether a key is there and neither null nor false nor unknown."""
    node = table.entries.get(key)
    return (
        node is not None and node.value not in (None, False) and not isinstance(node.value, Unknown)
    )


def parse_version(text: str) -> Version:
    """Returns the numbers of a version such as "1.9.1" or "0.16"; raises UsageError."""
    parts = text.split(".")
    if not 1 <= len(parts) <= 3 or not all(p.isdecimal() and len(p) <= 9 for p in parts):
        expected = "up to three numbers such as 1.9.1"
        refuse("--config-version", "bad version", expected, f"'{text}'")
    numbers = [int(part) for part in parts] + [0, 0]
    return numbers[0], numbers[1], numbers[2]
