# SPDX-License-Identifier: Apache-2.0
"""What a newcomer runs in a clone: help of the scripts, and tools/demo."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(
    command: Path, *arguments: str, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [command, *arguments], capture_output=True, text=True, timeout=60, check=True, cwd=folder
    )


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("tool", ["demo", "install-python", "test"])
def test_help_is_the_head_of_the_script(tool: str, option: str, tmp_path: Path) -> None:
    said = run(ROOT / "tools" / tool, option, folder=tmp_path).stdout
    head = (ROOT / "tools" / tool).read_text().split("\nset -eu\n")[0].splitlines()[2:]
    assert said.splitlines() == [line.removeprefix("# ") for line in head]
    assert f"tools/{tool} [" in said


def test_demo_installs_once_and_shows_the_answer(tmp_path: Path) -> None:
    """With an installation that does not compile, in a clone whose path has a blank."""
    clone = tmp_path / "a clone"
    shutil.copytree(ROOT / "tools", clone / "tools")
    (clone / "tests").symlink_to(ROOT / "tests")
    installing = clone / "tools/install-python"
    installing.write_text(
        '#!/bin/sh\nset -eu\nroot=${0%/tools/*}\n[ $# = 0 ] && mkdir -p "$root/.venv/bin"\n'
        f'printf \'#!/bin/sh\\nexec {sys.executable} -m dlsim "$@"\' > "$root/.venv/bin/dlsim"\n'
        'chmod +x "$root/.venv/bin/dlsim"\n'
    )
    told = run(clone / "tools/demo", "--format", "bf16", folder=clone)
    assert told.stdout.startswith("bf16  trains without loss scaling.\n")
    assert "$ dlsim replay tests/data/traces/t5-stream --format bf16\n" in told.stderr
    installing.write_text("#!/bin/sh\nexit 1\n")
    from_afar = run(clone / "tools/demo", "--format", "bf16", folder=tmp_path)
    # Lines break elsewhere, as the path is longer.
    words = " ".join(from_afar.stdout.split())
    assert words.replace(f"{clone}/", "") == " ".join(told.stdout.split())


def test_the_site_names_what_it_needs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools/build-docs", "no-mkdocs"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tmp_path)},
        timeout=60,
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("tools/build-docs: no-mkdocs, doxygen")
