# SPDX-License-Identifier: Apache-2.0
"""Finds the code blocks of a Markdown page, and runs them from top to bottom.

Blocks of `sh` and `python` run. A block without a language shows commands after "$ " with lines
that they print, or lines of what the block above printed. A comment before a block says more:

    <!-- before: COMMANDS -->      what a reader would have done already, also for a dummy file
    <!-- printed by: COMMAND -->   what prints the lines that the block shows
    <!-- not run: REASON -->       the block is exempt, as are drawings, blocks of `text`
"""

import doctest
import os
import re
import subprocess
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

_MARK = re.compile(r"<!-- (not run|before|printed by): (.*?) *-->", re.DOTALL)

_END = "end-of-this-command"


@dataclass(frozen=True)
class Block:
    """A block of code with its language, first line and marks."""

    language: str
    text: str
    line: int
    marks: dict[str, str]


def blocks_of(page: Path) -> list[Block]:
    """Returns the blocks of a page."""
    tokens = MarkdownIt().parse(page.read_text())
    blocks = []
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "fence" and token.info.strip() != "text":
            comment = before.content if before and before.type == "html_block" else ""
            assert token.map
            marks = dict(_MARK.findall(comment))
            blocks.append(Block(token.info.strip(), token.content, token.map[0] + 1, marks))
    return blocks


def assert_shown(shown: str, printed: str) -> None:
    """Expects the lines shown among those printed, in their order; "..." is any text."""
    rest = iter([line.rstrip() for line in printed.splitlines()])
    for line in shown.splitlines():
        wanted = re.escape(line.rstrip()).replace(r"\.\.\.", ".*")
        if line.strip() not in ("", "...") and not any(re.fullmatch(wanted, one) for one in rest):
            raise AssertionError(f"the page shows\n{line}\nwhich is not in its place in\n{printed}")


class Page:
    """Runs blocks one after another in a folder."""

    def __init__(self, folder: Path, names: dict[str, Any]) -> None:
        self.folder = folder
        self.names = names
        self.printed = ""

    def run(self, block: Block) -> None:
        """Runs a block, or compares it with what the last one printed."""
        if "before" in block.marks:
            self._shell(block.marks["before"])
        if "printed by" in block.marks:
            self.printed = self._shell(block.marks["printed by"])
            assert_shown(block.text, self.printed)
        elif block.language == "sh":
            self.printed = self._shell(block.text)
        elif block.language == "python":
            self.printed = self._python(block)
        elif block.language:
            raise AssertionError(f"a block of {block.language} needs the mark 'not run'")
        elif block.text.lstrip().startswith("$ "):
            self._console(block.text)
        else:
            assert_shown(block.text, self.printed)

    def _shell(self, commands: str, expect_success: bool = True) -> str:
        done = subprocess.run(
            ["bash", "-c", ("set -eu\n" if expect_success else "") + commands],
            cwd=self.folder,
            env=dict(os.environ),  # not the COLUMNS that readline sets as well
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=600,
            check=False,
        )
        if expect_success and done.returncode:
            raise AssertionError(f"{commands}\nends with {done.returncode}: {done.stdout}")
        return done.stdout

    def _console(self, text: str) -> None:
        """Runs what follows each "$ ", with its continued lines, in one shell; gates may fail."""
        parts = re.split(r"^\$ ((?:.*\\\n)*.*)\n", text, flags=re.MULTILINE)
        end = f"\n{{ status=$?; echo {_END}; (exit $status); }}\n"
        self.printed = self._shell(end.join([*parts[1::2], ""]), expect_success=False)
        for shown, printed in zip(parts[2::2], self.printed.split(f"{_END}\n"), strict=False):
            assert_shown(shown, printed)

    def _python(self, block: Block) -> str:
        if block.text.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(
                block.text, self.names, "page", None, block.line
            )
            test.globs = self.names  # kept for the next block
            said = StringIO()
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
            runner.run(test, out=said.write, clear_globs=False)
            if runner.failures:
                raise AssertionError(said.getvalue())
            return ""
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile(block.text, f"line {block.line}", "exec"), self.names)
        return printed.getvalue()
