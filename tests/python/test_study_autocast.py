# SPDX-License-Identifier: Apache-2.0
"""In the study, a CPU computes in 16 bits what autocast on CUDA does, operation by operation."""

import sys
from pathlib import Path

import pytest
import torch
from test_recorder_autocast import Dtypes

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "study"))

import models
import real
import reported
import reported_models

pytestmark = pytest.mark.skipif(
    not hasattr(torch, "set_autocast_dtype"), reason="needs PyTorch 2.4 or later"
)
# Their losses have constants, or differentiate, which needs a device.
NAMES = [
    name
    for name in reported_models.RECIPES
    if reported_models.kind_of(name) not in ("units", "derivatives")
]


def on_cuda(recipe: models.Recipe, batch: models.Data) -> list[tuple[str, bool]]:
    """Returns what autocast makes of a step on a CUDA device, which is not needed."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch.set_autocast_dtype("cuda", torch.float16)
    torch.set_autocast_enabled("cuda", True)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"), Dtypes() as dtypes:
            network = recipe.network()
            inputs, targets = (torch.empty(one.shape, dtype=one.dtype) for one in batch)
            dtypes.seen.operations.clear()
            recipe.loss(network(inputs), targets)
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.clear_autocast_cache()
    return dtypes.seen.operations


@pytest.mark.parametrize("name", NAMES)
def test_types_are_those_of_autocast_on_cuda(name) -> None:
    training = models.training_of(reported_models.RECIPES[name], 0)
    batch = next(training.batches())
    with real.computing_in("fp16"), Dtypes() as dtypes:
        training.recipe.loss(training.network(batch[0]), batch[1])
    # cross_entropy keeps the type of the scores there, the logarithms in float32 here.
    found, expected = (
        [one for one in operations if one[0] != "log_softmax"]
        for operations in (dtypes.seen.operations, on_cuda(training.recipe, batch))
    )
    assert len(found) >= 5 and found == expected


@pytest.mark.parametrize("name", ["t5_200", "attention_plain", "vae_exp_3", "router_1"])
def test_emulation_computes_what_torch_computes(name) -> None:
    losses = []
    for mode in (real.computing_in("fp16"), real.Emulated("fp16")):
        training = models.training_of(reported_models.RECIPES[name], 0)
        inputs, targets = next(training.batches())
        with mode:
            loss = training.recipe.loss(training.network(inputs), targets)
        (1024 * loss).backward()
        gradients = [p.grad for p in training.network.parameters() if p.grad is not None]
        losses.append(torch.cat([gradient.flatten() for gradient in gradients]) / 1024)
    assert torch.isfinite(losses[0]).all()
    assert float((losses[0] - losses[1]).norm() / losses[1].norm()) < 0.003


def test_a_slice_gives_the_kept_results(capsys) -> None:
    assert reported.check(reported.KEPT) == 0
    assert "12 trainings, 0 differences" in capsys.readouterr().out
