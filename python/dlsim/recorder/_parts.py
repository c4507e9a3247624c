# SPDX-License-Identifier: Apache-2.0
"""Makes of the gradients that a model has now what a sink takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._metadata import texts_of
from ._placement import Pieces
from ._ranks import Ranks
from ._sinks import Part
from ._snapshot import HostCopies
from ._sources import Sources


class Parts:
    """The way of gradients from the model to the host; notes in `left_out` what does not take it.

    The tensors of a part stay as they are until the next is made, but those that are lent or on a
    device.
    """

    def __init__(
        self,
        sources: Sources,
        pieces: Pieces,
        copies: HostCopies,
        ranks: Ranks,
        left_out: dict[str, str],
    ) -> None:
        self._sources, self._pieces, self._copies = sources, pieces, copies
        self._ranks, self._left_out = ranks, left_out

    def take(
        self, step: int, micro: int | None, grad_scale: str, metadata: Mapping[str, object]
    ) -> Part:
        """Returns the gradients of a step, or of a micro-step alone. Raises Error without any."""
        found = self._sources.take(step, float(grad_scale), self._left_out)
        own = self._pieces.own(found, self._left_out)
        # A loss scale is going to be divided out, in place, and PyTorch's scaler counts no change.
        lends = float(grad_scale) == 1
        host = self._copies.take(own, step, self._left_out, lends=lends)
        texts = texts_of({"step": step, **metadata, "grad_scale": grad_scale})
        texts.update(self._pieces.metadata(self._sources.metadata()))
        if micro is not None:
            texts["micro_step"] = str(micro)
        if self._ranks.kind == "separate":
            texts.update(rank=str(self._ranks.rank), ranks=str(self._ranks.ranks))
        return Part(micro, float(grad_scale), texts, host, self._copies.loans)

    def take_early(self, step: int) -> dict[str, Any]:
        """Returns what earlier batches of a step have left; the next `take` gives the rest."""
        own = self._pieces.own(self._sources.take_early(), self._left_out)
        return self._copies.take_early(own, step, self._left_out)
