#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is the verdict right, and does what it says to change suffice? Trains models and compares.

    tools/study/study.py [MODEL ...]           # train, print the tables, and keep rows in --out
    tools/study/study.py --tables [FILE ...]   # the tables of kept rows
    tools/study/study.py --check MODEL ...     # train one seed and compare it with the kept rows
    tools/study/study.py --shadow [MODEL ...]  # what dlsim.shadow says at eight steps of one seed

Each model is trained in float32; the first seed is recorded and judged by `dlsim replay`, with the
forward pass and from gradients alone. Then it is trained in each format by the rules of CUDA's
autocast, fp16 with torch's GradScaler: with the loss scale that the verdict says, and again with
the parts in float32 that it names. MODEL is a name or a glob of names in models.py (default: those
of docs/accuracy.md; '*': all). Needs dlsim and PyTorch 2.3 or later; a pair takes a minute or two.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import itertools
import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: threads would cost the most

import numpy as np
import torch
from models import MODELS, REPORTED, is_held_out

import dlsim
from dlsim.emulation._cuda_autocast import CudaAutocast

RESULTS = Path(__file__).resolve().parent / "results"
KEPT, SCALED = RESULTS / "reported.csv", RESULTS / "scaled.csv"
FORMATS = ("fp16", "bf16", "cb16")
FAILS = ("fails in forward", "no scale serves", "overflows")
TORCH_START = 2.0**16  # of torch.amp.GradScaler
IN_A_ROW, SHARE = 40, 0.2  # skipped steps beyond which a training is lost
JUDGED = 512  # samples at the end
SHADOWED = 8  # steps
LEVEL, LEAST = 0.05, 0.05  # of the test; an excess of float32's error that matters
QUANTILE = 1.9  # of Student's t at 95 %, one-sided, 8 seeds


# -- training ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class End:
    """How a training ends: its error, infinite if it was lost, and the steps that were skipped."""

    error: float
    skipped: int = 0


def train(
    name: str,
    seed: int,
    format: str = "",
    start: float = 1.0,
    *,
    keep: Sequence[str] = (),
    recording: dict[str, Any] | None = None,
    alongside: Callable[[torch.nn.Module, int, torch.Tensor], None] | None = None,
) -> End:
    """Trains a model in a format, in float32 without one.

    The GradScaler begins at `start`, 1 for none; `keep` are the parts in float32, and `recording`
    the arguments of dlsim.Recorder, none without it. `alongside` is called before each step with
    the network, the step and the places of the samples.
    """
    model = MODELS[name]
    torch.manual_seed(seed)
    network = model.network()
    optimizer = torch.optim.Adam(
        network.parameters(), lr=model.rate, eps=model.epsilon, foreach=True
    )
    inputs, targets = model.data(torch.Generator().manual_seed(100))
    batches = torch.Generator().manual_seed(1000 + seed)
    scaler = torch.amp.GradScaler("cpu", init_scale=start, enabled=bool(format) and start != 1)
    skipped = in_a_row = 0
    network.train()
    with ExitStack() as stack:
        if keep:
            stack.enter_context(dlsim.keep_float32(network, keep))
        rules = stack.enter_context(CudaAutocast(format)) if format else None
        recorder = recording and stack.enter_context(dlsim.Recorder(network, **recording))
        for step in range(model.steps):
            for group in optimizer.param_groups:
                group["lr"] = model.rate * (1 - step / model.steps)
            batch = torch.randint(len(inputs), (model.batch,), generator=batches)
            if alongside:
                alongside(network, step, batch)
            optimizer.zero_grad()
            try:
                with rules.forward() if rules else ExitStack():
                    loss = model.loss(network(inputs[batch]), targets[batch])
            except RuntimeError:  # a constant that has no place in 16 bits
                return End(math.inf, skipped)
            scaler.scale(loss).backward()
            if recorder:
                recorder.step(loss=loss, scale=1)
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            in_a_row = in_a_row + 1 if scaler.get_scale() < before else 0
            skipped += in_a_row > 0
            if in_a_row >= IN_A_ROW:
                return End(math.inf, skipped)
    network.eval()
    with torch.no_grad():
        error = float((model.error or model.loss)(network(inputs[:JUDGED]), targets[:JUDGED]))
    lost = skipped > SHARE * model.steps or not math.isfinite(error)
    return End(math.inf if lost else error, skipped)


# -- rows: a model and a format, what is said and what happens ---------------------------------


@dataclass
class Row:
    """A model and a format, none for float32, with what dlsim says and how trainings end.

    Errors are by seed, infinite where a training was lost; `advised` are those with the parts of
    `keep` in float32, empty in results that are older than this advice.
    """

    model: str
    format: str
    errors: str
    skipped_steps: str = ""
    verdict: str = ""
    gradients_only: str = ""
    start: str = ""
    sentence: str = ""
    keep: str = ""
    share: str = ""
    advised_start: str = ""
    advised: str = ""

    @property
    def fails(self) -> bool:
        """Whether dlsim says that the format fails."""
        return self.verdict in FAILS


def rows_of(name: str, formats: Sequence[str], seeds: Sequence[int]) -> Iterator[Row]:
    """Yields the rows of a model: float32's first."""
    whole, gradients = judged(name, seeds[0]), judged(name, seeds[0], forward_every=0, shadow=None)
    yield _trained(Row(name, "", ""), seeds)
    for found, without, line in zip(
        whole["formats"], gradients["formats"], whole["lines"], strict=False
    ):
        if found["format"] not in formats:
            continue
        change = found["change"] or {"keep_float32": [], "scale": None, "share": 0.0}
        start = found["scale"] or (1.0 if found["format"] == "bf16" else TORCH_START)
        row = Row(
            name,
            found["format"],
            "",
            verdict=found["verdict"],
            gradients_only=without["verdict"],
            start=str(start),
            sentence=line.partition("\n")[0].partition(" ")[2].strip(),
            keep=" ".join(change["keep_float32"]),
            share=f"{change['share']:.3g}" if change["keep_float32"] else "",
            advised_start=str(change["scale"] or start),
        )
        yield _trained(row, seeds)


def judged(name: str, seed: int, **settings: Any) -> dict[str, Any]:
    """Records a training in float32 and returns the verdict on it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.profile"
        train(name, seed, recording={"path": path, "every": 1, **settings})
        return dlsim.replay(path, formats=list(FORMATS), quiet=True)["verdict"]


def _trained(row: Row, seeds: Sequence[int]) -> Row:
    ends = [train(row.model, seed, row.format, float(row.start or 1)) for seed in seeds]
    row.errors = row.advised = _text(ends)
    row.skipped_steps = f"{np.mean([end.skipped for end in ends]):g}"
    if row.keep:
        keep, start = row.keep.split(), float(row.advised_start)
        row.advised = _text(train(row.model, seed, row.format, start, keep=keep) for seed in seeds)
    return row


def _text(ends: Iterable[End]) -> str:
    return " ".join(f"{end.error:.6g}" for end in ends)


def values(errors: str) -> np.ndarray:
    """Returns the errors of a row."""
    return np.array([float(error) for error in errors.split()])


def read(path: Path) -> list[Row]:
    """Returns kept rows; of columns that a file has in addition nothing is needed."""
    names = {field.name for field in fields(Row)}
    with path.open(newline="") as file:
        rows = [
            Row(**{name: text for name, text in record.items() if name in names})
            for record in csv.DictReader(file)
        ]
    for row in rows:
        row.format = "" if row.format == "float32" else row.format
    return rows


# -- outcomes ------------------------------------------------------------------------------------


def outcome_of(errors: np.ndarray, float32: np.ndarray) -> str:
    """Returns `lost`, `worse`, `sound` or `undecided`, by pairs of the same seed.

    Lost: a training of any seed. Worse: by a spread of float32 over seeds and by 5 % in the mean,
    and the pairs' signs would give that by chance in less than 5 % of the cases. Sound: such an
    excess can be ruled out at 95 %.
    """
    if not np.isfinite(errors).all():
        return "lost"
    differences = errors - float32
    matters = max(spread(float32), LEAST * float(float32.mean()))
    if differences.mean() > matters and chance(differences) < LEVEL:
        return "worse"
    bound = differences.mean() + QUANTILE * differences.std(ddof=1) / math.sqrt(len(float32))
    return "sound" if bound < matters else "undecided"


def chance(differences: np.ndarray) -> float:
    """Returns the share of all choices of signs whose mean is not below that of the differences."""
    signs = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    means = (signs * differences).mean(1)
    return float(np.mean(means >= differences.mean() - 1e-12 * np.abs(differences).mean()))


def spread(errors: np.ndarray) -> float:
    """Returns the standard deviation over seeds."""
    return float(np.std(errors, ddof=1))


def fares(fails: bool, outcome: str) -> str:
    """Returns how a sentence fares: `right`, `missed`, `false alarm` or `undecided`."""
    if outcome == "undecided":
        return "undecided"
    if fails == (outcome != "sound"):
        return "right"
    return "false alarm" if fails else "missed"


@dataclass(frozen=True)
class Case:
    """A row with a format, judged with the forward pass and by gradients alone."""

    row: Row
    float32: np.ndarray
    outcome: str
    whole: str
    gradients: str
    advised: str  # outcome

    @property
    def title(self) -> str:
        """The name of the model, and whether it is held out."""
        return f"{self.row.model}{' (held out)' if is_held_out(self.row.model) else ''}"


def cases(rows: list[Row]) -> list[Case]:
    """Returns all models and formats."""
    float32 = {row.model: values(row.errors) for row in rows if not row.format}
    result = []
    for row in rows:
        if row.format:
            known = float32[row.model]
            outcome = outcome_of(values(row.errors), known)
            advised = outcome_of(values(row.advised), known) if row.advised else outcome
            both = fares(row.fails, outcome), fares(row.gradients_only in FAILS, outcome)
            result.append(Case(row, known, outcome, *both, advised))
    return result


# -- tables --------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


HOW = ("right", "missed", "false alarm", "undecided")


def report(rows: list[Row]) -> str:
    """Returns all tables: those of docs/accuracy.md, or that of docs/scaled-formats.md."""
    found = cases(rows)
    if not any(case.row.gradients_only for case in found):
        return _counts(found)
    parts = [_counts_by_part(found), _wrong(found), _models(found)]
    if any(case.row.advised for case in found):
        parts.append(_advice(found))
    return "\n\n".join(parts)


def _counts(found: list[Case]) -> str:
    formats = dict.fromkeys(case.row.format for case in found)
    counts = Counter((case.row.format, case.whole) for case in found)
    rows = [[one, *(str(counts[one, how]) for how in HOW)] for one in formats]
    return table(["format", *HOW], rows)


def _counts_by_part(found: list[Case]) -> str:
    names = {"gradients": "gradients only", "whole": "forward pass, too"}
    counts = Counter(
        (case.row.format, by, is_held_out(case.row.model), getattr(case, by))
        for case in found
        for by in names
    )
    rows = [
        [
            format,
            names[by],
            *(str(counts[format, by, out, how]) for out in (False, True) for how in HOW),
        ]
        for format in dict.fromkeys(case.row.format for case in found)
        for by in names
    ]
    parts = [f"{part}: {how}" for part in ("held in", "held out") for how in HOW]
    return table(["format", "recorded", *parts], rows)


def _wrong(found: list[Case]) -> str:
    rows = [
        [case.title, case.row.format, case.whole, case.row.sentence, case.outcome]
        for case in found
        if case.whole in ("missed", "false alarm")
    ]
    return table(["model", "format", "wrong how", "sentence", "outcome"], rows)


def _models(found: list[Case]) -> str:
    rows: dict[str, list[str]] = {}
    for case in found:
        known = f"{case.float32.mean():.3g} ± {spread(case.float32):.2g}"
        rows.setdefault(case.row.model, [case.title, known]).append(_ending(case))
    return table(
        ["model", "float32", *dict.fromkeys(case.row.format for case in found)], rows.values()
    )


def _ending(case: Case) -> str:
    says = "fails" if case.row.fails else "trains"
    mark = "" if case.whole == "right" else f", {case.whole}"
    error = "" if case.outcome == "lost" else f" {values(case.row.errors).mean():.3g}"
    return f"{says}: {case.outcome}{error}{mark}"


def _advice(found: list[Case]) -> str:
    rows, answers = [], Counter[str]()
    for case in found:
        if not (case.row.keep or case.row.fails or case.outcome in ("lost", "worse")):
            continue
        helps = case.row.keep or not case.row.fails
        answer = {"sound": "yes", "undecided": "undecided"}.get(
            case.advised, "no" if helps else "said that nothing helps"
        )
        answers[answer] += 1
        start = f"scale 2^{math.log2(float(case.row.advised_start)):g}"
        keep = f"; {case.row.keep} in float32" if case.row.keep else ""
        rows.append([case.row.model, case.row.format, start + keep, case.row.share])
        rows[-1] += [case.outcome, case.advised, answer]
    head = ["model", "format", "advice", "share", "scale alone", "with the advice", "sufficed"]
    counts = ", ".join(f"{count} {answer}" for answer, count in answers.items())
    return f"{table(head, rows)}\n\n{len(rows)} pairs: {counts}"


# -- command -------------------------------------------------------------------------------------


def check(names: Sequence[str]) -> int:
    """Trains the first seed of models and prints what differs from the kept rows: 1 if any."""
    known = {(row.model, row.format): row for row in read(KEPT)}
    count = wrong = 0
    for name in names:
        near = spread(values(known[name, ""].errors))
        for row in rows_of(name, FORMATS, [0]):
            before = known[name, row.format]
            (error,), expected = values(row.errors), values(before.errors)[0]
            same = error == expected or abs(error - expected) <= max(near, LEAST * expected)
            said = row.verdict, row.gradients_only
            count += 1
            if not same or said != (before.verdict, before.gradients_only):
                wrong += 1
                print(
                    f"{name} {row.format or 'float32'}: expected {expected:.4g} and "
                    f"{before.verdict!r} ({before.gradients_only!r}), got {error:.4g} and "
                    f"{row.verdict!r} ({row.gradients_only!r})"
                )
    print(f"{count} trainings, {wrong} differences from {KEPT.name}")
    return int(wrong > 0)


class Shadows:
    """Runs eight steps of a training in each format, too; to be called alongside the steps."""

    def __init__(self, name: str, starts: Mapping[str, float]) -> None:
        """Takes the name of a model, and where the loss scale begins in each format."""
        self._model, self._starts = MODELS[name], starts
        self._inputs, self._targets = self._model.data(torch.Generator().manual_seed(100))
        self.by_format: dict[str, dlsim.Shadow] = {}

    def __call__(self, network: torch.nn.Module, step: int, batch: torch.Tensor) -> None:
        """Runs the step if it is one of the eight."""
        if not self.by_format:
            self.by_format = {
                format: dlsim.shadow(network, self._loss_of, format=format, scale=start)
                for format, start in self._starts.items()
            }
        last = self._model.steps - 1
        if step in {round(i * last / (SHADOWED - 1)) for i in range(SHADOWED)}:
            for one in self.by_format.values():
                one.step(batch)

    def _loss_of(self, network: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return self._model.loss(network(self._inputs[batch]), self._targets[batch])


def shadow(names: Sequence[str]) -> str:
    """Returns what shadows of a training in float32 say, and how that fares by the kept rows."""
    kept = {(case.row.model, case.row.format): case for case in cases(read(KEPT))}
    lines, fared = [], Counter[str]()
    for name in names:
        starts = {
            format: float(kept[name, format].row.start or 1)
            for format in FORMATS
            if (name, format) in kept
        }
        shadows = Shadows(name, starts)
        train(name, 0, alongside=shadows)
        for format, one in shadows.by_format.items():
            found, case = one.check(), kept[name, format]
            fared[fares(not found.holds, case.outcome)] += 1
            lines.append([case.title, format, str(found), case.outcome])
    counts = ", ".join(f"{count} {how}" for how, count in fared.items())
    return f"{table(('model', 'format', 'shadow', 'outcome'), lines)}\n\n{counts}"


def study(names: Sequence[str], formats: Sequence[str], seeds: int, out: Path) -> list[Row]:
    """Trains models and writes a row for each format, and for float32, as they are done."""
    rows = []
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, [one.name for one in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for name in names:
            for row in rows_of(name, formats, range(seeds)):
                rows.append(row)
                writer.writerow(asdict(row))
                file.flush()
    return rows


def main() -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--tables", nargs="*", type=Path, metavar="FILE", help="train nothing")
    what.add_argument("--check", action="store_true", help="compare one seed with the kept rows")
    what.add_argument("--shadow", action="store_true", help="run eight steps in each format, too")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("study.csv"), help="default: study.csv")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.tables is not None:
        print("\n\n".join(report(read(path)) for path in arguments.tables or (KEPT, SCALED)))
        return 0
    globs = arguments.models or list(REPORTED)
    names = [name for name in MODELS if any(fnmatch.fnmatchcase(name, one) for one in globs)]
    if not names:
        parser.error(f"MODEL: no such model, expected some of {', '.join(MODELS)}, got {globs}")
    if arguments.check:
        return check(names)
    if arguments.shadow:
        print(shadow(names))
        return 0
    if arguments.out.exists():
        parser.error(f"--out: {arguments.out} exists, expected a new file")
    print(report(study(names, arguments.formats, arguments.seeds, arguments.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
