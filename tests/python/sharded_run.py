# SPDX-License-Identifier: Apache-2.0
"""Four processes of PyTorch 2 train one model in each parallel scheme; run as a program.

All arithmetic is exact in float32, so that no order of sums makes a difference.
"""

import sys
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import dlsim

RANKS = 4
STEPS = 3
ROWS = 4  # of the batch of each process
WIDTHS = (8, 12, 6, 6, 4)  # none of the last three is divided by four processes alike


class Model(nn.Sequential):
    """Four layers with weights in quarters."""

    def __init__(self) -> None:
        layers = [nn.Linear(one, other) for one, other in pairwise(WIDTHS)]
        super().__init__(*(nn.Sequential(layer, nn.ReLU()) for layer in layers))
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-2, 5, parameter.shape) / 4)


def batch(step: int, rank: int) -> torch.Tensor:
    torch.manual_seed(100 * step + rank)
    return torch.randint(-2, 4, (ROWS, WIDTHS[0])).float()


def loss_of(output: torch.Tensor, step: int) -> torch.Tensor:
    """Some of fp16's gradients underflow in the first steps, and overflow in the last."""
    return output.sum() * 2.0 ** (24 * step - 24)


def record(model, path: Path, batch_of: int | None, **options: object) -> None:
    """Trains a model, on the mean of all batches if `batch_of` is None."""
    batches = range(RANKS) if batch_of is None else [batch_of]
    with dlsim.Recorder(model, path, on_error="raise", **options) as rec:
        for step in range(STEPS):
            model.zero_grad()
            for one in batches:
                (loss_of(model(batch(step, one)), step) / len(batches)).backward()
            rec.step(scale=1.0)


def data_parallel(folder: Path, rank: int, suffix: str) -> None:
    model = nn.parallel.DistributedDataParallel(Model())
    record(model, folder / f"ddp{suffix}", rank, activations=None)


def fully_sharded(folder: Path, rank: int, suffix: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    def fsdp2(**mesh) -> nn.Module:
        model = Model()
        for layer in model:
            fully_shard(layer, **mesh)
        return fully_shard(model, **mesh)

    cpu = {"device_id": torch.device("cpu")}
    hybrid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    record(fsdp2(), folder / f"fsdp2{suffix}", rank)
    record(fsdp2(mesh=hybrid), folder / f"hsdp{suffix}", rank)
    for name, whole in (("fsdp1", True), ("fsdp1-flat", False)):
        model = FullyShardedDataParallel(Model(), use_orig_params=whole, **cpu)
        record(model, folder / f"{name}{suffix}", rank, activations=None)


def tensor_parallel(folder: Path, suffix: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"0.0": ColwiseParallel(), "1.0": RowwiseParallel()}
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    off = {"activations": None}
    record(parallelize_module(Model(), mesh, plan), folder / f"tp{suffix}", None, **off)
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = fully_shard(parallelize_module(Model(), both["tp"], plan), mesh=both["dp"])
    pair = both["dp"].get_local_rank()
    with dlsim.Recorder(model, folder / f"fsdp-tp{suffix}", on_error="raise", **off) as rec:
        for step in range(STEPS):
            model.zero_grad()
            rows = torch.cat([batch(step, one) for one in (2 * pair, 2 * pair + 1)])
            (loss_of(model(rows), step) / 2).backward()
            rec.step(scale=1.0)


def pipeline(folder: Path, rank: int, suffix: str) -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    whole = Model()
    part = nn.ModuleDict({str(rank): whole[rank]})  # keeps the names of the model
    part.forward = whole[rank].forward
    stage = PipelineStage(part, rank, RANKS, torch.device("cpu"))
    path = folder / f"stages{suffix}"
    with dlsim.Recorder(part, path, distributed="stages", on_error="raise") as rec:
        for step in range(STEPS):
            part.zero_grad()

            def loss(output, _target, step=step) -> torch.Tensor:
                return loss_of(output, step) / RANKS

            schedule = ScheduleGPipe(stage, RANKS, loss_fn=loss, scale_grads=False)
            rows = torch.cat([batch(step, one) for one in range(RANKS)])
            if rank == 0:
                schedule.step(rows)
            else:
                schedule.step(**({"target": rows} if rank == RANKS - 1 else {}))
            rec.step(scale=1.0)


def main(rank: int, folder: Path) -> None:
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    for suffix in ("", ".profile"):
        data_parallel(folder, rank, suffix)
        fully_sharded(folder, rank, suffix)
        tensor_parallel(folder, suffix)
        pipeline(folder, rank, suffix)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.multiprocessing.start_processes(
        main, args=(Path(sys.argv[1]),), nprocs=RANKS, start_method="fork"
    )
