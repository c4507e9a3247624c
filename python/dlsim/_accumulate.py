# SPDX-License-Identifier: Apache-2.0
"""What does an all-reduce in 16 bits cost? The command `dlsim accumulate`: docs/accumulation.md."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from ._errors import InputError, UsageError
from ._text import counted, percent_text, scale_text, table_text, wrapped

if TYPE_CHECKING:
    from .results import Result

_ELEMENTS = 256  # of each tensor and step, on which errors are measured
_STEPS = 64  # that are taken as ranks


def _round(values: Any, name: str) -> Any:
    from .arrays import quantize

    return values if name == "fp32" else quantize(values, name)


def _ring(sent: Any, order: Any, places: Any, name: str) -> Any:
    """The sum of chunk c begins at the rank after the c-th and goes round, rounded at every hop."""
    ranks, column = len(order), np.arange(sent.shape[1])
    first = (places * ranks).astype(int) + 1
    total = sent[order[first % ranks], column]
    for hop in range(1, ranks):
        total = _round(total + sent[order[(first + hop) % ranks], column], name)
    return total


def _tree(sent: Any, order: Any, places: Any, name: str) -> Any:
    """NCCL's two binary trees, each of which reduces one half of a tensor."""
    ranks = len(order)

    def total(order: Any, at: int) -> Any:
        bit = at & -at if at else 1 << (ranks - 1).bit_length()
        after = bit // 2
        while after and at + after >= ranks:
            after //= 2
        found = sent[order[at]]
        for child in [at - bit // 2] * (at > 0 and bit > 1) + [at + after] * (after > 0):
            found = _round(found + total(order, child), name)
        return found

    second = order[::-1] if ranks % 2 == 0 else np.roll(order, -1)
    return np.where(places < 0.5, total(order, 0), total(second, 0))


def _all_to_all(sent: Any, order: Any, _: Any, name: str) -> Any:
    """Sums in float32, rounded once."""
    return _round(np.add.reduce(sent[order], axis=0, dtype=np.float32), name)


_SUMS = {"ring": _ring, "tree": _tree, "all-to-all": _all_to_all}
_DIVISIONS = ("before", "after", "sqrt")


def reduce(values: Any, order: Any, places: Any, run: Any) -> tuple[Any, Any, float]:
    """Returns the mean over ranks as a library computes it: each operation is rounded once.

    And the exact mean of what the ranks send, and the largest magnitude on the way, unscaled.

    `values` has a row for each rank; `places` tell where in its tensor an element lies, 0 to 1.
    """
    name, ranks, before = run["format"], len(values), 1
    while run["division"] == "sqrt" and ranks % before == 0 and ranks / before > before:
        before *= 2  # as FSDP: a power of two near the square root
    before = ranks if run["division"] == "before" else before
    with np.errstate(over="ignore", invalid="ignore"):
        sent = _round(values * np.float32(run["scale"]), name)
        sent = _round(sent / np.float32(before), name) if before > 1 else sent
        total = _SUMS[run["algorithm"]](sent, order, places, name)
        total = _round(total / np.float32(ranks / before), name) if ranks > before else total
        total = total.astype(np.float64)
        exact = sent.sum(axis=0, dtype=np.float64) / (ranks / before)
    most = np.abs(values).sum(axis=0, dtype=np.float64) / before  # at every hop of any order
    return total / run["scale"], exact / run["scale"], max(most.max(), np.abs(values).max())


def _groups(trace: Any, tensors: str) -> Iterator[tuple[str, int, list[Any]]]:
    """What is reduced together: what the ranks are, the first step, their gradients by name."""
    from .traces import open_trace

    opened, steps = open_trace(trace, tensors=tensors), []
    for i, step in enumerate(opened):
        files, parts = opened.files(i), step.recordings
        if len(files) > len(parts):
            ranks = [open_trace(file, tensors=tensors)[0].gradients() for file in files]
            yield "recorded ranks", step.number, ranks
        elif len(parts) > 1:
            factor = np.float32(len(parts))
            ranks = [
                {n: t[n] * factor for n, of in t.infos.items() if of.role == "grad"}
                for t in (one.tensors for one in parts)
            ]
            yield "micro-steps taken as ranks", step.number, ranks
        else:
            steps.append((step.number, step.gradients()))
        if len(steps) == _STEPS or (steps and i + 1 == len(opened)):
            yield "steps taken as ranks", steps[0][0], [gradients for _, gradients in steps]
            steps = []


def _samples(step: int, ranks: Sequence[Any]) -> Iterator[tuple[str, Any, Any, float]]:
    """By tensor: values of the ranks that have it finite, their places, elements for each."""
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
            yield name, every[:, taken], taken / count, count / len(taken)


def _drawn(recorded: Any, ranks: int, seed: Sequence[int]) -> Any:
    """Returns values of all ranks: normal numbers with the recorded mean and spread, for others.

    The mean of few ranks is mostly noise, which is taken from it.
    """
    count, elements = recorded.shape
    mean, spread = recorded.mean(axis=0), recorded.std(axis=0, ddof=1)
    noise, squares = float(np.sum(spread**2)) / count, float(np.sum(mean**2))
    by_chance = math.exp(2 * math.sqrt(2 / elements * count / (count - 1)))
    share = math.sqrt(1 - noise / squares) if squares > noise * by_chance else 0.0
    drawn = np.random.default_rng(seed).normal(size=(max(0, ranks - count), elements))
    return np.concatenate([recorded, share * mean + spread * drawn])[:ranks].astype(np.float32)


def _measure(samples: Any, step: int, counts: Sequence[int], orders: Any, runs: Any) -> float:
    """Adds what a group shows to the lists of each run; returns the noise of its mean, squared."""
    sizes = [len(places) for _, _, places, _ in samples]
    places = np.concatenate([places for _, _, places, _ in samples])
    weights = np.repeat([weight for *_, weight in samples], sizes)
    for count in counts:
        drawn = [_drawn(of, count, [crc32(name.encode()), step]) for name, of, *_ in samples]
        values = np.concatenate(drawn, axis=1)
        exact = values.mean(axis=0, dtype=np.float64)
        last = count == counts[-1]
        for run in runs:
            results = [reduce(values, one[:count], places, run) for one in orders[: 8 * last or 1]]
            off = np.array([total for total, _, _ in results]) - exact
            finite = np.isfinite(off).all(axis=0)
            every, weight = np.abs(off[:, finite]), weights[finite]
            size = np.sum(weight * exact[finite] ** 2) or math.inf
            additions = results[0][0][finite] - results[0][1][finite]
            run["by_ranks"][count].append(np.sum(weight * additions**2) / size)
            if not last:
                continue
            for key, one in (("error", every[0]), ("low", every.min(0)), ("high", every.max(0))):
                run[key].append(np.sum(weight * one**2) / size)
            lost = np.sum(weight * (every[0] > np.abs(exact[finite]) / 2))
            run["lost"].append(lost / weights.sum())
            bad = [not np.isfinite(total).all() for total, _, _ in results]
            run["overflow"] = max(run["overflow"], all(bad) + any(bad))
            run["peak"] = max(run["peak"], results[0][2])
            run["no_value"] = run["no_value"] or not finite.any()
    varies = sum(weight * np.sum(of.var(axis=0, ddof=1)) for _, of, _, weight in samples)
    return float(varies / counts[-1] / (np.sum(weights * exact**2) or math.inf))


def accumulate(
    trace: Any,
    *,
    formats: str | Sequence[str] = ("bf16", "fp16", "fp32"),
    algorithms: str | Sequence[str] = tuple(_SUMS),
    divide: str | Sequence[str] = _DIVISIONS,
    world_size: int = 64,
    scale: float | None = None,
    tensors: str = "*",
) -> Result:
    """Reduces recorded gradients over ranks in few bits, and compares with float64.

    The ranks of a trace count, else its micro-steps, else its steps; those beyond are drawn from
    them. `scale` is the loss scale (default: 2^16 in formats of fewer than 8 exponent bits, else
    1). The result is a dlsim.accumulate/3.
    """
    from ._core import Format
    from .results import Result

    if not 2 <= world_size <= 512:
        raise UsageError(f"world_size: expected 2 to 512, got {world_size}")
    if scale is not None and not 0 < scale < math.inf:
        raise UsageError(f"scale: expected a positive number, got {scale}")
    counts = [2**i for i in range(1, 9) if 2**i < world_size] + [world_size]
    shuffle, runs, seen, noise = np.random.default_rng(0), list[dict[str, Any]](), 0, 0.0
    orders = [np.arange(world_size), *(shuffle.permutation(world_size) for _ in range(7))]
    chosen = [[one] if isinstance(one, str) else one for one in (formats, algorithms, divide)]
    for name, algorithm, division in product(*chosen):
        if algorithm not in _SUMS or division not in _DIVISIONS:
            known = ", ".join([*_SUMS, *_DIVISIONS])
            raise UsageError(f"algorithm, divide: expected {known}, got {algorithm}, {division}")
        limit, bits, usual = float(np.finfo(np.float32).max), 23, 1
        if name != "fp32":
            of = Format(name)
            limit, bits = of.overflow_threshold, of.mantissa_bits
            usual = 1 if of.exponent_bits >= 8 else 2**16
        run = {"name": f"{name} {algorithm} {division}", "format": name, "algorithm": algorithm}
        run |= {"division": division, "scale": scale or usual, "overflow": 0, "no_value": False}
        run["limit"] = limit / (1 + 2.0 ** -(bits + 1)) ** (world_size + 2)  # before rounding
        run |= {"peak": 2.0**-149, "by_ranks": {count: [] for count in counts}}
        runs.append(run | {key: [] for key in ("error", "low", "high", "lost")})
    for source, step, ranks in _groups(trace, tensors):
        if samples := list(_samples(step, ranks)):
            noise, seen = noise + _measure(samples, step, counts, orders, runs), seen + 1
            of_steps = "" if source.startswith("steps") else f" of {counted(seen, 'steps')}"
            based = f"{len(ranks)} {source}{of_steps}"
    if not seen:
        raise InputError(
            f"{trace}: no gradients of two ranks, micro-steps or steps that are finite"
        )
    for run in runs:
        is_empty = run.pop("no_value")
        for key in ("error", "low", "high"):
            run[key] = None if is_empty else math.sqrt(np.mean(run[key]))
        run["lost"], run["overflow"] = float(np.mean(run["lost"])), _OVERFLOW[run["overflow"]]
        room = math.log2(run.pop("limit")) - math.log2(run.pop("peak"))
        run["safe_scale"] = 2.0 ** min(127, math.floor(room))
        added = {count: math.sqrt(np.mean(one)) for count, one in run["by_ranks"].items()}
        points = np.log([[count, one] for count, one in added.items() if one > 0] or [[1, 1]]).T
        run["exponent"] = float(np.polyfit(*points, 1)[0]) if points.shape[1] > 2 else None
        run["by_ranks"] = [{"ranks": count, "additions": one} for count, one in added.items()]
    data = {"schema": "dlsim.accumulate/3", "noise": math.sqrt(noise / seen), "runs": runs}
    data |= {"world_size": world_size, "based_on": based, "groups": seen}
    data["lines"] = list(_lines(data))
    return Result((), data, (), "".join(map(wrapped, data["lines"])) + "\n" + _table(runs))


_OVERFLOW = ("no order", "some orders", "every order")


def _text(error: float | None) -> str:
    return "-" if error is None else "0" if error == 0 else f"{error:.1e}"


def _table(runs: Sequence[Any]) -> str:
    heads = ("reduction", "error", "low", "high", "growth", "lost", "overflows in", "safe scale")
    rows = [list(heads)]
    for run in runs:
        growth = "-" if run["exponent"] is None else f"{run['exponent']:.2f}"
        is_safe = run["scale"] == 1 and run["overflow"] == _OVERFLOW[0]
        row = [*(_text(run[key]) for key in heads[1:4]), growth, percent_text(run["lost"])]
        row += [run["overflow"], "-" if is_safe else scale_text(run["safe_scale"])]
        if row == rows[-1][1:] and rows[-1][0].startswith(f"{run['format']} {run['algorithm']} "):
            rows[-1][0] += f", {run['division']}"  # it makes no difference
        else:
            rows.append([run["name"], *row])
    return table_text(rows)


def _lines(data: Any) -> Iterator[str]:
    runs, world = data["runs"], data["world_size"]
    for name in dict.fromkeys(run["format"] for run in runs if run["format"] != "fp32"):
        mine = [run for run in runs if run["format"] == name]
        first, text = (
            mine[0],
            f"({_text(mine[0]['low'])} to {_text(mine[0]['high'])} in other orders",
        )
        if first["exponent"] is not None:
            text += f"; the error of additions grows as ranks^{first['exponent']:.2f}"
        named = {run["name"]: _text(run["error"]) for run in runs if run is not first}
        sums = named.get(f"{name} all-to-all {first['division']}")
        plain = named.get(f"fp32 {first['algorithm']} {first['division']}")
        text += f"); with float32 sums (all-to-all) {sums}" if sums else ")"
        text += f"; in fp32 {plain}" if plain else ""
        at = "" if first["scale"] == 1 else f" at loss scale {scale_text(first['scale'])}"
        bad = [run for run in mine if run["overflow"] != "no order"]
        bad.sort(key=lambda run: -float(run["safe_scale"]))
        where = [
            f"divided {division}: in {run['overflow']} (safe up to {scale_text(run['safe_scale'])})"
            for division, run in sorted({run["division"]: run for run in bad}.items())
        ]
        ends = f"Overflows{at}, {'; '.join(where)}." if bad else f"Nothing overflows{at}."
        error = f"error {_text(first['error'])} of the gradient {text}"
        yield f"{first['name']} over {world} ranks: {error}. {ends}"
    yield f"By itself the mean over {world} ranks has a sampling error of {_text(data['noise'])}."
    yield (
        f"Based on {data['based_on']}, from which those beyond are drawn; errors on up to "
        f"{_ELEMENTS} elements of each tensor and those that are largest."
    )


def main(arguments: Sequence[str]) -> int:
    """Runs `dlsim accumulate ARGUMENTS...` and returns the exit code; raises dlsim.Error."""
    from ._command_parser import CommandParser, print_result
    from ._core import parse_number

    about = "Measure the error of summing gradients over ranks in bf16, fp16 or float32."
    examples = """Examples:
  dlsim accumulate runs/a
  dlsim accumulate runs/a --world-size 512 --format bf16 --algorithm ring
  dlsim accumulate runs/a --format fp16 --divide after --scale 2^12
"""
    parser = CommandParser(prog="dlsim accumulate", description=about, epilog=examples)
    add = parser.add_argument
    add("trace", nargs="+", metavar="TRACE", help="A trace: a folder, or files of safetensors")
    for name, option, text in (
        ("format", "formats", "Reduce in this format or fp32 (default: bf16, fp16 and fp32)"),
        ("algorithm", "algorithms", "ring, tree or all-to-all with float32 sums (default: all)"),
        ("divide", "divide", "Divide before or after the sum, or both: sqrt (default: all)"),
    ):
        add(f"--{name}", dest=option, action="append", metavar="NAME", help=f"{text}; repeatable")
    add("--world-size", type=int, metavar="N", help="Number of ranks, 2 to 512 (default 64)")
    add("--scale", metavar="S", help="Loss scale (default: 2^16 in fp16 and its like, else 1)")
    add("--tensors", metavar="GLOB", help="Read only tensors whose names match (* ? [])")
    add("--json", metavar="FILE", help="Write the full result as JSON; - is standard output")
    try:
        options = {k: v for k, v in vars(parser.parse_args(arguments)).items() if v is not None}
    except SystemExit as ended:  # --help
        return int(ended.code or 0)
    if "scale" in options:
        options["scale"] = parse_number(options["scale"], "--scale")
    json_path = options.pop("json", None)
    print_result(accumulate(options.pop("trace"), **options), json_path)
    return 0
