# SPDX-License-Identifier: Apache-2.0
"""Every block of every page runs and prints what the page shows, or says why it is not run."""

import os
import sys
from pathlib import Path

import pytest
from doc_blocks import Page, blocks_of
from doc_workspace import make_workspace, records_probes, training_names

_ROOT = Path(__file__).parents[2]
_PAGES = [
    page
    for pattern in ("*.md", "docs/**/*.md", "notebooks/*.md")
    for page in sorted(_ROOT.glob(pattern))
    if blocks_of(page)
]
# Their Python is one training, which these tests set up and judge.
_TESTED = {
    "amp.md": "test_amp_docs.py",
    "emulation.md": "test_emulation_docs.py",
    "fp16-fails.md": "test_fp16_fails.py",
}


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("COLUMNS", raising=False)  # as in a pipe, where lines stay whole
    make_workspace(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_blocks_run_and_print_what_is_shown(page, workspace):
    if page.name == "updates.md" and not records_probes():
        pytest.skip("needs PyTorch 2.4")
    runner = Page(workspace, training_names())
    problems = []
    tested_elsewhere = False  # this block and what is shown of its output
    for block in blocks_of(page):
        if "not run" in block.marks:
            continue
        if block.language or block.marks or block.text.startswith("$ "):
            tested_elsewhere = block.language == "python" and page.name in _TESTED
        if tested_elsewhere:
            continue
        try:
            runner.run(block)
        except Exception as problem:
            problems.append(f"{page.name}:{block.line}: {type(problem).__name__}: {problem}")
    assert not problems, "\n\n".join(problems)


@pytest.mark.parametrize("name", _TESTED.values())
def test_pages_with_tests_of_their_own_have_them(name):
    assert Path(__file__).with_name(name).is_file()
