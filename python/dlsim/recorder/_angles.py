# SPDX-License-Identifier: Apache-2.0
"""The angles that activations are turned by, as in rotary embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._memory import ByMemory
from ._operators import Operator
from ._widths import Widths

# Half a unit in the last place of such an angle is 1/16 in bf16, 1/128 in fp16.
_LARGE = 16.0


class Angles:
    """Follows sines and cosines of large 16-bit angles to where other tensors are multiplied.

    16 bits may make others of such angles. What only is a feature that a model is given may be
    another one.
    """

    def __init__(self, widths: Widths) -> None:
        self._widths = widths
        self._turning: ByMemory[Turn] = ByMemory()

    def clear(self) -> None:
        """Forgets everything."""
        self._turning.clear()

    def look(self, operator: Operator, given: Sequence[Any], result: Any) -> Turn | None:
        """Follows an operator; returns what it is the first to turn by, or None."""
        turns = [self._turning.get(one) for one in given]
        if operator.operation in ("cos", "sin"):
            turns = [self._turn_by(given[0].detach())]
        if not operator.in_place:
            self._turning.forget(result)
        turn = next((one for one in turns if one is not None), None)
        if turn is None:
            return None
        if len(given) == 1 or operator.moves:
            self._turning.set(result, turn)
        elif operator.operation == "mul" and None in turns and not turn.found:
            turn.found = True
            self._widths.set(turn.angles, True)
            return turn
        return None

    def _turn_by(self, angles: Any) -> Turn | None:
        if not self._widths.narrow(angles) or not bool((angles.abs() > _LARGE).any()):
            return None
        return Turn(angles)


class Turn:
    """A copy of angles, the tensor that held them, and whether something was turned by them."""

    def __init__(self, of: Any) -> None:
        self.angles, self.of, self.found = of.clone(), of, False
