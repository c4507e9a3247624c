# SPDX-License-Identifier: Apache-2.0
"""Every gradient of sharded training is recorded once, with the wrappers and DTensors of torch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sharded_tensors import whole_tensors

import dlsim

pytestmark = pytest.mark.skipif(
    int(torch.__version__.split(".")[0]) < 2, reason="fully_shard and DTensor need PyTorch 2"
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("group")
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("sharded_group.py"), folder],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def expected(batches: int) -> dict[str, torch.Tensor]:
    """Computes the mean of the gradients of the first batches in one process."""
    from sharded_group import Model, backward

    model = Model()
    for rank in range(batches):
        backward(model, rank)
    return {f"{name}.grad": p.grad / batches for name, p in model.named_parameters()}


def joined(recorded: Path, name: str) -> dict[str, torch.Tensor]:
    return whole_tensors(recorded / name)


def norm(tensors: dict[str, torch.Tensor]) -> float:
    return sum(float(tensor.double().square().sum()) for tensor in tensors.values()) ** 0.5


def left_out(recorded: Path, name: str) -> list[list[str]]:
    return [(recorded / f"{name}.left-out-{rank}").read_text().splitlines() for rank in range(4)]


@pytest.mark.parametrize("name", ["hsdp", "HYBRID_SHARD", "FULL_SHARD"])
def test_replicas_of_shards_are_recorded_once(recorded: Path, name) -> None:
    tensors, whole = joined(recorded, name), expected(4)
    assert norm(tensors) == pytest.approx(norm(whole), rel=1e-6)
    assert sum(map(torch.numel, tensors.values())) == sum(map(torch.numel, whole.values()))


def test_fully_sharded_gradients_are_numbered_by_their_shards(recorded: Path) -> None:
    tensors = {}
    for path in (recorded / "hsdp").glob("shard-*/step-00000000.safetensors"):
        tensors.update(load_file(path))
    for name, gradient in expected(4).items():
        stem = name.removesuffix(".grad")
        parts = [tensors.pop(f"{stem}.shard-{i}-of-2.grad") for i in (0, 1)]
        assert torch.allclose(torch.cat(parts), gradient, atol=1e-7)
    assert not tensors


def test_a_profile_of_replicas_has_each_shard_once(recorded: Path) -> None:
    run = dlsim.replay(recorded / "hsdp.profile", formats="fp16")["runs"][0]
    names = [one["name"] for one in run["tensors"]]
    assert [name for name in names if name.endswith(".grad")] == list(expected(4))
    assert [f"{name.removesuffix('.value')}.grad" for name in names[6:]] == list(expected(4))


def test_whole_gradients_are_recorded_by_one_process(recorded: Path) -> None:
    tensors = load_file(recorded / "NO_SHARD" / "step-00000000.safetensors")
    assert tensors.keys() == expected(4).keys()
    assert norm(tensors) == pytest.approx(norm(expected(4)), rel=1e-6)


def test_activations_of_replicas_are_parts_of_the_batch(recorded: Path) -> None:
    tensors = joined(recorded, "activations")
    found = {name: tuple(item.shape) for name, item in tensors.items() if "act_grad" in name}
    assert found == {"fc1.act_grad": (16, 12)}


def test_tensor_parallel_gradients_are_recorded_once(recorded: Path) -> None:
    tensors, whole = joined(recorded, "tp"), expected(1)
    for name in ("norm.weight.grad", "norm.bias.grad", "fc2.bias.grad"):
        assert torch.allclose(tensors[name], whole[name], atol=1e-7)
    assert torch.allclose(tensors["fc2.weight.grad"], whole["fc2.weight.grad"], atol=1e-7)
    assert norm(tensors) == pytest.approx(norm(whole), rel=1e-6)


def test_partial_gradients_are_refused_by_name(recorded: Path) -> None:
    names = ("norm.weight.grad", "norm.bias.grad")
    reason = (
        "is a partial sum on mesh dimension tp, expected a call of step after .redistribute() has "
        "reduced it"
    )
    assert left_out(recorded, "partial") == [[f"{name}: {reason}" for name in names]] * 4
    whole = {name: item for name, item in expected(1).items() if name not in names}
    assert norm(joined(recorded, "partial")) == pytest.approx(norm(whole), rel=1e-6)


def test_meshes_of_both_kinds_are_told_apart(recorded: Path) -> None:
    tensors = joined(recorded, "both")
    own = {name: tensor for name, tensor in tensors.items() if not name.endswith("act_grad")}
    assert norm(own) == pytest.approx(norm(expected(2)), rel=1e-6)
    assert tensors["fc1.act_grad"].shape == (8, 12)
    assert tensors["fc2.act_grad"].shape == (8, 8)


def test_activations_without_placements_are_left_out_by_name(recorded: Path) -> None:
    for lines in left_out(recorded, "tp-activations"):
        assert sorted(line.split(":")[0] for line in lines) == ["(root).act_grad", "norm.act_grad"]
    tensors = joined(recorded, "tp-activations")
    found = {name: tuple(item.shape) for name, item in tensors.items() if "act_grad" in name}
    assert found == {"fc1.act_grad": (4, 12), "fc2.act_grad": (4, 8)}


def test_micro_steps_are_refused_when_the_recorder_is_made(recorded: Path) -> None:
    assert (recorded / "refused").read_text().startswith("micro_steps: hooks see no gradients of")
    assert not (recorded / "micro").exists()
