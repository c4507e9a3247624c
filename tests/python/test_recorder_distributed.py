# SPDX-License-Identifier: Apache-2.0
"""Processes that train together record one trace: reduced, separate or sharded gradients."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from running import DLSIM
from safetensors.torch import load_file

import dlsim

# One group of two processes records everything; the tests look at what it left.
SCRIPT = """
import sys, torch, torch.distributed as dist
import dlsim
from pathlib import Path
from torch import nn
from torch.nn.parallel import DistributedDataParallel

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
model = DistributedDataParallel(plain)
torch.manual_seed(10 + rank)
batches = [torch.randn(5, 6) for _ in range(4)]

def backward(x):
    (model(x).square().mean() * 16.0).backward()

def reduced(path, **options):
    with dlsim.Recorder(model, path, on_error="raise", **options) as rec:
        for x in batches:
            model.zero_grad()
            backward(x)
            rec.step(scale=16.0)
    return rec.report().steps

def separate(path):
    options = {"distributed": "separate", "micro_steps": True, "on_error": "raise"}
    with dlsim.Recorder(model, path, **options) as rec:
        for i in range(0, 4, 2):
            model.zero_grad()
            with model.no_sync():
                backward(batches[i])
            rec.micro_step(scale=16.0)
            backward(batches[i + 1])
            rec.micro_step(scale=16.0)
            rec.step()
    return rec.report().steps

# Each process holds half of the elements of every parameter, as fully sharded training leaves them.
def sharded(path):
    shards = nn.ParameterDict({
        name.replace(".", "_"): nn.Parameter(p.detach().reshape(-1).chunk(2)[rank].clone())
        for name, p in plain.named_parameters()
    })
    with dlsim.Recorder(shards, path, distributed="sharded", on_error="raise") as rec:
        for x in batches:
            model.zero_grad()
            backward(x)
            for name, p in plain.named_parameters():
                shards[name.replace(".", "_")].grad = p.grad.reshape(-1).chunk(2)[rank].clone()
            rec.step(scale=16.0)

for suffix in ("", ".profile"):
    print(reduced(folder / f"reduced{suffix}"))
    print(separate(folder / f"separate{suffix}"))
    sharded(folder / f"sharded{suffix}")
reduced(folder / "first", activations="0")
for refused, options in ((plain, {}), (model, {"micro_steps": True})):
    try:
        dlsim.Recorder(refused, folder / "refused", **options)
    except dlsim.UsageError as error:
        print(error)
dist.barrier()
dist.destroy_process_group()
"""


@dataclass
class Recorded:
    """A folder of traces and profiles, and the lines that each rank printed."""

    folder: Path
    lines: list[list[str]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Recorded:
    folder = tmp_path_factory.mktemp("group")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, folder, str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    results = [process.communicate(timeout=120) for process in processes]
    for process, (_, errors) in zip(processes, results, strict=True):
        assert process.returncode == 0, errors
    return Recorded(folder, [out.splitlines() for out, _ in results])


def replayed(path: Path) -> dict:
    done = subprocess.run(
        [*DLSIM, "replay", path, "--json", "-", "--quiet", "--format", "bf16"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def gradients_of_both(step: int, *, reduced: bool) -> dict[str, list[torch.Tensor]]:
    """Computes in one process what the ranks computed: of each alone, or their mean."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    alone: dict[str, list[torch.Tensor]] = {}
    for rank in range(2):
        torch.manual_seed(10 + rank)
        x = [torch.randn(5, 6) for _ in range(4)][step]
        model.zero_grad()
        (model(x).square().mean() * 16.0).backward()
        for name, parameter in model.named_parameters():
            alone.setdefault(f"{name}.grad", []).append(parameter.grad.clone())
    if reduced:
        return {name: [sum(values) / 2] for name, values in alone.items()}
    return alone


@pytest.mark.parametrize("output", ["reduced", "reduced.profile"])
def test_reduced_gradients_are_recorded_by_rank_0(recorded: Recorded, output) -> None:
    assert [lines[0] for lines in recorded.lines] == ["4", "0"]
    result = replayed(recorded.folder / output)
    assert result["trace"]["steps"] == 4 and "ranks" not in result["trace"]["description"]


def test_reduced_gradients_are_the_mean_under_the_names_of_the_model(recorded: Recorded) -> None:
    tensors = load_file(recorded.folder / "first" / "step-00000002.safetensors")
    assert tensors.pop("0.act_grad").shape == (5, 4)
    expected = gradients_of_both(2, reduced=True)
    assert tensors.keys() == expected.keys()
    for name, (gradient,) in expected.items():
        assert torch.allclose(tensors[name], gradient, atol=1e-6)


def test_separate_gradients_are_those_of_each_rank_before_the_reduction(recorded: Recorded) -> None:
    assert [lines[1] for lines in recorded.lines] == ["2", "2"]
    names = sorted(path.name for path in (recorded.folder / "separate").iterdir())
    assert len(names) == 2 * 2 * 2 + 1
    assert names[0] == "step-00000000.rank-00000.micro-00.safetensors"
    expected = gradients_of_both(3, reduced=False)
    for rank in range(2):
        # The last micro-step of the second step is reduced after it was recorded.
        file = f"step-00000001.rank-{rank:05d}.micro-01.safetensors"
        tensors = load_file(recorded.folder / "separate" / file)
        for name, gradients in expected.items():
            assert torch.equal(tensors[name], gradients[rank])


def test_separate_gradients_are_averaged_by_the_reader(recorded: Recorded) -> None:
    result = replayed(recorded.folder / "separate")
    assert result["trace"]["description"]["ranks"] == "2"
    micro = [gradients_of_both(step, reduced=False) for step in (0, 1)]
    effective = [sum(sum(of_step[name]) / 2 / 16 for of_step in micro) for name in micro[0]]
    norm = sum(float(gradient.double().square().sum()) for gradient in effective) ** 0.5
    # bf16 rounds every element.
    assert result["runs"][0]["steps"][0]["grad_norm"] == pytest.approx(norm, rel=2**-8)


def test_separate_profiles_are_one_for_each_rank(recorded: Recorded) -> None:
    assert sorted(path.name for path in recorded.folder.glob("separate*.profile*")) == [
        "separate.rank-00000.profile",
        "separate.rank-00001.profile",
    ]
    assert replayed(recorded.folder / "separate.rank-00001.profile")["trace"]["steps"] == 2


@pytest.mark.parametrize("suffix", ["", ".profile"])
def test_shards_are_replayed_as_one_trace_or_profile(recorded: Recorded, suffix) -> None:
    run = replayed(recorded.folder / f"sharded{suffix}")["runs"][0]
    expected = gradients_of_both(0, reduced=True)
    stems = sorted(name.removesuffix(".grad").replace(".", "_") for name in expected)
    roles = ("grad", "value") if suffix else ("grad",)  # a trace has values only where asked
    assert sorted(tensor["name"] for tensor in run["tensors"]) == sorted(
        f"{stem}.{role}" for stem in stems for role in roles
    )
    whole = replayed(recorded.folder / f"reduced{suffix}")["runs"][0]
    for one, other in zip(run["steps"], whole["steps"], strict=True):
        for key in ("scale", "skipped", "elements", "zeros", "underflow", "overflow"):
            assert one[key] == other[key]
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-12)


def test_a_missing_shard_is_found(recorded: Recorded, tmp_path: Path) -> None:
    part = "shard-00001-of-00002"
    (tmp_path / part).symlink_to(recorded.folder / "sharded" / part)
    with pytest.raises(dlsim.InputError, match=r"missing shard, .* none of number 0"):
        dlsim.replay(tmp_path, quiet=True)


def test_what_ranks_hold_is_not_guessed(recorded: Recorded) -> None:
    first, second = recorded.lines[0][-2:]
    assert first.startswith("distributed: unknown how the gradients of the processes are related")
    assert second.startswith("distributed: micro-steps are recorded before the gradients are")
    assert not (recorded.folder / "refused").exists()
