# SPDX-License-Identifier: Apache-2.0
"""The command line of the study."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import grid
import models
import torch
import trainings

HERE = Path(__file__).resolve().parent
RAW = HERE.parents[1] / "build" / "study" / "trainings.jsonl"


def parser() -> argparse.ArgumentParser:
    """Returns what reads the arguments."""
    result = argparse.ArgumentParser(
        prog="tools/study/run",
        description="Trains small models under rounded gradients and asks which offline figure "
        "predicts the harm; docs/evidence.md tells more.",
    )
    result.add_argument(
        "--raw", type=Path, default=RAW, help="trainings so far (default: %(default)s)"
    )
    result.add_argument("--models", nargs="+", choices=models.RECIPES, default=list(models.RECIPES))
    result.add_argument("--seeds", nargs="+", type=int, default=list(grid.SEEDS))
    return result


def main() -> int:
    """Runs the command; returns the exit code."""
    arguments = parser().parse_args()
    torch.set_num_threads(1)
    arguments.raw.parent.mkdir(parents=True, exist_ok=True)
    # Float32 first: with its spread over all seeds, results are of use before the end.
    trainings.run(arguments.raw, arguments.models, arguments.seeds, [])
    trainings.run(arguments.raw, arguments.models, arguments.seeds, grid.settings())
    return 0


if __name__ == "__main__":
    sys.exit(main())
