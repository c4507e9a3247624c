# SPDX-License-Identifier: Apache-2.0
"""What the tests of imports share: running commands, reading steps, comparing replays."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from running import DLSIM
from safetensors.numpy import load_file


def run_dlsim(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the dlsim command of the package."""
    return subprocess.run(
        [*DLSIM, *map(str, arguments)], capture_output=True, text=True, check=False
    )


def replayed(path: Path, *options: object) -> list[dict[str, Any]]:
    """Returns the runs of a replay, without what names the input and the order of tensors."""
    command = [*DLSIM, "replay", path, "--quiet", "--json", "-", *options]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    runs: list[dict[str, Any]] = json.loads(result.stdout)["runs"]
    for run in runs:
        run["tensors"].sort(key=lambda tensor: tensor["name"])
        for step in run["steps"]:
            for role in (step, step["activations"]):
                role.pop("worst_harm_tensor", None)  # of equal ones the first
    return runs


def write_step(directory: Path, step: int, tensors: dict[str, np.ndarray]) -> None:
    """Writes a step of a trace by safetensors itself."""
    from safetensors.numpy import save_file

    directory.mkdir(exist_ok=True)
    save_file(tensors, directory / f"step-{step:08d}.safetensors", {"step": str(step)})


def read_step(directory: Path, name: str) -> dict[str, np.ndarray]:
    """Reads a step file of a trace by safetensors itself."""
    tensors: dict[str, np.ndarray] = load_file(directory / f"{name}.safetensors")
    return tensors


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have the same type, shape and bytes."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def random_gradients(seed: int, *shape: int) -> np.ndarray:
    """Float32 values over many binades, with zeros."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-45, 6, shape)
    values[rng.random(shape) < 0.1] = 0
    return values.astype(np.float32)


def one_error_line(result: subprocess.CompletedProcess[str], code: int) -> str:
    """Checks that a command failed with one line and this exit code, and returns the line."""
    assert result.returncode == code, (result.returncode, result.stderr)
    lines = [line for line in result.stderr.splitlines() if ": note: " not in line]
    assert len(lines) == 1, result.stderr
    return lines[0]
