# SPDX-License-Identifier: Apache-2.0
"""Prints what each parallel scheme of four processes records, compared with one process.

    OMP_NUM_THREADS=1 python tests/python/sharded_table.py

Needs PyTorch 2. The model and the schemes are those of sharded_run.py.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file
from sharded_run import RANKS, STEPS, Model, record
from sharded_tensors import whole_tensors

SCHEMES = {
    "ddp": "DistributedDataParallel",
    "fsdp1": "FullyShardedDataParallel, original parameters",
    "fsdp1-flat": "FullyShardedDataParallel, flat parameters",
    "fsdp2": "`fully_shard`",
    "hsdp": "`fully_shard` on a 2 x 2 mesh (HSDP)",
    "tp": "tensor parallelism",
    "fsdp-tp": "tensor parallelism and `fully_shard`, 2 x 2",
    "stages": "a pipeline of four stages",
}


def measured(path: Path, step: int) -> tuple[float, int, int]:
    """Returns norm, elements and number of the parameters' gradients of a step."""
    files = [*path.glob(f"shard-*/step-{step:08d}.safetensors")]
    shards = whole_tensors(path, step) if files else None
    tensors = shards or load_file(path / f"step-{step:08d}.safetensors")
    own = [tensor.double() for name, tensor in tensors.items() if not name.endswith(".act_grad")]
    energy = sum(float(tensor.square().sum()) for tensor in own)
    return energy**0.5, sum(tensor.numel() for tensor in own), len(own)


def row_of(path: Path, whole: Path) -> tuple[list[float], int, int]:
    """Returns the ratio of norms of each step, and elements and tensors, the same in all."""
    found = [measured(path, step) for step in range(STEPS)]
    expected = [measured(whole, step) for step in range(STEPS)]
    (elements,), (tensors,) = ({one[i] for one in found} for i in (1, 2))
    ratios = [one[0] / other[0] for one, other in zip(found, expected, strict=True)]
    return ratios, elements, tensors


def main() -> None:
    """Prints a table in Markdown."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as name:
        folder = Path(name)
        group = Path(__file__).with_name("sharded_run.py")
        subprocess.run([sys.executable, group, folder], check=True)
        record(Model(), folder / "single", None, activations=None)
        print(f"PyTorch {torch.__version__}, {RANKS} processes, {STEPS} steps\n")
        print("| scheme | norm, divided by that of one process | elements | tensors |")
        print("|---|---|---|---|")
        for scheme, text in {"single": "one process", **SCHEMES}.items():
            path = folder / scheme
            ratios, elements, tensors = row_of(path, folder / "single")
            shown = ", ".join(f"{ratio:.17g}" for ratio in ratios)
            print(f"| {text} | {shown} | {elements} | {tensors} |")


if __name__ == "__main__":
    main()
