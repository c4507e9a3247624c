# SPDX-License-Identifier: Apache-2.0
"""The verdict on gradients at hand: dlsim.check."""

from __future__ import annotations

from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ._errors import UsageError
from .runs import replay
from .traces._writer import TraceWriter, checked_grad_scale

if TYPE_CHECKING:
    from ._values import FormatNames, Names
    from .results import Verdict


def check(
    gradients: Mapping[str, Any],
    formats: FormatNames | None = None,
    *,
    policies: Names | None = None,
    grad_scale: float | str = 1.0,
) -> Verdict:
    """Returns the verdict on the gradients of one step: which formats and loss scales fit them.

    `gradients` are arrays of NumPy, PyTorch or others by name, such as
    `{name: p.grad for name, p in model.named_parameters()}`; names that end in `.act_grad` are
    gradients of activations, and None is ignored. `formats` and `policies` are those of
    `dlsim.replay`. `grad_scale` is the loss scale that the gradients still carry. One step is a
    sample: to judge a training, record it with `dlsim.Recorder`. The gradients are written to a
    temporary file. Raises TypeError and UsageError for anything that is not a gradient.
    """
    if not isinstance(gradients, Mapping):
        raise TypeError(
            f"check: expected a mapping of names to arrays, got {type(gradients).__name__}"
        )
    arrays = {name: array for name, array in gradients.items() if array is not None}
    if not arrays:
        raise UsageError("check: no gradient, expected at least one array that is not None")
    with TemporaryDirectory(prefix="dlsim-") as folder:
        TraceWriter(folder).write(0, arrays, {"grad_scale": checked_grad_scale(grad_scale)})
        return replay(folder, formats=formats, policies=policies, quiet=True).verdict
