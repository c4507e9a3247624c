# SPDX-License-Identifier: Apache-2.0
"""What four processes recorded has the elements of one process, and its replay the counters."""

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

    for suffix in ("", ".profile"):
        record(Model(), folder / f"single{suffix}", None, activations=None)
    record(Model(), folder / "activations", None)
    return folder


def parameters_of(path: Path, step: int) -> dict[str, torch.Tensor]:
    shards = any(path.glob("shard-*"))
    file = path / f"step-{step:08d}.safetensors"
    tensors = whole_tensors(path, step) if shards else load_file(file)
    return {name: item for name, item in tensors.items() if not name.endswith(".act_grad")}


@pytest.mark.parametrize("name", SCHEMES)
def test_every_element_is_that_of_one_process(recorded: Path, name) -> None:
    from sharded_run import Model

    path = recorded / name
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
    run = dlsim.replay(path, **options)["runs"][0]
    gradients = [one for one in run["tensors"] if one["role"] == "grad"]
    gradients.sort(key=lambda one: one["name"])
    return [
        {key: value for key, value in one.items() if not any(word in key for word in SUMS)}
        for one in (*gradients, *run["steps"], run["summary"])
    ]


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "fsdp1-flat"])
@pytest.mark.parametrize("suffix", ["", ".profile"])
def test_a_replay_counts_the_same(recorded: Path, name, suffix) -> None:
    single = counters(recorded / f"single{suffix}")
    assert any(one.get("underflow") for one in single) and single[-1]["skipped_steps"] > 0
    assert counters(recorded / f"{name}{suffix}") == single


@pytest.mark.parametrize("name", ["fsdp2", "hsdp"])
def test_activations_are_those_of_the_whole_batch(recorded: Path, name) -> None:
    from sharded_run import RANKS

    tensors = whole_tensors(recorded / name, 1)
    whole = load_file(recorded / "activations" / "step-00000001.safetensors")
    found = {name: item for name, item in tensors.items() if name.endswith(".act_grad")}
    assert len(found) == 8
    for output, tensor in found.items():  # one process has them of one batch after another
        calls = [output.replace(".act_grad", f".call{i}.act_grad") for i in range(1, RANKS)]
        expected = torch.cat([whole[one] for one in (output, *calls)]) * RANKS
        assert torch.equal(tensor, expected), output


def test_stages_have_activations_under_names_of_the_model(recorded: Path) -> None:
    tensors = whole_tensors(recorded / "stages")
    names = {name.split(".call")[0].removesuffix(".act_grad") for name in tensors if "act" in name}
    assert {"0.0", "1.0", "2.0", "3.0"} <= names
