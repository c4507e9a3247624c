# SPDX-License-Identifier: Apache-2.0
"""Type checkers know what the functions on arrays return."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
api = pytest.importorskip("mypy.api", reason="needs mypy")

PROGRAM = """
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

import dlsim


def check(array: NDArray[np.float32], tensor: torch.Tensor, other: object) -> None:
    assert_type(dlsim.encode(array, "fp16", 2.0, rounding="sr", seed=1), NDArray[Any])
    assert_type(dlsim.encode(tensor, dlsim.CB16), torch.Tensor)
    assert_type(dlsim.decode(np.ones(3, np.uint16), "fp16"), NDArray[np.float32])
    assert_type(dlsim.decode(tensor.short(), "fp16"), torch.Tensor)
    assert_type(dlsim.quantize(array, "fp16", unscale=False), NDArray[np.float32])
    assert_type(dlsim.quantize(tensor, "fp16", out=tensor), torch.Tensor)
    assert_type(dlsim.measure(array, "fp16", 2.0), dlsim.TensorStats)
    assert_type(dlsim.measure(tensor, dlsim.CB16), dlsim.TensorStats)
    assert_type(dlsim.measure(array, ["fp16", "bf16"]), list[dlsim.TensorStats])
    assert_type(dlsim.measure(array, "fp16", [1.0, 2.0]), list[dlsim.TensorStats])
    assert_type(dlsim.encode(other, "fp16", "2^15"), Any)
    assert_type(dlsim.check({"w": array, "b": other}, ["fp16", np.float16]).best, str)
    assert_type(dlsim.replay("run", rounding="sr").verdict.best, str)
    assert_type(dlsim.report(dlsim.tune("run"), "tune.html", title="Run"), None)
    assert_type(dlsim.report.write_report("replay.json", "replay.html"), None)
    dlsim.encode(array, "fp16", mode="sr")
"""


def test_results_have_the_type_of_the_array(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    # To type checkers a Tensor of PyTorch 1.13 may be anything.
    typed = int(torch.__version__.partition(".")[0]) >= 2
    lines = [line if typed or "(tensor" not in line else "    ..." for line in PROGRAM.split("\n")]
    program.write_text("\n".join(lines))
    report, errors, code = api.run(["--strict", "--cache-dir", str(tmp_path), str(program)])
    assert not errors and code == 1
    found = [line for line in report.splitlines() if ": error: " in line]
    last = PROGRAM.count("\n")  # the wrong keyword
    assert found and all(f"program.py:{last}: error: " in line for line in found), report
