# SPDX-License-Identifier: Apache-2.0
"""Notes on the numbers of a configuration that a format of it cannot hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from .._text import scale_text
from ._meaning import Config
from ._reading import Node, Number, Table, format_of_type, printable

if TYPE_CHECKING:
    from .._core import Format

_LARGEST_STILL = 0.125  # smaller weights that do not move are many in any model
_MASKS = {
    "mask_value", "attention_mask_value", "attn_mask_value", "mask_fill_value", "mask_fill",
    "masked_value", "masked_bias", "mask_bias",
}  # fmt: skip
_SMOOTHING = {"label_smoothing", "label_smoothing_factor"}
_SCALES = {
    "loss_scale", "init_scale", "initial_scale", "initial_loss_scale", "min_loss_scale",
    "max_loss_scale", "min_scale", "max_scale",
}  # fmt: skip
_LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
_ROUNDS_TO_0 = 2.0**-150  # in float32


class _Held(NamedTuple):
    """A format that the file says, or that holds if its condition does."""

    format: str
    condition: str  # as a line begins


def _rounded(values: Any, kind: str) -> Any:
    """Rounds to a format, to nearest, as its codec does; numpy is loaded only where it matters."""
    import numpy as np

    import dlsim

    with np.errstate(over="ignore"):
        array = np.atleast_1d(np.asarray(values, np.float64)).astype(np.float32)
    return np.asarray(dlsim.quantize(array, kind), np.float32)


def _format(kind: str) -> Format:
    from .._core import Format

    return Format(kind)


def _unmoved(factor: float, kind: str) -> int:
    """How many significands come back from a product with a factor, made in float32 as in torch."""
    import numpy as np

    count = 1 << _format(kind).mantissa_bits
    values = (1 + np.arange(count) / count).astype(np.float32)
    return int(np.sum(_rounded(values * np.float32(factor), kind) == values))


def _text(number: float) -> str:
    return f"{number:.17g}" if float(f"{number:.15g}") != number else f"{number:.15g}"


def _weights(config: Config) -> _Held | None:
    """What the optimizer updates, where that is in 16 bits or may be."""
    weights, master = config.updates.get("weights"), config.updates.get("master")
    if master == "none":
        if weights in (None, "fp32"):
            return None
        return _Held(str(weights), f"weights are {weights} without a float32 copy")
    if master is not None:
        return None if master == "fp32" else _Held(master, f"the master weights are {master}")
    # A gradient scaler refuses weights in fp16.
    is_open = len(config.formats) == 1 and config.formats[0] != "fp16"
    kind = weights or (config.formats[0] if is_open else "fp32")
    return None if kind == "fp32" else _Held(kind, f"if weights are {kind} without a float32 copy")


def _moment(config: Config, which: str) -> _Held | None:
    kind, weights = config.updates.get(which), _weights(config)
    name = f"the {which} moment is "
    if kind is not None:
        return None if kind in ("fp32", "none") else _Held(kind, name + kind)
    return None if weights is None else _Held(weights.format, f"if {name}{weights.format}")


def _beta_notes(held: _Held | None, beta: float | None, name: str) -> Iterator[str]:
    if held is None or beta is None or not 0 < beta < 1:
        return
    stuck, count = _unmoved(beta, held.format), 1 << _format(held.format).mantissa_bits
    if not stuck:
        return
    tried = (n / 1000 for n in range(999, 899, -1))
    better = next((b for b in tried if not _unmoved(b, held.format)), None)
    who = "it never decays" if stuck == count else f"{stuck} of {count} significands never decay"
    yield (
        f"{held.condition}: at {name} {_text(beta)} {who}, since x * {_text(beta)} rounds back "
        + (f"to x; at {_text(better)} all decay" if better else "to x")
    )


def _update_notes(config: Config) -> Iterator[str]:
    held, adam = _weights(config), config.adam
    yield from _beta_notes(_moment(config, "first"), adam.beta1, "beta1")
    yield from _beta_notes(_moment(config, "second"), adam.beta2, "beta2")
    if held is None:
        return
    eps, rate = adam.eps, adam.lr
    if held.format == "fp16" and eps and 0 < eps <= 1 and _rounded(eps, "fp16")[0] == 0:
        yield (
            f"{held.condition}: eps {_text(eps)} rounds to 0 in fp16, so that torch.optim without "
            "fused=True divides by 0 where the second moment is 0"
        )
    if not rate or not 0 < rate < math.inf:
        return
    # Above it a step of this size is at most half the distance to the next weight.
    limit = math.ldexp(1.0, math.frexp(rate)[1] + 1 + _format(held.format).mantissa_bits)
    if limit <= _LARGEST_STILL:
        yield (
            f"{held.condition}: a step of the learning rate, {_text(rate)}, moves no weight above "
            f"{scale_text(limit)}"
        )
    decay = rate * (adam.weight_decay or 0)
    still = adam.decoupled and 0 < decay <= 1
    if still and _unmoved(1 - decay, held.format) == 1 << _format(held.format).mantissa_bits:
        yield (
            f"{held.condition}: weight decay alone moves no weight, since w * (1 - lr * "
            f"weight_decay) = w * (1 - {decay:.4g}) rounds back to w"
        )


def _scale_notes(config: Config) -> Iterator[str]:
    """Scalers hold the scale in float32; a model in 16 bits may make its loss there."""
    for setting in (one for policy in config.policies for one in policy.settings):
        key, _, text = setting.partition("=")
        try:
            base, _, power = text.partition("^")
            scale = math.ldexp(1.0, int(power)) if power and base == "2" else float(text)
        except (ValueError, OverflowError):
            continue
        if key not in _SCALES or not scale > 0:
            continue
        held = f"{key} {scale_text(scale)}"
        if scale > _LARGEST_FLOAT:
            yield f"if the scale is held in fp32: {held} is infinite there"
        elif scale <= _ROUNDS_TO_0:
            yield f"if the scale is held in fp32: {held} rounds to 0 there"
        elif "fp16" in config.formats and (key == "loss_scale" or key.startswith("min_")):
            if scale >= _format("fp16").overflow_threshold:
                yield f"if the loss is multiplied in fp16: {held} is infinite there, at every step"


def _walk(entries: dict[str, Node], path: str = "") -> Iterator[tuple[str, str, Node]]:
    """Returns the path, the key as Python has it, and the value of all keys of a file."""
    for key, node in entries.items():
        inner = f"{path}.{key}" if path else key
        yield inner, key.lstrip("-").replace("-", "_"), node
        if isinstance(node.value, dict):
            yield from _walk(node.value, inner)
        for item in node.value if isinstance(node.value, list) else ():
            if isinstance(item.value, dict):
                yield from _walk(item.value, inner)


def _constant_notes(table: Table, formats: list[str]) -> Iterator[str]:
    for kind in formats:
        for path, key, node in _walk(dict(table.entries)):
            value = node.value
            if not isinstance(value, Number) or not math.isfinite(value):
                continue
            shown = printable(path)
            least = max(value, -_LARGEST_FLOAT)
            if key in _MASKS and value < 0 and -least >= _format(kind).overflow_threshold:
                yield (
                    f"if {shown} is held in {kind}: {float(value):g} is -inf there, and a row that "
                    "is masked whole becomes NaN"
                )
            if key in _SMOOTHING and 0 < value < 1 and _rounded(1 - value, kind)[0] == 1:
                yield (
                    f"if targets are held in {kind}: {shown} {_text(value)} does nothing to the "
                    f"right class, since 1 - {_text(value)} rounds to 1"
                )


def _type_notes(table: Table) -> Iterator[str]:
    for path, key, node in _walk(dict(table.entries)):
        kind = format_of_type(node.value) if isinstance(node.value, str) else None
        if kind in (None, "fp32"):
            continue
        bits = _format(str(kind)).mantissa_bits + 1
        if key == "reduce_dtype":
            yield (
                f"if gradients of several ranks are summed in {printable(path)} {kind}: each "
                f"addition rounds to {bits} significant bits (dlsim accumulate shows the error)"
            )
        elif key == "buffer_dtype":
            yield (
                f"if a buffer holds positions or counts: {printable(path)} {kind} holds every "
                f"integer only up to {1 << bits}"
            )


def notes_on(config: Config, table: Table) -> list[str]:
    """Returns a line for each number of the file that a format of it cannot hold."""
    return [
        *_update_notes(config),
        *_scale_notes(config),
        *_constant_notes(table, [f for f in config.formats if f in ("fp16", "bf16", "cb16")]),
        *_type_notes(table),
    ]
