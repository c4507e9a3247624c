# SPDX-License-Identifier: Apache-2.0
"""What the recorder says of autocast is what autocast does, operation by operation.

PyTorch's own autocast for CUDA runs on tensors without memory that say they are on a CUDA device.
"""

import pytest
import torch
from autocast_models import MODELS
from torch.utils._python_dispatch import TorchDispatchMode

from dlsim.recorder._operations import Operations, _described
from dlsim.recorder._tensors import tensors_in
from dlsim.recorder._widths import Widths

pytestmark = pytest.mark.skipif(
    not hasattr(torch, "set_autocast_dtype"), reason="needs PyTorch 2.4 or later"
)

Found = list[tuple[str, bool]]  # operations, and whether their result has 16 bits


class Dtypes(TorchDispatchMode):
    """Notes the type of the result of each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        operator = _described(func)
        floats = [one for one in tensors_in(result) if one.is_floating_point()]
        computes = not operator.view and not operator.moves and list(tensors_in((args, kwargs)))
        if computes and floats and floats[0].dim() > 0:
            self.found.append((operator.operation, floats[0].dtype == torch.float16))
        return result


def followed(model: torch.nn.Module, x: torch.Tensor) -> Found:
    """Returns what the recorder makes of a forward pass in float32."""
    found: Found = []
    widths = Widths(dict(model.named_parameters()))

    def note(operation: str, tensor: torch.Tensor, _differentiable: bool) -> None:
        found.append((operation, widths.narrow(tensor)))

    operations = Operations(
        widths, lambda: True, lambda *one: one[1].dim() and note(*one), print, lambda do: do()
    )
    operations.enter()
    try:
        model(x)
    finally:
        operations.leave()
    return found


def on_cuda(make, shape) -> Found:
    """Returns what autocast makes of it on a CUDA device, which is not needed."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch.set_autocast_dtype("cuda", torch.float16)
    torch.set_autocast_enabled("cuda", True)
    try:
        with FakeTensorMode(), torch.device("cuda"), Dtypes() as dtypes:
            model = make()
            x = torch.randn(shape)
            dtypes.found.clear()
            model(x)
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.clear_autocast_cache()
    return dtypes.found


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_types_are_those_of_autocast_on_cuda(make) -> None:
    torch.manual_seed(0)
    shape = (3, 5, 16)
    expected = on_cuda(make, shape)
    found = followed(make(), torch.randn(shape))
    assert len(found) >= 5 and found == expected
