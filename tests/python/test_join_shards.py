# SPDX-License-Identifier: Apache-2.0
"""What four processes recorded and `dlsim join-shards` joined has the counters of one process."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from running import DLSIM
from safetensors.torch import load_file

import dlsim

pytestmark = pytest.mark.skipif(
    int(torch.__version__.split(".")[0]) < 2, reason="fully_shard and DTensor need PyTorch 2"
)

SCHEMES = ["ddp", "fsdp1", "fsdp1-flat", "fsdp2", "hsdp", "tp", "fsdp-tp", "stages"]
# Sums of pieces are added in another order; some schemes record activations and the forward pass
# there; what channels lose is not known of pieces.
SUMS = (
    *("sum", "energy", "error", "norm", "harm", "mean", "rms"),
    *("activations", "forward", "values", "channels"),
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("group")
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("sharded_run.py"), folder],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    from sharded_run import Model, record

    for suffix in ("", ".dlprof"):
        record(Model(), folder / f"single{suffix}", None, activations=None)
    record(Model(), folder / "activations", None)
    return folder


def joined(recorded: Path, name: str, tmp_path: Path) -> Path:
    if name.startswith("ddp"):  # one process has recorded whole gradients
        return recorded / name
    command = [*DLSIM, "join-shards", recorded / name, "-o", tmp_path / name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "of 4 shards" in " ".join(done.stdout.split())
    return tmp_path / name


def parameters_of(path: Path, step: int) -> dict[str, torch.Tensor]:
    tensors = load_file(path / f"step-{step:08d}.safetensors")
    return {name: item for name, item in tensors.items() if not name.endswith(".act_grad")}


@pytest.mark.parametrize("name", SCHEMES)
def test_every_element_is_that_of_one_process(recorded: Path, tmp_path: Path, name) -> None:
    from sharded_run import Model

    path = joined(recorded, name, tmp_path)
    for step in range(3):
        whole = parameters_of(recorded / "single", step)
        found = parameters_of(path, step)
        if name == "fsdp1-flat":
            (flat,) = found.values()
            order = [f"{parameter}.grad" for parameter, _ in Model().named_parameters()]
            assert torch.equal(flat, torch.cat([whole[one].reshape(-1) for one in order]))
            continue
        assert found.keys() == whole.keys()
        for tensor, expected in whole.items():
            if name != "fsdp1":  # which keeps no shapes
                assert found[tensor].shape == expected.shape
            assert torch.equal(found[tensor].reshape(-1), expected.reshape(-1)), tensor


def counters(path: Path) -> list[dict]:
    """Returns what a replay counts of the parameters' gradients: tensors, steps, all."""
    options = {"formats": "fp16", "policies": "torch", "settings": {"init_scale": 1}}
    run = dlsim.replay(path, **options).data["runs"][0]
    gradients = [one for one in run["tensors"] if one["role"] == "grad"]
    gradients.sort(key=lambda one: one["name"])
    return [
        {key: value for key, value in one.items() if not any(word in key for word in SUMS)}
        for one in (*gradients, *run["steps"], run["summary"])
    ]


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "fsdp1-flat"])
@pytest.mark.parametrize("suffix", ["", ".dlprof"])
def test_a_replay_counts_the_same(recorded: Path, tmp_path: Path, name, suffix) -> None:
    single = counters(recorded / f"single{suffix}")
    assert any(one.get("underflow") for one in single) and single[-1]["skipped_steps"] > 0
    assert counters(joined(recorded, f"{name}{suffix}", tmp_path)) == single


@pytest.mark.parametrize("name", ["fsdp2", "hsdp"])
def test_activations_are_those_of_the_whole_batch(recorded: Path, tmp_path: Path, name) -> None:
    from sharded_run import RANKS

    path = joined(recorded, name, tmp_path)
    tensors = load_file(path / "step-00000001.safetensors")
    whole = load_file(recorded / "activations" / "step-00000001.safetensors")
    found = {name: item for name, item in tensors.items() if name.endswith(".act_grad")}
    assert len(found) == 8
    for output, tensor in found.items():  # one process has them of one batch after another
        calls = [output.replace(".act_grad", f".call{i}.act_grad") for i in range(1, RANKS)]
        expected = torch.cat([whole[one] for one in (output, *calls)]) * RANKS
        assert torch.equal(tensor, expected), output


def test_stages_have_activations_under_names_of_the_model(recorded: Path, tmp_path: Path) -> None:
    tensors = load_file(joined(recorded, "stages", tmp_path) / "step-00000000.safetensors")
    names = {name.split(".call")[0].removesuffix(".act_grad") for name in tensors if "act" in name}
    assert {"0.0", "1.0", "2.0", "3.0"} <= names


def test_shards_that_are_not_joined_say_how(recorded: Path) -> None:
    with pytest.raises(dlsim.InputError, match=r"not yet joined.*dlsim join-shards .*fsdp2 -o"):
        dlsim.replay(recorded / "fsdp2", formats="fp16")
