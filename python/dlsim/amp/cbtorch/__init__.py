# SPDX-License-Identifier: Apache-2.0
"""Loops of Model Zoo R1: `scaler(loss).backward()`, then `optimizer.step()`.

from dlsim.amp import cbtorch

scaler = cbtorch.amp.GradScaler(loss_scale="dynamic")
optimizer = cbtorch.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
"""

from . import amp
from .amp import optimizer

__all__ = ["amp", "optimizer"]
