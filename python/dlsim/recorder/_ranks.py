# SPDX-License-Identifier: Apache-2.0
"""What the gradients of several processes are to each other, and which of them records what."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .._errors import UsageError

Kind = Literal["single", "reduced", "separate", "sharded", "stages"]
_KINDS = get_args(Kind)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together.

    `single`: the only one. `reduced`: all hold the same gradients, and rank 0 records. `separate`:
    each holds what its part of the batch contributed, not yet summed. `sharded`: each holds other
    elements of the same gradients. `stages`: each holds other parameters, whole.
    """

    kind: Kind = "single"
    rank: int = 0
    ranks: int = 1

    @property
    def records(self) -> bool:
        """Whether this process writes anything."""
        return self.kind != "reduced" or self.rank == 0

    @property
    def is_shard(self) -> bool:
        """Whether what it writes is to be joined with what the others write."""
        return self.kind in ("sharded", "stages")


# Where launchers say which process this is of how many: torchrun and its kin, mpirun, srun.
_LAUNCHED = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def process_group() -> tuple[int, int]:
    """Returns rank and number of processes.

    Before there is a process group, those of the launcher; (0, 1) without one.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    for names in _LAUNCHED:
        rank, ranks = (os.environ.get(name, "") for name in names)
        if rank.isdecimal() and ranks.isdecimal():
            return int(rank), int(ranks)
    return 0, 1


def wrapped_in(model: Any) -> list[Any]:
    """Returns the FullyShardedDataParallel modules of a model, the outermost first."""
    return [part for part in model.modules() if type(part).__name__ == "FullyShardedDataParallel"]


def is_distributed(tensor: Any) -> bool:
    """Returns whether a tensor is a DTensor that tells its placements."""
    return hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


def kinds_of_sharding(models: Iterable[Any]) -> set[str]:
    """Returns which of FullyShardedDataParallel, "wrapper", and fully_shard, "fully", are there."""
    names = {
        base.__name__ for model in models for part in model.modules() for base in type(part).__mro__
    }
    kinds = {"FullyShardedDataParallel": "wrapper", "FSDPModule": "fully"}
    return {kind for name, kind in kinds.items() if name in names}


def _is_sharded(model: Any) -> bool:
    """Returns whether a model's parameters are pieces: FullyShardedDataParallel or DTensor."""
    return bool(kinds_of_sharding([model])) or any(
        type(parameter).__name__ == "DTensor" for parameter in model.parameters()
    )


def _is_whole(model: Any) -> bool:
    """Returns whether all wrappers leave whole, reduced gradients in each process: NO_SHARD."""
    strategies = {
        getattr(getattr(wrapper, "sharding_strategy", None), "name", "")
        for wrapper in wrapped_in(model)
    }
    return strategies == {"NO_SHARD"}


def _is_reduced(model: Any) -> bool:
    return any(type(module).__name__ == "DistributedDataParallel" for module in model.modules())


def changes_gradients(models: Iterable[Any]) -> bool:
    """Returns whether communication may change gradients in place after backward has left them."""
    return process_group()[1] > 1 or any(map(_is_sharded, models)) or any(map(_is_reduced, models))


def ranks_of(
    models: list[Any], kind: str | None, rank: int | None, ranks: int | None, *, micro_steps: bool
) -> Ranks:
    """Returns the place of this process; arguments that are None are found out.

    Raises UsageError if nothing tells what the gradients of several processes are.
    """
    if kind is not None and kind not in _KINDS:
        raise UsageError(f"distributed: unknown, expected one of {', '.join(_KINDS)}, got {kind!r}")
    if micro_steps and kinds_of_sharding(models):
        raise UsageError(
            "micro_steps: hooks see no gradients of fully sharded parameters, "
            "expected micro_steps=False, which records their sum"
        )
    found_rank, found_ranks = process_group()
    rank = found_rank if rank is None else rank
    ranks = found_ranks if ranks is None else ranks
    if not 0 <= rank < ranks:
        raise UsageError(f"rank: out of range, expected 0 to {ranks - 1}, got {rank}")
    if kind == "single" or (kind is None and ranks == 1):
        return Ranks()
    if kind is None:
        kind = _guessed_kind(models)
    if kind == "reduced" and micro_steps:
        # A hook sees what its process alone computed.
        raise UsageError(
            "distributed: micro-steps are recorded before the gradients are reduced, "
            "expected distributed='separate'"
        )
    return Ranks(kind, rank, ranks)  # type: ignore[arg-type]


def _guessed_kind(models: list[Any]) -> str:
    if any(_is_sharded(model) and not _is_whole(model) for model in models):
        return "sharded"
    if all(_is_reduced(model) or _is_whole(model) for model in models):
        return "reduced"
    raise UsageError(
        "distributed: unknown how the gradients of the processes are related, "
        "expected the recorder after the model is wrapped, or distributed='reduced', 'separate', "
        "'sharded' or 'stages' ('single' if this process trains alone)"
    )
