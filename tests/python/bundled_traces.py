# SPDX-License-Identifier: Apache-2.0
"""The traces in tests/data, and what other software reads in their files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
from running import DLSIM

TRACES = Path(__file__).parents[1] / "data" / "traces"
BUNDLED = sorted(path for path in TRACES.iterdir() if path.is_dir())


def steps_of(directory: Path) -> dict[int, list[Path]]:
    """The files of each step, in the order of micro-steps, by their names alone."""
    files: dict[int, list[Path]] = {}
    for path in sorted(directory.glob("step-*.safetensors")):
        files.setdefault(int(path.name[5:13]), []).append(path)
    return files


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a folder by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype == np.float32 and a.shape == b.shape and a.tobytes() == b.tobytes()


def profile(trace: Path, output: Path, *options: str) -> Path:
    command = [*DLSIM, "profile", trace, "-o", output, "--quiet", *options]
    subprocess.run(command, check=True)
    return output
