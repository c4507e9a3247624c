# SPDX-License-Identifier: Apache-2.0
"""What does an all-reduce in 16 bits cost? The command `dlsim accumulate`: docs/accumulation.md."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any
from zlib import crc32

import numpy as np

from ._errors import InputError, UsageError
from ._text import percent_text, scale_text, table_text, wrapped
from .results import Result

_ELEMENTS = 256  # of each tensor and step, on which errors are measured
_STEPS = 64  # that are taken as ranks at most
# Loss scale, largest value and bits of the significand.
_FORMATS = {"bf16": (1, 3.3895e38, 8), "fp16": (2**16, 65504, 11), "fp32": (1, 3.4028e38, 24)}


def _ring(sent: Any, places: Any, rounded: Any) -> Any:
    """The sum of chunk c begins at the rank after the c-th and goes round, rounded at every hop."""
    ranks, column = len(sent), np.arange(sent.shape[1])
    first = (places * ranks).astype(int) + 1
    total = sent[first % ranks, column]
    for hop in range(1, ranks):
        total = rounded(total + sent[(first + hop) % ranks, column])
    return total


def _tree(sent: Any, places: Any, rounded: Any) -> Any:
    """NCCL's two binary trees, each of which reduces one half of a tensor."""
    ranks = len(sent)

    def total(sent: Any, at: int) -> Any:
        bit = at & -at if at else 1 << (ranks - 1).bit_length()
        after = bit // 2
        while after and at + after >= ranks:
            after //= 2
        found = sent[at]
        for child in [at - bit // 2] * (at > 0 and bit > 1) + [at + after] * (after > 0):
            found = rounded(found + total(sent, child))
        return found

    second = sent[::-1] if ranks % 2 == 0 else np.roll(sent, -1, axis=0)
    return np.where(places < 0.5, total(sent, 0), total(second, 0))


_SUMS = {"ring": _ring, "tree": _tree}


def reduce(values: Any, places: Any, run: Any) -> tuple[Any, float]:
    """Returns the mean over rows, each operation rounded once, and the largest magnitude."""
    from .arrays import quantize

    def rounded(values: Any) -> Any:
        return values if run["format"] == "fp32" else quantize(values, run["format"])

    before, after = (len(values), 1) if run["division"] == "before" else (1, len(values))
    with np.errstate(over="ignore", invalid="ignore"):
        sent = rounded(rounded(values * np.float32(run["scale"])) / np.float32(before))
        total = rounded(_SUMS[run["algorithm"]](sent, places, rounded) / np.float32(after))
    most = np.abs(values).sum(axis=0, dtype=np.float64) / before  # at every hop
    return total / np.float64(run["scale"]), max(most.max(), np.abs(values).max())


def _groups(trace: Any) -> Iterator[tuple[str, int, list[Any]]]:
    """What is reduced together: what the ranks are, the step, and their gradients by name."""
    from .traces import open_trace

    opened, steps = open_trace(trace), list[Any]()
    for i, step in enumerate(opened):
        files, parts = opened.files(i), step.recordings
        if len(files) > len(parts):
            ranks = [open_trace(file)[0].gradients() for file in files]
            yield "recorded ranks", step.number, ranks
        elif len(parts) > 1:
            factor = np.float32(len(parts))
            names = [name for name, of in step.tensors.infos.items() if of.role == "grad"]
            tensors = [one.tensors for one in parts]
            ranks = [{name: of[name] * factor for name in names if name in of} for of in tensors]
            yield "micro-steps taken as ranks", step.number, ranks
        elif len(steps) < _STEPS:
            steps.append(step.gradients())
    if steps:
        yield "steps taken as ranks", 0, steps


def _samples(step: int, ranks: Sequence[Any], wanted: int) -> Iterator[tuple[Any, Any, Any]]:
    """By tensor: values of all ranks, where they lie in it, and how many elements each is for."""
    for name in dict.fromkeys(name for rank in ranks for name in rank):
        values = [rank[name].reshape(-1) for rank in ranks if name in rank]
        if len({len(one) for one in values}) > 1:
            raise InputError(f"step {step}: {name} has several sizes, expected one")
        every = np.array([one for one in values if np.isfinite(one).all()], np.float64)
        if len(every) > 1 and every.shape[1] > 0:
            count = every.shape[1]
            taken = np.arange(min(count, _ELEMENTS)) * count // min(count, _ELEMENTS)
            largest = [np.abs(every).max(axis=0).argmax(), np.abs(every.sum(axis=0)).argmax()]
            taken = np.union1d(taken, largest)  # they overflow first
            values = _drawn(every[:, taken], wanted, [crc32(name.encode()), step])
            yield values, taken / count, np.full(len(taken), count / len(taken))


def _drawn(recorded: Any, ranks: int, seed: Sequence[int]) -> Any:
    """Adds ranks: normal numbers with the recorded spread, and the mean without its noise."""
    count, elements = recorded.shape
    mean, spread = recorded.mean(axis=0), recorded.std(axis=0, ddof=1)
    noise, squares = float(np.sum(spread**2)) / count, float(np.sum(mean**2))
    by_chance = math.exp(2 * math.sqrt(2 / elements * count / (count - 1)))
    share = math.sqrt(1 - noise / squares) if squares > noise * by_chance else 0.0
    drawn = np.random.default_rng(seed).normal(size=(max(0, ranks - count), elements))
    return np.concatenate([recorded, share * mean + spread * drawn])[:ranks].astype(np.float32)


def _measure(samples: Any, runs: Any) -> None:
    """Adds what a group shows to the lists of each run."""
    values, places, weights = (np.concatenate(of, axis=-1) for of in zip(*samples, strict=True))
    exact = values.mean(axis=0, dtype=np.float64)
    for run in runs:
        mean, most = reduce(values, places, run)
        finite = np.isfinite(mean)
        off, size, weight = np.abs(mean - exact)[finite], np.abs(exact)[finite], weights[finite]
        squares = np.sum(weight * size**2) or math.inf
        run["error"].append(np.sum(weight * off**2) / squares if finite.any() else math.nan)
        run["lost"].append(np.sum(weight * (off > size / 2)) / weights.sum())
        run["overflows"] |= not finite.all()
        run["peak"] = max(run["peak"], most)


def accumulate(trace: Any, *, world_size: int = 64, scale: float | None = None) -> Result:
    """Reduces recorded gradients over ranks in bf16, fp16 and fp32, and compares with float64.

    The ranks of a trace count, else its micro-steps, else its steps; those beyond are drawn from
    them. `scale` is the loss scale (default: 2^16 in fp16, else 1).
    """
    if not 2 <= world_size <= 512:
        raise UsageError(f"world_size: expected 2 to 512, got {world_size}")
    if scale is not None and not 0 < scale < math.inf:
        raise UsageError(f"scale: expected a positive number, got {scale}")
    runs, based = list[dict[str, Any]](), ""
    for name, algorithm, division in product(_FORMATS, _SUMS, ("before", "after")):
        run: dict[str, Any] = {"name": f"{name} {algorithm} {division}", "format": name}
        run |= {"algorithm": algorithm, "division": division, "scale": scale or _FORMATS[name][0]}
        runs.append(run | {"error": [], "lost": [], "overflows": False, "peak": 2.0**-149})
    for source, step, ranks in _groups(trace):
        if samples := list(_samples(step, ranks, world_size)):
            _measure(samples, runs)
            based = f"{len(ranks)} {source}"
    if not based:
        raise InputError(f"{trace}: expected finite gradients of two ranks, micro-steps or steps")
    for run in runs:
        error = math.sqrt(np.mean(run["error"]))
        run["error"] = None if math.isnan(error) else error
        run["lost"] = float(np.mean(run["lost"]))
        _, largest, bits = _FORMATS[run["format"]]
        before_rounding = largest / (1 + 2.0**-bits) ** (world_size + 2)
        room = math.log2(before_rounding) - math.log2(run.pop("peak"))
        run["safe_scale"] = 2.0 ** min(127, math.floor(room))
    data = {"schema": "dlsim.accumulate/3", "world_size": world_size, "based_on": based}
    known = {one["name"]: one["error"] for one in runs}
    errors = {name: "-" if one is None else f"{one:.1e}" for name, one in known.items()}
    lines = list(_lines(runs, errors, world_size, based))
    data |= {"lines": lines, "runs": runs}
    rows = [["reduction", "error", "lost", "overflows", "safe scale"]]
    for run in runs:
        row = [run["name"], errors[run["name"]], percent_text(run["lost"])]
        rows.append([*row, "yes" if run["overflows"] else "no", scale_text(run["safe_scale"])])
    text = "".join(map(wrapped, lines)) + "\n" + table_text(rows)
    return Result(data, report=text)


def _lines(runs: Any, errors: Any, ranks: int, based: str) -> Iterator[str]:
    for name in ("bf16", "fp16"):
        mine = [run for run in runs if run["format"] == name]
        bad = {run["division"]: scale_text(run["safe_scale"]) for run in mine if run["overflows"]}
        at = f" at loss scale {scale_text(mine[0]['scale'])}" if mine[0]["scale"] != 1 else ""
        where = "; ".join(f"divided {key} (safe up to {bad[key]})" for key in bad)
        ends = f"Overflows{at}, {where}." if bad else f"Nothing overflows{at}."
        error = f"error {errors[f'{name} ring before']} of the gradient; in fp32 "
        yield f"{name} ring before over {ranks} ranks: {error}{errors['fp32 ring before']}. {ends}"
    yield f"Based on {based}, from which those beyond are drawn."


def main(arguments: Sequence[str]) -> int:
    """Runs `dlsim accumulate ARGUMENTS...` and returns the exit code; raises dlsim.Error."""
    from ._command_parser import CommandParser, run_for_result

    about = "Measure the error of summing gradients over ranks in bf16, fp16 and float32."
    examples = "Examples:\n  dlsim accumulate run\n  dlsim accumulate run --world-size 512 --json -"
    parser = CommandParser(prog="dlsim accumulate", description=about, epilog=examples)
    add = parser.add_argument
    add("trace", nargs="+", metavar="TRACE", help="A trace: a folder, or files of safetensors")
    add("--world-size", type=int, metavar="N", help="Number of ranks, 2 to 512 (default 64)")
    add("--scale", type=float, metavar="S", help="Loss scale (default: 2^16 in fp16, else 1)")
    return run_for_result(parser, arguments, accumulate)
