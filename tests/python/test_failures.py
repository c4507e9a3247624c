# SPDX-License-Identifier: Apache-2.0
"""docs/failures.md has each cause of the labeled threads, examples of them, and the ways there."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs/failures.md").read_text()
_SYMPTOMS, _CAUSES = re.split(r"^## By cause$", _PAGE, flags=re.M)
_SECTIONS = {section.splitlines()[0].lower(): section for section in _CAUSES.split("\n### ")[1:]}
with (_ROOT / "tests/data/failures.csv").open() as file:
    _LABELS = [(row["thread"], row["cause"]) for row in csv.DictReader(file)]


def links(text: str) -> set[str]:
    return set(re.findall(r"https://github\.com/[^)]+", text))


def link_of(thread: str) -> str:
    """Four comments on one page have letters after its number."""
    repository, number = thread.split("#")
    return f"https://github.com/{repository}/issues/{number.rstrip('abcd')}"


def test_the_causes_are_those_of_the_labels() -> None:
    assert set(_SECTIONS) == {cause for _, cause in _LABELS}
    assert len(_LABELS) == 120


@pytest.mark.parametrize("cause", _SECTIONS)
def test_a_cause_has_a_way_a_command_and_examples(cause: str) -> None:
    assert f"(#{cause})" in _SYMPTOMS
    section = _SECTIONS[cause]
    assert re.search(r"dlsim|autocast_emulation", section)
    threads = {link_of(thread) for thread, of in _LABELS if of == cause}
    assert links(section)
    assert links(section) <= threads


def test_the_ways_lead_to_causes_and_symptoms() -> None:
    slugs = {
        re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", _PAGE, flags=re.M)
    }
    assert set(re.findall(r"\(#([^)]+)\)", _PAGE)) <= slugs
