# SPDX-License-Identifier: Apache-2.0
"""One rank of a bf16 all-reduce by Gloo: python gloo_run.py RANK RANKS DIRECTORY."""

import sys
from pathlib import Path

import numpy as np
import torch


def main(rank: int, ranks: int, directory: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=ranks
    )
    mine = torch.from_numpy(np.load(directory / "values.npy")[rank]).to(torch.bfloat16).div(ranks)
    torch.distributed.all_reduce(mine)
    torch.distributed.destroy_process_group()
    if rank == 0:
        np.save(directory / "reduced.npy", mine.float().numpy())


main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
