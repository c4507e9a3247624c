# SPDX-License-Identifier: Apache-2.0
"""Four processes of PyTorch 2 that record one model, sharded in each way; run as a program."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import dlsim

RANKS = 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(8)
        self.fc1 = nn.Linear(8, 12)
        self.fc2 = nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.fc1(self.norm(x)).relu())


def batch(rank: int) -> torch.Tensor:
    torch.manual_seed(10 + rank)
    return torch.randn(4, 8)


def backward(model: nn.Module, rank: int) -> None:
    model(batch(rank)).square().mean().backward()


def record(model: nn.Module, path: Path, batch_of: int, **options: object) -> None:
    options = {"activations": None, "on_error": "raise", **options}
    with dlsim.Recorder(model, path, **options) as rec:
        backward(model, batch_of)
        rec.step(scale=1.0)
    left_out = [f"{name}: {reason}\n" for name, reason in rec.report().left_out.items()]
    path.with_name(f"{path.name}.left-out-{dist.get_rank()}").write_text("".join(left_out))


def tensor_parallel(mesh, **plan) -> nn.Module:
    plan = {"fc1": ColwiseParallel(), "fc2": RowwiseParallel(), **plan}
    return parallelize_module(Model(), mesh, plan)


def fully_sharded(folder: Path, rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for name in ("hsdp", "hsdp.profile"):
        record(fully_shard(Model(), mesh=mesh), folder / name, rank)
    record(fully_shard(Model(), mesh=mesh), folder / "activations", rank, activations="fc1")
    try:
        dlsim.Recorder(fully_shard(Model(), mesh=mesh), folder / "micro", micro_steps=True)
    except dlsim.UsageError as error:
        (folder / "refused").write_text(str(error))
    for strategy, where in (("NO_SHARD", None), ("HYBRID_SHARD", mesh), ("FULL_SHARD", None)):
        model = FullyShardedDataParallel(
            Model(),
            sharding_strategy=ShardingStrategy[strategy],
            device_mesh=where,
            use_orig_params=True,
            device_id=torch.device("cpu"),
        )
        record(model, folder / strategy, rank)


def distributed(folder: Path, rank: int) -> None:
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    record(tensor_parallel(mesh), folder / "tp", 0)
    record(tensor_parallel(mesh), folder / "tp-activations", 0, activations="*")
    sequence = {
        "norm": SequenceParallel(sequence_dim=0),
        "fc1": ColwiseParallel(input_layouts=Replicate()),
    }
    record(tensor_parallel(mesh, **sequence), folder / "partial", 0)
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = fully_shard(tensor_parallel(both["tp"]), mesh=both["dp"])
    record(model, folder / "both", both["dp"].get_local_rank(), activations="*")


def main(rank: int, folder: Path) -> None:
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    fully_sharded(folder, rank)
    distributed(folder, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.multiprocessing.start_processes(
        main, args=(Path(sys.argv[1]),), nprocs=RANKS, start_method="fork"
    )
