# SPDX-License-Identifier: Apache-2.0
"""What a script for cerebras.pytorch runs on."""

from __future__ import annotations

from typing import Any

import torch


class Device:
    """Where models are made: `with backend.device:`."""

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Backend:
    """What the script runs on; a "CSX" is emulated on the CPU."""

    current: Backend | None = None

    def __init__(self, kind: str, settings: dict[str, Any]) -> None:
        self.is_csx, self.is_gpu, self.is_cpu = kind == "CSX", kind == "GPU", kind == "CPU"
        self.is_e2e_execution = True
        self.torch_device = torch.device("cuda" if self.is_gpu else "cpu")
        self.device = Device(self.torch_device)
        self.settings = settings


def current_torch_device() -> torch.device:
    """Returns the device of the current backend, the CPU without one."""
    return torch.device("cpu") if Backend.current is None else Backend.current.torch_device
