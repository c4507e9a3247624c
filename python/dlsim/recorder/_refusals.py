# SPDX-License-Identifier: Apache-2.0
"""Steps that were to be recorded and were not, as the next recorded step tells them."""

from __future__ import annotations


class Refusals:
    """Counts steps that failed, since the last one that was recorded; keeps what the first said."""

    def __init__(self) -> None:
        self._since, self._first = 0, ""
        self._told: tuple[int, str] = (0, "")  # by the last step that was recorded

    def add(self, message: str) -> None:
        """Counts a step."""
        self._since, self._first = self._since + 1, self._first or message

    def metadata(self) -> dict[str, str]:
        """Returns what the next step says of them."""
        if self._since == 0:
            return {}
        return {"refused": str(self._since), "refused_first": self._first}

    def recorded(self) -> None:
        """Says that a step with these metadata was recorded."""
        self._told = self._since, self._first
        self._since, self._first = 0, ""

    def revoked(self, message: str) -> None:
        """Says that this step was removed, and why: what it told is to be told again."""
        since, first = self._told
        self._since, self._first = since + self._since, first or self._first
        self._told = 0, ""
        self.add(message)
