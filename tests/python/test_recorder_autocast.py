# SPDX-License-Identifier: Apache-2.0
"""What the recorder says of autocast is what autocast does, operation by operation.

PyTorch's own autocast for CUDA runs on tensors without memory that say they are on a CUDA device.
"""

from collections.abc import Iterable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dlsim.recorder._noise import Noise
from dlsim.recorder._operations import Operations
from dlsim.recorder._operators import described
from dlsim.recorder._regions import Regions
from dlsim.recorder._tensors import tensors_in
from dlsim.recorder._widths import Widths

if not hasattr(torch, "set_autocast_dtype"):
    pytest.skip("needs PyTorch 2.4 or later", allow_module_level=True)

from autocast_models import MODELS


class Seen:
    """Operations, each with whether its result has 16 bits, and what autocast copies in 16."""

    def __init__(self, parameters: Iterable[torch.Tensor] = ()) -> None:
        self.operations: list[tuple[str, bool]] = []
        self.copies: list[tuple[int, int]] = []  # elements, and those of a row: products flatten
        # Held, so that nothing else comes to lie in their places.
        self._known = {_place_of(one): one for one in parameters}

    def copy(self, tensor: torch.Tensor) -> None:
        """Notes a tensor of which a copy was made, once."""
        place = _place_of(tensor)
        if place not in self._known:
            self._known[place] = tensor
            self.copies.append((tensor.numel(), tensor.shape[-1]))


def _place_of(tensor: torch.Tensor) -> tuple[int, int, int]:
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.numel()


class Dtypes(TorchDispatchMode):
    """Notes what operators make."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Seen()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        operator = described(func)
        if operator.operation == "to_copy" and result.dtype == torch.float16:
            self.seen.copy(args[0])
        floats = [one for one in tensors_in(result) if one.is_floating_point()]
        computes = not operator.view and not operator.moves and list(tensors_in((args, kwargs)))
        if computes and floats and floats[0].dim() > 0:
            narrow = floats[0].dtype == torch.float16
            self.seen.operations.append((operator.operation, narrow))
        return result


def followed(model: torch.nn.Module, x: torch.Tensor) -> Seen:
    """Returns what the recorder makes of a forward pass in float32."""
    seen, regions = Seen(), Regions(lambda: True)
    widths = Widths(dict(model.named_parameters()), regions)

    def note(operation: str, tensor: torch.Tensor, _differentiable: bool) -> None:
        if tensor.dim():
            seen.operations.append((operation, widths.narrow(tensor)))

    operations = Operations(
        widths,
        lambda: True,
        note,
        print,
        lambda do: do(),
        copied=lambda _, tensor: seen.copy(tensor),
        outside=lambda: False,
        module=lambda: "",
        splits=lambda: True,
        noise=Noise({}, lambda do: do()),
    )
    operations.enter()
    regions.enter()
    try:
        model(x)
    finally:
        operations.leave()
        regions.leave()
    return seen


def on_cuda(make, shape) -> Seen:
    """Returns what autocast makes of it on a CUDA device, which is not needed."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch.set_autocast_dtype("cuda", torch.float16)
    torch.set_autocast_enabled("cuda", True)
    try:
        with FakeTensorMode(), torch.device("cuda"), Dtypes() as dtypes:
            model = make()
            x = torch.randn(shape)
            dtypes.seen = Seen(model.parameters())
            model(x)
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.clear_autocast_cache()
    return dtypes.seen


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_types_and_copies_are_those_of_autocast_on_cuda(make) -> None:
    torch.manual_seed(0)
    shape = (3, 5, 16)
    expected = on_cuda(make, shape)
    found = followed(make(), torch.randn(shape))
    assert len(found.operations) >= 5 and found.operations == expected.operations
    assert found.copies and sorted(found.copies) == sorted(expected.copies)
