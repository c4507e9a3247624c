# SPDX-License-Identifier: Apache-2.0
"""Many processes write one profile, as docs/profiles.md shows it for Dask."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bundled_traces import TRACES
from doc_blocks import blocks_of

import dlsim

PAGE = Path(__file__).parents[2] / "docs/profiles.md"


def files_of(profile: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in profile.iterdir()}


def test_the_example_for_dask_writes_the_profile_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("dask.distributed")
    (script,) = [block.text for block in blocks_of(PAGE) if "dask.distributed" in block.text]
    changes = {
        '"dlsim"': f'"{sys.executable}", "-m", "dlsim"',
        "runs/a": str(TRACES / "cnn-digits"),
        "first + 99": "first + 6",
        "range(0, 6400, 100)": "range(0, 49, 7)",
        "n_workers=8": "n_workers=2, dashboard_address=None",
    }
    for before, after in changes.items():
        assert script.count(before) == 1, before
        script = script.replace(before, after)
    (tmp_path / "cluster.py").write_text(script)
    environment = {**os.environ, "DASK_DISTRIBUTED__WORKER__DAEMON": "False"}
    subprocess.run(
        [sys.executable, "cluster.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    dlsim.profile(TRACES / "cnn-digits", tmp_path / "b.profile", quiet=True)
    assert files_of(tmp_path / "a.profile") == files_of(tmp_path / "b.profile")
