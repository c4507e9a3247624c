# SPDX-License-Identifier: Apache-2.0
"""The command line of the study."""

from __future__ import annotations

import argparse
from pathlib import Path

import batch_check
import grid
import kept
import lines
import models
import noise_check
import plot
import pretrained
import refinement
import reported
import reported_tables
import row_files
import scaled
import scaled_tables
import slice_check
import torch
import trainings
import updates
import updates_tables
from evidence import CHOSEN, THRESHOLD, cases
from pretrained_networks import PACKAGES
from tables import report

HERE = Path(__file__).resolve().parent
KEPT = HERE / "results" / "trainings.csv"
RAW = HERE.parents[1] / "build" / "study"
PLOT = HERE.parents[1] / "docs" / "images" / "evidence.svg"


def parser() -> argparse.ArgumentParser:
    """Returns what reads the arguments."""
    result = argparse.ArgumentParser(
        prog="tools/study/run",
        description="Trains small models under rounded gradients and asks which offline figure "
        "predicts the harm; docs/evidence.md tells more. Goes on where it was stopped.",
    )
    what = result.add_mutually_exclusive_group()
    what.add_argument(
        "--slice",
        action="store_true",
        help="train a part in about a minute and compare it with the kept results",
    )
    what.add_argument(
        "--report", action="store_true", help="train nothing, print the tables of the kept results"
    )
    what.add_argument(
        "--noise", action="store_true", help="compare the rule for noise with float64 gradients"
    )
    what.add_argument(
        "--batches", action="store_true", help="train one model with a small and a large batch"
    )
    what.add_argument(
        "--recommended",
        action="store_true",
        help="train again what dlsim tune recommends, and keep the other results",
    )
    what.add_argument(
        "--real",
        action="store_true",
        help="train models of the kinds that people report in real 16 bits, and keep the results",
    )
    what.add_argument(
        "--real-slice", action="store_true", help="a part of that, compared with the kept results"
    )
    what.add_argument(
        "--pretrained",
        nargs="*",
        metavar="NETWORK",
        help="run trained networks in 16 bits, all or those named, and keep the results; needs "
        + PACKAGES,
    )
    what.add_argument(
        "--updates",
        action="store_true",
        help="train networks with weights in bf16, and keep the results of docs/updates.md",
    )
    what.add_argument(
        "--scaled",
        action="store_true",
        help="train in FP8 and FP4, and keep the results of docs/scaled-formats.md",
    )
    result.add_argument("--raw", type=Path, default=RAW, help="folder with what was done so far")
    result.add_argument(
        "--kept", type=Path, default=KEPT, help="kept results, which a whole run replaces"
    )
    names = list(models.RECIPES)
    result.add_argument("--models", nargs="+", choices=names, default=names, metavar="MODEL")
    result.add_argument("--seeds", nargs="+", type=int, default=list(grid.SEEDS), metavar="N")
    return result


def main() -> int:
    """Runs the command; returns the exit code."""
    arguments = parser().parse_args()
    torch.set_num_threads(1)
    checks = {
        "slice": lambda: slice_check.main(arguments.kept),
        "noise": noise_check.main,
        "batches": batch_check.main,
        "real_slice": lambda: reported.check(reported.KEPT),
    }
    for name, check in checks.items():
        if getattr(arguments, name):
            return check()
    if arguments.real:
        reported.study(arguments.raw, reported.KEPT)
        print(reported_tables.report(reported_tables.read(reported.KEPT)))
        return 0
    if arguments.pretrained is not None:
        pretrained.study(arguments.pretrained)
        print(pretrained.tables())
        return 0
    if arguments.updates:
        updates.study()
        print(_updates())
        return 0
    if arguments.scaled:
        scaled.study()
        print(_scaled())
        return 0
    if not arguments.report:
        rows = _train_recommended(arguments) if arguments.recommended else _train(arguments)
        arguments.kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write(arguments.kept, rows)
        _draw(rows)
    print(report(kept.read(arguments.kept)))
    print(reported_tables.report(reported_tables.read(reported.KEPT)))
    print(pretrained.tables())
    print(_updates())
    print(_scaled())
    return 0


def _updates() -> str:
    return updates_tables.report(row_files.read(updates.KEPT, updates_tables.Row))


def _scaled() -> str:
    return scaled_tables.report(row_files.read(scaled.KEPT, scaled_tables.Row))


def _train(arguments: argparse.Namespace) -> list[kept.Row]:
    names, seeds, folder = arguments.models, arguments.seeds, arguments.raw
    folder.mkdir(parents=True, exist_ok=True)
    raw, figures = folder / "trainings.jsonl", folder / "figures.jsonl"

    def study(chosen_models: list[str], settings: list[grid.Setting]) -> None:
        lines.append(raw, chosen_models, seeds, settings, trainings.trainings)
        lines.append(figures, chosen_models, seeds, settings, trainings.figures)

    # Float32 first: with its spread over all seeds, results are of use before the end.
    lines.append(raw, names, seeds, [grid.FLOAT32], trainings.trainings)
    study(names, grid.settings())
    rows = kept.rows_of(lines.read(raw), lines.read(figures))
    for name, settings in refinement.refined(rows).items():
        if name in names:
            study([name], settings)
    return kept.rows_of(lines.read(raw), lines.read(figures)) + _recommended(arguments)


def _recommended(arguments: argparse.Namespace) -> list[kept.Row]:
    raw = arguments.raw / "recommended.jsonl"
    chosen = grid.RECOMMENDED
    lines.append(raw, arguments.models, arguments.seeds, chosen, trainings.recommendations)
    return kept.rows_of(lines.read(raw), [])


def _train_recommended(arguments: argparse.Namespace) -> list[kept.Row]:
    arguments.raw.mkdir(parents=True, exist_ok=True)
    others = [row for row in kept.read(arguments.kept) if row.under != grid.RECOMMENDED[0].under]
    return others + _recommended(arguments)


def _draw(rows: list[kept.Row]) -> None:
    panels = [
        ("param_energy", "energy lost of all parameter gradients", 1e-3),
        (CHOSEN, "mean harm of channels of activation gradients", THRESHOLD),
    ]
    plot.write(PLOT, cases(rows), panels)
