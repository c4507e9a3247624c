# SPDX-License-Identifier: Apache-2.0
"""What the gradients of several processes are to each other, and which of them records what."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from .._errors import Error, UsageError
from .._text import ROOT

# -- What the gradients of several processes are to each other, and which of them records what

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
    models: list[Any], given: str | tuple[str | None, int, int] | None, *, micro_steps: bool = False
) -> Ranks:
    """Returns the place of this process: its kind, with rank and ranks where they are given.

    What is not given, or None, is found out. Raises UsageError if nothing tells what the gradients
    of several processes are.
    """
    if isinstance(given, tuple) and len(given) != 3:
        raise UsageError(f"distributed: expected a kind or (kind, rank, ranks), got {given!r}")
    kind, rank, ranks = given if isinstance(given, tuple) else (given, *process_group())
    if kind is not None and kind not in _KINDS:
        raise UsageError(f"distributed: unknown, expected one of {', '.join(_KINDS)}, got {kind!r}")
    if micro_steps and kinds_of_sharding(models):
        raise UsageError(
            "micro_steps: hooks see no gradients of fully sharded parameters, "
            "expected micro_steps=False, which records their sum"
        )
    if not 0 <= rank < ranks:
        raise UsageError(
            f"distributed: rank out of range, expected 0 to {ranks - 1}, got {rank} of {ranks}"
        )
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


# -- Which elements of a gradient this process holds: what placements and wrappers say of it

_UNKNOWN = "is a plain tensor in tensor-parallel training, where nothing says which elements it has"


Cuts = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Piece:
    """Shard `index` of `count`; of several processes with the same one, number `replica`.

    `cuts` are dimension and parts of each cut, the last one counted fastest; none stands for one
    along the first dimension.
    """

    index: int
    count: int
    replica: int = 0
    cuts: Cuts = ()

    def renamed(self, name: str) -> str:
        """Returns the name of a tensor with its shard before the last part, its role."""
        if self.count == 1:
            return name
        stem, _, role = name.rpartition(".")
        return f"{stem}.shard-{self.index}-of-{self.count}.{role}"

    @property
    def grid(self) -> Cuts:
        """The cuts, if they are not along the first dimension alone."""
        return self.cuts if any(dimension != 0 for dimension, _ in self.cuts) else ()


class Pieces:
    """Distinguishes shards, replicas and partial sums of the gradients of sharded training."""

    def __init__(self, models: Iterable[Any], parameters: Mapping[str, Any], ranks: Ranks) -> None:
        self._ranks = ranks
        self._by_rank = Piece(ranks.rank, ranks.ranks)
        self._activations: Piece | None = self._by_rank
        self._plain: dict[str, Piece] = {}
        self._mesh: dict[str, tuple[int, int]] = {}  # the widest: place and size by dimension
        self._grids: dict[str, Cuts] = {}
        self._renamed: dict[str, str] = {}  # of the tensors of a step those that have other names
        if ranks.kind != "sharded":
            return
        owners = _wrappers_of_parameters(models)
        distributed = [item for item in parameters.values() if is_distributed(item)]
        kinds = kinds_of_sharding(models)
        if distributed and not (kinds == {"fully"} and all(map(_is_fully_sharded, distributed))):
            self._activations = None
        for item in distributed:
            dimensions = {name: (at, size) for _, at, size, name in _dimensions(item)}
            self._mesh = max(self._mesh, dimensions, key=len)
        # Tensor-parallel processes have the same gradient of a plain parameter; they would drift
        # apart otherwise.
        first = None if kinds or not distributed else self._within_mesh(Piece(0, 1), [], "grad")
        for name, parameter in parameters.items():
            owner = owners.get(id(parameter))
            piece = first if owner is None else _piece_of_wrapper(owner)
            for role in ("grad", "value"):
                self._plain[f"{name}.{role}"] = piece or self._by_rank

    def own(self, gradients: Mapping[str, Any], left_out: dict[str, str]) -> dict[str, Any]:
        """Returns the gradients that this process records, renamed; notes those that none can."""
        if self._ranks.kind == "separate":
            return dict(gradients)
        if self._ranks.kind == "stages":
            return {
                self._renaming(name, self._of_stage(name)): gradients[name] for name in gradients
            }
        found = {}
        for name, tensor in gradients.items():
            try:
                piece = self._piece(name, tensor)
            except Error as error:
                left_out[name] = str(error)
                continue
            if self._ranks.kind != "sharded":
                found[name] = tensor
            elif piece.replica == 0:
                found[self._renaming(name, piece.renamed(name))] = tensor
                if piece.grid:
                    self._grids[name] = piece.grid
        return found

    def metadata(self, of_tensors: Mapping[str, str]) -> dict[str, str]:
        """Returns what a reader needs to put together the pieces since the last call.

        To that it adds what is known of tensors, a line each that ends with a name, by the names
        that these have here.
        """
        grids, self._grids = self._grids, {}
        renamed, self._renamed = self._renamed, {}
        found = {"shard_grid": json.dumps(grids)} if grids else {}
        for key, text in of_tensors.items():
            lines = (line.rpartition(" ") for line in text.split("\n"))
            found[key] = "\n".join(f"{a}{b}{renamed.get(name, name)}" for a, b, name in lines)
        return found

    def _renaming(self, name: str, other: str) -> str:
        if other != name:
            self._renamed[name] = other
        return other

    def _of_stage(self, name: str) -> str:
        """Returns the name of a tensor, unique among stages: each has a whole model of its own."""
        last = self._ranks.rank == self._ranks.ranks - 1
        if last or not name.startswith(f"{ROOT}."):
            return name
        return f"stage-{self._ranks.rank}{name[len(ROOT) :]}"

    def _piece(self, name: str, tensor: Any) -> Piece:
        if is_distributed(tensor):
            own = [dimension for _, _, _, dimension in _dimensions(tensor)]
            return self._within_mesh(_piece_of_distributed(tensor), own, name)
        if name in self._plain:
            return self._plain[name]
        if name.endswith(".value"):  # of a buffer, which each process has whole
            return Piece(0, 1, self._ranks.rank)
        if self._activations is None:
            raise Error(_UNKNOWN)
        return self._activations

    def _within_mesh(self, piece: Piece, own: list[str], name: str) -> Piece:
        """Returns the piece of a tensor whose mesh has only its own dimensions of the widest one.

        In the others parameters are replicas, and activations those of other parts of the batch.
        """
        for dimension, (at, size) in self._mesh.items():
            if dimension in own:
                continue
            if name.endswith((".act", ".act_grad")):
                piece = Piece(
                    at * piece.count + piece.index,
                    size * piece.count,
                    piece.replica,
                    ((0, size), *piece.cuts),
                )
            else:
                piece = replace(piece, replica=piece.replica + (at != 0))
        return piece


def _dimensions(tensor: Any) -> Iterator[tuple[Any, int, int, str]]:
    """Yields placement, coordinate, size and name of each dimension of a DTensor's mesh."""
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    for i, place in enumerate(tensor.placements):
        name = mesh.mesh_dim_names[i] if mesh.mesh_dim_names else str(i)
        yield place, -1 if coordinate is None else coordinate[i], mesh.size(i), name


def _piece_of_distributed(tensor: Any) -> Piece:
    """Returns what this process holds of a DTensor; raises Error for partial sums."""
    replica = 0
    cuts: list[tuple[int, int, int]] = []  # dimension, place, parts
    last_cuts: list[tuple[int, int, int]] = []
    for place, at, size, name in _dimensions(tensor):
        if place.is_partial():
            raise Error(
                f"is a partial sum on mesh dimension {name}, expected a call of step after "
                ".redistribute() has reduced it"
            )
        if at < 0:  # outside of the mesh
            replica = 1
        elif place.is_replicate():
            replica = replica * size + at
        else:
            # What fully_shard cuts was cut by tensor parallelism before, though its mesh comes
            # first: such a placement says so by its factor.
            found = last_cuts if hasattr(place, "split_factor") else cuts
            found.append((place.dim % tensor.ndim, at, size))
    index, count = 0, 1
    for _, at, size in cuts + last_cuts:
        index, count = index * size + at, count * size
    return Piece(index, count, replica, tuple((cut[0], cut[2]) for cut in cuts + last_cuts))


def _is_fully_sharded(tensor: Any) -> bool:
    """Returns whether a DTensor is placed as fully_shard places it on a mesh of its own."""
    replicated = [place.is_replicate() for place in tensor.placements]
    return replicated in ([False], [True, False])


def _wrappers_of_parameters(models: Iterable[Any]) -> dict[int, Any]:
    """Returns the innermost FullyShardedDataParallel of each parameter, by its id."""
    wrappers = [wrapper for model in models for wrapper in wrapped_in(model)]
    return {id(parameter): wrapper for wrapper in wrappers for parameter in wrapper.parameters()}


def _piece_of_wrapper(wrapper: Any) -> Piece | None:
    """Returns what this process holds of a FullyShardedDataParallel; None if it does not say."""
    import torch.distributed as dist

    strategy = getattr(getattr(wrapper, "sharding_strategy", None), "name", "")
    if not strategy or not dist.is_initialized():
        return None
    rank, ranks = dist.get_rank(wrapper.process_group), dist.get_world_size(wrapper.process_group)
    if strategy == "NO_SHARD":
        return Piece(0, 1, rank)
    hybrid = "HYBRID" in strategy
    return Piece(rank, ranks, dist.get_rank(wrapper._inter_node_pg) if hybrid else 0)
