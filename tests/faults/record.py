# SPDX-License-Identifier: Apache-2.0
"""Trains under dlsim's recorder while calls fail: record.py FOLDER, faults on standard input.

tools/faults preloads the library of faults and reads one line per fault: `right` (every step was
recorded), `refused` (steps are missing, and the recorder counts them), or `else` and why. Training
must come to the same parameters always, and every file must be whole.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import shutil
import sys
import warnings
from pathlib import Path

import torch
from torch import nn

import dlsim

STEPS = 6
FAULTY = range(2, 4)
_SET = ctypes.CDLL(None).dlsim_fault
_SET.argtypes = [ctypes.c_char_p]


def train(output: Path, fault: str | None) -> tuple[list[torch.Tensor], dlsim.Recorder]:
    """Trains with the fault at the steps FAULTY; returns the parameters and the recorder."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dlsim.Recorder(model, output) as rec:
        for step in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            if fault and step == FAULTY.start:
                _SET(fault.encode())
            rec.step(scale=1.0)
            if step == FAULTY.stop - 1:
                _SET(None)
            optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()], rec


def content(data: bytes) -> tuple[object, bytes]:
    """A file of safetensors as its header, whose order varies, and its tensors' bytes."""
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size] or "null"), data[8 + size :]


def files_of(output: Path) -> dict[str, tuple[object, bytes]]:
    """The files of a trace but its description, hidden ones included, by name."""
    paths = [path for path in output.iterdir() if path.name != "trace.json"]
    return {path.name: content(path.read_bytes()) for path in paths}


def outcome(
    output: Path,
    fault: str,
    expected: list[torch.Tensor],
    files: dict[str, tuple[object, bytes]],
) -> str:
    """Trains under a fault and says what came of it."""
    shutil.rmtree(output, ignore_errors=True)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            parameters, rec = train(output, fault)
        except Exception as error:
            return f"else: training ended by {error!r}"
        finally:
            _SET(None)
    if not all(map(torch.equal, parameters, expected)):
        return "else: other parameters"
    found = files_of(output)
    for name, data in found.items():
        if files.get(name) != data:
            return f"else: {name} is not whole"
    missing = len([name for name in files if name not in found])
    if missing > rec.errors:  # an error may also be of the description
        return f"else: {missing} steps are missing, {rec.errors} are counted"
    return "refused" if missing else "right"


def main() -> None:
    """Answers each fault on standard input with a line."""
    folder = Path(sys.argv[1])
    expected, _ = train(folder / "whole", None)
    files = files_of(folder / "whole")
    for line in sys.stdin:
        print(outcome(folder / "run", line.strip(), expected, files), flush=True)


if __name__ == "__main__":
    main()
