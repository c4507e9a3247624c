# SPDX-License-Identifier: Apache-2.0
"""Where the blessed results of each processor are, be it a CPU or a GPU."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from .._errors import InputError
from .._files import replacing
from ._comparison import LEAST_REPETITIONS
from ._results import Results, printable, read_results


def slug(text: str) -> str:
    """Returns "amd-epyc-9654-96-core-processor" for "AMD EPYC 9654 96-Core Processor"."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def baseline_path(directory: str, results: Results) -> str:
    """Returns the path of the baseline for such results; raises InputError."""
    processor = slug(results.identity.get("gpu", results.cpu_model))
    if not processor:
        raise InputError(
            f"{results.place}: does not name its processor, expected a file of dlsim bench run"
        )
    kind = "instructions" if results.kind == "instructions" else results.identity.get("suite", "")
    return f"{directory}/{processor}{f'.{slug(kind)}' if kind else ''}.json"


def read_baseline(directory: str, results: Results) -> Results:
    """Reads that baseline; raises InputError that says how to make one if there is none."""
    path = baseline_path(directory, results)
    if not Path(path).exists():
        raise InputError(
            f"{printable(path)}: no baseline for this processor, expected one made by dlsim bench "
            "bless, or two files to compare"
        )
    return read_results(path)


def bless(path: str, directory: str) -> str:
    """Stores a result as the baseline of its processor and returns that path."""
    results = read_results(path)
    baseline = baseline_path(directory, results)
    for kernel in results.kernels:
        count = len(kernel.cost)
        if results.kind == "time" and count < LEAST_REPETITIONS:
            raise InputError(
                f"{results.place}: {printable(kernel.name)}: too few repetitions, "
                f"expected at least {LEAST_REPETITIONS}, got {count}"
            )
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{printable(directory)}: cannot be made ({error.strerror})") from error
    with replacing(baseline) as temporary:
        shutil.copyfile(path, temporary)
    return baseline
