# SPDX-License-Identifier: Apache-2.0
"""Trains with DeepSpeed as docs/trainers.md says: PATH STAGE, in a process of its own."""

import os
import sys

import deepspeed
import torch
from deepspeed.utils import safe_get_full_grad
from recording import small_model

import dlsim


def batches() -> list[torch.Tensor]:
    """Six, two for a step."""
    return list(torch.randn(6, 4, 6, generator=torch.Generator().manual_seed(7)))


def main(path: str, stage: int) -> None:
    """Records three steps of a small model, clipped."""
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(29600 + stage))
    deepspeed.init_distributed(dist_backend="gloo")
    model = small_model()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.01,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    whole: dict[torch.nn.Parameter, torch.Tensor] = {}
    options = {"gradient_of": whole.get, "distributed": "reduced", "activations": None}
    with dlsim.Recorder(engine.module, path, on_error="raise", **options) as rec:
        for batch in batches():
            engine.backward(engine(batch).square().mean() * 100)
            if engine.is_gradient_accumulation_boundary():
                whole.update((p, safe_get_full_grad(p)) for p in engine.module.parameters())
                rec.step(scale=getattr(engine.optimizer, "loss_scale", 1.0))
            engine.step()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
